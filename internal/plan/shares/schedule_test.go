package shares

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

func mustLimit(t *testing.T, l limit.Limit) *limit.Limit {
	t.Helper()
	out, err := limit.New(l)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// text writes spans in seconds after worldStart, with amounts.
func text(spans []Span) string {
	out := ""
	for _, s := range spans {
		from, amount := "-", "closed"
		if s.From != beginning {
			from = fmt.Sprint(float64(s.From-worldStart) / float64(second))
		}
		if s.Limit != nil {
			t := &s.Limit.Tiers[0]
			if amount = fmt.Sprint(t.Threshold); t.Algorithm == limit.TokenBucket {
				amount += "/" + fmt.Sprint(t.Burst)
			}
		}
		out += from + ": " + amount + "; "
	}
	return out
}

// Guarantees when growth takes effect, for each algorithm: cell a goes from a quarter to half and cell b from three
// quarters to half, at +3.5 s, with clocks that differ by a second.
func TestWhenGrowthCounts(t *testing.T) {
	for _, tc := range []struct {
		tier        limit.Tier
		grows, sink string
	}{
		{limit.Tier{Algorithm: limit.FixedWindow, Period: 10 * time.Second}, "-: 25; 11: 50; ", "-: 50; "},
		{limit.Tier{Algorithm: limit.SlidingWindow, Period: 10 * time.Second}, "-: 25; 21: 50; ", "-: 50; "},
		{limit.Tier{Algorithm: limit.SlidingLog, Period: 10 * time.Second}, "-: 25; 14.5: 50; ", "-: 50; "},
		{limit.Tier{Algorithm: limit.SlidingBuckets, Period: 10 * time.Second, Buckets: 5}, "-: 25; 16.5: 50; ",
			"-: 50; "},
		{limit.Tier{Algorithm: limit.TokenBucket, Period: time.Second, Burst: 200}, "-: 25/50; 8.5: 50/100; ",
			"-: 50/100; "},
		// The limit is homed: both cells ask the home cell for all of it, and nothing changes.
		{limit.Tier{Algorithm: limit.LeakyBucket, Period: 10 * time.Second}, "-: 100; ", "-: 100; "},
	} {
		tc.tier.Threshold = 100
		l := mustLimit(t, limit.Limit{ID: "x", Tiers: []limit.Tier{tc.tier}})
		doc := &Document{Version: Layout, Epoch: 2, Phase: Grow, SkewMicros: second, Members: []string{"a", "b"},
			Generations: []Generation{
				{Epoch: 1, From: always, Cells: []Weight{{"a", 1}, {"b", 3}}},
				{Epoch: 2, From: worldStart + 3*second + second/2, Cells: []Weight{{"a", 1}, {"b", 1}}},
			}}
		// The bucket fills within 2 s. Only 25 per second are held back for 50 more units, which takes 2 s too.
		if tc.tier.Algorithm == limit.TokenBucket {
			tc.grows = "-: 25/50; 8.5: 50/100; "
		}
		name := tc.tier.Algorithm
		if got := text(doc.View("a", "globex", nil).Limit("pro", l, "globex")); got != tc.grows {
			t.Errorf("%s grows: %s, want %s", name, got, tc.grows)
		}
		if got := text(doc.View("b", "globex", nil).Limit("pro", l, "globex")); got != tc.sink {
			t.Errorf("%s shrinks: %s, want %s", name, got, tc.sink)
		}
		if got := text(doc.View("stranger", "globex", nil).Limit("pro", l, "globex")); got != "-: closed; " {
			t.Errorf("%s in a cell that does not serve the tenant: %s, want it closed", name, got)
		}
	}
}

// Guarantees that a cell that is alone grants everything, as does a cell without shares.
func TestWhole(t *testing.T) {
	l := mustLimit(t, limit.Limit{ID: "x", Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Period: time.Second,
		Threshold: 5}}})
	var none *View
	alone := (&Document{SkewMicros: second, Generations: []Generation{{Epoch: 1, From: always,
		Cells: []Weight{{"a", 3}}}}}).View("a", "acme", nil)
	for _, v := range []*View{none, alone} {
		spans := v.Limit("pro", l, "acme")
		if len(spans) != 1 || spans[0].Limit != l {
			t.Errorf("the view %v grants %s, want the whole limit", v, text(spans))
		}
		if _, until := At(spans, worldStart); until != math.MaxInt64 {
			t.Errorf("the span ends at %d, want never", until)
		}
	}
}

// Guarantees that tiers change together if they change at the same time, and that a tier without a share closes the
// limit.
func TestTiers(t *testing.T) {
	doc := &Document{SkewMicros: second, Generations: []Generation{
		{Epoch: 1, From: always, Cells: []Weight{{"b", 1}}},
		{Epoch: 2, From: worldStart, Cells: []Weight{{"a", 1}, {"b", 1}}},
	}}
	l := mustLimit(t, limit.Limit{ID: "x", Tiers: []limit.Tier{
		{Algorithm: limit.FixedWindow, Period: time.Second, Threshold: 10},
		{Algorithm: limit.FixedWindow, Period: time.Minute, Threshold: 100},
	}})
	spans := doc.View("a", "acme", nil).Limit("pro", l, "acme")
	edge := l.Tiers[1].LeaseEnd("acme", worldStart-1) + second
	if len(spans) != 2 || spans[0].Limit != nil || spans[1].From != edge || spans[1].Limit.Tiers[1].Threshold != 50 {
		t.Errorf("the spans are %s, want nothing until the edge, and then 50 units", text(spans))
	}
}

// Guarantees that a quota has one home at a time, and that the home changes only when a period begins, even if the old
// home was drained or removed: another home would count the period from zero and grant its units twice. Around the
// change no cell is asked, so that clocks that differ cannot count one period in two places; and no cell is asked in a
// period whose home is unknown.
func TestQuotaHome(t *testing.T) {
	midnight := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC).UnixMicro()
	doc := &Document{SkewMicros: second, Members: []string{"a", "b"}, Generations: []Generation{
		{Epoch: 1, From: always, Cells: []Weight{{"a", 1}}},
		{Epoch: 2, From: midnight - 3600*second, Cells: []Weight{{"b", 1}}},
	}}
	q := mustLimit(t, limit.Limit{ID: "q", Tiers: []limit.Tier{
		{Algorithm: limit.Quota, Threshold: 10, Calendar: &limit.Calendar{Every: limit.Day, Location: time.UTC}},
	}})
	home := func(at int64) string { return doc.View("a", "acme", nil).QuotaHome(&q.Tiers[0], at) }
	for _, tc := range []struct {
		after int64
		want  string
	}{{-2 * second, "a"}, {-second, ""}, {second - 1, ""}, {second, "b"}} {
		if got := home(midnight + tc.after); got != tc.want {
			t.Errorf("%d µs after the period's start: home %q, want %q", tc.after, got, tc.want)
		}
	}
	doc.Members = []string{"b"}
	if got := home(midnight - 600*second); got != "a" {
		t.Errorf("home %q after the old one was removed, want a until the period ends", got)
	}
	doc.Generations = doc.Generations[1:]
	if got := home(midnight - 600*second); got != "" {
		t.Errorf("home %q in a period that began before the known history, want none", got)
	}
	if got := home(midnight + second); got != "b" {
		t.Errorf("home %q in the period after, want b", got)
	}
	doc.Generations[0].HomeFrom = always
	if got := home(midnight - 600*second); got != "b" {
		t.Errorf("home %q after dropping generations with the same cells, want b", got)
	}
	if got := text(doc.View("b", "acme", nil).Limit("pro", q, "acme")); got != "-: 10; " {
		t.Errorf("a quota is granted as %s, want it whole", got)
	}
}
