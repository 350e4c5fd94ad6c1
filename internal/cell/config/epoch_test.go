package config_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/cell/table/tabletest"
	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/shares"
)

// leasing is a cell with one Lambda environment that leases from the cell's counters.
type leasing struct {
	*world
	leases *lease.Store
	stuck  *plan.Set   // if set, the limits that the environment uses although the configuration has changed
	spent  []time.Time // time of each unit
}

const epochPlan = `{"id":"p","limits":[{"id":"l","algorithm":%q,%s}]}`

func newLeasing(t *testing.T, cell, limits string, now *time.Time) *leasing {
	t.Helper()
	store := memorytest.New(t)
	l := &leasing{world: newWorld(t, inCell(cell))}
	var err error
	l.leases, err = lease.New(lease.Config{Store: store,
		Instances: func(*limit.Limit) int { return 1 }, GiveBackEvery: -1,
		Clock: func() time.Time { return *now }})
	if err != nil {
		t.Fatal(err)
	}
	l.apply(body(plan.KindPlan, "p", 1, limits), tabletest.Tenant("t", "p", 1))
	return l
}

// spend returns how many of the requests are admitted at now.
func (l *leasing) spend(now time.Time, requests int) (admitted int) {
	l.t.Helper()
	c, join := l.begin(now)
	defer join()
	set := l.stuck
	if set == nil {
		t, err := c.Tenant(l.t.Context(), "t")
		if err != nil {
			l.t.Fatal(err)
		}
		set = t.Limits(now)
	}
	charges := set.AppendCharges(nil, &plan.Attributes{Method: "GET"})
	if set.Withheld(charges) != nil {
		return 0
	}
	var d limit.Decision
	for range requests {
		req := &limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: "t"}, Charges: charges}
		if err := l.leases.Decide(l.t.Context(), req, now, &d); err != nil {
			l.t.Fatal(err)
		}
		if d.Allowed {
			admitted++
			l.spent = append(l.spent, now)
		}
	}
	return admitted
}

func (l *leasing) learn(d table.Document) {
	l.t.Helper()
	l.apply(d)
}

// grantedBetween counts what the cells granted together in a span of time.
func grantedBetween(from time.Time, d time.Duration, cells ...*leasing) (n int) {
	for _, c := range cells {
		for _, at := range c.spent {
			if !at.Before(from) && at.Before(from.Add(d)) {
				n++
			}
		}
	}
	return n
}

// phases is the balancer of two cells. It makes one transition at a time.
type phases struct {
	*balanced
	now     *time.Time
	version int64
}

// step makes requests, or lets all cells acknowledge, and returns the next document.
func (p *phases) step(requests ...shares.Request) table.Document {
	p.t.Helper()
	in := shares.Input{Requests: requests}
	for i := range in.Requests {
		p.serial++
		in.Requests[i].ID = fmt.Sprint(p.serial)
	}
	for _, cell := range p.state.Awaited() {
		in.Acks = append(in.Acks, shares.Ack{Cell: cell, Epoch: p.state.Epoch, Phase: p.state.Phase})
	}
	p.balanced.now = *p.now
	p.balanced.step(in)
	p.version++
	return p.document(p.version)
}

// exceedsBucket compares what all cells together have spent with one bucket of that rate and burst, which is full at
// the beginning. It returns when a unit was spent that the bucket did not have, or nil if the bucket had all of them.
func exceedsBucket(rate, burst int, period time.Duration, cells ...*leasing) *time.Time {
	var spent []time.Time
	for _, c := range cells {
		spent = append(spent, c.spent...)
	}
	slices.SortFunc(spent, time.Time.Compare)
	full, unit := time.Duration(burst)*period, period // in time multiplied by the rate, so that nothing is rounded
	level := full
	for i, at := range spent {
		if i > 0 {
			level = min(level+at.Sub(spent[i-1])*time.Duration(rate), full)
		}
		if level -= unit; level < 0 {
			return &at
		}
	}
	return nil
}

// Guarantees that a change of the shares' epoch ends leases of the previous epoch: an instance that holds units of the
// whole limit spends exactly its cell's share of the new epoch, and returns what it has not spent; that nothing is
// leased of a limit that the cell no longer grants; and that the cells together exceed the limit in no window from the
// change on, or a bucket at no time, and grant all of it after the transition.
func TestLeasesThroughEpochs(t *testing.T) {
	const period = time.Minute
	for _, tt := range []struct {
		algorithm, numbers string
		whole              int
	}{
		{"fixed_window", `"threshold":100,"period":"1m"`, 100},
		{"sliding_window", `"threshold":100,"period":"1m"`, 100},
		{"sliding_buckets", `"threshold":100,"period":"1m","buckets":6`, 100},
		{"sliding_log", `"threshold":100,"period":"1m"`, 100},
		{"token_bucket", `"rate":1200,"period":"1m","burst":1200`, 1200}, // fewer units are not leased
	} {
		t.Run(tt.algorithm, func(t *testing.T) {
			start, bucket := noon, tt.algorithm == "token_bucket"
			whole, share := tt.whole, tt.whole/4
			now := start
			limits := fmt.Sprintf(epochPlan, tt.algorithm, tt.numbers)
			eu, us := newLeasing(t, "eu-1", limits, &now), newLeasing(t, "us-1", limits, &now)
			p := &phases{balanced: newBalanced(t), now: &now}
			tell := func(d table.Document) { eu.learn(d); us.learn(d) }

			now = start.Add(-time.Hour)
			tell(p.step(shares.Request{Kind: shares.Join, Cell: "eu-1", Weight: 1}))
			now = start
			spent, held := 0, 0
			enough := func() bool {
				if bucket { // a bucket takes nothing back that was leased at another rate; a little refills soon
					return spent >= share/2 && held > 0 && held <= share/10
				}
				return spent+held > share
			}
			for spent < share-1 && !enough() { // at this rate the instance leases ahead
				n := 5
				if spent >= share-n {
					n = 1
				}
				if eu.spend(now, n) != n {
					t.Fatal("a request is denied, although units are left")
				}
				now = now.Add(100 * time.Millisecond)
				spent, held = len(eu.spent), int(eu.leases.Stats().Units)
			}
			if !enough() {
				t.Fatalf("%d units are spent and %d are leased, which is too few to exceed the cell's share: the "+
					"test shows nothing", spent, held)
			}

			// The epoch changes in the middle of the window. The cell learns it at its next poll.
			tell(p.step(shares.Request{Kind: shares.Join, Cell: "us-1", Weight: 3}))
			before, changed := 0, now
			now = now.Add(2 * time.Second)
			eu.spend(now, whole) // in between: beside the poll, or after it
			now = now.Add(2 * time.Second)
			eu.spend(now, whole)
			refill := 0
			if bucket { // what it grants from the change on is what it holds, and refills
				before, refill = spent, int(now.Sub(changed)*time.Duration(share)/period)
			}
			if got := len(eu.spent); got-before > share+refill || got < share-2 {
				t.Errorf("%d were spent, %d held, and of the new share of %d the cell granted %d: want all of it "+
					"and no more", spent, held, share, got)
			}
			if n := us.spend(now, whole); n != 0 {
				t.Errorf("the joining cell grants %d units before the phase grow, want none", n)
			}

			// It grows after the grace, from the first window that begins after it.
			tell(p.step())
			now = now.Add(shares.Settings{}.Grace())
			tell(p.step())
			if p.state.Phase != shares.Grow {
				t.Fatalf("the phase is %s, want grow", p.state.Phase)
			}
			tell(p.step())
			for now.Before(start.Add(6 * period)) {
				now = now.Add(5 * time.Second)
				eu.spend(now, 7*whole/100)
				us.spend(now, 7*whole/100)
			}
			// Then the first cell is drained, while it holds units.
			before = len(eu.spent)
			tell(p.step(shares.Request{Kind: shares.Drain, Cell: "eu-1"}))
			now = now.Add(4 * time.Second)
			if eu.spend(now, whole) != 0 || len(eu.spent) != before {
				t.Error("a drained cell grants leased units, want none")
			}
			tell(p.step())
			now = now.Add(shares.Settings{}.Grace())
			tell(p.step())
			tell(p.step())
			for now.Before(start.Add(12 * period)) {
				now = now.Add(5 * time.Second)
				eu.spend(now, 14*whole/100)
				us.spend(now, 14*whole/100)
			}
			if at := exceedsBucket(whole, whole, period, eu, us); bucket && at != nil {
				t.Errorf("%s after the start the cells grant a unit that the whole bucket does not hold", at.Sub(start))
			}
			for w := range 12 {
				n := grantedBetween(start.Add(time.Duration(w)*period), period, eu, us)
				if !bucket && n > whole {
					t.Errorf("window %d: the cells grant %d, want at most %d", w, n, whole)
				}
			}
			// leases of a log are stamped at their end
			if n := grantedBetween(start.Add(11*period), period, eu, us); n < 8*whole/10 {
				t.Errorf("after the transition the cells grant %d units of %d, want at least 80 %%", n, whole)
			}
		})
	}
}

// Guarantees that TestLeasesThroughEpochs can fail: an instance that goes on with the limit of the previous epoch
// spends more than its share.
func TestLeasesOfTheEpochBefore(t *testing.T) {
	now := noon
	limits := fmt.Sprintf(epochPlan, "fixed_window", `"threshold":100,"period":"1m"`)
	eu := newLeasing(t, "eu-1", limits, &now)
	p := &phases{balanced: newBalanced(t), now: &now}
	eu.learn(p.step(shares.Request{Kind: shares.Join, Cell: "eu-1", Weight: 1}))
	eu.spend(now, 10)
	c, _ := eu.begin(now)
	known, err := c.Tenant(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	eu.stuck = known.Limits(now)
	eu.learn(p.step(shares.Request{Kind: shares.Join, Cell: "us-1", Weight: 1}))
	now = now.Add(4 * time.Second)
	if eu.spend(now, 100); len(eu.spent) <= 50 {
		t.Errorf("an instance with the limit of the previous epoch granted %d units, want more than its share of "+
			"50: TestLeasesThroughEpochs would not fail", len(eu.spent))
	}
}

// Guarantees that two cells keep the limit in every window if the first one ran alone, is added by itself, and the
// second one is added after it. If both are added at once, the second one's part is granted in addition in the open
// window, and nothing in the next.
func TestAloneAndThenNot(t *testing.T) {
	const whole, period = 100, time.Minute
	limits := fmt.Sprintf(epochPlan, "fixed_window", `"threshold":100,"period":"1m"`)
	eu1 := shares.Request{Kind: shares.Join, Cell: "eu-1", Weight: 1}
	us1 := shares.Request{Kind: shares.Join, Cell: "us-1", Weight: 1}
	for _, tt := range []struct {
		name  string
		asked [][]shares.Request
		most  int
	}{
		{"one after the other", [][]shares.Request{{eu1}, {us1}}, whole},
		{"both at once", [][]shares.Request{{eu1, us1}}, whole + whole/2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			now := noon
			eu, us := newLeasing(t, "eu-1", limits, &now), newLeasing(t, "us-1", limits, &now)
			eu.r = eu.reader(inCell("eu-1"), setAlone)
			if eu.spend(now, whole+10) != whole {
				t.Fatal("the cell that is alone does not grant exactly the whole limit")
			}
			p := &phases{balanced: newBalanced(t), now: &now}
			for _, requests := range tt.asked {
				d := p.step(requests...)
				eu.learn(d)
				us.learn(d)
				now = now.Add(4 * time.Second)
				eu.spend(now, whole)
				us.spend(now, whole)
			}
			if n := grantedBetween(noon, period, eu, us); n != tt.most {
				t.Errorf("the cells grant %d of %d in the window in which they join, want %d", n, whole, tt.most)
			}
			now = noon.Add(period + 4*time.Second)
			eu.spend(now, whole)
			us.spend(now, whole)
			if n := grantedBetween(noon.Add(period), period, eu, us); n > whole {
				t.Errorf("the cells grant %d units in the next window, want at most the whole limit", n)
			}
		})
	}
}
