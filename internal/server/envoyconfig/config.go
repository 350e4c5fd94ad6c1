// Package envoyconfig reads the configuration files of envoyproxy/ratelimit, and finds the limit of a descriptor as
// that server does.
//
// A file has a domain and a tree of descriptors. [Load] accepts and refuses what envoyproxy/ratelimit does, with the
// same texts. [Config.Match] walks the tree along the entries of a request's descriptor. At each level it takes the
// first that exists: the descriptor with this key and value; the first wildcard, in the order of the file, that matches
// key and value; the descriptor with this key and no value. It never goes back to try another branch. The limit applies
// only if it is found at the request's last entry.
//
// Keys and values are compared as envoyproxy/ratelimit does: joined by "_". A descriptor with the key "a" and the value
// "b_c" is therefore the same as one with the key "a_b" and the value "c", in a file and in a request. Counters are
// kept apart nevertheless, see [AppendKey].
//
// The key "sluice" of a descriptor, and of a file, holds what envoyproxy/ratelimit has no words for, see [extension]
// and [Mapping].
package envoyconfig

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Unit is the length of a limit's window.
type Unit uint8

// The units. Unknown is the unit of a rule that has no window of its own: one that is unlimited, or has only limits
// of the key "sluice".
const (
	Unknown Unit = iota
	Second
	Minute
	Hour
	Day
	Month // 30 days
	Year  // 365 days
	Week
)

const day = 24 * time.Hour

// units are the names and lengths, by the number that Envoy's protocol has for the unit.
var units = [...]struct {
	name   string
	length time.Duration
}{
	{"UNKNOWN", 0}, {"SECOND", time.Second}, {"MINUTE", time.Minute}, {"HOUR", time.Hour}, {"DAY", day},
	{"MONTH", 30 * day}, {"YEAR", 365 * day}, {"WEEK", 7 * day},
}

// String is the name that Envoy's protocol has for the unit, such as "SECOND".
func (u Unit) String() string {
	if int(u) < len(units) {
		return units[u].name
	}
	return fmt.Sprintf("UNIT(%d)", u)
}

// Length is how long a window of the unit is; 0 for Unknown and for a number that is no unit.
func (u Unit) Length() time.Duration {
	if int(u) < len(units) {
		return units[u].length
	}
	return 0
}

// UnitOf returns the unit whose windows have this length, or Unknown.
func UnitOf(length time.Duration) Unit {
	for u := Second; int(u) < len(units); u++ {
		if units[u].length == length {
			return u
		}
	}
	return Unknown
}

// parseUnit returns the unit of a name in any case. It reports false for a name that no limit can have.
func parseUnit(name string) (Unit, bool) {
	for u := Second; int(u) < len(units); u++ {
		if units[u].name == strings.ToUpper(name) {
			return u, true
		}
	}
	return Unknown, false
}

// WindowID is the ID of the limits that count the windows of rate_limit. It is the same for all of them, so that a
// counter is told by the entries of the request and the length of the window alone, as in envoyproxy/ratelimit.
const WindowID = "rate_limit"

// NewWindow returns the limit that counts windows of the unit. requestsPerUnit must be above 0.
func NewWindow(requestsPerUnit uint32, unit Unit, exact bool, onFailure limit.FailurePolicy) (*limit.Limit, error) {
	return limit.New(limit.Limit{
		ID: WindowID, Exact: exact, OnStoreFailure: onFailure,
		Tiers: []limit.Tier{{
			Algorithm: limit.FixedWindow, Threshold: int64(requestsPerUnit), Period: unit.Length(),
		}},
	})
}

// Rule is what a descriptor of the file says about the requests that match it.
type Rule struct {
	Path string // domain and composite keys of the descriptor's levels, as in "api.tenant_acme.path"
	Name string // for Replaces of other rules; "" if it has none

	RequestsPerUnit uint32 // 0 denies everything
	Unit            Unit   // Unknown if there is no window
	Unlimited       bool   // admits everything, and counts nothing
	ShadowMode      bool   // is counted, and never denies
	QuotaMode       bool   // denies only if all rules of the request with QuotaMode deny
	DetailedMetric  bool
	Replaces        []string         // names of rules that do not apply if this one does
	Metadata        *structpb.Struct // for the answer's dynamic metadata; nil if there is none

	// Limits are what is counted: the window, unless it is Unlimited or denies everything, and the limits of the key
	// "sluice". All of them must admit.
	Limits []*limit.Limit

	// CountDenied counts each request, also one that is denied, as envoyproxy/ratelimit does.
	CountDenied bool

	domainBytes int // of Path, the dot included
}

// PolicyName names the rule for clients: its path without the domain.
func (r *Rule) PolicyName() string { return r.Path[min(r.domainBytes, len(r.Path)):] }

// DeniesAll reports whether the rule has room for no hit at all.
func (r *Rule) DeniesAll() bool { return !r.Unlimited && r.Unit != Unknown && r.RequestsPerUnit == 0 }

// Config is the content of configuration files. It is immutable. Make it with [Load].
type Config struct {
	domains  map[string]*node
	warnings []string
	rules    int
}

// node is one level of a tree of descriptors: a domain or a descriptor.
type node struct {
	key       string // the composite key: key, or key_value
	path      string // see Rule.Path
	children  map[string]*node
	order     []*node // of the children, as in the file
	wildcards []wildcard
	rule      *Rule    // nil if the descriptor has no limit
	mapping   *Mapping // of a domain; nil if it has none

	valueToMetric  bool
	shareThreshold bool // the key is a wildcard, and all that it matches share one counter
}

// wildcard is a child whose composite key has at least one "*".
type wildcard struct {
	parts []string // what stands between the stars
	node  *node
}

// matches reports whether text is the parts in their order with anything between them, and begins and ends with the
// first and the last one.
func (w *wildcard) matches(text string) bool {
	last := len(w.parts) - 1
	rest, ok := strings.CutPrefix(text, w.parts[0])
	if !ok {
		return false
	}
	if rest, ok = strings.CutSuffix(rest, w.parts[last]); !ok {
		return false
	}
	for _, part := range w.parts[1:last] {
		if _, rest, ok = strings.Cut(rest, part); !ok {
			return false
		}
	}
	return true
}

// Warnings says what is allowed in the files and has no effect, one line each.
func (c *Config) Warnings() []string { return c.warnings }

// Domains are the names of the domains, sorted.
func (c *Config) Domains() []string {
	names := make([]string, 0, len(c.domains))
	for name := range c.domains {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// HasDomain reports whether a file is for the domain.
func (c *Config) HasDomain(domain string) bool { return c.domains[domain] != nil }

// Rules is how many limits there are.
func (c *Config) Rules() int { return c.rules }

// Dump lists the limits, one line each, as envoyproxy/ratelimit does on its debug port.
func (c *Config) Dump() string {
	var b strings.Builder
	for _, name := range c.Domains() {
		c.domains[name].dump(&b)
	}
	return b.String()
}

func (n *node) dump(b *strings.Builder) {
	if r := n.rule; r != nil {
		fmt.Fprintf(b, "%s: unit=%s requests_per_unit=%d, shadow_mode: %t, quota_mode: %t\n",
			r.Path, r.Unit, r.RequestsPerUnit, r.ShadowMode, r.QuotaMode)
	}
	for _, child := range n.order {
		child.dump(b)
	}
}

// EachRule calls f for every rule, in the order of domains and files.
func (c *Config) EachRule(f func(*Rule)) {
	for _, name := range c.Domains() {
		c.domains[name].eachRule(f)
	}
}

func (n *node) eachRule(f func(*Rule)) {
	if n.rule != nil {
		f(n.rule)
	}
	for _, child := range n.order {
		child.eachRule(f)
	}
}
