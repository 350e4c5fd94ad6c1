package resilience_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
)

// keptInUS returns a monthly quota that another cell keeps.
func keptInUS(tb testing.TB, units int64, policy limit.FailurePolicy) *limit.Limit {
	tb.Helper()
	l := *monthly(tb, "quota", units)
	l.OnStoreFailure = policy
	made := limittest.MustNew(tb, l)
	return made.KeptIn("us")
}

func withHome(own, us *fake, frozen bool) resilience.ChainConfig {
	return resilience.ChainConfig{
		Rates:        resilience.NamedStore{Name: "redis", Store: own},
		Homes:        map[string]resilience.NamedStore{"us": {Name: "home us", Store: us}},
		MaxInstances: 4, Frozen: frozen,
	}
}

// Guarantees that while a home does not answer, leased units are spent and then each limit follows its onStoreFailure,
// within the backstop's bound; that the cell's own store decides the cell's own limits all the time; and that the home
// is charged for everything when it answers again.
func TestHomeAway(t *testing.T) {
	for _, frozen := range []bool{false, true} {
		for _, policy := range []limit.FailurePolicy{limit.Backstop, limit.Closed} {
			synctest.Test(t, func(t *testing.T) {
				own, us := newFake(t), newFake(t)
				l := newChain(t, withHome(own, us, frozen))
				q, rate := keptInUS(t, 4000, policy), hourly(t, "rate", 1_000_000)
				var d limit.Decision
				admitted, marked, closed, unmarkedAway := int64(0), int64(0), 0, 0
				spend := func(n int, away bool) {
					for range n {
						l.RunBackgroundTasks(t.Context(), time.Now())
						err := l.Decide(t.Context(), newRequest(acme, q, rate), time.Now(), &d)
						switch {
						case errors.Is(err, resilience.ErrFailClosed):
							closed++
						case err != nil:
							t.Fatal(err)
						case d.Allowed && d.Degraded:
							admitted, marked = admitted+1, marked+1
						case d.Allowed:
							if admitted++; away {
								unmarkedAway++
							}
						}
						<-time.After(10 * time.Millisecond)
					}
				}
				spend(300, false)
				if marked+int64(closed) != 0 || admitted != 300 {
					t.Fatalf("with the home: %d admitted, %d marked as degraded, %d refused as closed; want 300, 0, 0",
						admitted, marked, closed)
				}
				us.set(true, false)
				spend(6000, true)
				if unmarkedAway == 0 {
					t.Error("no leased unit is spent while the home does not answer, want some")
				}
				if policy == limit.Closed && (marked != 0 || closed == 0) {
					t.Errorf("a closed quota: %d admitted without the home, %d refused; want none admitted, and "+
						"some refused", marked, closed)
				}
				if most := int64(2 * 4000); policy == limit.Backstop && (marked == 0 || marked > most) {
					t.Errorf("the backstop admits %d units, want some, and at most %d", marked, most)
				}
				if allowed, degraded := decides(t, l, newRequest(limit.Owner{Kind: limit.Tenant, Name: "globex"}, rate),
					50); allowed != 50 || degraded != 0 {
					t.Errorf("without the home, %d requests of the cell's own limit are admitted and %d marked as "+
						"degraded, want 50 and none", allowed, degraded)
				}
				state := ""
				for _, b := range l.Breakers {
					state += b.Name() + " " + b.State().String() + ", "
				}
				if !strings.Contains(state, "redis closed") || strings.Contains(state, "home us closed") {
					t.Errorf("the breakers are %s, want that of redis closed, and that of the home not closed", state)
				}
				us.set(false, false)
				<-time.After(10 * time.Second) // the cooldown of the breaker
				before := marked
				spend(3, false)
				<-time.After(30 * time.Second) // the home is charged for what was admitted without it
				spend(3, false)
				if marked != before {
					t.Errorf("%d decisions are marked as degraded after the home answers again, want none",
						marked-before)
				}
				closeChain(t, l)
				lost := l.Leases.Stats().Lost // of leases of either limit that ended while the home did not answer
				if got := usedOf(t, us, newRequest(acme, q)); got[0] < admitted || got[0] > admitted+lost {
					t.Errorf("the home counts %d units, want the %d that were admitted, and at most %d more, which "+
						"are lost", got[0], admitted, lost)
				}
				if got := usedOf(t, own, newRequest(acme, monthly(t, "quota", 4000))); got[0] != 0 {
					t.Errorf("the cell's own store counts %d units of the quota, want none", got[0])
				}
			})
		}
	}
}

// Guarantees that the backstop of a quota is divided by the instances of all cells that lease from its home, and not
// only by those of the own cell: together they would admit the quota once for each cell.
func TestHomeCountsInstancesOfAllCells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		us := newFake(t)
		home := newChain(t, resilience.ChainConfig{Rates: resilience.NamedStore{Name: "us", Store: us}, MaxInstances: 1,
			Homes: map[string]resilience.NamedStore{"eu": {Name: "home eu", Store: newFake(t)}}})
		var others []*resilience.Chain
		for range 3 {
			others = append(others, newChain(t, withHome(newFake(t), us, false)))
		}
		q := keptInUS(t, 4000, limit.Backstop)
		for range 60 { // a minute, in which all instances announce themselves
			for _, l := range others {
				decides(t, l, newRequest(acme, q), 1)
			}
			<-time.After(time.Second)
		}
		us.set(true, false)
		for i, l := range others {
			var d limit.Decision
			for range 2000 {
				if err := l.Decide(t.Context(), newRequest(acme, q), time.Now(), &d); err != nil {
					t.Fatal(err)
				}
				if d.Degraded {
					break
				}
				<-time.After(time.Second)
			}
			if units := d.Results[0].Tier.Threshold; !d.Degraded || units > 1000 || units < 400 {
				t.Errorf("instance %d of three, in addition to the home's one: degraded %t with %d units, want a "+
					"fourth of 4000 or somewhat less", i, d.Degraded, units)
			}
			if n := l.Instances.Count(); n > 2 {
				t.Errorf("instance %d: the instance count of its own cell is %d, want 1", i, n)
			}
		}
		us.set(false, false)
		<-time.After(30 * time.Second)
		for _, l := range append(others, home) {
			closeChain(t, l)
		}
	})
}

// Guarantees that an instance announces itself to a home while it holds leases of it, and no longer: a home that no
// tenant of this cell uses must not be called for ever.
func TestAnUnusedHomeIsNotCalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, us := newFake(t), newFake(t)
		l := newChain(t, withHome(own, us, true))
		counted := limit.Owner{Kind: limit.AnyKey, Name: "sluice/quotas"}
		announcements := func(d time.Duration) int { // during d, with a request each second
			before := len(us.of(counted))
			for range int(d / time.Second) {
				l.RunBackgroundTasks(t.Context(), time.Now())
				<-time.After(time.Second)
			}
			return len(us.of(counted)) - before
		}
		if n := announcements(time.Minute); n != 0 {
			t.Errorf("%d announcements to a home that was never used, want none", n)
		}
		decides(t, l, newRequest(acme, keptInUS(t, 4000, limit.Backstop)), 1)
		const announced = 2 * lease.HomeLife
		if n := announcements(announced); n < int(announced/resilience.InstancesPeriod) {
			t.Errorf("%d announcements within %s after the home was used, want at least one for each period", n,
				announced)
		}
		if n := announcements(time.Minute); n != 0 {
			t.Errorf("%d announcements to a home that was not used for %s, want none", n, announced)
		}
		closeChain(t, l)
	})
}

// Guarantees that a rate too small to be divided is decided in its home, exactly, and that onStoreFailure decides while
// the home does not answer: the backstop admits the instance's part, open admits everything, closed refuses. When the
// home answers again, it decides.
func TestRateOfAHomeThatIsAway(t *testing.T) {
	for _, frozen := range []bool{false, true} {
		for _, policy := range []limit.FailurePolicy{limit.Backstop, limit.Open, limit.Closed} {
			synctest.Test(t, func(t *testing.T) {
				own, us := newFake(t), newFake(t)
				l := newChain(t, withHome(own, us, frozen))
				tiny := newLimit(t, limit.Limit{ID: "tiny", OnStoreFailure: policy, Exact: true, Tiers: []limit.Tier{
					{Algorithm: limit.FixedWindow, Threshold: 2, Period: time.Second}}}).KeptIn("us")
				<-time.After(time.Second - time.Duration(time.Now().Nanosecond())) // a window begins
				// spend decides ten times a second for that many seconds.
				spend := func(seconds int) (admitted, marked, closed int) {
					t.Helper()
					for range 10 * seconds {
						l.RunBackgroundTasks(t.Context(), time.Now())
						var d limit.Decision
						err := l.Decide(t.Context(), newRequest(acme, tiny, hourly(t, "rate", 1_000_000)), time.Now(),
							&d)
						switch {
						case errors.Is(err, resilience.ErrFailClosed):
							closed++
						case err != nil:
							t.Fatal(err)
						case d.Allowed && d.Degraded:
							marked++
						case d.Allowed:
							admitted++
						}
						<-time.After(100 * time.Millisecond)
					}
					return admitted, marked, closed
				}
				if admitted, marked, closed := spend(20); admitted != 40 || marked+closed != 0 {
					t.Errorf("with the home: %d admitted, %d marked as degraded, %d refused as closed; want 40, at "+
						"2 a second, and none", admitted, marked, closed)
				}
				us.set(true, false)
				admitted, marked, closed := spend(20)
				switch {
				case admitted != 0:
					t.Errorf("%s: %d decisions without the home are not marked as degraded, want none", policy,
						admitted)
				case policy == limit.Open && (marked != 200 || closed != 0),
					policy == limit.Closed && (marked != 0 || closed != 200),
					policy == limit.Backstop && (marked < 5 || marked > 2*20+2 || closed != 0):
					t.Errorf("%s, without the home: %d admitted and marked as degraded, %d refused as closed, which "+
						"differs from the policy", policy, marked, closed)
				}
				us.set(false, false)
				spend(20) // the cooldown of the breaker, and the replay of what was admitted without the home
				if admitted, marked, closed := spend(20); admitted != 40 || marked+closed != 0 {
					t.Errorf("%s, after the home answers again: %d admitted, %d marked as degraded, %d refused as "+
						"closed; want 40 and none", policy, admitted, marked, closed)
				}
				closeChain(t, l)
				if got := usedOf(t, own, newRequest(acme, tiny)); got[0] != 0 {
					t.Errorf("the cell's own store counts %d units, want none", got[0])
				}
			})
		}
	}
}

// Guarantees that a rate that the cell keeps for all cells is counted in the store of its quotas, which other cells
// call, and that without the store it is divided by the instances of all cells that call it.
func TestRateKeptForAllCells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		redis, quotas := newFake(t), newFake(t)
		here := newChain(t, resilience.ChainConfig{Cell: "us", Rates: resilience.NamedStore{Name: "redis",
			Store: redis}, Quotas: resilience.NamedStore{Name: "dynamodb", Store: quotas},
			MaxInstances: 1, Homes: map[string]resilience.NamedStore{"eu": {Name: "home eu", Store: newFake(t)}}})
		there := newChain(t, withHome(newFake(t), quotas, false))
		small := newLimit(t, limit.Limit{ID: "small", Exact: true,
			Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: 400, Period: time.Hour}}}).KeptIn("us")
		admitted := int64(0)
		for range 60 { // a minute, in which the instances learn of each other
			for _, l := range []*resilience.Chain{here, there} {
				allowed, _ := decides(t, l, newRequest(acme, small, hourly(t, "rate", 1000)), 1)
				admitted += allowed
			}
			<-time.After(time.Second)
		}
		if used := usedOf(t, quotas, newRequest(acme, small)); admitted != 120 || used[0] != admitted {
			t.Errorf("%d units are admitted, and the store of the quotas counts %d, want 120", admitted, used[0])
		}
		if used := usedOf(t, redis, newRequest(acme, small)); used[0] != 0 {
			t.Errorf("the store of the rates counts %d units, want none", used[0])
		}
		quotas.set(true, false)
		var d limit.Decision
		if err := here.Decide(t.Context(), newRequest(acme, small), time.Now(), &d); err != nil || !d.Degraded {
			t.Fatalf("without the store: degraded %t, %v; want a degraded decision", d.Degraded, err)
		}
		if units := d.Results[0].Tier.Threshold; units > 200 || units < 100 {
			t.Errorf("the backstop of one instance of two has %d units of 400, want 100 to 200", units)
		}
		quotas.set(false, false)
		<-time.After(30 * time.Second)
		closeChain(t, there)
		closeChain(t, here)
	})
}
