package memory

import (
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// TestTouch guarantees that Touch finds the records that a store holds, and no others, and changes nothing.
func TestTouch(t *testing.T) {
	s, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := limit.New(limit.Limit{ID: "requests", Tiers: []limit.Tier{{Algorithm: limit.TokenBucket,
		Period: time.Minute, Threshold: 2}}})
	if err != nil {
		t.Fatal(err)
	}
	known, unknown := limit.Owner{Kind: limit.Tenant, Name: "acme"}, limit.Owner{Kind: limit.Tenant, Name: "globex"}
	req, now := limit.Request{Owner: known, Charges: []limit.Charge{{Limit: l, Cost: 1}}}, time.Unix(1_800_000_000, 0)
	var d limit.Decision
	if err := s.Decide(t.Context(), &req, now, &d); err != nil {
		t.Fatal(err)
	}
	before := s.Bytes()
	all := []Touched{{Store: s, Hash: s.Hash(known)}, {Store: s, Hash: s.Hash(unknown)}}
	Touch(all)
	if all[0].found == nil || !all[0].found.isOf(known) || all[1].found != nil {
		t.Errorf("Touch found %p for the known owner and %p for the unknown one, want the known owner's record and nil",
			all[0].found, all[1].found)
	}
	if after := s.Bytes(); after != before {
		t.Errorf("Touch changed the bytes in use from %d to %d, want no change", before, after)
	}
	if err := s.Decide(t.Context(), &req, now, &d); err != nil || d.Results[0].Remaining() != 0 {
		t.Errorf("after a second charge of 2 units %d remain, %v; want 0", d.Results[0].Remaining(), err)
	}
}
