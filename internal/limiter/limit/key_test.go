package limit_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

var ownerKinds = []limit.OwnerKind{limit.Tenant, limit.Address, limit.Anonymous, limit.AnyKey}

// FuzzJoinValues guarantees that no two lists of components give the same value. A subject could otherwise choose a
// name with which it counts as another subject at another address.
func FuzzJoinValues(f *testing.F) {
	f.Add("a", "bc", uint8(0), "ab", "c", uint8(0))
	f.Add("~", "", uint8(0), "", "~", uint8(1))
	f.Add("", "", uint8(2), "", "", uint8(1))
	f.Add("1:a,", "b", uint8(0), "a", "1:b,", uint8(3))
	f.Fuzz(func(t *testing.T, a1, a2 string, absentA uint8, b1, b2 string, absentB uint8) {
		list := func(x, y string, absent uint8) []limit.Value {
			vs := []limit.Value{limit.ValueOf(x), limit.ValueOf(y)}
			for i := range vs {
				if absent>>i&1 == 1 {
					vs[i] = limit.Value{Kind: limit.ValueAbsent}
				}
			}
			return vs[:2-absent>>2&1]
		}
		a, b := list(a1, a2, absentA), list(b1, b2, absentB)
		if same := limit.JoinValues(a...) == limit.JoinValues(b...); same != slices.Equal(a, b) {
			t.Fatalf("JoinValues(%q) = %q and JoinValues(%q) = %q; want equal values only for equal lists", a,
				limit.JoinValues(a...), b, limit.JoinValues(b...))
		}
	})
}

// Guarantees that two counters are the same only if no part of their identity (design §3) differs, and that numbers
// which may change are not part of the identity.
func TestIdentityIsInjective(t *testing.T) {
	zone := func(name string) *time.Location {
		loc, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		return loc
	}
	var tiers []limit.Tier
	for _, a := range limit.Algorithms() {
		for _, period := range []time.Duration{time.Second, time.Minute, 1001 * time.Millisecond} {
			tier := limit.Tier{Algorithm: a, Threshold: 5, Period: period}
			switch a {
			case limit.Quota:
				continue
			case limit.SlidingBuckets:
				for _, n := range []int{1, 10, 128} {
					tier.Buckets = n
					tiers = append(tiers, tier)
				}
			default:
				tiers = append(tiers, tier)
			}
		}
	}
	for _, c := range []limit.Calendar{
		{Every: limit.Day, Location: time.UTC}, {Every: limit.Day, Location: zone("Europe/Paris")}, {Every: limit.Week,
			Location: time.UTC},
		{Every: limit.Month, Location: time.UTC}, {Every: limit.Month, Location: time.UTC, AnchorDay: 11},
		{Every: limit.Year, Location: time.UTC},
		{Every: limit.Year, Location: time.UTC, AnchorMonth: 11, AnchorDay: 1}, {Every: limit.Year, Location: time.UTC,
			AnchorMonth: 1, AnchorDay: 11},
		{Every: limit.Month, Location: zone("Europe/Paris"), AnchorDay: 1},
	} {
		tiers = append(tiers, limit.Tier{Algorithm: limit.Quota, Threshold: 5, Calendar: &c})
	}
	for _, tier := range tiers {
		for _, tier.Ordinal = range []int{1, 11} {
			tiers = append(tiers, tier)
		}
	}
	seen := map[string]string{}
	for _, id := range []string{"a", "b", "a.b", "a-b", "A"} {
		for _, per := range []string{"tenant", "subject", "ip", "ip+subject", "claim:region", "subjectshadow"} {
			for _, mode := range []limit.Mode{limit.Enforce, limit.Shadow} {
				for i, tier := range tiers {
					l := mustNew(t, limit.Limit{ID: id, Per: per, Mode: mode, Tiers: []limit.Tier{tier}})
					what := fmt.Sprintf("%s per %s mode %s tier %d (%s %s)", id, per, mode, i, tier.Algorithm,
						tier.Period)
					identity := l.Tiers[0].Identity()
					if other, ok := seen[identity]; ok {
						t.Fatalf("the counters %s and %s have the same identity %q, want two different ones", what,
							other, identity)
					}
					seen[identity] = what
				}
			}
		}
	}
	same := func(a, b limit.Limit) {
		t.Helper()
		if x, y := mustNew(t, a).Tiers[0].Identity(), mustNew(t, b).Tiers[0].Identity(); x != y {
			t.Errorf("a change of a number, after which the counter must stay the same, changes its identity from "+
				"%q to %q", x, y)
		}
	}
	base := limit.Limit{ID: "a", Tiers: []limit.Tier{{Algorithm: limit.TokenBucket, Threshold: 5,
		Period: time.Second, Burst: 5}}}
	other := limit.Limit{ID: "a", Per: "tenant", MaxCost: 3, MaxValues: 7, OnStoreFailure: limit.Closed,
		Tiers: []limit.Tier{{Algorithm: limit.TokenBucket, Threshold: 50, Period: 1000 * time.Millisecond, Burst: 9}}}
	same(base, other)
	same(limit.Limit{ID: "q", Tiers: []limit.Tier{{Algorithm: limit.Quota, Threshold: 1,
		Calendar: &limit.Calendar{Every: limit.Month, Location: time.UTC}}}},
		limit.Limit{ID: "q", Tiers: []limit.Tier{{Algorithm: limit.Quota, Threshold: 2,
			Calendar: &limit.Calendar{Every: limit.Month, Location: time.UTC, AnchorDay: 1}}}})
}

// Guarantees that the spelling of identities and keys stays the same: stores keep counters under these names across
// restarts and versions.
func TestIdentitySpelling(t *testing.T) {
	l := mustNew(t, limit.Limit{ID: "put-product", Per: "endpoint", Mode: limit.Shadow, Tiers: []limit.Tier{
		{Algorithm: limit.FixedWindow, Threshold: 20, Period: time.Second},
		{Algorithm: limit.SlidingBuckets, Threshold: 20, Period: time.Hour},
		{Algorithm: limit.Quota, Threshold: 20, Calendar: &limit.Calendar{Every: limit.Month, Location: time.UTC,
			AnchorDay: 15}},
	}})
	for i, want := range []string{
		"11:put-product,12:fixed_window,7:1000000,8:endpoint,shadow",
		"11:put-product,15:sliding_buckets,13:3600000000/24,8:endpoint,shadow",
		"11:put-product,5:quota,12:month@15 UTC,8:endpoint,shadow",
	} {
		if got := l.Tiers[i].Identity(); got != want {
			t.Errorf("identity of tier %d is %q, want %q", i+1, got, want)
		}
	}
	owner := limit.Owner{Kind: limit.Tenant, Name: "acme"}
	if got, want := string(limit.ValueOf("u-1").AppendKey(owner.AppendKey(nil))), "t4:acme,=3:u-1,"; got != want {
		t.Errorf("key is %q, want %q", got, want)
	}
}

// FuzzStorageKeys guarantees that no two counters have the same storage key. Every store composes its keys of an owner,
// a limit or a Per, a value and the name of a counter. The tuple below has all of these, so it covers every store.
func FuzzStorageKeys(f *testing.F) {
	f.Add("acme", "burst", "subject", "u-1", uint8(0x11), uint16(1000), "acm", "eburst", "subject", "u-1", uint8(0x11),
		uint16(1000))
	f.Add("a", "l", "ip", "", uint8(0x21), uint16(7), "a", "l", "ip", "", uint8(0x31), uint16(7))
	f.Add("", "l", "", "", uint8(0x03), uint16(24), "", "l", "tenant", "", uint8(0x83), uint16(24))
	f.Add("1:a,", "x", "4:acme,", "=0:,", uint8(0x17), uint16(3), "1:a", ",x", "4:acme", ",=0:,", uint8(0x16),
		uint16(3))
	type counter struct {
		owner    limit.Owner
		value    limit.Value
		identity string
	}
	counterOf := func(owner, id, per, text string, kinds uint8, period uint16) (counter, string, bool) {
		l := limit.Limit{ID: id, Per: per, Mode: limit.Mode(kinds >> 7)}
		algorithms := limit.Algorithms()
		a := algorithms[int(kinds&7)%len(algorithms)]
		tier := limit.Tier{Algorithm: a, Threshold: 1, Period: time.Duration(period) * time.Second}
		if a.HasCalendar() {
			tier.Period, tier.Calendar = 0, &limit.Calendar{Every: limit.Month, Location: time.UTC, AnchorDay: 1 +
				int(period)%31}
		}
		if a.HasBuckets() {
			tier.Buckets = 1 + int(period)%128
		}
		tier.Ordinal = int(period>>5) % 3
		l.Tiers = []limit.Tier{tier}
		made, err := limit.New(l)
		if err != nil || len(owner) > limit.MaxNameBytes {
			return counter{}, "", false
		}
		c := counter{owner: limit.Owner{Kind: ownerKinds[int(kinds>>3)%len(ownerKinds)], Name: owner}}
		switch t := &made.Tiers[0]; {
		case !t.Valued():
		case kinds>>4&3 == 1:
			c.value = limit.ValueOf(text)
		case kinds>>4&3 == 2:
			c.value.Kind = limit.ValueAbsent
		default:
			c.value = c.owner.OtherValue(limit.ValueOf(text))
		}
		c.identity = made.Tiers[0].Identity()
		key := made.AppendKey(c.owner.AppendKey(nil))
		return c, string(made.Tiers[0].AppendName(c.value.AppendKey(key))), true
	}
	f.Fuzz(func(t *testing.T, o1, i1, p1, v1 string, k1 uint8, n1 uint16, o2, i2, p2, v2 string, k2 uint8, n2 uint16) {
		a, keyA, okA := counterOf(o1, i1, p1, v1, k1, n1)
		b, keyB, okB := counterOf(o2, i2, p2, v2, k2, n2)
		if okA && okB && (a == b) != (keyA == keyB) {
			t.Fatalf("the counters %+v and %+v have the storage keys %q and %q; want equal keys only for equal "+
				"counters", a, b, keyA, keyB)
		}
	})
}
