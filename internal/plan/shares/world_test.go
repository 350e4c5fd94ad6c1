package shares

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
)

// The world of these tests has a balancer, cells with their copies of the documents, environments that may decide on
// older copies, a network that loses, repeats and reorders messages, clocks that differ, and clients that take
// whatever any cell grants. What is granted is recorded in a ledger that knows each algorithm's bound for the whole
// limit.

const (
	worldStart = int64(1_790_000_000_000_000) // µs since 1970
	tick       = int64(100_000)               // µs
	second     = int64(1_000_000)
)

// settings make the grace short (2 + 1 + .5 + 2 s), so that a run contains many transitions.
var settings = Settings{Copy: 2 * time.Second, Lease: time.Second, Decision: 500 * time.Millisecond,
	Skew: 2 * time.Second}

// wrong lists rules that a world breaks on purpose. The tests must detect each of them.
type wrong struct {
	noGrace     bool // growth begins as soon as the last cell acknowledged
	midWindow   bool // growth counts at once
	fullBucket  bool // a grown bucket grows at once, full
	anyAck      bool // an acknowledgement counts for any epoch and phase
	pinsAtOnce  bool // a placement applies as soon as a cell knows it
	shrinkLater bool // shares shrink only in the phase grow
	movesAtOnce bool // a limit that moves to other counters is granted from them immediately
}

type message struct {
	at   int64
	to   string // a cell; "": the balancer
	doc  *Document
	acks []Ack
}

type environment struct {
	doc        *Document
	placements map[string]*Placement
	limits     map[*subject]*limit.Limit // as the environment knows them
	polled     int64
}

type cell struct {
	id         string
	skew       int64
	doc        *Document // the cell config table
	placements map[string]*Placement
	envs       []*environment
	store      limit.Store
	durable    limit.Store // counters that other cells can reach; in a small cell the same
	deaf       bool        // nothing arrives
	frozen     bool        // environments do not poll, although the cell receives documents
	gone       bool
}

type world struct {
	t         *testing.T
	r         *rand.Rand
	wrong     wrong
	now       int64
	state     State
	stored    map[string]*Placement // by tenant, stored beside the state
	cells     map[string]*cell
	order     []string
	net       []message
	queue     []Request
	serial    int
	tenants   []string
	limits    []*subject
	loss      int // lost messages of 100
	longest   int64
	published int // documents published, counted once for all cells
	refused   []Refusal
	ended     int // transitions completed
	cache     map[cached][]Span
}

// cached identifies everything that the spans of a cell depend on.
type cached struct {
	doc          *Document
	placement    *Placement
	cell, tenant string
	limit        *limit.Limit
}

// subject is a limit under test.
type subject struct {
	plan  string
	limit *limit.Limit       // its present numbers
	books map[string]*ledger // by tenant
}

func newWorld(t *testing.T, seed uint64) *world {
	return &world{
		t: t, r: rand.New(rand.NewPCG(seed, 7)), now: worldStart, stored: map[string]*Placement{},
		cells: map[string]*cell{},
		cache: map[cached][]Span{}, tenants: []string{"acme", "globex"}, loss: 10, longest: 2 * second,
	}
}

func (w *world) add(l limit.Limit) *subject {
	made, err := limit.New(l)
	if err != nil {
		w.t.Fatal(err)
	}
	s := &subject{plan: "pro", limit: made, books: map[string]*ledger{}}
	for _, tenant := range w.tenants {
		s.books[tenant] = newLedger(&made.Tiers[0], tenant)
	}
	w.limits = append(w.limits, s)
	return s
}

// join adds a cell. forgetful: its store deletes states as early as a store may.
func (w *world) join(id string, weight int64, forgetful bool) {
	c := &cell{id: id, skew: w.r.Int64N(second) - second/2, placements: map[string]*Placement{}}
	c.store = w.counters(forgetful)
	if c.durable = c.store; len(w.order)%2 == 0 {
		c.durable = w.counters(forgetful)
	}
	for range 2 {
		c.envs = append(c.envs, &environment{})
	}
	w.cells[id], w.order = c, append(w.order, id)
	w.ask(Request{Kind: Join, Cell: id, Weight: weight})
}

func (w *world) counters(forgetful bool) limit.Store {
	if forgetful {
		return &forgetfulStore{states: map[string]*kept{}}
	}
	s := memorytest.New(w.t)
	return s
}

func (w *world) ask(r Request) {
	w.serial++
	r.ID = fmt.Sprint("r", w.serial)
	w.queue = append(w.queue, r)
}

func (w *world) send(m message) {
	if w.r.IntN(100) < w.loss {
		return
	}
	for n := 1 + w.r.IntN(2); n > 0; n-- { // perhaps twice, and not in order
		m.at = w.now + 1 + w.r.Int64N(w.longest)
		w.net = append(w.net, m)
	}
}

// run lets this many seconds pass.
func (w *world) run(seconds int64, client func()) {
	length := tick
	if client == nil { // without a client, coarser steps are enough
		length = second
	}
	for end := w.now + seconds*second; w.now < end; w.now += length {
		w.deliver()
		schedule := w.now%(3*second) < length
		if due := w.state.Transition != nil && w.state.Transition.GrowAt > 0 &&
			w.now >= w.state.Transition.GrowAt; due || schedule || len(w.queue) > 0 {
			w.balance(Input{Limits: w.all()})
		}
		for _, id := range w.order {
			w.cells[id].poll(w)
		}
		if schedule { // on a schedule, documents are published and acknowledged again
			w.spread(w.state.Document())
			for _, id := range w.order {
				w.acknowledge(w.cells[id])
			}
		}
		if client != nil {
			client()
		}
	}
}

func (w *world) deliver() {
	var due []message
	w.net = slices.DeleteFunc(w.net, func(m message) bool {
		if m.at > w.now {
			return false
		}
		due = append(due, m)
		return true
	})
	w.r.Shuffle(len(due), func(i, j int) { due[i], due[j] = due[j], due[i] })
	for _, m := range due {
		switch c := w.cells[m.to]; {
		case m.to == "":
			w.balance(Input{Acks: m.acks})
		case !c.deaf && !c.gone:
			w.apply(c, m.doc)
		}
	}
}

func (w *world) all() (out []Limited) {
	for _, s := range w.limits {
		out = append(out, Limited{s.plan, s.limit})
	}
	return out
}

// balance carries out a step of the balancer, and encodes and decodes the state.
func (w *world) balance(in Input) {
	in.Requests, w.queue = w.queue, nil
	in.Placements = map[string]*Placement{}
	for tenant := range w.stored {
		in.Placements[tenant] = w.stored[tenant]
	}
	for _, tenant := range w.tenants {
		if _, ok := in.Placements[tenant]; !ok {
			in.Placements[tenant] = nil
		}
	}
	if w.wrong.anyAck {
		for i := range in.Acks {
			in.Acks[i].Epoch, in.Acks[i].Phase = w.state.Epoch, w.state.Phase
		}
	}
	c := settings
	if w.wrong.noGrace {
		c = Settings{Copy: time.Microsecond, Lease: time.Microsecond, Decision: time.Microsecond,
			Skew: time.Microsecond}
	}
	before := w.state.Phase
	next, out := w.state.Step(c, in, time.UnixMicro(w.now))
	w.state = w.encodeAndDecode(next)
	if before == Grow && w.state.Phase != Grow {
		w.ended++
	}
	w.refused = append(w.refused, out.Refused...)
	for i := range out.Store {
		w.stored[out.Store[i].Tenant] = &out.Store[i]
	}
	if out.Publish != nil {
		w.spread(out.Publish)
	}
}

// encodeAndDecode returns the state as the next run reads it.
func (w *world) encodeAndDecode(s State) State {
	out, err := DecodeState(mustJSON(w.t, s))
	if err != nil {
		w.t.Fatalf("the state that a step made cannot be read: %v", err)
	}
	return *out
}

func (w *world) spread(d *Document) {
	if d == nil {
		return
	}
	w.published++
	for _, id := range w.order {
		w.send(message{to: id, doc: d})
	}
}

// lastOf returns the cells that serve in the newest generation.
func lastOf(d *Document) []Weight { return d.Generations[len(d.Generations)-1].Cells }

// apply does what a cell's applier does: it applies newer documents, and placements before a document without them.
func (w *world) apply(c *cell, d *Document) {
	if c.doc == nil || d.Revision() > c.doc.Revision() {
		if serves(lastOf(d), c.id) && (c.doc == nil || !serves(lastOf(c.doc), c.id)) {
			for tenant, p := range w.stored {
				c.placements[tenant] = p
			}
		}
		if d.Phase == Grow || w.wrong.pinsAtOnce {
			for i := range d.Placements {
				p := d.Placements[i].clone()
				if w.wrong.pinsAtOnce { // as if the placement had always existed
					last := p.Generations[len(p.Generations)-1]
					p.Generations = []Placed{{Epoch: last.Epoch, From: always, Cells: last.Cells, Homed: last.Homed}}
				}
				c.placements[p.Tenant] = &p
			}
		}
		c.doc = d
	}
	w.acknowledge(c)
}

func (w *world) acknowledge(c *cell) {
	if c.doc == nil || c.deaf || c.gone {
		return
	}
	w.send(message{acks: []Ack{{Cell: c.id, Epoch: c.doc.Epoch, Phase: c.doc.Phase,
		AtUS: w.now + c.skew}}})
}

// poll reads the documents again. A copy that is at most 2 s old may be used without a poll.
func (c *cell) poll(w *world) {
	for _, e := range c.envs {
		age := w.now - e.polled
		if c.doc == nil || c.frozen || (age < 2*second-tick && w.r.IntN(8) > 0) {
			continue
		}
		e.doc, e.polled, e.placements = c.doc, w.now, make(map[string]*Placement, len(c.placements))
		if e.limits == nil {
			e.limits = map[*subject]*limit.Limit{}
		}
		for _, s := range w.limits { // plans are sent separately from the shares
			if e.limits[s] == nil || e.limits[s] != s.limit && w.r.IntN(4) == 0 {
				e.limits[s] = s.limit
			}
		}
		for tenant, p := range c.placements {
			e.placements[tenant] = p
		}
	}
}

// spans returns what an environment may grant by its copy, correct or wrong.
func (w *world) spans(c *cell, e *environment, s *subject, l *limit.Limit, tenant string) []Span {
	doc := *e.doc
	if w.wrong.pinsAtOnce {
		doc.Placements = nil
	}
	if w.wrong.shrinkLater && doc.Generations[len(doc.Generations)-1].From == 0 {
		doc.Generations = doc.Generations[:len(doc.Generations)-1]
	}
	v := doc.View(c.id, tenant, e.placements[tenant])
	tier := &l.Tiers[0]
	bucket := tier.Algorithm == limit.TokenBucket
	switch {
	case (w.wrong.midWindow && !bucket) || (w.wrong.fullBucket && bucket):
		last := &v.gens[len(v.gens)-1]
		if last.from == 0 {
			break
		}
		to := sized(l, []amount{v.part(last, s.plan, tier)})
		if home := last.keptIn(s.plan, l); to != nil && home != "" {
			to = to.KeptIn(home)
		}
		return []Span{{beginning, to}}
	}
	out := v.Limit(s.plan, l, tenant)
	if home := v.KeptIn(s.plan, l); w.wrong.movesAtOnce && home != "" && len(v.gens) > 1 {
		return []Span{{beginning, l.KeptIn(home)}}
	}
	return out
}

// takeAnywhere takes units of a limit from a random environment of a random cell, with the given costs.
func (w *world) takeAnywhere(s *subject, tenant string, cost func() int64) {
	for _, id := range w.order {
		c := w.cells[id]
		for _, e := range c.envs {
			w.takeFrom(c, e, s, tenant, cost)
		}
	}
}

func (w *world) takeFrom(c *cell, e *environment, s *subject, tenant string, cost func() int64) {
	if e.doc == nil || c.gone {
		return
	}
	now, store := w.now+c.skew, c.store
	key := cached{e.doc, e.placements[tenant], c.id, tenant, e.limits[s]}
	if _, ok := w.cache[key]; !ok {
		w.cache[key] = w.spans(c, e, s, e.limits[s], tenant)
	}
	in, _ := At(w.cache[key], now)
	if in.Limit == nil {
		return
	}
	if home := w.cells[in.Limit.Home]; home != nil {
		if home.gone {
			return
		}
		now, store = w.now+home.skew, home.durable // these counters have one clock
	}
	var d limit.Decision
	owner := limit.Owner{Kind: limit.Tenant, Name: tenant}
	for range 400 {
		units := cost()
		req := &limit.Request{Owner: owner, Charges: []limit.Charge{{Limit: in.Limit, Cost: units}}}
		if err := store.Decide(context.Background(), req, time.UnixMicro(now), &d); err != nil {
			w.t.Fatal(err)
		}
		if !d.Allowed {
			if units == 1 {
				return
			}
			cost = costOfOne
			continue
		}
		s.books[tenant].write(now, units)
	}
}

func costOfOne() int64 { return 1 }

// violations returns the violations that the ledgers have found.
func (w *world) violations() []string {
	var out []string
	for _, s := range w.limits {
		for _, tenant := range w.tenants {
			for _, word := range s.books[tenant].check() {
				out = append(out, s.limit.ID+" of "+tenant+": "+word)
			}
		}
	}
	return out
}

// ledger records everything that was granted of one counter, by the cells' clocks.
type ledger struct {
	tier    *limit.Tier
	owner   string
	entries map[int64]int64
}

func newLedger(t *limit.Tier, owner string) *ledger {
	return &ledger{tier: t, owner: owner, entries: map[int64]int64{}}
}

func (b *ledger) write(at, units int64) { b.entries[at] += units }

func (b *ledger) total() (sum int64) {
	for _, units := range b.entries {
		sum += units
	}
	return sum
}

// check returns every way in which the algorithm's bound is broken.
func (b *ledger) check() []string {
	times := make([]int64, 0, len(b.entries))
	for at := range b.entries {
		times = append(times, at)
	}
	slices.Sort(times)
	t := b.tier
	switch t.Algorithm {
	case limit.FixedWindow:
		return b.windows(times, t.Threshold)
	case limit.SlidingWindow:
		return append(b.windows(times, t.Threshold), b.weighted(times)...)
	case limit.SlidingLog, limit.SlidingBuckets:
		return b.intervals(times)
	case limit.LeakyBucket:
		return b.level(times, max(t.Limit().MaxCost, 1))
	default:
		return b.level(times, t.Burst)
	}
}

func (b *ledger) window(at int64) int64 {
	return b.tier.LeaseEnd(b.owner, at) - b.tier.Period.Microseconds()
}

// windows returns the aligned windows that have more than most units.
func (b *ledger) windows(times []int64, most int64) (out []string) {
	sums := map[int64]int64{}
	for _, at := range times {
		start := b.window(at)
		before := sums[start]
		if sums[start] += b.entries[at]; before <= most && sums[start] > most {
			out = append(out, fmt.Sprintf("%d in the window of +%d s, which has %d", sums[start],
				(start-worldStart)/second, most))
		}
	}
	return out
}

// weighted returns the times at which the weighted count of the previous window and the count of the present one are
// above the threshold together. The cells round up their weighted counts, so the sum of those is not smaller.
func (b *ledger) weighted(times []int64) (out []string) {
	sums, period := map[int64]int64{}, b.tier.Period.Microseconds()
	for _, at := range times {
		start := b.window(at)
		sums[start] += b.entries[at]
		if last := sums[start-period]; last*(start+period-at)+sums[start]*period > b.tier.Threshold*period {
			out = append(out, fmt.Sprintf("at +%d ms: %d of the last window and %d of this one", (at-worldStart)/1000,
				last, sums[start]))
		}
	}
	return out
}

// intervals returns the intervals of one period that have more units than the threshold.
func (b *ledger) intervals(times []int64) (out []string) {
	first, sum := 0, int64(0)
	for _, at := range times {
		for sum += b.entries[at]; times[first] <= at-b.tier.Period.Microseconds(); first++ {
			sum -= b.entries[times[first]]
		}
		if sum > b.tier.Threshold {
			out = append(out, fmt.Sprintf("%d in the period before +%d ms, which has %d", sum, (at-worldStart)/1000,
				b.tier.Threshold))
		}
	}
	return out
}

// level returns the times at which a bucket of the whole limit would be below empty. If there are none, no interval
// has more than burst + rate · its length.
func (b *ledger) level(times []int64, burst int64) (out []string) {
	p := b.tier.Params(limit.Owner{Name: b.owner})
	level, last := burst*p.Den, int64(0)
	for i, at := range times {
		if i > 0 {
			level += min((at-last)*p.Num, burst*p.Den-level)
		}
		if level, last = level-b.entries[at]*p.Den, at; level < 0 {
			out = append(out, fmt.Sprintf("%d units too many at +%d ms", -level/p.Den+1, (at-worldStart)/1000))
		}
	}
	return out
}

// forgetfulStore runs the core and deletes states as early as a store may.
type forgetfulStore struct{ states map[string]*kept }

type kept struct {
	state limit.State
	fresh int64
}

var _ limit.Store = (*forgetfulStore)(nil)

func (f *forgetfulStore) Decide(_ context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	e, err := d.Begin(req, now.UnixMicro())
	if err != nil {
		return err
	}
	states := make([]limit.State, len(d.Results))
	for i := range d.Results {
		if k := f.states[f.key(d, i)]; k != nil && k.fresh > now.UnixMicro() {
			states[i] = *k.state.Clone()
		}
		e.Evaluate(i, &states[i], true)
	}
	if !e.Settle() {
		return nil
	}
	for i := range d.Results {
		e.Charge(i, &states[i])
		f.states[f.key(d, i)] = &kept{states[i], d.Results[i].Tier.FreshAt(&states[i])}
	}
	return nil
}

func (f *forgetfulStore) key(d *limit.Decision, i int) string {
	return fmt.Sprintf("%c%q %s", d.Owner.Kind, d.Owner.Name, d.Results[i].Tier.Identity())
}

func (f *forgetfulStore) Peek(context.Context, *limit.Request, time.Time, *limit.Decision) error {
	return fmt.Errorf("peek: not of this store")
}

func (f *forgetfulStore) Settle(context.Context, *limit.Receipt, []int64, time.Time) (limit.Settlement, error) {
	return limit.Settlement{}, fmt.Errorf("refund: not of this store")
}

func (f *forgetfulStore) Accepts(*limit.Limit) error { return nil }
