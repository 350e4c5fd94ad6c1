package redis_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// Guarantees that random charges, peeks, refunds, changed limits and leaps of the clock get the same answers from Redis
// as from the memory store, over all algorithms, several packs, shadow limits, and more values than MaxValues; and that
// a peek changes no key.
func TestLikeMemory(t *testing.T) {
	soak.SkipUnderRace(t)
	server := redistest.Start(t)
	s := openAt(t, redis.Config{Addrs: []string{server.Addr}})
	seed := uint64(time.Now().UnixNano())
	for i := range soak.Times(uint64(120)) {
		s.SetSpace(newSpace())
		p := newPair(t, s, server.Client(t), seed+i, 12, limit.Algorithms())
		p.run(80)
		if t.Failed() {
			t.Fatalf("seed %d:\n%s", seed+i, strings.Join(p.trace, "\n"))
		}
	}
}

// Guarantees that Redis grants the leases that the core does, and keeps the same of them, to the unit: over all
// algorithms, tiers, shadow limits, returned units, corrections, ramps, limits that change, refunds, and clocks that
// step back. Every second script compares with the memory store, which forgets counters; the others with a store that
// forgets nothing. Half of the latter also change the sizes of buckets, within less than a minute: later Redis may
// forget a bucket that is full, which matters only when its size changes.
func TestLeasesLikeCore(t *testing.T) {
	soak.SkipUnderRace(t)
	server := redistest.Start(t)
	s := openAt(t, redis.Config{Addrs: []string{server.Addr}})
	seen := map[string]int{}
	seed := uint64(time.Now().UnixNano())
	algorithms := append(limit.Algorithms(), limit.TokenBucket, limit.TokenBucket, limit.TokenBucket,
		limit.SlidingWindow)
	for i := range max(soak.Times(uint64(200)), 100) { // fewer would hardly test some branches
		s.SetSpace(newSpace())
		p := newPair(t, s, server.Client(t), seed+i, []int64{12, 300, 300}[i%3], algorithms)
		p.leases, p.seen = map[string][]limit.Lease{}, seen
		if p.sizes = i%4 == 0; i%2 == 0 {
			p.model = &core{states: map[string]*limit.State{}, refunded: map[limit.ReceiptID]bool{}}
		}
		p.run(120)
		if t.Failed() {
			t.Fatalf("seed %d, script %d:\n%s", seed, i, strings.Join(p.trace, "\n"))
		}
	}
	t.Log(seen)
	for _, what := range []string{"leases", "ramps", "given back", "given back late", "slots moved back",
		"counted from elsewhere", "needs of nothing", "denied"} {
		if seen[what] < 20 {
			t.Errorf("%s: %d, so the test shows too little", what, seen[what])
		}
	}
}

// Guarantees that settle.lua gives back, and leaves in the counters, what the core does, to the unit: over all
// algorithms, amounts up to the largest that limits can count, changed limits, leases, and clocks that step back.
func TestRefundsLikeCore(t *testing.T) {
	soak.SkipUnderRace(t)
	server := redistest.Start(t)
	s := openAt(t, redis.Config{Addrs: []string{server.Addr}})
	seen := map[string]int{}
	seed := uint64(time.Now().UnixNano())
	for i := range max(soak.Times(uint64(200)), 100) { // fewer would hardly test some branches
		s.SetSpace(newSpace())
		algorithms := limit.Algorithms()
		if i%2 == 0 { // algorithms with which refunds are most complex
			algorithms = []limit.Algorithm{limit.TokenBucket}
		}
		p := newPair(t, s, server.Client(t), seed+i, []int64{12, 10_000, 1 << 30, 1 << 39}[i/2%4], algorithms)
		p.model = &core{states: map[string]*limit.State{}, refunded: map[limit.ReceiptID]bool{}}
		p.large, p.sizes, p.seen = true, i%5 < 3, seen
		if i%3 == 0 {
			p.leases = map[string][]limit.Lease{}
		}
		p.run(120)
		if t.Failed() {
			t.Fatalf("seed %d, script %d:\n%s", seed, i, strings.Join(p.trace, "\n"))
		}
	}
	t.Log(seen)
	for _, a := range limit.Algorithms() {
		if n := seen["refunds of a "+a.String()]; n < 20 {
			t.Errorf("%d refunds of a %s gave anything back, so the test shows too little", n, a)
		}
		if n := seen["units beyond a receipt of a "+a.String()]; n < 10 {
			t.Errorf("%d settlements charged a %s more, so the test shows too little", n, a)
		}
	}
}

// core is a store without bounds that forgets nothing: package limit and a map.
type core struct {
	states   map[string]*limit.State
	refunded map[limit.ReceiptID]bool
	serial   uint64
}

func (c *core) state(t *limit.Tier, v limit.Value) *limit.State {
	key := fmt.Sprint(t.Identity(), "=", v)
	if c.states[key] == nil {
		c.states[key] = &limit.State{}
	}
	return c.states[key]
}

func (c *core) ask(req *limit.Request, now time.Time, d *limit.Decision, charge bool) error {
	if err := req.Check(); err != nil {
		return err
	}
	e := d.BeginChecked(req, now.UnixMicro())
	for i := range d.Results {
		e.Evaluate(i, c.state(d.Results[i].Tier, d.Value(i)), charge)
	}
	if !e.Settle() || !charge {
		return nil
	}
	for i := range d.Results {
		if e.Charges(i) {
			e.Charge(i, c.state(d.Results[i].Tier, d.Value(i)))
		}
	}
	c.serial++
	d.ID = limit.ReceiptID{Lo: c.serial}
	return nil
}

func (c *core) Decide(_ context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	return c.ask(req, now, d, true)
}

func (c *core) Peek(_ context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	return c.ask(req, now, d, false)
}

func (c *core) Settle(_ context.Context, r *limit.Receipt, used []int64, now time.Time) (limit.Settlement, error) {
	out, err := r.BeginSettle(used)
	if err != nil {
		return out, err
	}
	if now.UnixMicro() >= r.Until() || c.refunded[r.ID()] {
		return out, nil
	}
	c.refunded[r.ID()] = true
	for i := range r.Entries() {
		e := &r.Entries()[i]
		out.Returned[i] = e.GiveBack(c.state(e.Tier, e.Value), r.Unused(i, used), now.UnixMicro())
	}
	if over := r.Overage(used); over != nil {
		var d limit.Decision
		if err := c.ask(&over.Request, now, &d, true); err != nil {
			return out, err
		}
		over.Report(&d, &out)
	}
	return out, nil
}

func (c *core) Accepts(*limit.Limit) error { return nil }

// pair runs one script on two stores.
type pair struct {
	*testing.T
	ours  *redis.Store
	model limit.Store
	admin *goredis.Client
	r     *rand.Rand
	now   time.Time
	// the latest time of a call: with a clock that is further behind, a counter may be forgotten, see
	// limit.Tier.FreshAt
	latest time.Time
	limits []limit.Limit
	built  []*limit.Limit
	made   [][2]*limit.Receipt
	trace  []string
	most   int64                    // the largest threshold
	sizes  bool                     // the sizes of buckets change
	skip   []bool                   // limits that the last request did not name
	leases map[string][]limit.Lease // the leases of each counter, if requests ask for leases
	seen   map[string]int
	large  bool // costs up to all that a limit admits, and many refunds
}

func newPair(
	t *testing.T, s *redis.Store, admin *goredis.Client, seed uint64, most int64, algorithms []limit.Algorithm,
) *pair {
	model := memorytest.New(t)
	p := &pair{T: t, ours: s, model: model, admin: admin, most: most, r: rand.New(rand.NewPCG(seed, 1)),
		now: noon.Add(time.Duration(seed%1e9) * time.Hour % (1e4 * time.Hour))}
	scope := []string{"", "d"}[p.r.IntN(2)]
	for i := 0; i < 3+p.r.IntN(4) || len(p.built) == 0; i++ {
		l := limit.Limit{ID: fmt.Sprint("l", i), MaxCost: 12, MaxValues: 2, Scope: scope}
		if p.r.IntN(3) == 0 {
			l.Per = "subject"
		}
		if p.r.IntN(4) == 0 {
			l.Mode = limit.Shadow
		}
		l.AlignOwner = p.r.IntN(3) == 0
		for j := range 1 + p.r.IntN(2) {
			tier := limit.Tier{Algorithm: algorithms[p.r.IntN(len(algorithms))], Threshold: 1 + p.r.Int64N(most),
				Period: []time.Duration{time.Second, 7 * time.Millisecond, time.Minute}[(i+j)%3]}
			if tier.Algorithm == limit.Quota {
				tier.Period, tier.Calendar = 0, &limit.Calendar{Every: []limit.Every{limit.Day, limit.Month}[j],
					Location: time.UTC}
			}
			if tier.Algorithm == limit.TokenBucket && p.r.IntN(2) == 0 {
				tier.Burst = 1 + p.r.Int64N(3*most)
			}
			l.Tiers = append(l.Tiers, tier)
		}
		made, err := limit.New(l)
		if err != nil {
			continue // the same algorithm twice
		}
		p.limits, p.built = append(p.limits, l), append(p.built, made)
	}
	return p
}

func (p *pair) run(steps int) {
	for range steps {
		n := p.r.IntN(20)
		if p.large && n > 12 {
			n = 8
		}
		switch {
		case p.large && n == 0:
			p.forget()
		case p.large && n < 4: // while receipts are still valid
			p.now = p.now.Add(time.Duration(p.r.Int64N(int64([]time.Duration{time.Millisecond, 300 * time.Millisecond,
				4 * time.Second}[n-1])))).Truncate(time.Microsecond)
		case n < 6:
			steps := []time.Duration{3 * time.Millisecond, 2 * time.Second, time.Minute, 30 * time.Hour}
			if p.sizes {
				steps = []time.Duration{3 * time.Millisecond, 100 * time.Millisecond, time.Second, 2 * time.Second}
			}
			p.now = p.now.Add(time.Duration(p.r.Int64N(int64(steps[p.r.IntN(len(steps))])))).Truncate(time.Microsecond)
		case n == 6:
			p.latest = laterOf(p.latest, p.now)
			p.now = laterOf(p.now.Add(-time.Duration(p.r.Int64N(int64(4*time.Second)))),
				p.latest.Add(-limit.MaxSkew)).Truncate(time.Microsecond)
		case n == 7:
			p.change()
		case n == 8:
			p.refund()
		case n < 11:
			p.decide(false)
		default:
			p.decide(true)
		}
		if p.Failed() {
			return
		}
	}
}

func laterOf(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (p *pair) log(format string, args ...any) {
	p.trace = append(p.trace, fmt.Sprintf("%s ", p.now.Format("2006-01-02 15:04:05.000000"))+fmt.Sprintf(format,
		args...))
}

func (p *pair) decide(charge bool) {
	if again := p.skip != nil && p.r.IntN(2) == 0; !again {
		p.skip = make([]bool, len(p.built))
		for i := range p.skip {
			p.skip[i] = p.r.IntN(5) == 0
		}
	}
	var charges []limit.Charge
	for i, l := range p.built {
		if p.skip[i] {
			continue
		}
		c := limit.Charge{Limit: l, Cost: 1 + p.r.Int64N(1+p.r.Int64N(12))}
		if l.Per != limit.PerTenant {
			c.Value = limit.ValueOf(fmt.Sprint("u-", p.r.IntN(2)))
		}
		if p.large {
			c.Cost = p.largeCost(c)
		}
		charges = append(charges, c)
	}
	req := &limit.Request{Owner: acme, Charges: charges}
	if p.leases != nil && p.r.IntN(4) > 0 {
		req.Leases = p.leaseRequests(charges, charge)
	}
	var a, b limit.Decision
	stores := []struct {
		store limit.Store
		d     *limit.Decision
	}{{p.ours, &a}, {p.model, &b}}
	before := p.dump(!charge && !p.large)
	for _, x := range stores {
		call := x.store.Peek
		if charge {
			call = x.store.Decide
		}
		if err := call(context.Background(), req, p.now, x.d); err != nil {
			p.Errorf("%T: %v", x.store, err)
			return
		}
	}
	p.log("charge=%t %s %+v: %t", charge, describe(charges), req.Leases, a.Allowed)
	if after := p.dump(!charge && !p.large); !maps.Equal(before, after) {
		p.Errorf("a peek changes keys: %q before, %q after", before, after)
	}
	if got, want := render(&a), render(&b); got != want {
		p.Errorf("Redis says\n%s\n%T\n%s", got, p.model, want)
	}
	if p.leases != nil && charge {
		p.count(req, &a)
	}
	if charge && a.Allowed {
		p.made = append(p.made, [2]*limit.Receipt{a.Receipt(), b.Receipt()})
		if _, ok := p.model.(*core); ok && !p.Failed() { // otherwise the receipts may have other entries
			p.compareReceipts(a.Receipt(), b.Receipt())
		}
	}
}

// compareReceipts fails if the core's receipt says anything else than that of Redis. The one thing that may differ is
// how much was refunded to a bucket before: Redis counts that since it last forgot the bucket, which was full then, and
// the core, which forgets nothing, since the first refund.
func (p *pair) compareReceipts(ours, model *limit.Receipt) {
	for i := range ours.Entries() {
		a, b := &ours.Entries()[i], &model.Entries()[i]
		got, want := a.Params(), b.Params()
		got.Refunded = max(got.Refunded, want.Refunded)
		if a.Tier != b.Tier || a.Value != b.Value || a.Units != b.Units || got != want {
			p.Errorf("entry %d of the receipt: Redis %d units of %v %+v; the core %d units of %v %+v", i, a.Units,
				a.Value, a.Params(), b.Units, b.Value, b.Params())
		}
	}
}

// largeCost returns a cost that the charge may have, up to the capacity of its limit.
func (p *pair) largeCost(c limit.Charge) int64 {
	most := int64(limit.MaxUnits)
	for i := range c.Limit.Tiers {
		most = min(most, c.Limit.Tiers[i].Capacity())
	}
	c.Cost = 1 + p.r.Int64N(1+p.r.Int64N(most))
	if req := (limit.Request{Owner: acme, Charges: []limit.Charge{c}}); req.Check() != nil {
		return 1 // larger than its arithmetic allows
	}
	return c.Cost
}

// leaseRequests returns lease requests: random ones, or, for a peek, requests for all units, whose answers show the
// whole state of a counter.
func (p *pair) leaseRequests(charges []limit.Charge, charge bool) []limit.LeaseRequest {
	var out []limit.LeaseRequest
	some := func(most int64) int64 { return max(0, p.r.Int64N(2*most)-most) }
	for _, c := range charges {
		for j := range c.Limit.Tiers {
			t := &c.Limit.Tiers[j]
			a := limit.LeaseRequest{Need: c.Cost, Share: p.r.Int64N(limit.ShareOne + 1)}
			if p.r.IntN(2) == 0 {
				a.Need = p.r.Int64N(c.Cost + 1)
			}
			if t.Algorithm != limit.LeakyBucket {
				a.Least, a.Most, a.Ample, a.Plenty = some(p.most/3), some(p.most), some(2*p.most), p.r.Int64N(p.most)
				if !charge {
					a.Least = limit.MaxUnits
				}
			}
			switch t.Algorithm {
			case limit.TokenBucket, limit.SlidingWindow:
				a.Ramp = p.r.IntN(3) > 0
			case limit.SlidingLog, limit.SlidingBuckets:
				a.Life = some(t.Period.Microseconds())
			}
			if p.r.IntN(3) == 0 {
				a.Correction, a.CorrectionAt = some(6), p.now.UnixMicro()+p.r.Int64N(2_000_000)-1_900_000
				if granted := p.leases[counterName(t, c.Value)]; len(granted) > 0 && t.Algorithm != limit.LeakyBucket &&
					p.r.IntN(3) > 0 {
					g := granted[len(granted)-1-p.r.IntN(min(len(granted), 3))]
					a.Correction, a.CorrectionAt = -p.r.Int64N(g.Units+2), g.At
				}
				if t.Algorithm == limit.LeakyBucket && p.r.IntN(2) == 0 {
					a.Correction = -[...]int64{1, 1 + p.r.Int64N(6), 1 + p.r.Int64N(p.most),
						limit.MaxUnits}[p.r.IntN(4)]
				}
			}
			out = append(out, a)
		}
	}
	return out
}

func counterName(t *limit.Tier, v limit.Value) string { return fmt.Sprint(t.Identity(), v) }

// count records how much was granted, and which features the script has used.
func (p *pair) count(req *limit.Request, d *limit.Decision) {
	if !d.Allowed {
		p.seen["denied"]++
		return
	}
	for i := range req.Leases {
		g, a := d.Lease(i), &req.Leases[i]
		if g.Units > 0 {
			name := counterName(d.Results[i].Tier, d.Value(i))
			p.leases[name] = append(p.leases[name], g)
			p.seen["leases"]++
		}
		if g.Units > g.Upfront {
			p.seen["ramps"]++
		}
		switch {
		case a.Correction < 0 && d.Results[i].Tier.Algorithm == limit.TokenBucket && a.CorrectionAt <= d.Now:
			p.seen["given back late"]++
		case a.Correction < 0 && d.Results[i].Tier.Algorithm == limit.LeakyBucket:
			p.seen["slots moved back"]++
		case a.Correction < 0:
			p.seen["given back"]++
		case a.Correction > 0:
			p.seen["counted from elsewhere"]++
		}
		if a.Need == 0 {
			p.seen["needs of nothing"]++
		}
	}
}

// dump returns every key of this script, as the server would write it to a file.
func (p *pair) dump(wanted bool) map[string]string {
	if !wanted {
		return nil
	}
	out := map[string]string{}
	keys, err := p.admin.Keys(p.Context(), "{rl:"+p.ours.Space()+"*").Result()
	if err != nil {
		p.Fatal(err)
	}
	for _, k := range keys {
		if strings.Contains(k, "}settled:") {
			continue // remembered for as long as the receipt matters, which may end between two dumps
		}
		value, err := p.admin.Dump(p.Context(), k).Result()
		if err != nil {
			p.Fatalf("DUMP %q: %v", k, err)
		}
		out[k] = value
	}
	return out
}

func (p *pair) refund() {
	if len(p.made) == 0 {
		return
	}
	r := p.made[p.r.IntN(len(p.made))]
	units := p.r.Int64N(4)
	if p.large { // most often a recent one
		r = p.made[max(p.r.IntN(len(p.made)), len(p.made)-1-p.r.IntN(4))]
		units = p.r.Int64N(2) * (1 + p.r.Int64N(p.most))
	}
	used := r[0].Without(units)
	for i, e := range r[0].Entries() {
		if p.r.IntN(4) == 0 {
			used[i] = min(e.Units+p.r.Int64N(2*p.most), limit.MaxUnits)
		}
	}
	a, errA := p.ours.Settle(context.Background(), r[0], used, p.now)
	b, errB := p.model.Settle(context.Background(), r[1], used, p.now)
	p.log("settle %d used of %d entries: %v", used, len(r[0].Entries()), a)
	if errA != nil || errB != nil || fmt.Sprint(a.Returned, a.Charged, a.Uncharged) !=
		fmt.Sprint(b.Returned, b.Charged, b.Uncharged) {
		p.Errorf("settle: Redis says %+v, %v; memory %+v, %v", a, errA, b, errB)
	}
	for i, e := range r[0].Entries() {
		if p.seen != nil && a.Returned[i] > 0 {
			p.seen["refunds of a "+e.Tier.Algorithm.String()]++
		}
		if p.seen != nil && a.Charged[i] > 0 {
			p.seen["units beyond a receipt of a "+e.Tier.Algorithm.String()]++
		}
	}
	if p.large {
		p.decide(false)
	}
}

// forget drops all counters, like a server that comes back empty. From then on the model refunds earlier receipts as
// Redis has made them. A new bucket recognizes a receipt of a lost one if the receipt notes that more was refunded to
// the bucket than the new one knows of, and Redis may have noted less than the core, see compareReceipts.
func (p *pair) forget() {
	if p.r.IntN(8) > 0 {
		return
	}
	for key := range p.dump(true) {
		if err := p.admin.Del(p.Context(), key).Err(); err != nil {
			p.Fatal(err)
		}
	}
	model := p.model.(*core)
	clear(model.states)
	for i, r := range p.made {
		model.refunded[r[0].ID()] = model.refunded[r[1].ID()]
		p.made[i][1] = r[0]
	}
	p.log("all counters are gone")
}

// change changes the threshold of a limit. The used units stay.
func (p *pair) change() {
	i := p.r.IntN(len(p.limits))
	l := p.limits[i]
	l.Tiers = slices.Clone(l.Tiers)
	for j := range l.Tiers {
		l.Tiers[j].Threshold = 1 + p.r.Int64N(p.most)
		if a := l.Tiers[j].Algorithm; a == limit.TokenBucket || a == limit.LeakyBucket {
			if !p.sizes { // whether a full bucket was forgotten matters if its size changes
				l.Tiers[j].Threshold = p.limits[i].Tiers[j].Threshold
			} else if a == limit.TokenBucket {
				l.Tiers[j].Burst = p.r.Int64N(3 * p.most)
			}
		}
	}
	if made, err := limit.New(l); err == nil {
		p.limits[i], p.built[i] = l, made
		p.log("limit %s is changed", l.ID)
	}
}

func describe(charges []limit.Charge) string {
	var out []string
	for _, c := range charges {
		text := fmt.Sprintf("%d of %s %s%s", c.Cost, c.Limit.ID, c.Limit.Mode, c.Value.Text)
		for i := range c.Limit.Tiers {
			t := &c.Limit.Tiers[i]
			text += fmt.Sprintf(" {%s %d/%s}", t.Algorithm, t.Threshold, t.Period)
		}
		out = append(out, text)
	}
	return strings.Join(out, " + ")
}

// render returns everything that a caller can see of a decision, except for the name of its receipt.
func render(d *limit.Decision) string {
	out := fmt.Sprintf("allowed %t never %t retry %d now %d receipt %d", d.Allowed, d.Never, d.RetryAt, d.Now,
		len(d.Receipt().Entries()))
	for i := range d.Results {
		r := &d.Results[i]
		out += fmt.Sprintf("\n%s value %v cost %d charged %d admits %t never %t retry %d used %d remaining %d reset %d",
			r.Limit().ID, d.Value(i), r.Cost, r.Charged, r.Admits, r.Never, r.RetryAt, r.Used(), r.Remaining(),
			r.ResetAt())
		out += fmt.Sprintf(" %+v", d.Lease(i))
	}
	return out
}
