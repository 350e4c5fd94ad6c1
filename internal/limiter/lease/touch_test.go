package lease

import (
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
)

// TestTouch guarantees that Touch finds the owners that a store holds, and no others, and changes nothing.
func TestTouch(t *testing.T) {
	next, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{Store: next, GiveBackEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	l, err := limit.New(limit.Limit{ID: "requests", Tiers: []limit.Tier{{Algorithm: limit.FixedWindow,
		Period: time.Minute, Threshold: 1000}}})
	if err != nil {
		t.Fatal(err)
	}
	known, unknown := limit.Owner{Kind: limit.Tenant, Name: "acme"}, limit.Owner{Kind: limit.Tenant, Name: "globex"}
	req := limit.Request{Owner: known, Charges: []limit.Charge{{Limit: l, Cost: 1}}}
	var d limit.Decision
	if err := s.Decide(t.Context(), &req, time.Unix(1_800_000_000, 0), &d); err != nil {
		t.Fatal(err)
	}
	before := s.Stats()
	all := []Touched{{Store: s, Hash: s.Hash(known)}, {Store: s, Hash: s.Hash(unknown)}}
	Touch(all)
	if all[0].found == nil || all[0].found.owner != known || all[1].found != nil {
		t.Errorf("Touch found %+v for the known owner and %+v for the unknown one, want the known owner and nil",
			all[0].found, all[1].found)
	}
	if after := s.Stats(); after != before {
		t.Errorf("Touch changed the stats from %+v to %+v, want no change", before, after)
	}
}
