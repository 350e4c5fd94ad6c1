package shares

import (
	"bytes"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// seeds adds states and placements of every phase.
func seeds(f *testing.F) {
	f.Helper()
	d := &desk{t: f, now: noon}
	add := func() {
		f.Add(mustJSON(f, d.state))
		for i := range d.out.Store {
			f.Add(mustJSON(f, d.out.Store[i]))
		}
	}
	d.step(Input{Requests: []Request{{Kind: Join, Cell: "a", Weight: 1}, {Kind: Join, Cell: "b", Weight: 7}}})
	add()
	d.step(Input{Requests: []Request{{Kind: Drain, Cell: "a"}, {Kind: Place, Tenant: "acme", Cells: []string{"b"},
		Homed: []string{"x"}}}})
	d.step(Input{Requests: []Request{{Kind: Place, Tenant: "acme", Cells: []string{"b"}},
		{Kind: Join, Cell: "c", Weight: 2}}})
	add()
	d.acknowledge(Shrink, 2, d.state.Awaited()...)
	d.now = d.out.Wake
	d.step(Input{})
	add()
	f.Add([]byte(`{"version":2,"epoch":1,"phase":"steady","skew_us":0,"members":[],"generations":[]}`))
}

// FuzzDocument guarantees that every state that is read is written unchanged, and that no view of its document panics
// or gives all cells together more than the limit at any time.
func FuzzDocument(f *testing.F) {
	seeds(f)
	l, err := limit.New(limit.Limit{ID: "x", Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Period: time.Second,
		Threshold: 101}}})
	if err != nil {
		f.Fatal(err)
	}
	bucket, err := limit.New(limit.Limit{ID: "y",
		Tiers: []limit.Tier{{Algorithm: limit.TokenBucket, Period: time.Second, Threshold: 101, Burst: 1003}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := DecodeState(text)
		if err != nil {
			return
		}
		again, err := DecodeState(mustJSON(t, s))
		if err != nil || !bytes.Equal(mustJSON(t, again), mustJSON(t, s)) {
			t.Fatalf("%s comes back as %v, %v", text, again, err)
		}
		d := s.Document()
		if d == nil || len(d.Generations) > 8 {
			return
		}
		ids := map[string]bool{}
		for _, g := range d.Generations {
			for _, w := range g.Cells {
				ids[w.Cell] = true
			}
		}
		for _, l := range []*limit.Limit{l, bucket} {
			all, edges := map[string][]Span{}, []int64{beginning}
			for id := range ids {
				all[id] = d.View(id, "acme", nil).Limit("pro", l, "acme")
				for _, s := range all[id] {
					edges = append(edges, s.From)
				}
			}
			for _, edge := range edges {
				sum := amount{}
				for _, spans := range all {
					if in, _ := At(spans, edge); in.Limit != nil {
						a := amountOf(&in.Limit.Tiers[0])
						sum.threshold, sum.burst = sum.threshold+a.threshold, sum.burst+a.burst
					}
				}
				if most := amountOf(&l.Tiers[0]); sum.threshold > most.threshold || sum.burst > most.burst {
					t.Fatalf("%s: the cells together have %+v, want at most %+v", text, sum, most)
				}
			}
		}
	})
}

// FuzzState guarantees that a step from any state that is read does not panic, and makes a state that can be read.
func FuzzState(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := DecodeState(text)
		if err != nil {
			return
		}
		in := Input{Placements: map[string]*Placement{"acme": nil},
			Requests: []Request{{ID: "new", Kind: Join, Cell: "z", Weight: 3}}}
		for range 4 {
			next, _ := s.Step(Settings{}, in, noon)
			if s, err = DecodeState(mustJSON(t, next)); err != nil {
				t.Fatalf("the state %s is followed by %s, which cannot be decoded: %v", text, mustJSON(t, next), err)
			}
			in = Input{}
			for _, cell := range next.Awaited() {
				in.Acks = append(in.Acks, Ack{Cell: cell, Epoch: next.Epoch, Phase: next.Phase})
			}
		}
	})
}

// FuzzPlacement guarantees that a placement that is read is written unchanged and can be used in a view.
func FuzzPlacement(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := DecodePlacement(text)
		if err != nil {
			return
		}
		again, err := DecodePlacement(mustJSON(t, p))
		if err != nil || !bytes.Equal(mustJSON(t, again), mustJSON(t, p)) {
			t.Fatalf("%s comes back as %v, %v", text, again, err)
		}
		d := &Document{Version: Layout, Epoch: 9, Phase: Steady,
			Generations: []Generation{{Epoch: 3, From: always, Cells: []Weight{{"a", 1}}}}}
		if home := d.View("a", p.Tenant, p).Home(); home != "" && home != "a" {
			t.Fatalf("the home is %q, want the cell that serves the tenant, or none", home)
		}
	})
}
