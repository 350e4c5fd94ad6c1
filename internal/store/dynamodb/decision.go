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
	req            *limit.Request
	eval           *limit.Evaluation
	now            int64
	firstNow       int64     // now at the first try
	startedAt      time.Time // when that was, by this machine's monotonic clock
	partition      string
	items          []*item
	counters       []resultCounter
	replies        map[itemKey]*itemCopy  // items as the store has shown them within this call
	onlyReplies    bool                   // no try is left: only those count
	hasRead        bool                   // instead of the last write
	writtenResults map[int]*writtenResult // results whose items are written already, see chargeStepwise
}

// charged is a result as the write has left it.
type writtenResult struct {
	resultCounter
	key    itemKey
	result limit.Result
	units  int64 // units that the request needed
}

// item is one item of the decision.
type item struct {
	key      itemKey
	known    *itemCopy // nil: nothing is known
	enforces bool      // holds an enforcing counter
	written  bool      // by a step of this decision
}

// tierAt is where the counter of one result is, and what was made of it.
type resultCounter struct {
	item        int
	name        string
	stored      fields
	before      limit.State
	repaired    bool
	written     bool
	likelyStale bool
	scarce      bool        // others at the same time leave too little room for what was guessed
	lease       limit.Lease // that was or is to be written
}

// Decide charges all limits of the request or none. See [limit.Store].
func (s *Store) Decide(ctx context.Context, req *limit.Request, now time.Time, out *limit.Decision) error {
	d, err := s.beginDecision(ctx, req, now, out)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := d.decide(ctx); err != nil {
		d.returnWritten(ctx, err)
		out.BeginChecked(req, d.now) // an error leaves no outcome behind
		return fmt.Errorf("decide for owner %q on table %s: %w", req.Owner.Name, *s.tableName, err)
	}
	return nil
}

// Peek is Decide without the charge. See [limit.Store].
func (s *Store) Peek(ctx context.Context, req *limit.Request, now time.Time, out *limit.Decision) error {
	d, err := s.beginDecision(ctx, req, now, out)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := d.peek(ctx); err != nil {
		out.BeginChecked(req, d.now)
		return fmt.Errorf("peek for owner %q on table %s: %w", req.Owner.Name, *s.tableName, err)
	}
	return nil
}

func (s *Store) beginDecision(ctx context.Context, req *limit.Request, now time.Time, out *limit.Decision) (*decision, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := s.checkRequest(req); err != nil {
		out.BeginChecked(&limit.Request{Owner: req.Owner}, now.UnixMicro()) // an error leaves no outcome behind
		return nil, err
	}
	d := &decision{Store: s, req: cloneReturns(leaseSharedCharges(req)), now: s.timeOf(now), startedAt: time.Now(), partition: s.partitionKey(req.Owner), replies: map[itemKey]*itemCopy{}}
	d.firstNow = d.now
	d.eval = out.BeginChecked(d.req, d.now)
	return d, nil
}

func (d *decision) peek(ctx context.Context) error {
	for {
		if err := d.evaluateResults(); err != nil {
			return err
		}
		asked, err := d.readItems(ctx, func(it *item) bool { return d.replies[it.key] == nil })
		if err != nil {
			return err
		}
		if !asked {
			d.eval.Settle()
			return nil
		}
	}
}

func (d *decision) decide(ctx context.Context) error {
	if len(d.eval.Results) == 0 {
		d.eval.Settle()
		d.eval.ID = d.newReceiptID()
		return nil
	}
	tries := d.allowedTries()
	for try := 0; try < tries; try++ {
		if !d.hasRead {
			if err := d.backOff(ctx, try); err != nil {
				return err
			}
		}
		d.updateTime()
		if err := d.evaluateWithChain(ctx); err != nil {
			return err
		}
		if !d.eval.Settle() {
			if denied, err := d.confirmDenial(ctx); denied || err != nil {
				return err
			}
		}
		done, err := d.writeCharges(ctx, try == tries-1)
		if done || err != nil {
			return err
		}
		if d.hasRead { // at most once for each item, and no guess was wrong
			try--
		}
	}
	d.onlyReplies = true
	if err := d.evaluateResults(); err == nil && !d.eval.Settle() { // the last try may have learned that it does not fit
		if denied, err := d.confirmDenial(ctx); denied || err != nil {
			return err
		}
	}
	return fmt.Errorf("%w, %d tries", ErrUndecided, tries)
}

// tries is how often the decision may meet other writers. One that leases is worth many others, and failing it denies them
// all.
func (d *decision) allowedTries() int {
	if len(d.req.Leases) > 0 {
		return maxLeaseTries
	}
	return maxTries
}

// giveWay waits before a try by how many have failed, so that those who met do not meet again, and asks each time for half as
// much ahead of what there is little left of, so that there is room for all of them.
func (d *decision) backOff(ctx context.Context, failed int) error {
	if failed < maxTries-1 || len(d.req.Leases) == 0 {
		return nil
	}
	half := *d.req
	half.Leases = slices.Clone(half.Leases)
	for i := range half.Leases {
		a := &half.Leases[i]
		if !d.counters[i].scarce {
			continue
		}
		a.Least, a.Most, a.Ample = (a.Least+1)/2, (a.Most+1)/2, (a.Ample+1)/2
	}
	d.req = &half
	return sleepContext(ctx, time.Duration(rand.Int64N(int64(min(failed, 4))*int64(4*time.Millisecond))))
}

// tick brings the decision's time up to date before a try: the others have not waited for this one. A caller's own time
// stands still.
func (d *decision) updateTime() {
	if d.clock != nil {
		d.now = d.firstNow + time.Since(d.startedAt).Microseconds()
	}
}

// deny answers a denial if the items are known well enough for it to be true; items that are not are read first. It
// reports false where they show that the cost fits after all.
func (d *decision) confirmDenial(ctx context.Context) (bool, error) {
	for {
		asked, err := d.readItems(ctx, func(it *item) bool { return d.replies[it.key] == nil && !d.isRecent(it.known, d.now) })
		if err != nil {
			return false, err
		}
		if !asked {
			d.keepLeases()
			d.persistRepairs(ctx)
			return true, nil
		}
		if err := d.evaluateResults(); err != nil {
			return false, err
		}
		if d.eval.Settle() {
			return false, nil
		}
	}
}

// read asks the store for the items that are wanted. It reports whether there were any.
func (d *decision) readItems(ctx context.Context, wanted func(*item) bool) (bool, error) {
	asked := false
	for _, it := range d.items {
		if it.written || !wanted(it) {
			continue
		}
		asked = true
		if err := d.readItem(ctx, it.key); err != nil {
			return true, err
		}
	}
	return asked, nil
}

func (s *Store) getItemInput(key itemKey) *dynamodb.GetItemInput {
	consistent := true
	return &dynamodb.GetItemInput{TableName: s.tableName, Key: key.attributes(), ConsistentRead: &consistent}
}

// get reads an item. An answer that breaks off on its way is asked for once more, because reading changes nothing; what
// writes is never sent twice.
func (d *decision) readItem(ctx context.Context, key itemKey) error {
	sent := time.Now()
	out, err := d.client.GetItem(ctx, d.getItemInput(key), d.callOptions...)
	if unreadable := (*smithy.DeserializationError)(nil); errors.As(err, &unreadable) {
		sent = time.Now()
		out, err = d.client.GetItem(ctx, d.getItemInput(key), d.callOptions...)
	}
	if err != nil {
		return err
	}
	return d.learnItem(key, out.Item, sent)
}

func (d *decision) learnItem(key itemKey, attributes map[string]types.AttributeValue, sent time.Time) error {
	v, err := d.cacheItem(key, attributes, d.now, sent)
	if err != nil {
		return key.wrapError(err)
	}
	d.replies[key] = v
	return nil
}

// evaluate finds the place of every counter and what the core makes of it, going by what is known of the items.
func (d *decision) evaluateResults() error {
	d.eval.Restart(d.req, d.now)
	d.items, d.counters = d.items[:0], d.counters[:0]
	for i := range d.eval.Results {
		if d.adoptWritten(i) {
			continue
		}
		r := &d.eval.Results[i]
		d.redirectExtraValue(r, i)
		key, name := d.locateCounter(r.Tier, d.eval.Value(i))
		at := d.indexOfItem(key)
		if slices.ContainsFunc(d.counters, func(t resultCounter) bool { return t.item == at && t.name == name }) {
			return fmt.Errorf("%w: values beyond the bound of limit %s share a counter", limit.ErrDuplicateCounter, r.Limit().ID)
		}
		d.items[at].enforces = d.items[at].enforces || !r.Shadow()
		d.counters = append(d.counters, resultCounter{item: at, name: name})
		if err := d.evaluateResult(i, d.items[at].known); err != nil {
			return err
		}
	}
	return nil
}

// evaluateInChain is evaluate, once every counter's place in the chain of shared items is known. An item behind one that is
// full is read if nothing is known of it: to guess that a counter is missing there would take a try for each item.
func (d *decision) evaluateWithChain(ctx context.Context) error {
	for {
		if err := d.evaluateResults(); err != nil {
			return err
		}
		first := sharedSortKey(0)
		asked, err := d.readItems(ctx, func(it *item) bool { return it.known == nil && isSharedSortKey(it.key.sort) && it.key.sort != first })
		if !asked || err != nil {
			return err
		}
	}
}

// recall makes result i what it was when its item was written in this call, if it was.
func (d *decision) adoptWritten(i int) bool {
	done := d.writtenResults[i]
	if done == nil {
		return false
	}
	d.eval.Adopt(i, &done.result)
	at := done.resultCounter
	at.item = d.indexOfItem(done.key)
	d.items[at.item].written = true
	d.counters = append(d.counters, at)
	return true
}

// redirect sends a value beyond the limit's bound to the counter that such values share.
func (d *decision) redirectExtraValue(r *limit.Result, i int) {
	if v := d.eval.Value(i); v.Kind != limit.NoValue && v.Kind != limit.ValueOther {
		r.Other = !d.valueCounts.hasOwnCounter(d.partition, r.Limit(), v, d.now)
	}
}

// place is the item of a counter, and its name there. A shared counter is in the first item of the chain that has it,
// or that is not full.
func (d *decision) locateCounter(t *limit.Tier, v limit.Value) (itemKey, string) {
	name := counterName(t, v)
	if !isInSharedItem(t.Limit()) {
		return itemKey{d.partition, valueSortKey(t.Limit().Per, v)}, name
	}
	for chain := 0; ; chain++ {
		key := itemKey{d.partition, sharedSortKey(chain)}
		known := d.latestCopy(key)
		if known == nil || !known.full {
			return key, name
		}
		if known.hasCounter(name) {
			return key, name
		}
	}
}

// item is the position of an item in the decision, added where it is new.
func (d *decision) indexOfItem(key itemKey) int {
	for i, it := range d.items {
		if it.key == key {
			return i
		}
	}
	d.items = append(d.items, &item{key: key, known: d.latestCopy(key)})
	return len(d.items) - 1
}

// known is what is known of an item: what was asked for last, by this call or another.
func (d *decision) latestCopy(key itemKey) *itemCopy {
	own, v := d.replies[key], d.cachedCopy(key)
	if v == nil || own != nil && (d.onlyReplies || own.readAt.After(v.readAt)) {
		return own
	}
	return v
}

// weigh has the core evaluate result i from what the view holds.
func (d *decision) evaluateResult(i int, v *itemCopy) error {
	at, t := &d.counters[i], d.eval.Results[i].Tier
	if v == nil {
		v = &itemCopy{}
	}
	p := t.Params(d.eval.Owner)
	old, st, err := v.readCounter(t, &p, at.name)
	if err != nil {
		key := d.items[at.item].key
		d.copies.Remove(key)
		return key.wrapError(err)
	}
	at.stored = old
	d.dropLateReturn(i, &st)
	before := st.Clone()
	d.eval.Evaluate(i, &st, true)
	at.before, at.repaired = st, at.stored != nil && !st.Equal(before)
	return nil
}

// dropLate leaves out what would come back to a bucket after its slot: how much there is room for depends on all that the
// bucket has been since, which no condition can tell. The units are lost, as the contract allows.
func (d *decision) dropLateReturn(i int, st *limit.State) {
	if len(d.req.Leases) == 0 || !d.eval.Results[i].Tier.Leasing().Refills {
		return
	}
	if a := &d.req.Leases[i]; a.Correction >= 0 || max(d.now, st.TokenBucket().AsOf) < a.CorrectionAt {
		return
	}
	d.req.Leases[i].Correction = 0 // in our own copy
}

// withOwnBacks is the request with a copy of its own of what it gives back.
func cloneReturns(req *limit.Request) *limit.Request {
	if !slices.ContainsFunc(req.Leases, func(a limit.LeaseRequest) bool { return a.Correction < 0 }) {
		return req
	}
	out := *req
	out.Leases = slices.Clone(req.Leases)
	return &out
}

// need is what result i is to be charged at least.
func (d *decision) neededUnits(i int) int64 {
	if len(d.req.Leases) > 0 {
		return d.req.Leases[i].Need
	}
	return d.eval.Results[i].Cost
}

// idle reports whether the decision has nothing to write to result i's counter: nothing is lacking, and nothing granted.
func (d *decision) hasNothingToWrite(i int) bool {
	return len(d.req.Leases) > 0 && d.neededUnits(i) == 0 && d.eval.Lease(i).Units == 0 && d.req.Leases[i].Correction == 0
}

// prepare adds result i's charge to the write of its item.
func (d *decision) addCharge(u counterUpdate, i int, whole bool) {
	r, at := &d.eval.Results[i], &d.counters[i]
	v := d.items[at.item].known
	charge := counterCharge{
		tier: r.Tier, params: r.Tier.Params(d.eval.Owner), need: d.neededUnits(i), lease: d.eval.Lease(i), now: d.now,
		stored: at.stored, before: at.before, repaired: at.repaired,
		contended: v != nil && time.Now().Before(v.contendedUntil),
	}
	if len(d.req.Leases) > 0 {
		charge.leaseRequest = &d.req.Leases[i]
	}
	charge.after = d.stateAfterCharge(i)
	charge.addTo(u, whole)
	at.written, at.likelyStale, at.scarce = true, charge.likelyStale && charge.contended, charge.scarce
}

// committed is result i's state after its charge. The result stays as it is: only what the store confirms is charged.
func (d *decision) stateAfterCharge(i int) limit.State {
	saved := d.eval.Results[i]
	st := *d.counters[i].before.Clone()
	d.eval.Charge(i, &st)
	d.eval.Results[i] = saved
	return st
}
