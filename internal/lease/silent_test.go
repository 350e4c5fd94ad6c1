package lease_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/lease"
	"github.com/sluicelimits/sluice/internal/limit"
)

// mute is a store whose answers can be lost; it remembers how much was asked ahead.
type mute struct {
	limit.Store
	lost bool
	asks []int64
}

func (m *mute) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	most := int64(0)
	for i := range req.Ahead {
		most = max(most, req.Ahead[i].Largest())
	}
	m.asks = append(m.asks, most)
	if err := m.Store.Decide(ctx, req, now, d); err != nil || !m.lost {
		return err
	}
	return errors.New("no answer")
}

// A store that does not answer may charge all the same: the first call's lease is lost with its answer, those after it ask for
// none, until one is answered.
func TestNoLeasesWithoutAnswers(t *testing.T) {
	below := newMemory(t)
	m := &mute{Store: below, lost: true}
	s := open(t, lease.Config{Store: m, Look: -1, Clock: func() time.Time { return noon }, Rule: greedy{}})
	l, other := daily(t, "a", limit.FixedWindow, 1000), daily(t, "b", limit.FixedWindow, 1000)
	var d limit.Decision
	for range 5 {
		if err := s.Decide(context.Background(), ask(l), noon, &d); err == nil {
			t.Fatal("a call without an answer is no error")
		}
	}
	m.lost = false
	decide(t, s, ask(other), noon)
	decide(t, s, ask(other), noon)
	if m.asks[0] == 0 || m.asks[1] != 0 || m.asks[4] != 0 || m.asks[5] != 0 || len(m.asks) != 7 || m.asks[6] == 0 {
		t.Errorf("asked ahead for %v, want something in the first call and again in the last", m.asks)
	}
	if n := used(t, below, l, noon); n != 1000 { // the first call charged all of it
		t.Errorf("%d units are counted, want 1000", n)
	}
}

// Early are denials of requests: a shadow limit denies none.
func TestShadowsAreNotEarly(t *testing.T) {
	below := newMemory(t)
	now := noon
	s := open(t, lease.Config{Store: below, Look: -1, Clock: func() time.Time { return now }, Rule: greedy{}})
	l := daily(t, "a", limit.FixedWindow, 1000)
	shadow, err := limit.New(limit.Limit{ID: "s", Mode: limit.Shadow, Tiers: []limit.Tier{
		{Algorithm: limit.TokenBucket, Period: 10 * time.Second, Threshold: 10},
	}})
	if err != nil {
		t.Fatal(err)
	}
	req := ask(l)
	req.Charges = append(req.Charges, limit.Charge{Limit: shadow, Cost: 1})
	for range 200 {
		if !decide(t, s, req, now).Allowed {
			t.Fatal("a shadow limit denied")
		}
		now = now.Add(100 * time.Millisecond)
	}
	if stats := s.Stats(); stats.Early > stats.Denied || stats.Denied != 0 {
		t.Errorf("%d denials, %d of them early, want none", stats.Denied, stats.Early)
	}
}
