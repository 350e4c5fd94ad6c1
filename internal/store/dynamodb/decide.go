package dynamodb

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"

	"github.com/sluicelimits/sluice/internal/limit"
)

// decision is one call on its way.
type decision struct {
	*Store
	req     *limit.Request
	d       *limit.Evaluation
	now     int64
	first   int64     // now at the first try
	began   time.Time // when that was, by this machine's monotonic clock
	pk      string
	items   []*item
	tiers   []tierAt
	answers map[itemKey]*view // items as the store has shown them within this call
	final   bool              // no try is left: only those count
	looked  bool              // instead of the last write
	charged map[int]*charged  // results whose items are written already, see chargeStepwise
}

// charged is a result as the write has left it.
type charged struct {
	tierAt
	key    itemKey
	result limit.Result
	taken  int64 // units that the request needed
}

// item is one item of the decision.
type item struct {
	key      itemKey
	view     *view // nil: nothing is known
	enforces bool  // holds an enforcing counter
	written  bool  // by a step of this decision
}

// tierAt is where the counter of one result is, and what was made of it.
type tierAt struct {
	item     int
	name     string
	old      fields
	pre      limit.State
	repaired bool
	written  bool
	doubtful bool
	tight    bool        // others at the same time leave too little room for what was guessed
	lease    limit.Lease // that was or is to be written
}

// Decide charges all limits of the request or none. See [limit.Store].
func (s *Store) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	c, err := s.begin(ctx, req, now, d)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := c.decide(ctx); err != nil {
		c.takeBack(ctx, err)
		d.BeginChecked(req, c.now) // an error leaves no outcome behind
		return fmt.Errorf("decide for owner %q on table %s: %w", req.Owner.Name, *s.table, err)
	}
	return nil
}

// Peek is Decide without the charge. See [limit.Store].
func (s *Store) Peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	c, err := s.begin(ctx, req, now, d)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := c.peek(ctx); err != nil {
		d.BeginChecked(req, c.now)
		return fmt.Errorf("peek for owner %q on table %s: %w", req.Owner.Name, *s.table, err)
	}
	return nil
}

func (s *Store) begin(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) (*decision, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := s.check(req); err != nil {
		d.BeginChecked(&limit.Request{Owner: req.Owner}, now.UnixMicro()) // an error leaves no outcome behind
		return nil, err
	}
	c := &decision{Store: s, req: withOwnBacks(inSteps(req)), now: s.now(now), began: time.Now(), pk: s.partition(req.Owner), answers: map[itemKey]*view{}}
	c.first = c.now
	c.d = d.BeginChecked(c.req, c.now)
	return c, nil
}

func (c *decision) peek(ctx context.Context) error {
	for {
		if err := c.evaluate(); err != nil {
			return err
		}
		asked, err := c.read(ctx, func(it *item) bool { return c.answers[it.key] == nil })
		if err != nil {
			return err
		}
		if !asked {
			c.d.Settle()
			return nil
		}
	}
}

func (c *decision) decide(ctx context.Context) error {
	if len(c.d.Results) == 0 {
		c.d.Settle()
		c.d.ID = c.nextID()
		return nil
	}
	tries := c.tries()
	for try := 0; try < tries; try++ {
		if !c.looked {
			if err := c.giveWay(ctx, try); err != nil {
				return err
			}
		}
		c.tick()
		if err := c.evaluateInChain(ctx); err != nil {
			return err
		}
		if !c.d.Settle() {
			if denied, err := c.deny(ctx); denied || err != nil {
				return err
			}
		}
		done, err := c.charge(ctx, try == tries-1)
		if done || err != nil {
			return err
		}
		if c.looked { // at most once for each item, and no guess was wrong
			try--
		}
	}
	c.final = true
	if err := c.evaluate(); err == nil && !c.d.Settle() { // the last try may have learned that it does not fit
		if denied, err := c.deny(ctx); denied || err != nil {
			return err
		}
	}
	return fmt.Errorf("%w, %d tries", ErrUndecided, tries)
}

// tries is how often the decision may meet other writers. One that leases is worth many others, and failing it denies them
// all.
func (c *decision) tries() int {
	if len(c.req.Leases) > 0 {
		return maxTriesLeases
	}
	return maxTries
}

// giveWay waits before a try by how many have failed, so that those who met do not meet again, and asks each time for half as
// much ahead of what there is little left of, so that there is room for all of them.
func (c *decision) giveWay(ctx context.Context, failed int) error {
	if failed < maxTries-1 || len(c.req.Leases) == 0 {
		return nil
	}
	half := *c.req
	half.Leases = slices.Clone(half.Leases)
	for i := range half.Leases {
		a := &half.Leases[i]
		if !c.tiers[i].tight {
			continue
		}
		a.Least, a.Most, a.Ample = (a.Least+1)/2, (a.Most+1)/2, (a.Ample+1)/2
	}
	c.req = &half
	return pause(ctx, time.Duration(rand.Int64N(int64(min(failed, 4))*int64(4*time.Millisecond))))
}

// tick brings the decision's time up to date before a try: the others have not waited for this one. A caller's own time
// stands still.
func (c *decision) tick() {
	if c.clock != nil {
		c.now = c.first + time.Since(c.began).Microseconds()
	}
}

// deny answers a denial if the items are known well enough for it to be true; items that are not are read first. It
// reports false where they show that the cost fits after all.
func (c *decision) deny(ctx context.Context) (bool, error) {
	for {
		asked, err := c.read(ctx, func(it *item) bool { return c.answers[it.key] == nil && !c.sureOf(it.view, c.now) })
		if err != nil {
			return false, err
		}
		if !asked {
			c.keepLeases()
			c.persistRepairs(ctx)
			return true, nil
		}
		if err := c.evaluate(); err != nil {
			return false, err
		}
		if c.d.Settle() {
			return false, nil
		}
	}
}

// read asks the store for the items that are wanted. It reports whether there were any.
func (c *decision) read(ctx context.Context, wanted func(*item) bool) (bool, error) {
	asked := false
	for _, it := range c.items {
		if it.written || !wanted(it) {
			continue
		}
		asked = true
		if err := c.get(ctx, it.key); err != nil {
			return true, err
		}
	}
	return asked, nil
}

func (s *Store) getInput(key itemKey) *dynamodb.GetItemInput {
	consistent := true
	return &dynamodb.GetItemInput{TableName: s.table, Key: key.attributes(), ConsistentRead: &consistent}
}

// get reads an item. An answer that breaks off on its way is asked for once more, because reading changes nothing; what
// writes is never sent twice.
func (c *decision) get(ctx context.Context, key itemKey) error {
	sent := time.Now()
	out, err := c.client.GetItem(ctx, c.getInput(key), c.options...)
	if unreadable := (*smithy.DeserializationError)(nil); errors.As(err, &unreadable) {
		sent = time.Now()
		out, err = c.client.GetItem(ctx, c.getInput(key), c.options...)
	}
	if err != nil {
		return err
	}
	return c.learned(key, out.Item, sent)
}

func (c *decision) learned(key itemKey, attributes map[string]types.AttributeValue, sent time.Time) error {
	v, err := c.learn(key, attributes, c.now, sent)
	if err != nil {
		return key.named(err)
	}
	c.answers[key] = v
	return nil
}

// evaluate finds the place of every counter and what the core makes of it, going by what is known of the items.
func (c *decision) evaluate() error {
	c.d.Restart(c.req, c.now)
	c.items, c.tiers = c.items[:0], c.tiers[:0]
	for i := range c.d.Results {
		if c.recall(i) {
			continue
		}
		r := &c.d.Results[i]
		c.redirect(r, i)
		key, name := c.place(r.Tier, c.d.Value(i))
		at := c.item(key)
		if slices.ContainsFunc(c.tiers, func(t tierAt) bool { return t.item == at && t.name == name }) {
			return fmt.Errorf("%w: values beyond the bound of limit %s share a counter", limit.ErrDuplicateCounter, r.Limit().ID)
		}
		c.items[at].enforces = c.items[at].enforces || !r.Shadow()
		c.tiers = append(c.tiers, tierAt{item: at, name: name})
		if err := c.weigh(i, c.items[at].view); err != nil {
			return err
		}
	}
	return nil
}

// evaluateInChain is evaluate, once every counter's place in the chain of shared items is known. An item behind one that is
// full is read if nothing is known of it: to guess that a counter is missing there would take a try for each item.
func (c *decision) evaluateInChain(ctx context.Context) error {
	for {
		if err := c.evaluate(); err != nil {
			return err
		}
		first := sharedSK(0)
		asked, err := c.read(ctx, func(it *item) bool { return it.view == nil && isShared(it.key.sk) && it.key.sk != first })
		if !asked || err != nil {
			return err
		}
	}
}

// recall makes result i what it was when its item was written in this call, if it was.
func (c *decision) recall(i int) bool {
	done := c.charged[i]
	if done == nil {
		return false
	}
	c.d.Adopt(i, &done.result)
	at := done.tierAt
	at.item = c.item(done.key)
	c.items[at.item].written = true
	c.tiers = append(c.tiers, at)
	return true
}

// redirect sends a value beyond the limit's bound to the counter that such values share.
func (c *decision) redirect(r *limit.Result, i int) {
	if v := c.d.Value(i); v.Kind != limit.NoValue && v.Kind != limit.ValueOther {
		r.Other = !c.values.admits(c.pk, r.Limit(), v, c.now)
	}
}

// place is the item of a counter, and its name there. A shared counter is in the first item of the chain that has it,
// or that is not full.
func (c *decision) place(t *limit.Tier, v limit.Value) (itemKey, string) {
	name := counterName(t, v)
	if !inShared(t.Limit()) {
		return itemKey{c.pk, valueSK(t.Limit().Per, v)}, name
	}
	for chain := 0; ; chain++ {
		key := itemKey{c.pk, sharedSK(chain)}
		known := c.known(key)
		if known == nil || !known.full {
			return key, name
		}
		if known.has(name) {
			return key, name
		}
	}
}

// item is the position of an item in the decision, added where it is new.
func (c *decision) item(key itemKey) int {
	for i, it := range c.items {
		if it.key == key {
			return i
		}
	}
	c.items = append(c.items, &item{key: key, view: c.known(key)})
	return len(c.items) - 1
}

// known is what is known of an item: what was asked for last, by this call or another.
func (c *decision) known(key itemKey) *view {
	own, v := c.answers[key], c.view(key)
	if v == nil || own != nil && (c.final || own.seen.After(v.seen)) {
		return own
	}
	return v
}

// weigh has the core evaluate result i from what the view holds.
func (c *decision) weigh(i int, v *view) error {
	at, t := &c.tiers[i], c.d.Results[i].Tier
	if v == nil {
		v = &view{}
	}
	p := t.Params(c.d.Owner)
	old, st, err := v.counter(t, &p, at.name)
	if err != nil {
		key := c.items[at.item].key
		c.views.Remove(key)
		return key.named(err)
	}
	at.old = old
	c.dropLate(i, &st)
	before := st.Clone()
	c.d.Evaluate(i, &st, true)
	at.pre, at.repaired = st, at.old != nil && !st.Equal(before)
	return nil
}

// dropLate leaves out what would come back to a bucket after its slot: how much there is room for depends on all that the
// bucket has been since, which no condition can tell. The units are lost, as the contract allows.
func (c *decision) dropLate(i int, st *limit.State) {
	if len(c.req.Leases) == 0 || !c.d.Results[i].Tier.Leasing().Refills {
		return
	}
	if a := &c.req.Leases[i]; a.Correction >= 0 || max(c.now, st.TokenBucket().AsOf) < a.CorrectionAt {
		return
	}
	c.req.Leases[i].Correction = 0 // in our own copy
}

// withOwnBacks is the request with a copy of its own of what it gives back.
func withOwnBacks(req *limit.Request) *limit.Request {
	if !slices.ContainsFunc(req.Leases, func(a limit.LeaseRequest) bool { return a.Correction < 0 }) {
		return req
	}
	out := *req
	out.Leases = slices.Clone(req.Leases)
	return &out
}

// need is what result i is to be charged at least.
func (c *decision) need(i int) int64 {
	if len(c.req.Leases) > 0 {
		return c.req.Leases[i].Need
	}
	return c.d.Results[i].Cost
}

// idle reports whether the decision has nothing to write to result i's counter: nothing is lacking, and nothing granted.
func (c *decision) idle(i int) bool {
	return len(c.req.Leases) > 0 && c.need(i) == 0 && c.d.Lease(i).Units == 0 && c.req.Leases[i].Correction == 0
}

// prepare adds result i's charge to the write of its item.
func (c *decision) prepare(n counter, i int, whole bool) {
	r, at := &c.d.Results[i], &c.tiers[i]
	v := c.items[at.item].view
	g := charge{
		tier: r.Tier, params: r.Tier.Params(c.d.Owner), need: c.need(i), lease: c.d.Lease(i), now: c.now,
		old: at.old, pre: at.pre, repaired: at.repaired,
		contended: v != nil && time.Now().Before(v.contended),
	}
	if len(c.req.Leases) > 0 {
		g.ask = &c.req.Leases[i]
	}
	g.post = c.committed(i)
	g.guess(n, whole)
	at.written, at.doubtful, at.tight = true, g.doubtful && g.contended, g.tight
}

// committed is result i's state after its charge. The result stays as it is: only what the store confirms is charged.
func (c *decision) committed(i int) limit.State {
	saved := c.d.Results[i]
	st := *c.tiers[i].pre.Clone()
	c.d.Charge(i, &st)
	c.d.Results[i] = saved
	return st
}
