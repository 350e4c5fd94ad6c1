// Package envoyconfig finds the rule that applies to a descriptor of a rate limit request, as envoyproxy/ratelimit
// does. It reads that server's configuration files, which hold the rules.
//
// A file has a domain and a tree of descriptors. [Load] accepts and refuses what envoyproxy/ratelimit does, with the
// same texts. [Config.Match] walks the tree along the entries of a request's descriptor. At each level it takes the
// first that exists: the descriptor with this key and value; the first wildcard, in the order of the file, that matches
// key and value; the descriptor with this key and no value. It never goes back to try another branch. The limit applies
// only if it is found at the request's last entry.
//
// Keys and values are compared as envoyproxy/ratelimit does: joined by "_". A descriptor with the key "a" and the value
// "b_c" is therefore the same as one with the key "a_b" and the value "c", in a file and in a request. Counters are
// kept apart nevertheless, see [AppendKey]. The key "sluice" of a descriptor, and of a file, holds the settings that
// envoyproxy/ratelimit does not have, see [extension] and [Mapping].
package envoyconfig

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
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

// units holds the name and length of each unit, by its number in Envoy's protocol.
var units = [...]struct {
	name   string
	length time.Duration
}{
	{"UNKNOWN", 0}, {"SECOND", time.Second}, {"MINUTE", time.Minute}, {"HOUR", time.Hour}, {"DAY", day},
	{"MONTH", 30 * day}, {"YEAR", 365 * day}, {"WEEK", 7 * day},
}

// String returns the name of the unit in Envoy's protocol, such as "SECOND".
func (u Unit) String() string {
	if int(u) < len(units) {
		return units[u].name
	}
	return fmt.Sprintf("UNIT(%d)", u)
}

// Length returns the length of a window of the unit, or 0 for Unknown and for a number that is not a unit.
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

// parseUnit returns the unit with the name, in lower or upper case. It reports false for any other name.
func parseUnit(name string) (Unit, bool) {
	for u := Second; int(u) < len(units); u++ {
		if units[u].name == strings.ToUpper(name) {
			return u, true
		}
	}
	return Unknown, false
}

// WindowID is the ID of every limit that counts the windows of a rate_limit. All have the same ID, so that only the
// entries of the request and the length of the window identify a counter, as in envoyproxy/ratelimit.
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

// Rule holds the settings of a descriptor of a file for the requests that match it.
type Rule struct {
	Path string // the domain and the composite keys of the descriptor's levels, as in "api.tenant_acme.path"
	Name string // by which Replaces of other rules refers to it; "" if it has none

	RequestsPerUnit uint32 // 0 denies everything
	Unit            Unit   // Unknown if there is no window
	Unlimited       bool   // admits everything, and counts nothing
	ShadowMode      bool   // is counted, and never denies
	QuotaMode       bool   // denies only if all rules of the request with QuotaMode deny
	DetailedMetric  bool
	Replaces        []string         // names of rules that do not apply if this one does
	Metadata        *structpb.Struct // for the dynamic metadata of the response; nil if there is none

	// Limits holds the limit of the window, unless the rule is Unlimited or denies everything, and the limits of the
	// key "sluice". All of them must admit a request.
	Limits []*limit.Limit

	// CountDenied charges the hits of every request, also of a denied one, as envoyproxy/ratelimit does. CountAdmitted
	// charges those of admitted requests only, whatever requests with 0 hits suggest, see NoteQuery.
	CountDenied, CountAdmitted bool

	queried atomic.Bool // see NoteQuery

	domainBytes int // length of the domain in Path, the dot included
}

// PolicyName returns the name of the rule that clients see: its path without the domain.
func (r *Rule) PolicyName() string { return r.Path[min(r.domainBytes, len(r.Path)):] }

// DeniesAll reports whether the rule denies every hit.
func (r *Rule) DeniesAll() bool { return !r.Unlimited && r.Unit != Unknown && r.RequestsPerUnit == 0 }

// NoteQuery notes that a request with 0 hits has asked for the rule. Such requests come where hits are reported when
// they are over, such as the tokens of a language model. A report that does not fit must count nevertheless, or the
// limit would never be reached. NoteQuery returns true if CountsDenied has changed.
func (r *Rule) NoteQuery() bool {
	return !r.CountDenied && !r.CountAdmitted && !r.queried.Load() && !r.queried.Swap(true)
}

// CountsDenied reports whether the hits of denied requests are charged, too.
func (r *Rule) CountsDenied() bool { return r.CountDenied || r.queried.Load() }

// KeepQueries copies from an earlier configuration what NoteQuery has noted of rules with the same path.
func (c *Config) KeepQueries(earlier *Config) {
	queried := map[string]bool{}
	earlier.EachRule(func(r *Rule) { queried[r.Path] = r.queried.Load() })
	c.EachRule(func(r *Rule) { r.queried.Store(queried[r.Path] && !r.CountAdmitted) })
}

// CheckNegativeHits returns an error if hits cannot be given back to one of the rule's limits.
func (r *Rule) CheckNegativeHits() error {
	for _, l := range r.Limits {
		for i := range l.Tiers {
			if t := &l.Tiers[i]; t.Leasing().Refills || t.Counting().Entries {
				return fmt.Errorf("hits cannot be given back to the limit %s: it is a %s, which does not know "+
					"which of the hits still count", l.ID, t.Algorithm)
			}
		}
	}
	return nil
}

// Config holds the content of configuration files. It is immutable, except for [Rule.NoteQuery]. Create it with [Load].
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
	order     []*node // the children, in the order of the file
	wildcards []wildcard
	rule      *Rule    // nil if the descriptor has no limit
	mapping   *Mapping // of a domain; nil if it has none

	valueToMetric  bool
	shareThreshold bool // the key is a wildcard, and all values that it matches share one counter
}

// wildcard is a child whose composite key has at least one "*".
type wildcard struct {
	parts []string // the texts around the stars
	node  *node
}

// matches reports whether text begins with the first part, ends with the last one, and has the others in between, in
// their order.
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

// Warnings lists the keys of the files that are allowed but have no effect, one text for each.
func (c *Config) Warnings() []string { return c.warnings }

// Domains returns the names of the domains, sorted.
func (c *Config) Domains() []string {
	names := make([]string, 0, len(c.domains))
	for name := range c.domains {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Rules returns the number of rules.
func (c *Config) Rules() int { return c.rules }

// Dump lists the rules, one line each, as envoyproxy/ratelimit does on its debug port. What that program does not know
// or does not list follows on the line: unlimited, share_threshold, and the settings of the key "sluice". A mapping has
// a line of its own.
func (c *Config) Dump() string {
	var b strings.Builder
	for _, name := range c.Domains() {
		d := c.domains[name]
		if m := d.mapping; m != nil {
			fmt.Fprintf(&b, "%s: sluice: mapping: tenant=%q subject=%q method=%q path=%q address=%q\n", name, m.Tenant,
				m.Subject, m.Method, m.Path, m.Address)
		}
		d.dump(&b)
	}
	return b.String()
}

// dumpLimits lists the limits of the key "sluice".
func (r *Rule) dumpLimits(b *strings.Builder) {
	for _, l := range r.Limits {
		if l.ID == WindowID {
			continue
		}
		fmt.Fprintf(b, ", sluice: limit %s:", l.ID)
		for i := range l.Tiers {
			t := &l.Tiers[i]
			fmt.Fprintf(b, " %s of %d", t.Algorithm, t.Capacity())
			if t.Calendar != nil {
				fmt.Fprintf(b, " each %s", t.Calendar)
			} else {
				fmt.Fprintf(b, " in %s", t.Period)
			}
		}
	}
}

func (n *node) dump(b *strings.Builder) {
	if r := n.rule; r != nil {
		fmt.Fprintf(b, "%s: ", r.Path)
		if r.Unit != Unknown || r.Unlimited {
			fmt.Fprintf(b, "unit=%s requests_per_unit=%d, ", r.Unit, r.RequestsPerUnit)
		}
		fmt.Fprintf(b, "shadow_mode: %t, quota_mode: %t", r.ShadowMode, r.QuotaMode)
		for _, set := range []struct {
			on   bool
			text string
		}{{r.Unlimited, "unlimited: true"}, {n.shareThreshold, "share_threshold: true"},
			{r.CountDenied, "sluice: countDenied: true"}, {r.CountAdmitted, "sluice: countDenied: false"}} {
			if set.on {
				b.WriteString(", " + set.text)
			}
		}
		r.dumpLimits(b)
		b.WriteString("\n")
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
