package dynamodb_test

import (
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Guarantees that a copy of an item denies requests only for a short time after it was read, by the time of the
// decision, and never at a time before: a refund by another process would otherwise not be noticed after a clock has
// stepped back.
func TestOnlyRecentCopiesDeny(t *testing.T) {
	t.Parallel()
	client := server(t)
	for _, tt := range []struct {
		name    string
		after   time.Duration // from the denial that read the item to the decision
		allowed bool          // the decision reads the item, and sees the refund
	}{
		{"at once", 0, false},
		{"5 s later", 5 * time.Second, false},
		{"more than 5 s later", 5*time.Second + time.Microsecond, true},
		{"before", -time.Microsecond, true},
	} {
		c := config(client)
		ours, other := open(t, c), open(t, c)
		req := &limit.Request{Owner: acme, Charges: []limit.Charge{{Limit: window(t, "one", 1), Cost: 1}}}
		var theirs, d limit.Decision
		if err := other.Decide(t.Context(), req, noon, &theirs); err != nil || !theirs.Allowed {
			t.Fatalf("%s: the charge by the other process: allowed %t, %v; want it allowed", tt.name, theirs.Allowed,
				err)
		}
		if err := ours.Decide(t.Context(), req, noon, &d); err != nil || d.Allowed {
			t.Fatalf("%s: the decision that reads the item: allowed %t, %v; want a denial", tt.name, d.Allowed, err)
		}
		if _, err := other.Settle(t.Context(), theirs.Receipt(), nil, noon); err != nil {
			t.Fatal(err)
		}
		if err := ours.Decide(t.Context(), req, noon.Add(tt.after), &d); err != nil || d.Allowed != tt.allowed {
			t.Errorf("%s: allowed %t, %v; want %t", tt.name, d.Allowed, err, tt.allowed)
		}
	}
}
