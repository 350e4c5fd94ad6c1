// Package plan reads plans files: who is limited, by what, and where each number comes from.
package plan

import (
	"time"

	"github.com/sluicelimits/sluice/internal/limit"
	"github.com/sluicelimits/sluice/internal/route"
)

// Config is one loaded, valid set of plans, tenants, IP limits, routes and keys. It is immutable and safe for concurrent use.
type Config struct{}

// Problem is one thing that is wrong in a plans file.
type Problem struct {
	File         string
	Line, Column int    // from 1; 0 where the file as a whole is meant
	Path         string // as in plans[0].limits[2].rate
	Message      string
}

// String is "file:line:column: path: message".
func (p Problem) String() string { panic("skeleton") }

// Error is every problem of one load, in file order.
type Error struct{ Problems []Problem }

// Error joins the problems, a line each.
func (e *Error) Error() string { panic("skeleton") }

// Source is one file's name and content.
type Source struct {
	Name string
	Data []byte
}

// Load reads and parses the files as one configuration.
func Load(files ...string) (*Config, error) { panic("skeleton") }

// Parse parses the sources as one configuration. The error is an *Error with all problems at once.
func Parse(sources ...Source) (*Config, error) { panic("skeleton") }

// Tenant returns the tenant with the id.
func (c *Config) Tenant(id string) (*Tenant, bool) { panic("skeleton") }

// Tenants returns all tenants, by id.
func (c *Config) Tenants() []*Tenant { panic("skeleton") }

// Plans returns all plans, in file order.
func (c *Config) Plans() []*Plan { panic("skeleton") }

// Anonymous returns the effective limits for calls without a credential, or nil where there is no anonymousPlan.
func (c *Config) Anonymous() *Set { panic("skeleton") }

// IPLimits returns the limits before authentication; it may be empty, never nil.
func (c *Config) IPLimits() *Set { panic("skeleton") }

// Routed reports whether the request is for a declared route. It is true for all where no routes are declared.
func (c *Config) Routed(method string, path *route.Path) bool { panic("skeleton") }

// Keys returns the API keys that the file holds (local use only).
func (c *Config) Keys() []Key { panic("skeleton") }

// Key is an API key as stored: never the key itself.
type Key struct {
	ID, Tenant, Subject string
	Hash                string // hex of HMAC-SHA256(pepper, key)
	Pepper              string // id of the pepper
	ExpiresAt           time.Time
	Revoked             bool
}

// Plan is a named list of limits.
type Plan struct {
	ID string
}

// Set returns the plan's own limits, without a tenant's overrides.
func (p *Plan) Set() *Set { panic("skeleton") }

// Tenant is who pays and is limited.
type Tenant struct {
	ID, Plan  string
	Suspended bool
}

// Limits returns the tenant's effective limits at now: plan, then overrides, then boosts that are active. It is cheap and
// does not allocate, except at the first call after a boost begins or ends.
func (t *Tenant) Limits(now time.Time) *Set { panic("skeleton") }

// Set is a list of effective limits with their index by route.
type Set struct {
	Limits []*Effective
}

// Effective is one limit as it applies, with where each value comes from.
type Effective struct {
	Limit *limit.Limit
}

// Attributes are what of a request names counters and costs. Funcs may be nil.
type Attributes struct {
	Method  string
	Path    *route.Path
	Subject string // "" is absent
	APIKey  string // id of the key; "" is absent
	IP      string // keyed hash of the source address; "" is absent
	Claim   func(name string) (string, bool)
	Header  func(name string) (string, bool)
}

// AppendCharges appends one charge for each limit that applies to the request (groups resolved, limits that are off left
// out) and returns the slice. It does not allocate when dst has room and no limit is per a list of values.
func (s *Set) AppendCharges(dst []limit.Charge, a *Attributes) []limit.Charge { panic("skeleton") }
