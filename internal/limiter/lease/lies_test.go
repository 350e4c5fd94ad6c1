package lease_test

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// liar is a store that gives impossible answers.
type liar struct {
	*memory.Store
	lie        int   // the next one
	at         int   // the index of the result that is changed
	impossible bool  // the last answer was impossible
	obtained   int64 // what the store charged for the first limit by answers that were possible
}

var other, _ = limit.New(limit.Limit{ID: "other",
	Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Period: time.Second, Threshold: 5}}})

// lies are ways to change an answer. They report whether it is then impossible.
var lies = []struct {
	name string
	tell func(req *limit.Request, d *limit.Decision, i int) bool
}{
	{"none", func(*limit.Request, *limit.Decision, int) bool { return false }},
	{"a result is missing", func(_ *limit.Request, d *limit.Decision, _ int) bool {
		d.Results = d.Results[:len(d.Results)-1]
		return true
	}},
	{"no results", func(_ *limit.Request, d *limit.Decision, _ int) bool { d.Clear(d.Now); return true }},
	{"one result too many", func(_ *limit.Request, d *limit.Decision, i int) bool {
		d.Results = append(d.Results, d.Results[i])
		return true
	}},
	{"a result of another tier", func(_ *limit.Request, d *limit.Decision, i int) bool {
		d.Results[i].Tier = &other.Tiers[0]
		return true
	}},
	{"results of another request", func(_ *limit.Request, d *limit.Decision, _ int) bool {
		d.BeginChecked(&limit.Request{Owner: owner, Charges: []limit.Charge{{Limit: other, Cost: 1},
			{Limit: other, Cost: 1}}}, d.Now)
		d.Allowed = true
		return true
	}},
	{"results in another order", func(_ *limit.Request, d *limit.Decision, _ int) bool {
		d.Results[0], d.Results[1] = d.Results[1], d.Results[0]
		return true
	}},
	{"a lower cost", func(_ *limit.Request, d *limit.Decision, i int) bool { d.Results[i].Cost--; return true }},
	{"less charged than needed", func(_ *limit.Request, d *limit.Decision, i int) bool {
		d.Results[i].Charged--
		return d.Allowed
	}},
	{"more charged than needed", func(_ *limit.Request, d *limit.Decision, i int) bool {
		d.Results[i].Charged++
		return d.Allowed
	}},
	{"allowed what is denied", func(req *limit.Request, d *limit.Decision, _ int) bool {
		d.Allowed = true
		// the answer says that nothing was charged, which is impossible unless nothing was needed
		for i := range d.Results {
			need := d.Results[i].Cost
			if len(req.Leases) > 0 {
				need = req.Leases[i].Need
			}
			if d.Results[i].Charged != need {
				return true
			}
		}
		return false
	}},
	{"denied what is charged", func(_ *limit.Request, d *limit.Decision, _ int) bool {
		d.Allowed = false
		for i := range d.Results {
			if d.Lease(i).Units > 0 { // a denial leases nothing
				return true
			}
		}
		return false
	}},
	{"no grants", changeGrant(func(*limit.LeaseRequest, limit.Lease) limit.Lease { return limit.Lease{} })},
	{"units below zero", changeGrant(func(_ *limit.LeaseRequest,
		g limit.Lease) limit.Lease {
		g.Units = -1 - g.Units
		return g
	})},
	{"units of the lowest", changeGrant(func(_ *limit.LeaseRequest,
		g limit.Lease) limit.Lease {
		g.Units = math.MinInt64
		return g
	})},
	{"more than asked for", changeGrant(func(a *limit.LeaseRequest, g limit.Lease) limit.Lease {
		g.Units = a.Largest() + a.Need + 1
		g.Upfront = g.Units
		return g
	})},
	{"more at once than in all", changeGrant(func(_ *limit.LeaseRequest, g limit.Lease) limit.Lease {
		g.Upfront = g.Units +
			1
		return g
	})},
	{"less than nothing at once", changeGrant(func(_ *limit.LeaseRequest,
		g limit.Lease) limit.Lease {
		g.Upfront = -1
		return g
	})},
	{"ended yesterday", changeGrant(func(_ *limit.LeaseRequest,
		g limit.Lease) limit.Lease {
		g.Until -= 86_400_000_000
		return g
	})},
	{"ended at the lowest", changeGrant(func(_ *limit.LeaseRequest,
		g limit.Lease) limit.Lease {
		g.Until = math.MinInt64
		return g
	})},
	{"ends at the highest", changeGrant(func(_ *limit.LeaseRequest,
		g limit.Lease) limit.Lease {
		g.Until = math.MaxInt64
		return g
	})},
	{"a window that cannot be", changeGrant(func(_ *limit.LeaseRequest,
		g limit.Lease) limit.Lease {
		g.At = math.MaxInt64
		return g
	})},
	{"a time that cannot be", func(_ *limit.Request, d *limit.Decision,
		_ int) bool {
		d.Now = math.MinInt64
		return true
	}},
	{"a retry that cannot be", func(_ *limit.Request, d *limit.Decision, i int) bool {
		d.Results[i].RetryAt = math.MinInt64
		return true
	}},
	{"a retry in a hundred years", func(_ *limit.Request, d *limit.Decision, i int) bool {
		if !d.Allowed {
			d.Results[i].RetryAt += 100 * 365 * 86_400_000_000
		}
		return false
	}},
}

// harmless lists the changes of an answer after which it is still possible, at least in these scripts.
var harmless = map[string]bool{"none": true, "allowed what is denied": true, "no grants": true,
	"ended yesterday": true, "a retry in a hundred years": true}

// changeGrant changes the grant of one result, whatever the decision was.
func changeGrant(
	bend func(*limit.LeaseRequest, limit.Lease) limit.Lease,
) func(*limit.Request, *limit.Decision, int) bool {
	return func(req *limit.Request, d *limit.Decision, i int) bool {
		if len(req.Leases) == 0 {
			return false
		}
		was := d.Lease(i)
		d.Revise().AdoptLease(i, bend(&req.Leases[i], was))
		g := d.Lease(i)
		most := req.Leases[i].Largest()
		if !d.Allowed {
			most = 0
		}
		const sane = 1 << 53
		return g.Units < 0 || g.Units > most || g.Upfront < 0 || g.Upfront > g.Units || g.Until > sane ||
			g.Until < -sane || g.At > sane
	}
}

func (l *liar) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	l.impossible = false
	if err := l.Store.Decide(ctx, req, now, d); err != nil {
		return err
	}
	obtained, took := d.Lease(0).Units+d.Results[0].Charged, d.Allowed
	if l.impossible = lies[l.lie].tell(req, d, l.at%len(d.Results)); !l.impossible {
		l.obtained += obtained
		took = d.Allowed
	}
	if took && len(req.Leases) > 0 { // the caller no longer holds the units that it gave back
		l.obtained += min(req.Leases[0].Correction, 0)
	}
	return nil
}

// runLies runs a script of lies: of each two bytes, one selects a request, and the other selects the answer if the
// store is called. It returns how many answers were impossible.
func runLies(t *testing.T, script []byte) (told int) {
	t.Helper()
	below := &liar{Store: newMemory(t)}
	clock := time.UnixMicro(1_772_445_600_000_000)
	s := open(t, lease.Config{Store: below, GiveBackEvery: -1, Clock: func() time.Time { return clock },
		Instances: func(*limit.Limit) int { return 2 }})
	first := newLimit(t, "first", nil, limit.Tier{Algorithm: limit.FixedWindow, Period: time.Hour, Threshold: 200})
	second := newLimit(t, "second", nil, limit.Tier{Algorithm: limit.TokenBucket, Period: 10 * time.Second,
		Threshold: 300},
		limit.Tier{Algorithm: limit.SlidingLog, Period: time.Minute, Threshold: 500})
	admitted := int64(0)
	var spends [3][]*spend
	spendOne := func(cost int64) {
		req := request(first, second)
		req.Charges[0].Cost, req.Charges[1].Cost = cost, 1
		d := new(limit.Decision)
		below.impossible = false
		err := s.Decide(context.Background(), req, clock, d)
		switch {
		case below.impossible && (err == nil || d.Allowed || len(d.Results) > 0):
			t.Fatalf("the impossible answer %q is accepted: allowed %t, error %v; want an error, and an empty "+
				"decision", lies[below.lie].name, d.Allowed, err)
		case !below.impossible && err != nil:
			t.Fatalf("the possible answer %q leads to the error %v, want none", lies[below.lie].name, err)
		case below.impossible:
			told++
		case d.Allowed:
			admitted += cost
			for i := range spends {
				spends[i] = append(spends[i], &spend{at: clock.UnixMicro(), units: req.Charges[min(i, 1)].Cost})
			}
		case !d.Never && d.RetryAt < d.Now:
			t.Fatalf("after the answer %q a request is denied at %d until %d, want a later time", lies[below.lie].name,
				d.Now, d.RetryAt)
		}
		if admitted > below.obtained {
			t.Fatalf("after the answer %q, %d units were admitted, but only %d had been charged", lies[below.lie].name,
				admitted, below.obtained)
		}
	}
	for len(script) >= 2 {
		below.lie, below.at = int(script[0])%len(lies), int(script[1]>>4)
		clock = clock.Add(time.Duration(script[1]&3) * 200 * time.Millisecond)
		spendOne(1 + int64(script[1]>>2&3))
		script = script[2:]
	}
	for i, tier := range []*limit.Tier{&first.Tiers[0], &second.Tiers[0], &second.Tiers[1]} {
		if over := overBound(tier, owner, spends[i]); over != "" {
			t.Fatal(over)
		}
	}
	below.lie = 0
	clock = clock.Add(2 * time.Hour) // a lie may have named a time that has to be waited for
	before := admitted
	if spendOne(1); admitted != before+1 {
		t.Fatal("once the store answers correctly, a request for one unit of 200 is denied, want it admitted")
	}
	return told
}

// Guarantees that, whatever the store answers, only units are admitted that it can have charged, and that its decisions
// are right once its answers are.
func TestLies(t *testing.T) {
	soak.SkipUnderRace(t)
	for lie := range lies {
		t.Run(lies[lie].name, func(t *testing.T) {
			r, told := rand.New(rand.NewPCG(uint64(lie), 1)), 0
			for range max(soak.Times(50), 10) {
				script := make([]byte, 120)
				for i := range script {
					script[i] = byte(r.Uint32())
					if i%2 == 0 {
						script[i] = byte(lie * (i / 2 % 3 % 2)) // some correct answers, then some with this lie
					}
				}
				told += runLies(t, script)
			}
			if told == 0 && !harmless[lies[lie].name] {
				t.Error("the test shows nothing: the script had no impossible answer")
			}
		})
	}
}

func FuzzLies(f *testing.F) {
	for lie := range byte(len(lies)) {
		f.Add([]byte{0, 0, lie, 0, 0, 3, lie, 0x14, 0, 1, lie, 0x28, 0, 0})
	}
	f.Fuzz(func(t *testing.T, script []byte) { runLies(t, script[:min(len(script), 400)]) })
}
