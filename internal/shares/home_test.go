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
