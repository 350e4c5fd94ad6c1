package ladder_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/ladder"
	"github.com/sluicelimits/sluice/internal/limit"
	"github.com/sluicelimits/sluice/internal/outage"
)

// keptInUS is a monthly quota that another cell keeps.
func keptInUS(tb testing.TB, units int64, policy limit.FailurePolicy) *limit.Limit {
	tb.Helper()
	l := *monthly(tb, "quota", units)
	l.OnStoreFailure = policy
	made, err := limit.New(l)
	if err != nil {
		tb.Fatal(err)
	}
	return made.KeptIn("us")
}

func withHome(own, us *fake, frozen bool) ladder.Config {
	return ladder.Config{
		Rates: ladder.Named{Name: "redis", Store: own}, Homes: map[string]ladder.Named{"us": {Name: "home us", Store: us}},
		MaxInstances: 4, Frozen: frozen,
	}
}

// Guarantees that where a home is away what was leased is spent, and then each limit does as its onStoreFailure says, within the
// backstop's bound; that the cell's own limits are decided by its own store all the while; and that the home has all of it counted
// when it is back.
func TestHomeAway(t *testing.T) {
	for _, frozen := range []bool{false, true} {
		for _, policy := range []limit.FailurePolicy{limit.Backstop, limit.Closed} {
			synctest.Test(t, func(t *testing.T) {
				own, us := newFake(t), newFake(t)
				l := climb(t, withHome(own, us, frozen))
				q, rate := keptInUS(t, 4000, policy), hourly(t, "rate", 1_000_000)
				var d limit.Decision
				admitted, marked, closed, unmarkedAway := int64(0), int64(0), 0, 0
				spend := func(n int, away bool) {
					for range n {
						l.Beat(t.Context(), time.Now())
						err := l.Decide(t.Context(), asks(acme, q, rate), time.Now(), &d)
						switch {
						case errors.Is(err, outage.ErrClosed):
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
					t.Fatalf("with the home: %d admitted, %d marked, %d closed", admitted, marked, closed)
				}
				us.set(true, false)
				spend(6000, true)
				if unmarkedAway == 0 {
					t.Error("nothing of what was leased is spent while the home is away")
				}
				if policy == limit.Closed && (marked != 0 || closed == 0) {
					t.Errorf("a closed quota: %d admitted without the home, %d refused", marked, closed)
				}
				if most := int64(2 * 4000); policy == limit.Backstop && (marked == 0 || marked > most) {
					t.Errorf("the backstop admits %d, want at most %d and some", marked, most)
				}
				if allowed, degraded := decides(t, l, asks(limit.Owner{Kind: limit.Tenant, Name: "globex"}, rate), 50); allowed != 50 || degraded != 0 {
					t.Errorf("without the home %d of the cell's own are admitted and %d marked, want 50 and none", allowed, degraded)
				}
				state := ""
				for _, b := range l.Breakers {
					state += b.Name() + " " + b.State().String() + ", "
				}
				if !strings.Contains(state, "redis closed") || strings.Contains(state, "home us closed") {
					t.Errorf("breakers: %s", state)
				}
				us.set(false, false)
				<-time.After(10 * time.Second) // the breaker's cooldown
				before := marked
				spend(3, false)
				<-time.After(30 * time.Second) // what was admitted without the home is charged
				spend(3, false)
				if marked != before {
					t.Errorf("%d marked though the home is back", marked-before)
				}
				shut(t, l)
				lost := l.Leases.Stats().Lost // of leases that ended while nobody answered, of either limit
				if got := usedOf(t, us, asks(acme, q)); got[0] < admitted || got[0] > admitted+lost {
					t.Errorf("the home counts %d, want the %d that were admitted and at most %d lost", got[0], admitted, lost)
				}
				if got := usedOf(t, own, asks(acme, monthly(t, "quota", 4000))); got[0] != 0 {
					t.Errorf("the own store counts %d of the quota, want none", got[0])
				}
			})
		}
	}
}

// Guarantees that the backstop of a quota is divided by the instances of all cells that lease from its home, and not by those of the
// own cell alone: together they would admit the quota once for each cell.
func TestHomeCountsInstancesOfAllCells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		us := newFake(t)
		home := climb(t, ladder.Config{Rates: ladder.Named{Name: "us", Store: us}, MaxInstances: 1,
			Homes: map[string]ladder.Named{"eu": {Name: "home eu", Store: newFake(t)}}})
		var others []*ladder.Ladder
		for range 3 {
			others = append(others, climb(t, withHome(newFake(t), us, false)))
		}
		q := keptInUS(t, 4000, limit.Backstop)
		for range 60 { // a minute, in which all are heard of
			for _, l := range others {
				decides(t, l, asks(acme, q), 1)
			}
			<-time.After(time.Second)
		}
		us.set(true, false)
		for i, l := range others {
			var d limit.Decision
			for range 2000 {
				if err := l.Decide(t.Context(), asks(acme, q), time.Now(), &d); err != nil {
					t.Fatal(err)
				}
				if d.Degraded {
					break
				}
				<-time.After(time.Second)
			}
			if units := d.Results[0].Tier.Threshold; !d.Degraded || units > 1000 || units < 400 {
				t.Errorf("instance %d of three beside the home's: marked %t with %d units, want a fourth of 4000 or somewhat less", i, d.Degraded, units)
			}
			if n := l.Fleet.Count(); n > 2 {
				t.Errorf("instance %d: %d share its own cell's counters, want itself alone", i, n)
			}
		}
		us.set(false, false)
		<-time.After(30 * time.Second)
		for _, l := range append(others, home) {
			shut(t, l)
		}
	})
}
