package resilience_test

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sluicelimits/sluice/internal/limiter/breaker"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

const (
	instances  = 3
	goroutines = 4
	deadline   = 250 * time.Millisecond // of a call; a healthy server answers within it on a busy machine, too

	// The longest time that a decision may take: it may wait for another request's call, which ends by the deadline,
	// and then make its own. The rest is for a busy machine. Without a deadline a decision would take as long as the
	// fault.
	longest = 4 * time.Second
)

// scene is a server under load, with what may be between it and the processes.
type scene struct {
	t      *testing.T
	server *redistest.Server
	admin  *goredis.Client
	proxy  *redistest.Proxy // the processes reach the server through it

	replica *redistest.Server
}

func (s *scene) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// follow starts a replica of the server, and waits until it has all data.
func (s *scene) follow() {
	s.t.Helper()
	s.replica = redistest.Start(s.t)
	host, port, err := net.SplitHostPort(s.server.Addr)
	s.must(err)
	c := s.replica.Client(s.t)
	s.must(c.ReplicaOf(s.t.Context(), host, port).Err())
	mustFinish(s.t, func() error {
		info, err := c.Info(s.t.Context(), "replication").Result()
		if err == nil && !strings.Contains(info, "master_link_status:up") {
			err = errors.New("the replica does not have all data yet")
		}
		return err
	})
}

// fault is a way in which a server fails under load.
type fault struct {
	name    string
	prepare func(s *scene)
	begin   func(s *scene)
	lasts   time.Duration // at least
	end     func(s *scene)

	// How often the server may have forgotten its counts: units that were admitted before in open windows may then be
	// admitted again.
	forgets int64
}

var faults = []fault{
	{name: "killed, and back empty",
		begin: func(s *scene) { s.server.Kill() },
		end:   func(s *scene) { s.must(s.server.Start()) }, forgets: 1},
	{name: "frozen for five seconds",
		begin: func(s *scene) { s.must(s.server.Freeze()) }, lasts: 5 * time.Second,
		end: func(s *scene) { s.must(s.server.Thaw()) }},
	{name: "paused",
		begin: func(s *scene) { s.must(s.admin.Do(s.t.Context(), "CLIENT", "PAUSE", "5000", "ALL").Err()) },
		end:   func(s *scene) { s.must(s.admin.Ping(s.t.Context()).Err()) }}, // answered when the pause is over
	{name: "slow",
		begin: func(s *scene) { s.proxy.Delay(2 * deadline) },
		end:   func(s *scene) { s.proxy.Forward(s.server.Addr) }},
	{name: "nothing is passed on",
		begin: func(s *scene) { s.proxy.Stall() },
		end:   func(s *scene) { s.proxy.Forward(s.server.Addr) }},
	{name: "connections half open",
		begin: func(s *scene) { s.proxy.Stall(); s.proxy.Cut() },
		end:   func(s *scene) { s.proxy.Forward(s.server.Addr); s.proxy.Cut() }},
	{name: "a replica is promoted", prepare: (*scene).follow,
		begin: func(s *scene) { s.server.Kill() },
		end: func(s *scene) {
			s.must(s.replica.Client(s.t).ReplicaOf(s.t.Context(), "NO", "ONE").Err())
			s.server = s.replica
			s.proxy.Forward(s.server.Addr)
		}, forgets: 1},
}

// Guarantees, for three processes with leases on one real server that fails under load: no decision takes longer than
// two calls; only closed limits return errors; decisions without the store are marked, and stay within the backstop's
// bound beside what the store admits; one probe at a time finds out whether the store answers again; it is then charged
// for what was admitted meanwhile in open windows; and after that every unit is counted.
func TestFaults(t *testing.T) {
	for i, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			if i%3 != 0 {
				soak.SkipInQuick(t)
			}
			t.Parallel()
			s := &scene{t: t, server: redistest.Start(t)}
			s.admin = s.server.Client(t)
			s.proxy = redistest.StartProxy(t, s.server.Addr)
			if f.prepare != nil {
				f.prepare(s)
			}
			all := start(t, instances, spec{Addr: s.proxy.Addr, Deadline: deadline, Goroutines: goroutines,
				Pause: 4 * time.Millisecond, Cooldown: 200 * time.Millisecond, Instances: 50})
			withstand(t, s, all, &f)
		})
	}
}

func withstand(t *testing.T, s *scene, all []*child, f *fault) {
	t.Helper()
	loaded := append([]string{open, closed, year, year}, backstopped...) // the leased units of a year are soon spent
	commandAll(all, "load %s", strings.Join(loaded, ","))
	healthy := pollUntil(all, "under load", func(_ int, r *report) bool {
		return r.sum(year).Store >= 50 && r.sum(second).Store >= 10
	})

	f.begin(s)
	began := time.Now()
	gone := pollUntil(all, "without the store", func(i int, r *report) bool {
		return r.Breaker.Opened > healthy[i].Breaker.Opened &&
			r.sum(year).Without >= 50+healthy[i].sum(year).Without && r.Breaker.Probes > 0 &&
			r.Closed > healthy[i].Closed && time.Since(began) >= f.lasts
	})
	f.end(s)
	pollUntil(all, "with the store again", func(i int, r *report) bool {
		return r.Breaker.State == breaker.Closed && r.Fallback.Waiting == 0 &&
			r.sum(year).Store >= 50+gone[i].sum(year).Store
	})
	commandAll(all, "halt")
	mustFinish(t, func() error { // units that the last decisions left pending
		for i, r := range commandAll(all, "once %s", open) {
			if r.Fallback.Waiting > 0 {
				return fmt.Errorf("process %d: %+v", i, r.Fallback)
			}
		}
		return nil
	})
	back := commandAll(all, "report")
	spent := commandAll(all, "spend %s", year)
	commandAll(all, "spend %s", after)
	ended := commandAll(all, "close")

	wantNoViolations(t, ended)
	bounded(t, ended, f.forgets)
	calls(t, healthy, back)
	yearCounted(t, s, f, gone, ended)
	afterCounted(t, s, spent, ended)
}

// bounded fails the test if more was admitted in a window than the store and the backstops may admit together.
func bounded(t *testing.T, reports []report, forgets int64) {
	t.Helper()
	for _, tenant := range backstopped {
		tier := &everyone[tenant].Charges[0].Limit.Tiers[0]
		units, backstops := tier.Threshold*(1+forgets), int64(0)
		if tier.Algorithm == limit.TokenBucket {
			units += tier.Burst * (1 + forgets)
		}
		by := make(map[int64]admitted)
		for i := range reports {
			backstops += 2 * max(1, tier.Threshold/int64(reports[i].Fewest))
			for at, a := range reports[i].Spent[tenant] {
				if tier.Period == limit.MaxPeriod {
					at = 0
				}
				by[at] = admitted{by[at].Store + a.Store, by[at].Without + a.Without}
			}
		}
		most := admitted{}
		for at, a := range by {
			if a.Store > units || a.Without > backstops {
				t.Errorf("%s: second %d: %d units are admitted by the store and %d without it, want at most %d and %d",
					tenant, at, a.Store, a.Without, units, backstops)
			}
			most = admitted{max(most.Store, a.Store), max(most.Without, a.Without)}
		}
		t.Logf("%s: at most %d of %d by the store and %d of %d without it in a window", tenant, most.Store, units,
			most.Without, backstops)
	}
}

// calls fails the test if a process called a failing store more often than its breaker allows.
func calls(t *testing.T, before, after []report) {
	t.Helper()
	for i := range after {
		r := &after[i]
		failed := r.Failed - before[i].Failed
		// Five failures open the breaker, beside calls in progress: of the load, of announcements, of returns of leases
		// and of replays. On a busy machine a few calls may fail without any fault.
		most := (r.Breaker.Opened-before[i].Breaker.Opened+1)*(5+goroutines+3) + r.Breaker.Probes
		if failed > most {
			t.Errorf("process %d: %d calls of the failing store, want at most %d", i, failed, most)
		}
		if r.Longest > longest {
			t.Errorf("process %d: a decision took %s, want at most %s", i, r.Longest, longest)
		}
		t.Logf("process %d: %d decisions, %d calls of which %d failed, opened %d times, %d probes, %d refused; "+
			"longest %s; %d of 3 instances known; %d charged back, %d dropped, %d units lost",
			i, r.Decisions, r.Asked, failed, r.Breaker.Opened, r.Breaker.Probes, r.Breaker.Refused, r.Longest,
			r.Fewest, r.Fallback.ChargedBack, r.Fallback.Dropped, r.Lease.Lost)
	}
}

// yearCounted fails the test if the store has not counted what was admitted meanwhile.
func yearCounted(t *testing.T, s *scene, f *fault, gone, ended []report) {
	t.Helper()
	store := openPlain(t, s.server.Addr)
	for _, tenant := range []string{year, single} {
		dropped, forgotten, failed := int64(0), int64(0), int64(0)
		for i := range ended {
			dropped += ended[i].Fallback.Dropped
			failed += ended[i].Failed
			if f.forgets > 0 {
				forgotten += gone[i].sum(tenant).Store
				if tenant == year { // its leases were spent or given back without being counted there
					forgotten += gone[i].Lease.Units
				}
			}
		}
		used, _ := look(t, store, tenant)
		all := sumOf(ended, tenant)
		sum := all.Store + all.Without
		t.Logf("%s: the store counts %d, admitted %d and %d without it; %d may be forgotten, %d dropped", tenant, used,
			all.Store, all.Without, forgotten, dropped)
		if used < sum-forgotten-dropped {
			t.Errorf("%s: the store counts %d; want at least the %d that were admitted, less %d", tenant, used, sum,
				forgotten+dropped)
		}
		if sum > yearUnits+forgotten+dropped {
			t.Errorf("%s: %d units are admitted in all, want at most %d: the store must have been charged for those "+
				"that were admitted without it", tenant, sum, yearUnits+forgotten+dropped)
		}
		// A call without an answer may have been carried out: then a unit is lost, or with leases as many units as it
		// asked for.
		if tenant == single && used > sum+failed {
			t.Errorf("%s: the store counts %d, want at most the %d that were admitted and one for each of %d calls "+
				"that failed", tenant, used, sum, failed)
		}
	}
}

// afterCounted fails the test if the store does not count exactly what is admitted after it answers again.
func afterCounted(t *testing.T, s *scene, before, ended []report) {
	t.Helper()
	store := openPlain(t, s.server.Addr)
	used, _ := look(t, store, after)
	all, failed := sumOf(ended, after), int64(0)
	for i := range ended {
		failed += ended[i].Failed - before[i].Failed
	}
	t.Logf("after: the store counts %d, admitted %d and %d without it; %d calls failed", used, all.Store, all.Without,
		failed)
	if failed > 0 { // the machine is so busy that a healthy server did not answer in time: units may be lost
		if used < all.Store || all.Store > afterUnits {
			t.Errorf("after the fault: the store counts %d units, %d are admitted; want it to count at least as "+
				"many, at most %d", used, all.Store, afterUnits)
		}
		return
	}
	if all.Store != used || all.Without > 0 {
		t.Errorf("after the fault: the store counts %d units, %d are admitted by it and %d without it; want the "+
			"first two equal, and none without it", used, all.Store, all.Without)
	}
	left := int64(0)
	var d limit.Decision
	for range afterUnits {
		if err := store.Decide(t.Context(), everyone[after], time.Now(), &d); err != nil {
			t.Fatal(err)
		}
		if d.Allowed {
			left++
		}
	}
	if all.Store+left != afterUnits {
		t.Errorf("after the fault: %d units are admitted, and %d when all were requested; want %d in all", all.Store,
			left, afterUnits)
	}
}
