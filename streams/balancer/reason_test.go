package balancer

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/plan/shares"
)

// Guarantees that the audit trail says of each version of the shares what happened, also if no phase began.
func TestReason(t *testing.T) {
	state := func(epoch int64, phase shares.Phase, queue int, awaiting ...string) *shares.State {
		return &shares.State{Epoch: epoch, Phase: phase, Queue: make([]shares.Request, queue),
			Transition: &shares.Transition{Awaiting: awaiting}}
	}
	for _, tc := range []struct {
		name         string
		before, next *shares.State
		want         string
	}{
		{"a new epoch", state(1, shares.Steady, 2), state(2, shares.Shrink, 0, "a", "b"), "epoch 2, shrink"},
		{"a new phase", state(2, shares.Shrink, 1), state(2, shares.Grow, 1, "a"), "epoch 2, grow"},
		{"an acknowledgement", state(2, shares.Grow, 1, "a", "b", "c"), state(2, shares.Grow, 1, "b"),
			"epoch 2, grow: acknowledged by a c"},
		{"a request that waits", state(2, shares.Shrink, 0, "a"), state(2, shares.Shrink, 1, "a"),
			"epoch 2, shrink: waiting requests: 1"},
		{"a request that was refused", state(2, shares.Shrink, 0, "a"), state(2, shares.Shrink, 0, "a"),
			"epoch 2, shrink: the shares do not change"},
	} {
		if got := reason(tc.before, tc.next); got != tc.want {
			t.Errorf("%s: got the reason %q, want %q", tc.name, got, tc.want)
		}
	}
}
