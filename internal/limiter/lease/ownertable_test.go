package lease

import (
	"fmt"
	"testing"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// TestScarceOwners guarantees that the table finds all owners that may have scarce counters, also after its slots were
// moved, and forgets those that no longer have any.
func TestScarceOwners(t *testing.T) {
	var table ownerTable
	outside := &ownerLeases{hash: 7}
	table.markScarce(outside) // an empty table
	want := map[*ownerLeases]bool{}
	for i := range 300 {
		o := &ownerLeases{hash: uint64(i%50) * shardCount, owner: limit.Owner{Name: fmt.Sprint(i)}}
		table.add(o)
		if i%3 == 0 {
			table.markScarce(o)
			want[o] = true
		}
	}
	table.markScarce(outside)
	check := func(keep func(o *ownerLeases) bool) {
		t.Helper()
		seen := map[*ownerLeases]bool{}
		table.allScarce(func(o *ownerLeases) bool {
			seen[o] = true
			return keep(o)
		})
		for o := range want {
			if !seen[o] {
				t.Errorf("the table does not return owner %s, which may have scarce counters", o.owner.Name)
			}
		}
		if len(seen) != len(want) {
			t.Errorf("the table returns %d owners, want %d", len(seen), len(want))
		}
	}
	all := func(*ownerLeases) bool { return true }
	check(all)
	for i := 0; i < len(table.slots); i++ { // owners move when others are removed
		for o := table.slots[i].owner; o != nil && len(o.owner.Name) == 2; o = table.slots[i].owner {
			delete(want, o)
			table.remove(i)
		}
	}
	check(func(o *ownerLeases) bool { return o.hash%2 == 0 && o.owner.Name != "0" })
	for o := range want {
		if o.owner.Name == "0" {
			delete(want, o)
		}
	}
	check(all)
}
