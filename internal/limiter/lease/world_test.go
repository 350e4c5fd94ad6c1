package lease_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
)

// world is what one script works on: a memory store with a right clock, and several instances that lease from it, each
// with a clock of its own. The instances get requests in turn, keep leases, are frozen, go on, end, and are started
// again. Other events happen during a call, and calls are lost before or after they had an effect. All of this runs in
// one goroutine, so that a seed determines what happens: a call makes other events happen before it returns.
type world struct {
	*rand.Rand
	fault fault

	now       int64 // the true time, µs since 1970, which is the store's
	below     *memory.Store
	instances []*instance
	plans     [][]*limit.Limit // the first one is in force, until it is changed
	plan      int
	favourite int // the instance that gets most of the requests now
	seq       int64
	depth     int
	refunds   bool

	spends   map[counterName][]*spend
	largest  map[string]limit.Tier // each number is the largest that the tier had, by identity
	receipts []paid
	late     []*sentCall // questions that were sent, and may arrive
	wrong    []string

	sum tally
	log *strings.Builder // nil: there is no log
}

// tally counts events, so that a test can check that it shows something.
type tally struct {
	admitted, local, denied, failed, late, waited, refunded, returned, died, frozen, changed, nested int64
}

func (a *tally) add(b *tally) {
	a.admitted += b.admitted
	a.local += b.local
	a.denied += b.denied
	a.failed += b.failed
	a.late += b.late
	a.waited += b.waited
	a.refunded += b.refunded
	a.returned += b.returned
	a.died += b.died
	a.frozen += b.frozen
	a.changed += b.changed
	a.nested += b.nested
}

type counterName struct {
	owner    limit.Owner
	identity string
	value    limit.Value
}

// spend is a number of admitted units, at the time at which the store charged them, or else at which they were spent
// from a lease.
type spend struct {
	at, seq int64
	units   int64
	back    int64 // this many of the units were refunded,
	backSeq int64 // by this event
}

type paid struct {
	receipt *limit.Receipt
	spends  []*spend // of the receipt's entries
}

// instance is one process.
type instance struct {
	w *world
	*machine
	id      int
	closing bool
	mu      sync.Mutex // held while it closes
	lease   *lease.Store
	wrongs  clockFault
	calls   []*call // of the decisions in progress, the latest last: a call may begin during another one
}

// call is what the store has charged for a decision in progress: the need of each result, and when.
type call struct {
	charged []int64
	at      int64
	asked   int
}

// clockFault says what may be wrong with the clocks of an instance. With all faults but bothStand, at any time at least
// one of the two clocks goes at least as fast as it should.
type clockFault int

const (
	sound      clockFault = iota
	monoStands            // the monotonic clock stands while the process is frozen
	wallStands            // the wall clock stands while the process is frozen, and is set forward and back
	numClockFaults
	bothStand // both clocks stand while the process is frozen, which no process can notice
)

// fault is a way in which a store, or a holder of leases, breaks the bound. See broken_test.go.
type fault string

var errLost = errors.New("lost on the way")

var owners = []limit.Owner{{Kind: limit.Tenant, Name: "acme"}, {Kind: limit.Tenant, Name: "globex"}}

func newWorld(tb testing.TB, seed uint64, f fault, plans ...[]*limit.Limit) *world {
	tb.Helper()
	w := &world{Rand: rand.New(rand.NewPCG(seed, 5)), fault: f, plans: plans, below: newMemory(tb),
		spends:  map[counterName][]*spend{},
		largest: map[string]limit.Tier{}}
	// shortly before midnight, for a quota
	w.now = time.Date(2026, 3, 2, 23, 59, 30, 0, time.UTC).UnixMicro() + w.Int64N(29_000_000)
	w.refunds = true
	for _, plan := range plans {
		for _, l := range plan {
			for i := range l.Tiers {
				t := &l.Tiers[i]
				// refunds in parts of a unit
				w.refunds = w.refunds && t.Algorithm != limit.TokenBucket && t.Algorithm != limit.LeakyBucket
				n, ok := w.largest[t.Identity()]
				if !ok {
					n = *t
				}
				n.Threshold, n.Burst = max(n.Threshold, t.Threshold), max(n.Burst, t.Burst)
				w.largest[t.Identity()] = n
			}
		}
	}
	for range 1 + w.IntN(3) {
		w.instances = append(w.instances, nil)
	}
	for i := range w.instances {
		w.start(i)
	}
	return w
}

// start makes instance i a new process.
func (w *world) start(i int) {
	m := &machine{now: w.now, wallOff: w.Int64N(2_000_001) - 1_000_000}
	m.monoOff = m.wallOff
	in := &instance{w: w, id: i, machine: m, wrongs: clockFault(w.IntN(int(numClockFaults)))}
	if w.fault == clocksStand {
		in.wrongs = bothStand
	}
	c := lease.Config{Store: &wire{in}, Clock: in.read, GiveBackEvery: -1,
		Instances: func(*limit.Limit) int { return len(w.instances) }}
	if w.IntN(2) == 0 {
		c.Rule = &wild{w.Rand}
	}
	if w.IntN(4) == 0 {
		c.Life = time.Duration(1+w.IntN(3000)) * time.Millisecond
	}
	if w.IntN(8) == 0 {
		c.MaxCounters = 1 + w.IntN(6)
	}
	s, err := lease.New(c)
	if err != nil {
		w.wrong = append(w.wrong, err.Error())
		return
	}
	in.lease = s
	w.instances[i] = in
}

func (w *world) logf(format string, args ...any) {
	if w.log != nil {
		fmt.Fprintf(w.log, "  %d %s%s\n", w.now, strings.Repeat("| ", w.depth), fmt.Sprintf(format, args...))
	}
}

// run runs a script, and returns the errors.
func (w *world) run(steps int) []string {
	for range steps {
		if w.step(); len(w.wrong) > 0 {
			return w.wrong
		}
	}
	return w.overBound()
}

// step lets time pass and an event happen, and sometimes a late question arrive.
func (w *world) step() {
	w.advanceTo(w.someTime())
	w.act()
	if n := len(w.late); n > 0 && w.IntN(8) == 0 {
		i := w.IntN(n)
		c := w.late[i]
		w.late = slices.Delete(w.late, i, i+1)
		w.logf("a question arrives late")
		if err := c.arrive(); err != nil {
			w.wrong = append(w.wrong, err.Error())
		}
	}
}

// period returns one of the periods of the plan.
func (w *world) period() int64 {
	plan := w.plans[w.plan]
	l := plan[w.IntN(len(plan))]
	if p := l.Tiers[w.IntN(len(l.Tiers))].Period.Microseconds(); p > 0 {
		return p
	}
	return 10_000_000
}

func (w *world) someTime() int64 {
	p := w.period()
	switch n := w.IntN(100); {
	case n < 30:
		return w.now
	case n < 75:
		return w.now + w.Int64N(p/50+1)
	case n < 85:
		return w.now + w.Int64N(p/4+1)
	case n < 92: // to an edge on the wall clock
		return w.now + p - w.now%p + w.Int64N(3) - 1
	case n < 99:
		return w.now + w.Int64N(p+1)
	default:
		return w.now + w.Int64N(4*3600*1_000_000)
	}
}

func (w *world) advanceTo(to int64) {
	for _, in := range w.instances {
		in.disturb()
	}
	w.now = max(w.now, to)
	for _, in := range w.instances {
		in.advanceTo(w.now)
	}
}

// disturb changes the clocks as the fault allows. A clock that has stood still continues from its last time.
func (in *instance) disturb() {
	if in.w.IntN(6) != 0 {
		return
	}
	switch in.wrongs {
	case monoStands:
		in.monoStands = !in.monoStands
		in.w.sum.frozen++
	case wallStands:
		switch in.w.IntN(4) {
		case 0, 1:
			in.wallStands = !in.wallStands
		case 2:
			in.wallOff += in.w.Int64N(3_600_000_000)
		default:
			in.wallOff -= in.w.Int64N(3_600_000_000)
		}
		in.w.sum.frozen++
	case bothStand:
		in.monoStands = !in.monoStands
		in.wallStands = in.monoStands
	case sound, numClockFaults:
	}
}

// act makes one event happen.
func (w *world) act() {
	if w.IntN(40) == 0 {
		w.favourite = w.IntN(len(w.instances))
	}
	i := w.favourite
	if w.IntN(3) == 0 {
		i = w.IntN(len(w.instances))
	}
	in := w.instances[i]
	switch n := w.IntN(200); {
	case n < 176:
		for range 1 + w.IntN(4) {
			in.decide()
		}
	case n < 184:
		w.refund(in)
	case n < 189:
		in.calls = append(in.calls, nil)
		in.lease.GiveBackSpare(context.Background(), in.read())
		in.calls = in.calls[:len(in.calls)-1]
	case n < 193:
		w.plan = w.IntN(len(w.plans))
		w.sum.changed++
		w.logf("plan %d is in force", w.plan)
	case n < 197:
		w.peek(in)
	case len(in.calls) > 0:
	case n < 199:
		in.closing = true // Close gives back from several goroutines, so nothing else happens meanwhile
		if err := in.lease.Close(context.Background()); err != nil {
			w.wrong = append(w.wrong, err.Error())
		}
		w.logf("%d ends", i)
		w.sum.returned += in.lease.Stats().Returned
		w.start(i)
	default: // the instance dies with its leases
		w.sum.died++
		w.logf("%d dies", i)
		w.start(i)
	}
}

// route returns a request for some of the plan's limits, in some order.
func (w *world) route() *limit.Request {
	req := &limit.Request{Owner: owners[0]}
	if w.IntN(8) == 0 {
		req.Owner = owners[1]
	}
	plan := w.plans[w.plan]
	for _, i := range w.Perm(len(plan)) {
		if len(req.Charges) > 0 && w.IntN(3) == 0 {
			continue
		}
		c := limit.Charge{Limit: plan[i], Cost: 1}
		if w.IntN(4) == 0 {
			c.Cost = 1 + w.Int64N(plan[i].MaxCost)
		}
		if plan[i].Per != limit.PerTenant {
			c.Value = limit.ValueOf(string(rune('a' + w.IntN(3))))
		}
		req.Charges = append(req.Charges, c)
	}
	if w.IntN(2) == 0 { // in the order of the plan
		slices.SortFunc(req.Charges, func(a, b limit.Charge) int { return strings.Compare(a.Limit.ID, b.Limit.ID) })
	}
	return req
}

func describe(req *limit.Request) string {
	var s []string
	for _, c := range req.Charges {
		s = append(s, fmt.Sprintf("%d of %s%s", c.Cost, c.Limit.ID, c.Value.Text))
	}
	return req.Owner.Name + " " + strings.Join(s, ", ")
}

// decide makes one request, and counts what it was admitted.
func (in *instance) decide() {
	w := in.w
	req := w.route()
	mine := &call{}
	in.calls = append(in.calls, mine)
	d := new(limit.Decision)
	ctx := &impatient{Context: context.Background()}
	now := in.read()
	w.logf("%d: a request for %s; its clocks are off by %d and %d", in.id, describe(req), in.wallOff, in.monoOff)
	err := in.lease.Decide(ctx, req, now, d)
	in.calls = in.calls[:len(in.calls)-1]
	switch {
	case err != nil && d.Allowed:
		w.wrong = append(w.wrong, fmt.Sprintf("allowed with the error %v", err))
	case errors.Is(err, context.DeadlineExceeded) && ctx.waited:
		w.sum.waited++
	case err != nil && !errors.Is(err, errLost):
		w.wrong = append(w.wrong, err.Error())
	case err != nil:
		w.sum.failed++
	case !d.Allowed:
		w.sum.denied++
		if !d.Never && d.RetryAt <= 0 {
			w.wrong = append(w.wrong, fmt.Sprintf("denied until %d", d.RetryAt))
		}
	default:
		in.admit(d, mine)
	}
	if err == nil && mine.asked == 0 {
		w.sum.local++
	}
	if err == nil {
		w.checkConsistent(d)
	}
}

// checkConsistent checks that no result contradicts itself: a denied cost must be more than the units that the result
// reports as remaining.
func (w *world) checkConsistent(d *limit.Decision) {
	for i := range d.Results {
		if r := &d.Results[i]; !r.Admits && r.Remaining() >= r.Cost {
			w.wrong = append(w.wrong, fmt.Sprintf("limit %s (%s) does not admit %d with %d remaining", r.Limit().ID,
				r.Tier.Algorithm, r.Cost, r.Remaining()))
		}
	}
}

// admit counts an admitted request.
func (in *instance) admit(d *limit.Decision, c *call) {
	w := in.w
	p := paid{receipt: d.Receipt()}
	for i := range d.Results {
		r := &d.Results[i]
		if !d.Charges(i) {
			continue
		}
		if r.Charged != r.Cost {
			w.wrong = append(w.wrong, fmt.Sprintf("%d units charged for a cost of %d", r.Charged, r.Cost))
		}
		name := counterName{d.Owner, r.Tier.Identity(), d.Value(i)}
		units := r.Cost
		w.sum.admitted += units
		w.seq++
		s := &spend{at: w.now, seq: w.seq}
		if i < len(c.charged) && c.charged[i] > 0 {
			s = &spend{at: c.at, seq: w.seq, units: min(units, c.charged[i])}
			w.spends[name] = append(w.spends[name], s)
			units -= s.units
		}
		if units > 0 {
			if s.units > 0 {
				s = &spend{at: w.now, seq: w.seq}
			}
			s.units = units
			w.sum.late += units
			w.spends[name] = append(w.spends[name], s)
		}
		w.logf("%d: admits %d of %s, %d of them from the lease", in.id, r.Cost, r.Tier.Identity(), units)
		p.spends = append(p.spends, s)
	}
	if w.refunds && len(p.receipt.Entries()) == len(p.spends) {
		w.receipts = append(w.receipts, p)
	}
}

// refund refunds one of the last receipts.
func (w *world) refund(in *instance) {
	if len(w.receipts) == 0 {
		return
	}
	i := len(w.receipts) - 1 - w.IntN(min(len(w.receipts), 8))
	p := w.receipts[i]
	w.receipts = slices.Delete(w.receipts, i, i+1)
	units := w.Int64N(3)
	back, err := in.lease.Settle(context.Background(), p.receipt, p.receipt.Without(units), in.read())
	if err != nil {
		w.wrong = append(w.wrong, err.Error())
		return
	}
	w.seq++
	for i, s := range p.spends {
		// If a request was charged in part and took the other units from a lease, its receipt has one entry for both.
		// All refunded units are subtracted from the last part, which is the later one. Otherwise the check could
		// report an error where there is none.
		s.back, s.backSeq = back.Returned[i], w.seq
		w.sum.refunded += s.back
		w.logf("refund of %d of %d spent at %d: %s", s.back, s.units, s.at, p.receipt.Entries()[i].Tier.Identity())
	}
}

// peek checks that a peek changes nothing.
func (w *world) peek(in *instance) {
	req := w.route()
	var first, second limit.Decision
	before := in.lease.Stats()
	for _, d := range []*limit.Decision{&first, &second} {
		if err := in.lease.Peek(context.Background(), req, in.read(), d); err != nil {
			w.wrong = append(w.wrong, err.Error())
			return
		}
	}
	if after := in.lease.Stats(); before != after {
		w.wrong = append(w.wrong, fmt.Sprintf("a peek turned %+v into %+v", before, after))
	}
	for i := range first.Results {
		if a, b := first.Results[i].Remaining(), second.Results[i].Remaining(); a != b {
			w.wrong = append(w.wrong, fmt.Sprintf("%d remain, and %d after a peek", a, b))
		}
	}
}

// impatient is a context that ends as soon as somebody waits for it: the only goroutine of the script must not block.
type impatient struct {
	context.Context
	waited bool
}

var past = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (c *impatient) Done() <-chan struct{} {
	c.waited = true
	return past
}

func (c *impatient) Err() error {
	if c.waited {
		return context.DeadlineExceeded
	}
	return nil
}

// wire is the connection of an instance to the store. Calls and answers can be lost on it.
type wire struct{ in *instance }

// meanwhile makes other events happen during a call.
func (w *world) meanwhile() {
	if w.IntN(4) != 0 {
		return
	}
	if w.depth >= 3 || w.IntN(3) == 0 {
		w.advanceTo(w.someTime())
		return
	}
	w.depth++
	w.sum.nested++
	for range 1 + w.IntN(4) {
		w.step()
	}
	w.depth--
}

func (x *wire) Decide(_ context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	w := x.in.w
	if x.in.closing {
		x.in.mu.Lock()
		defer x.in.mu.Unlock()
		return w.decideBelow(req, d)
	}
	var mine *call
	if n := len(x.in.calls); n > 0 {
		mine = x.in.calls[n-1]
	}
	if mine != nil {
		mine.asked++
	}
	w.logf("%d asks for %s, leases %+v", x.in.id, describe(req), req.Leases)
	w.meanwhile()
	if w.IntN(25) == 0 {
		if onlyGivesBack(req) {
			w.logf("the question is lost")
			d.Clear(now.UnixMicro())
			return errLost
		}
		c := send(req, func() bool { return !x.in.closing && w.IntN(3) == 0 }, w.decideBelow)
		d.Clear(now.UnixMicro())
		if w.IntN(2) == 0 {
			w.logf("the question is lost, or late")
			w.late = append(w.late, c)
			return c.lost()
		}
		if err := c.arrive(); err != nil {
			return err
		}
		w.meanwhile()
		w.logf("the answer is lost: allowed %t", c.decision.Allowed)
		return c.lost()
	}
	if err := w.decideBelow(req, d); err != nil {
		return err
	}
	if w.log != nil {
		for i := range d.Results {
			w.logf("%d: result %d: allowed %t, %d charged, leased %+v", x.in.id, i, d.Allowed, d.Results[i].Charged,
				d.Lease(i))
		}
	}
	if mine != nil {
		mine.at, mine.charged = w.now, mine.charged[:0]
		for i := range d.Results {
			mine.charged = append(mine.charged, d.Results[i].Charged)
		}
	}
	w.meanwhile()
	if w.IntN(50) == 0 {
		w.logf("the answer is lost")
		d.Clear(now.UnixMicro())
		return errLost
	}
	return nil
}

func (x *wire) Peek(ctx context.Context, req *limit.Request, _ time.Time, d *limit.Decision) error {
	return x.in.w.below.Peek(ctx, req, time.UnixMicro(x.in.w.now), d)
}

func (x *wire) Settle(ctx context.Context, r *limit.Receipt, used []int64, _ time.Time) (limit.Settlement, error) {
	return x.in.w.below.Settle(ctx, r, used, time.UnixMicro(x.in.w.now))
}

func (x *wire) Accepts(l *limit.Limit) error { return x.in.w.below.Accepts(l) }

// wild is a rule that asks for leases of random sizes.
type wild struct{ *rand.Rand }

func (r *wild) SizeLease(v *lease.View, a *limit.LeaseRequest) {
	some := func() int64 {
		switch r.IntN(4) {
		case 0:
			return 0
		case 1:
			return 1 + r.Int64N(3)
		case 2:
			return v.Tier.Capacity() + r.Int64N(10)
		}
		return 1 + r.Int64N(v.Tier.Capacity())
	}
	a.Least, a.Most, a.Ample, a.Plenty, a.Share = some(), some(), some(), some(), r.Int64N(limit.ShareOne+1)
	if v.Tier.Algorithm == limit.TokenBucket || v.Tier.Algorithm == limit.SlidingWindow {
		if a.Ramp = r.IntN(3) > 0; a.Ramp && !v.MustFit && r.IntN(2) == 0 {
			a.Need = 0
		}
	}
}

func (r *wild) DenyFor(_ *lease.View, fits time.Duration, _ int) time.Duration {
	return time.Duration(r.Int64N(int64(fits) + 1))
}
