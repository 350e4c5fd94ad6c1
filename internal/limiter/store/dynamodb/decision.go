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

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// decision is one call of Decide or Peek, from its first try to its last. The package comment lists its methods in the
// order in which they run.
type decision struct {
	*Store
	req         *limit.Request        // the caller's, or a copy with smaller leases
	eval        *limit.Evaluation     // the core's evaluation, which fills in the caller's Decision
	now         int64                 // the time of this try, µs since 1970
	firstNow    int64                 // now of the first try
	startedAt   time.Time             // when firstNow was taken, by this machine's monotonic clock
	partition   string                // the partition key of the owner's items
	items       []*item               // the items of this try
	counters    []resultCounter       // the counter of each result
	replies     map[itemKey]*itemCopy // the items as the table has shown them to this call
	onlyReplies bool                  // no try is left: latestCopy prefers replies
	hasRead     bool                  // the try ended with a read in place of its last write
}

// item is one item of a decision.
type item struct {
	key      itemKey
	known    *itemCopy // the copy that this try goes by; nil if there is none
	enforces bool      // holds a counter of a limit that is no shadow limit
}

// resultCounter is the counter of one result: where it is, what it holds, and what this try does to it.
type resultCounter struct {
	item        int         // its position in decision.items
	name        string      // of its attribute
	stored      fields      // its fields in the copy of the item; nil if it is not there
	before      limit.State // the core's state before the charge, repaired if needed
	repaired    bool        // the core has repaired the state: a clock that leapt ahead has written the counter
	written     bool        // this try's update of the item charges the counter
	likelyStale bool        // the condition probably does not hold, because other processes charge the counter
	scarce      bool        // so few units are left that the charges of other processes may take them first
	lease       limit.Lease // that the update charges
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
		out.BeginChecked(req, d.now) // after an error the caller's Decision is empty
		return fmt.Errorf("decide for owner %q on table %s: %w", req.Owner.Name, *s.tableName, err)
	}
	return nil
}

// Peek evaluates the request as Decide does, and charges nothing. See [limit.Store].
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

// beginDecision checks the request and returns the decision that is to be made.
func (s *Store) beginDecision(
	ctx context.Context, req *limit.Request, now time.Time, out *limit.Decision,
) (*decision, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := s.checkRequest(req); err != nil {
		// after an error the caller's Decision is empty
		out.BeginChecked(&limit.Request{Owner: req.Owner}, now.UnixMicro())
		return nil, err
	}
	d := &decision{
		Store: s, req: req, now: s.timeOf(now), startedAt: time.Now(),
		partition: s.partitionKey(req.Owner), replies: map[itemKey]*itemCopy{},
	}
	d.firstNow = d.now
	d.eval = out.BeginChecked(d.req, d.now)
	return d, nil
}

// peek evaluates the request by the items of the table. It reads each item once and goes by no earlier copy.
func (d *decision) peek(ctx context.Context) error {
	for {
		if err := d.evaluateResults(); err != nil {
			return err
		}
		hasRead, err := d.readItems(ctx, func(it *item) bool { return d.replies[it.key] == nil })
		if err != nil {
			return err
		}
		if !hasRead {
			d.eval.Settle()
			return nil
		}
	}
}

// decide makes the decision in as many tries as it may have. See the package comment.
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
		if d.hasRead { // a read is no failed try; there is at most one for each item
			try--
		}
	}
	d.onlyReplies = true
	// What the last try has read may show that the cost does not fit.
	if err := d.evaluateResults(); err == nil && !d.eval.Settle() {
		if denied, err := d.confirmDenial(ctx); denied || err != nil {
			return err
		}
	}
	return fmt.Errorf("%w, %d tries", ErrUndecided, tries)
}

// allowedTries returns how often the decision may fail because of other writers. A decision that leases gets more
// tries: many later requests depend on it.
func (d *decision) allowedTries() int {
	if len(d.req.Leases) > 0 {
		return maxLeaseTries
	}
	return maxTries
}

// backOff waits a random time before a later try of a decision that leases, so that processes which write at the same
// time do not meet once more. Where units are scarce it also halves the lease that is asked for, so that there is room
// for all of them.
func (d *decision) backOff(ctx context.Context, failed int) error {
	if failed < maxTries-1 || len(d.req.Leases) == 0 {
		return nil
	}
	half := *d.req
	half.Leases = slices.Clone(half.Leases)
	for i := range half.Leases {
		lease := &half.Leases[i]
		if !d.counters[i].scarce {
			continue
		}
		lease.Least, lease.Most, lease.Ample = (lease.Least+1)/2, (lease.Most+1)/2, (lease.Ample+1)/2
	}
	d.req = &half
	return d.pause(ctx, rand.N(time.Duration(min(failed, 4))*4*time.Millisecond))
}

// updateTime adds the time that earlier tries took to the decision's time, because other processes have not waited for
// this decision. If Config.CallerClock is set, the time stays as the caller gave it.
func (d *decision) updateTime() {
	if d.clock != nil {
		d.now = d.firstNow + time.Since(d.startedAt).Microseconds()
	}
}

// confirmDenial completes a denial. It reads the items whose copies are too old to deny by, and all items if a place of
// a request in flight is denied, which may come back at any moment. It reports false if the cost fits after all.
func (d *decision) confirmDenial(ctx context.Context) (bool, error) {
	ofPlace := func(r limit.Result) bool { return !r.Admits && r.Limit().CountsPlaces() }
	for {
		all := slices.ContainsFunc(d.eval.Results, ofPlace)
		hasRead, err := d.readItems(ctx, func(it *item) bool {
			return d.replies[it.key] == nil && (all || !d.isRecent(it.known, d.now))
		})
		if err != nil {
			return false, err
		}
		if !hasRead {
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

// readItems reads the items that wanted selects. It reports whether there were any.
func (d *decision) readItems(ctx context.Context, wanted func(*item) bool) (bool, error) {
	hasRead := false
	for _, it := range d.items {
		if !wanted(it) {
			continue
		}
		hasRead = true
		if err := d.readItem(ctx, it.key); err != nil {
			return true, err
		}
	}
	return hasRead, nil
}

// getItemInput returns the input of a consistent read of an item.
func (s *Store) getItemInput(key itemKey) *dynamodb.GetItemInput {
	consistent := true
	return &dynamodb.GetItemInput{TableName: s.tableName, Key: key.attributes(), ConsistentRead: &consistent}
}

// readItem reads an item and caches it. If the reply breaks off, the call is repeated once, because reading changes
// nothing. A call that writes is never repeated.
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

// learnItem caches an item as a reply has shown it, and notes it in replies.
func (d *decision) learnItem(key itemKey, attributes map[string]types.AttributeValue, sent time.Time) error {
	shown, err := d.cacheItem(key, attributes, d.now, sent)
	if err != nil {
		return key.wrapError(err)
	}
	d.replies[key] = shown
	return nil
}

// evaluateResults finds the counter of each result and lets the core evaluate it by the known copy of its item.
func (d *decision) evaluateResults() error {
	d.eval.Restart(d.req, d.now)
	d.items, d.counters = d.items[:0], d.counters[:0]
	for i := range d.eval.Results {
		r := &d.eval.Results[i]
		d.redirectExtraValue(r, i)
		key, name := d.locateCounter(r.Tier, d.eval.Value(i))
		index := d.indexOfItem(key)
		if slices.ContainsFunc(d.counters, func(t resultCounter) bool { return t.item == index && t.name == name }) {
			return fmt.Errorf("%w: values beyond the bound of limit %s share a counter",
				limit.ErrDuplicateCounter, r.Limit().ID)
		}
		d.items[index].enforces = d.items[index].enforces || !r.Shadow()
		d.counters = append(d.counters, resultCounter{item: index, name: name})
		if err := d.evaluateResult(i, d.items[index].known); err != nil {
			return err
		}
	}
	return nil
}

// evaluateWithChain calls evaluateResults until it needs no more items of the chain of shared items. It reads an item
// that follows a full one if there is no copy of it, because it costs a failed write to assume that the counter is not
// there.
func (d *decision) evaluateWithChain(ctx context.Context) error {
	for {
		if err := d.evaluateResults(); err != nil {
			return err
		}
		first := sharedSortKey(0)
		hasRead, err := d.readItems(ctx, func(it *item) bool {
			return it.known == nil && isSharedSortKey(it.key.sort) && it.key.sort != first
		})
		if !hasRead || err != nil {
			return err
		}
	}
}

// redirectExtraValue makes a result whose value is beyond the limit's MaxValues use the counter that all such values
// share.
func (d *decision) redirectExtraValue(r *limit.Result, i int) {
	if v := d.eval.Value(i); v.Kind != limit.NoValue && v.Kind != limit.ValueOther {
		r.Other = !d.valueCounts.hasOwnCounter(d.partition, r.Limit(), v, d.now)
	}
}

// locateCounter returns the item and the attribute name of a counter. A shared counter is in the first item of the
// chain that holds it already, or else in the first that is not full.
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

// indexOfItem returns the position of an item in d.items. It adds the item if it is missing.
func (d *decision) indexOfItem(key itemKey) int {
	for i, it := range d.items {
		if it.key == key {
			return i
		}
	}
	d.items = append(d.items, &item{key: key, known: d.latestCopy(key)})
	return len(d.items) - 1
}

// latestCopy returns the latest copy of an item, whether this call or another one has read it, or nil.
func (d *decision) latestCopy(key itemKey) *itemCopy {
	replied, cached := d.replies[key], d.cachedCopy(key)
	if cached == nil || replied != nil && (d.onlyReplies || replied.readAt.After(cached.readAt)) {
		return replied
	}
	return cached
}

// evaluateResult lets the core evaluate result i by a copy of its item. If the copy is nil, all counters count as never
// used.
func (d *decision) evaluateResult(i int, known *itemCopy) error {
	counter, t := &d.counters[i], d.eval.Results[i].Tier
	if known == nil {
		known = &itemCopy{}
	}
	p := t.Params(d.eval.Owner)
	stored, st, err := known.readCounter(t, &p, counter.name)
	if err != nil {
		key := d.items[counter.item].key
		d.copies.Remove(key)
		return key.wrapError(err)
	}
	counter.stored = stored
	before := st.Clone()
	d.eval.Evaluate(i, &st, true)
	counter.before, counter.repaired = st, counter.stored != nil && !st.Equal(before)
	return nil
}

// neededUnits returns the units that result i must be charged.
func (d *decision) neededUnits(i int) int64 {
	if len(d.req.Leases) > 0 {
		return d.req.Leases[i].Need
	}
	return d.eval.Results[i].Cost
}

// hasNothingToWrite reports whether result i's counter is left as it is: nothing is needed, leased or corrected.
func (d *decision) hasNothingToWrite(i int) bool {
	return len(d.req.Leases) > 0 && d.neededUnits(i) == 0 && d.eval.Lease(i).Units == 0 &&
		d.req.Leases[i].Correction == 0
}

// addCharge adds result i's charge to the update of its item, and notes what the charge says about its chances.
func (d *decision) addCharge(u counterUpdate, i int, whole bool) {
	r, counter := &d.eval.Results[i], &d.counters[i]
	known := d.items[counter.item].known
	charge := counterCharge{
		tier: r.Tier, params: r.Tier.Params(d.eval.Owner), need: d.neededUnits(i), lease: d.eval.Lease(i), now: d.now,
		stored: counter.stored, before: counter.before, repaired: counter.repaired,
		contended: known != nil && time.Now().Before(known.contendedUntil),
	}
	if len(d.req.Leases) > 0 {
		charge.leaseRequest = &d.req.Leases[i]
	}
	charge.after = d.stateAfterCharge(i)
	charge.addTo(u, whole)
	counter.written, counter.likelyStale, counter.scarce = true, charge.likelyStale && charge.contended, charge.scarce
}

// stateAfterCharge returns the state of result i's counter after its charge. The result itself stays uncharged until
// the table has confirmed the charge.
func (d *decision) stateAfterCharge(i int) limit.State {
	saved := d.eval.Results[i]
	st := *d.counters[i].before.Clone()
	d.eval.Charge(i, &st)
	d.eval.Results[i] = saved
	return st
}
