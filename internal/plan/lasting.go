package plan

import (
	"fmt"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// The memory that a process has for the counters of addresses. TestAddressesByDefault of package sluice checks the
// first two numbers against a limiter.
const (
	addressesByDefault = 130_000 // counters of one tier that fit the library's default memory
	addressBytes       = 110     // of each such counter, about

	longLifetime = time.Hour // longer gets a warning: 37 new addresses a second fill the memory in an hour
)

// warnLasting reports a limit of ipLimits whose counters stay in memory for long.
func (r *reader) warnLasting(s *spec, e *Effective) {
	if e.Limit.Mode == limit.Off {
		return
	}
	at, longest := s.from, time.Duration(0)
	for i := range e.Limit.Tiers {
		if d := lifetime(&e.Limit.Tiers[i]); d > longest {
			at, longest = s.tiers[i].from, d
		}
	}
	if longest > longLifetime {
		r.warnAt(at, "the counter of an address stays in memory for up to %s: where addresses are counted in "+
			"memory, %s uses up what the library has for them by default (%d addresses of some %d bytes), and later "+
			"addresses share counters; prefer a shorter period, see ipLimits in docs/plans.md",
			limit.DurationText(longest), pace(longest), addressesByDefault, addressBytes)
	}
}

// pace says how often a new address must come to fill the memory if counters last so long.
func pace(lasts time.Duration) string {
	if n := addressesByDefault / int64(lasts/time.Second); n > 0 {
		return fmt.Sprintf("%d new addresses a second", n)
	}
	return fmt.Sprintf("a new address every %s", limit.DurationText((lasts / addressesByDefault).Round(time.Second)))
}

// lifetime returns how long a counter that was used up differs from an unused one; see [limit.Tier.FreshAt].
func lifetime(t *limit.Tier) time.Duration {
	counting := t.Counting()
	switch {
	case t.Calendar != nil:
		longest, _ := lengths(t)
		return longest
	case counting.Entries: // up to the width of an entry less than the counter's true lifetime
		return t.Period
	default:
		return time.Duration(counting.Lasts) * time.Microsecond
	}
}

// warnPrefix reports a prefix with which one customer has many counters.
func (r *reader) warnPrefix(f field[int]) {
	if more := f.v - DefaultIPv6Prefix; more > 0 {
		r.warnAt(f.from, "a customer has a /%d of IPv6 at least, and with a /%d that is 2^%d counters, each with "+
			"the whole limit", DefaultIPv6Prefix, f.v, more)
	}
}
