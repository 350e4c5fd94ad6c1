package resilience_test

import (
	"context"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
)

// mostNested is the number of stores that a decision may pass through: fallback limiter, lease layer, router, driver.
// With more, a decision would be hard to follow.
const mostNested = 4

// traced is a driver that records the stores through which a decision came to it.
type traced struct {
	*fake
	through []string // the types whose method Decide called the next one, from the outermost
}

func (s *traced) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if req.Owner == acme {
		s.through = decidersOnTheStack()
	}
	return s.fake.Decide(ctx, req, now, d)
}

// decidersOnTheStack returns the receivers of the methods on the stack that are called Decide and belong to a
// [limit.Store].
func decidersOnTheStack() []string {
	var callers [64]uintptr
	frames := runtime.CallersFrames(callers[:runtime.Callers(1, callers[:])])
	var found []string
	for more := true; more; {
		var frame runtime.Frame
		frame, more = frames.Next()
		receiver, isDecide := strings.CutSuffix(frame.Function, ".Decide")
		// guards are not stores
		if isDecide && !strings.HasSuffix(receiver, ".(*guard)") && !strings.HasSuffix(receiver, ".(*home)") {
			found = append(found, receiver[strings.LastIndexByte(receiver, '/')+1:])
		}
	}
	slices.Reverse(found)
	return found
}

// wrapper is one store too many.
type wrapper struct{ limit.Store }

func (w *wrapper) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	return w.Store.Decide(ctx, req, now, d)
}

// Guarantees that a decision passes through at most four stores, whatever the chain consists of, and that the test
// would find a fifth.
func TestADecisionPassesThroughAtMostFourStores(t *testing.T) {
	quota, far := monthly(t, "quota", 100), monthly(t, "far", 100).KeptIn("us")
	for name, c := range map[string]struct {
		change func(*resilience.ChainConfig)
		limits []*limit.Limit
		want   int
	}{
		"leases, three stores": {func(*resilience.ChainConfig) {}, []*limit.Limit{far, quota, hourly(t, "rate", 100)},
			mostNested},
		"one store": {func(c *resilience.ChainConfig) { c.Quotas, c.Homes = resilience.NamedStore{}, nil },
			[]*limit.Limit{hourly(t, "rate", 100)}, mostNested},
		"no leases": {func(c *resilience.ChainConfig) { c.NoLeases = true },
			[]*limit.Limit{far, quota, hourly(t, "rate", 100)}, mostNested - 1},
		"a store in a wrapper": {func(c *resilience.ChainConfig) { c.Rates.Store = &wrapper{c.Rates.Store} },
			[]*limit.Limit{hourly(t, "rate", 100)}, mostNested + 1},
	} {
		driver := &traced{fake: newFake(t)}
		config := resilience.ChainConfig{
			Rates: resilience.NamedStore{Name: "rates", Store: driver}, Quotas: resilience.NamedStore{Name: "quotas",
				Store: newFake(t)},
			Cell: "eu", Homes: map[string]resilience.NamedStore{"us": {Name: "us", Store: newFake(t)}}, Frozen: true,
			Log: slog.New(slog.DiscardHandler),
		}
		c.change(&config)
		chain, err := resilience.NewChain(config)
		if err != nil {
			t.Fatal(err)
		}
		var d limit.Decision
		if err := chain.Decide(t.Context(), newRequest(acme, c.limits...), time.Now(), &d); err != nil || !d.Allowed ||
			d.Degraded {
			t.Fatalf("%s: allowed %t, degraded %t, %v; want it allowed by the store", name, d.Allowed, d.Degraded, err)
		}
		if len(driver.through) != c.want {
			t.Errorf("%s: a decision passes through %d stores, want %d: %s", name, len(driver.through), c.want,
				strings.Join(driver.through, " → "))
		}
		closeChain(t, chain)
	}
}
