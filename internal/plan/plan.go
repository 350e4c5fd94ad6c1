// Package plan reads plans files: who is limited, by what, and where each number comes from.
//
// A file is read strictly and as a whole: every problem is reported at once, with its place, and a configuration comes
// out only where there is none. What comes out is immutable.
//
// Below it, package route matches requests to the patterns of a plan, and package shares divides a limit between cells.
package plan

import (
	"time"

	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/plan/route"
)

// The prefix of IPv6 networks that are counted as one address, in bits.
const (
	DefaultIPv6Prefix = 64  // the network that one customer has at least
	MinIPv6Prefix     = 32  // the network that a provider has, as a rule
	MaxIPv6Prefix     = 128 // each address by itself
)

// Config is one loaded, valid set of plans, tenants, IP limits, routes and keys. It is immutable and safe for
// concurrent use.
type Config struct {
	files     []File
	plans     []*Plan
	tenants   []*Tenant // by id
	byID      map[string]*Tenant
	anonymous *Plan
	ipLimits  *Set
	prefix    int
	routes    *route.Index // nil where none are declared
	keys      []Key
	warnings  []Problem
}

// File says what one source held.
type File struct {
	Name     string `json:"file"`
	Plans    int    `json:"plans"`
	Limits   int    `json:"limits"` // of its plans
	SLAs     int    `json:"slas"`
	Tenants  int    `json:"tenants"`
	IPLimits int    `json:"ip_limits"`
	Routes   int    `json:"routes"`
	Keys     int    `json:"keys"`
}

// Files says what each source held, in the order given.
func (c *Config) Files() []File { return c.files }

// Warnings are settings that are valid but cannot do what they seem to, in file order: a tier that another tier of its
// limit always beats, a usual cost above what a limit can ever hold, limits of routes that another spelling of a
// request passes.
func (c *Config) Warnings() []Problem { return c.warnings }

// Tenant returns the tenant with the id.
func (c *Config) Tenant(id string) (*Tenant, bool) {
	t, ok := c.byID[id]
	return t, ok
}

// Tenants returns all tenants, by id.
func (c *Config) Tenants() []*Tenant { return c.tenants }

// Plans returns all plans, in file order; that of the SLA form comes where its list first does.
func (c *Config) Plans() []*Plan { return c.plans }

// Anonymous returns the effective limits for calls without a credential, or nil where there is no anonymousPlan.
func (c *Config) Anonymous() *Set {
	if c.anonymous == nil {
		return nil
	}
	return c.anonymous.set
}

// AnonymousPlan returns the id of the plan for calls without a credential, or "".
func (c *Config) AnonymousPlan() string {
	if c.anonymous == nil {
		return ""
	}
	return c.anonymous.ID
}

// IPLimits returns the limits before authentication; it may be empty, never nil.
func (c *Config) IPLimits() *Set { return c.ipLimits }

// IPv6Prefix returns the length of the prefix, in bits, by which IPv6 addresses are counted:
// MinIPv6Prefix..MaxIPv6Prefix.
func (c *Config) IPv6Prefix() int { return c.prefix }

// Routed reports whether the request is for a declared route. Each way to read the path must be a declared one.
// Routed is true for all requests where no routes are declared.
func (c *Config) Routed(method string, path *route.Path) bool { return routed(c.routes, method, path) }

func routed(routes *route.Index, method string, path *route.Path) bool {
	return routes == nil || routes.MatchesEveryForm(method, path)
}

// Keys returns the API keys that the file holds (local use only).
func (c *Config) Keys() []Key { return c.keys }

// Key is an API key as stored: never the key itself.
type Key struct {
	ID, Tenant, Subject string
	Hash                string    // hex of HMAC-SHA256(pepper, key)
	Pepper              string    // id of the pepper
	ExpiresAt           time.Time // zero is never
	Revoked             bool
}

// Plan is a named list of limits.
type Plan struct {
	ID string

	set *Set
	ids []string
	at  map[string]int
}

// Set returns the plan's own limits, without a tenant's overrides.
func (p *Plan) Set() *Set { return p.set }

// find is the number of the limit with the id, or -1.
func (p *Plan) find(id string) int {
	if i, ok := p.at[id]; ok {
		return i
	}
	return -1
}

// Tenant is who pays and is limited.
type Tenant struct {
	ID, Plan  string
	Suspended bool
	Cells     []string // ids of the cells it is pinned to; empty is all
	File      string   // where it is defined
	Line      int

	spans []span // ascending; the first begins before all time
}

// NearestTenant is the id of a tenant that was probably meant by one that is not there, or "".
func (c *Config) NearestTenant(id string) string {
	ids := make([]string, len(c.tenants))
	for i, t := range c.tenants {
		ids[i] = t.ID
	}
	return configfile.Nearest(id, ids)
}
