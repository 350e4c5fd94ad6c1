package shares

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limit"
)

// Guarantees that the spans of a quota say at each time what QuotaHome says, through joins, drains and removals: a quota that is
// counted in two cells at once is granted twice. Also that views of one key give the same spans.
func TestQuotaSpans(t *testing.T) {
	made, err := limit.New(limit.Limit{ID: "day", Tiers: []limit.Tier{{Algorithm: limit.Quota, Threshold: 10,
		Calendar: &limit.Calendar{Every: limit.Day, Location: time.UTC}}}})
	if err != nil {
		t.Fatal(err)
	}
	tier := &made.Tiers[0]
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		d := &desk{t: t, now: time.UnixMicro(worldStart)}
		change := func(request Request) {
			d.step(Input{Requests: []Request{request}})
			if d.state.Transition != nil {
				d.through()
			}
		}
		cells := []string{"a", "b", "c", "d"}
		for i, cell := range cells {
			change(Request{Kind: Join, Cell: cell, Weight: int64(1 + r.IntN(3))})
			d.now = d.now.Add(time.Duration(r.IntN(40)) * time.Hour)
			if i == 2 {
				change(Request{Kind: Drain, Cell: "a"})
				change(Request{Kind: Remove, Cell: "a"})
			}
		}
		doc := d.state.Document()
		byKey := map[Key][]HomeSpan{}
		for _, tenant := range []string{"t1", "t2", "t3", "t4", "t5"} {
			here := make(map[int64]int)
			for _, cell := range cells {
				v := doc.View(cell, tenant, nil)
				spans := v.QuotaSpans(tier)
				for range 200 {
					at := worldStart + r.Int64N(300*3600*second)
					in := spans[0]
					for _, s := range spans {
						if s.From <= at {
							in = s
						}
					}
					if want := v.QuotaHome(tier, at); in.Home != want {
						t.Fatalf("seed %d: %s in %s at +%d s: %q, want %q", seed, tenant, cell, (at-worldStart)/second, in.Home, want)
					}
				}
				for at := worldStart; at < worldStart+300*3600*second; at += 1800 * second {
					if v.QuotaHome(tier, at) == cell {
						here[at]++
					}
				}
				if cell != "b" {
					continue
				}
				k, ok := v.Key()
				if !ok {
					t.Fatal("no key without a placement")
				}
				if before, twice := byKey[k]; twice && len(before) != len(spans) {
					t.Errorf("views of one key have spans %v and %v", before, spans)
				}
				byKey[k] = spans
			}
			for at, n := range here {
				if n > 1 {
					t.Fatalf("seed %d: the quota of %s is in %d cells at +%d s", seed, tenant, n, (at-worldStart)/second)
				}
			}
		}
	}
}

// Guarantees that quotas go on after more changes of weights than a document holds, since those move nobody's home, and that after a
// change of the cells which was dropped nobody is asked in periods that began before it: who kept them is not known any more.
func TestQuotasOutliveOldGenerations(t *testing.T) {
	made, err := limit.New(limit.Limit{ID: "year", Tiers: []limit.Tier{{Algorithm: limit.Quota, Threshold: 10,
		Calendar: &limit.Calendar{Every: limit.Year, Location: time.UTC}}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, grows := range []bool{false, true} {
		d := two(t)
		first := ""
		for i := range int64(MaxGenerations + 10) {
			request := Request{Kind: Weigh, Cell: "b", Weight: 2 + i}
			if grows && i == 2 {
				request = Request{Kind: Join, Cell: "c", Weight: 1}
			}
			d.step(Input{Requests: []Request{request}})
			d.through()
			if i == 0 {
				first = d.state.Document().View("a", "acme", nil).QuotaHome(&made.Tiers[0], d.now.UnixMicro())
			}
		}
		doc := d.state.Document()
		if doc.Generations[0].From == always || first == "" {
			t.Fatalf("no generation was dropped, or %q is no home", first)
		}
		want := first
		if grows {
			want = ""
		}
		v := doc.View("a", "acme", nil)
		if got := v.QuotaHome(&made.Tiers[0], d.now.UnixMicro()); got != want {
			t.Errorf("with another cell %t: home %q, want %q", grows, got, want)
		}
		next := d.now.AddDate(1, 0, 0).UnixMicro()
		if got := v.QuotaHome(&made.Tiers[0], next); got != v.Home() {
			t.Errorf("with another cell %t: home %q in the period after, want %q", grows, got, v.Home())
		}
		text := mustJSON(t, d.state)
		if back, err := DecodeState(text); err != nil || back.Document().View("a", "acme", nil).QuotaHome(&made.Tiers[0], d.now.UnixMicro()) != want {
			t.Errorf("with another cell %t: what is stored says another thing: %v", grows, err)
		}
	}
}
