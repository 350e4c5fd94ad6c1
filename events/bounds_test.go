package events_test

import (
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Guarantees that a key of the tables of plans and cells is exactly an id of package limit, and that a tenant's name is
// at most as long as the name of an owner there: this package repeats these bounds, because it imports nothing of
// Sluice.
func TestBoundsAreThoseOfTheCore(t *testing.T) {
	ids := []string{"", "é", "a\x80", "ſ"}
	for c := range rune(0x100) {
		ids = append(ids, string(c), "a"+string(c), string(c)+"a")
	}
	for _, length := range []int{1, 2, 63, 64, 65, 127, 128, 129, 1000} {
		ids = append(ids, strings.Repeat("a", length))
	}
	for _, table := range []events.Table{events.Plans, events.Cells, events.Operations} {
		for _, id := range ids {
			if got, want := events.CheckKey(table, id) == nil, limit.ValidID(id); got != want {
				t.Errorf("CheckKey(%s, %q) accepts: %t, limit.ValidID: %t", table, id, got, want)
			}
		}
	}
	for length := range 2 * limit.MaxNameBytes {
		got := events.CheckKey(events.Tenants, strings.Repeat("a", length)) == nil
		if want := length >= 1 && length <= limit.MaxNameBytes; got != want {
			t.Errorf("CheckKey(tenants, a name of %d bytes) accepts: %t, want %t", length, got, want)
		}
	}
}
