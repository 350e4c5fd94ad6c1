// Package plan reads plans files. A plans file says who is limited and by which limits; the package keeps, for each
// setting, the place in the file that it comes from.
//
// A file is read strictly and as a whole. If anything is wrong with it, the reader reports every problem at once, each
// with its place, and returns no configuration. A configuration is immutable. Package configfile reads the text and
// reports unknown keys; this package says which keys there are, and what their values mean.
//
// Package route matches requests to the patterns of a plan, and package shares divides a limit between cells.
package plan

import (
	"time"

	"github.com/sluicelimits/sluice/internal/configfile"
)

// IPv6 addresses are counted by their network. These are the lengths of its prefix, in bits.
const (
	DefaultIPv6Prefix = 64  // the smallest network that a provider gives to one customer
	MinIPv6Prefix     = 32  // the network that a provider usually has
	MaxIPv6Prefix     = 128 // counts each address by itself
)

// Config is one loaded, valid set of plans, tenants, IP limits, routes and keys. It is immutable and safe for
// concurrent use.
type Config struct {
	Settings
	files     []File
	plans     []*Plan
	tenants   []*Tenant // sorted by id
	byID      map[string]*Tenant
	anonymous *Plan // the plan of Settings.AnonymousPlan
	keys      []Key
	warnings  []Problem
}

// File counts what one source holds.
type File struct {
	Name     string `json:"file"`
	Plans    int    `json:"plans"`
	Limits   int    `json:"limits"` // in all plans of the file
	SLAs     int    `json:"slas"`
	Tenants  int    `json:"tenants"`
	IPLimits int    `json:"ip_limits"`
	Routes   int    `json:"routes"`
	Keys     int    `json:"keys"`
}

// Files counts what each source holds, in the order in which the sources were given.
func (c *Config) Files() []File { return c.files }

// Warnings returns the settings that are valid but cannot do what they seem to do, in file order: a tier that can
// never deny because another tier of its limit denies first, a default cost above what a limit can ever hold, a limit
// that another spelling of a request avoids.
func (c *Config) Warnings() []Problem { return c.warnings }

// Tenant returns the tenant with the id, and whether there is one.
func (c *Config) Tenant(id string) (*Tenant, bool) {
	t, ok := c.byID[id]
	return t, ok
}

// Tenants returns all tenants, sorted by id.
func (c *Config) Tenants() []*Tenant { return c.tenants }

// Plans returns all plans, in file order. The plan made of the SLA form has the place of the first list of SLAs.
func (c *Config) Plans() []*Plan { return c.plans }

// Anonymous returns the effective limits of calls without a credential, or nil if there is no anonymousPlan.
func (c *Config) Anonymous() *Set {
	if c.anonymous == nil {
		return nil
	}
	return c.anonymous.set
}

// Keys returns the API keys that the file holds (local use only).
func (c *Config) Keys() []Key { return c.keys }

// Key is an API key as it is stored: its hash, never the key itself.
type Key struct {
	ID, Tenant, Subject string
	Hash                string    // hex of HMAC-SHA256(pepper, key)
	Pepper              string    // id of the pepper
	ExpiresAt           time.Time // zero: never expires
	Revoked             bool
}

// Plan is a named list of limits.
type Plan struct {
	ID string

	set *Set
	ids []string       // the ids of the limits, in file order
	at  map[string]int // the index in ids of each id
}

// Set returns the plan's own limits, without a tenant's overrides.
func (p *Plan) Set() *Set { return p.set }

// find returns the index of the limit with the id, or -1.
func (p *Plan) find(id string) int {
	if i, ok := p.at[id]; ok {
		return i
	}
	return -1
}

// Tenant is a customer with a plan.
type Tenant struct {
	ID, Plan  string
	Suspended bool
	Cells     []string // ids of the cells that serve the tenant; empty: all cells
	File      string   // where the tenant is defined
	Line      int

	spans []span // in ascending order; the first begins at math.MinInt64
}

// NearestTenant returns the id of the tenant that the caller probably meant by an unknown id, or "" if none is
// similar.
func (c *Config) NearestTenant(id string) string {
	ids := make([]string, len(c.tenants))
	for i, t := range c.tenants {
		ids[i] = t.ID
	}
	return NearestID(id, ids)
}

// NearestID returns the one of ids that the caller probably meant by an unknown id, or "" if none is similar.
func NearestID(id string, ids []string) string { return configfile.Nearest(id, ids) }
