package limittest_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
)

// fault is one mistake that a store can make.
type fault string

const (
	none               fault = ""
	denialConsumes     fault = "a denial charges units"
	partialCharge      fault = "a denial charges the limits that admitted the request"
	lateDenial         fault = "a denial charges the limits before the one that denies"
	offByOne           fault = "a limit admits one unit too many"
	costIgnored        fault = "every cost counts as one"
	tenantIgnored      fault = "all owners share their counters"
	kindIgnored        fault = "owners of different kinds share their counters"
	namesJoined        fault = "the parts of a key are joined with a colon"
	namesFolded        fault = "owners whose names differ in case share their counters"
	valueIgnored       fault = "all values share a counter"
	limitIgnored       fault = "all limits share a counter"
	modeIgnored        fault = "a shadow limit shares the counter of the enforcing limit"
	valuesUnbounded    fault = "the number of values is not bounded"
	windowIgnored      fault = "the window never ends"
	windowForgotten    fault = "the window starts again with each decision"
	retryEarly         fault = "RetryAt is a µs too early"
	retryLate          fault = "RetryAt is a µs too late"
	retryFirst         fault = "RetryAt considers the first limit only"
	neverWaits         fault = "a cost that is never admitted has a RetryAt"
	neverPoisons       fault = "a cost that is never admitted is charged"
	peekCharges        fault = "a peek charges"
	shadowDenies       fault = "a shadow limit denies"
	shadowUncharged    fault = "a shadow limit is never charged"
	shadowEager        fault = "a denial charges a shadow limit"
	shadowTiers        fault = "a shadow limit that would deny charges its other tiers"
	refundTooLarge     fault = "a refund gives one unit too many"
	overageDropped     fault = "what was used beyond a receipt is not charged"
	overageCapped      fault = "what was used beyond a receipt is charged up to the limit only"
	overageInOldWindow fault = "what was used beyond a receipt is charged to the window of the receipt"
	placeOfAnother     fault = "a place that is given back late frees another one"
	refundTwice        fault = "a repeated refund gives the units back again"
	refundWhole        fault = "a partial refund gives everything"
	refundNever        fault = "a refund gives nothing"
	refundOtherWindow  fault = "a refund gives units of an ended window back to a later one"
	refundCreates      fault = "a refund creates counters"
	refundExpired      fault = "an expired receipt gives units back"
	changeForgets      fault = "a changed number clears the counter"
	race               fault = "the store reads, decides and writes without a lock"
	repairLost         fault = "a denial does not store the repair after a clock was far ahead"
	errorCharges       fault = "an invalid request charges its valid parts"
	contextIgnored     fault = "the context is ignored"
	staleDecision      fault = "a reused decision keeps its last outcome"
	forgets            fault = "the store forgets counters in use"
	keepsFew           fault = "the store forgets counters that a request does not name, but for 64"
	refusesAll         fault = "the store accepts no limit"
	decidesOnWrongTime fault = "the clock of the store is a second late"
	leaseIgnored       fault = "the store leases nothing"
	leaseUncharged     fault = "a lease is not charged"
	leaseWhole         fault = "a lease charges the cost, whatever is needed"
	leaseGreedy        fault = "the size of a lease ignores Share"
	leaseOnDenial      fault = "a denial leases"
	leaseRampNever     fault = "no ramp is granted"
	leaseRampAtOnce    fault = "all units of a ramp may be spent at once"
	leasePlain         fault = "leased units count as if they were spent now"
	backIgnored        fault = "units that are given back are dropped"
	backTwice          fault = "units that are given back are counted twice"
	backOnDenial       fault = "a denial accepts units that are given back"
	slotStays          fault = "a leaky bucket's slot stays where it is"
	owedIgnored        fault = "what was admitted elsewhere is dropped"
	owedAtNow          fault = "what was admitted elsewhere before now counts at now"
	emptiedEndsLate    fault = "a quota that was corrected to 0 ends late"
	remainingLow       fault = "Remaining is one unit too low"
	chargedNothing     fault = "Charged of a shadow limit is 0"
	resetUncharged     fault = "ResetAt leaves out what the decision charged"
	moreLast           fault = "MoreAt is when the last entry of a log ends"
	bindingLast        fault = "Binding is the last of the results that wait longest"
)

// naive is the simplest possible store: one lock, and one map by key. It has at most one fault. Without a fault it
// keeps the whole contract.
type naive struct {
	fault    fault
	mu       sync.Mutex
	states   map[string]*limit.State
	numbers  map[string]int64
	values   map[string]map[limit.Value]bool
	refunded map[limit.ReceiptID]bool
	boot     uint64
	serial   uint64
	first    time.Time
	leases   []limit.LeaseRequest // the lease requests of the present decision
}

func newNaive(f fault) *naive {
	return &naive{fault: f, boot: rand.Uint64(), states: map[string]*limit.State{}, numbers: map[string]int64{},
		values: map[string]map[limit.Value]bool{}, refunded: map[limit.ReceiptID]bool{}}
}

func (n *naive) key(owner limit.Owner, t *limit.Tier, v limit.Value) string {
	identity := t.Identity()
	switch n.fault {
	case tenantIgnored:
		owner.Name = ""
	case kindIgnored:
		owner.Kind = limit.Tenant
	case valueIgnored:
		v = limit.Value{}
	case limitIgnored:
		identity = t.Algorithm.String() + t.Period.String()
	case modeIgnored:
		identity = strings.TrimSuffix(identity, "shadow")
	case namesJoined:
		return string(owner.Kind) + owner.Name + ":" + t.Limit().ID + ":" + identity + ":" + v.Text
	case namesFolded:
		owner.Name = strings.ToLower(owner.Name)
	}
	return fmt.Sprintf("%c%q %s %c%q", owner.Kind, owner.Name, identity, v.Kind, v.Text)
}

// value returns the value whose counter is charged: the shared one if there are too many values.
func (n *naive) value(owner limit.Owner, t *limit.Tier, v limit.Value, add bool) limit.Value {
	if v.Kind == limit.NoValue || n.fault == valuesUnbounded {
		return v
	}
	known := n.values[n.key(owner, t, limit.Value{})]
	if known[v] {
		return v
	}
	if len(known) >= t.Limit().MaxValues {
		return owner.OtherValue(v)
	}
	if add {
		if known == nil {
			known = map[limit.Value]bool{}
			n.values[n.key(owner, t, limit.Value{})] = known
		}
		known[v] = true
	}
	return v
}

func (n *naive) Accepts(*limit.Limit) error {
	if n.fault == refusesAll {
		return limit.ErrInvalidRequest
	}
	return nil
}

func (n *naive) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	return n.decide(ctx, req, now, d, true)
}

func (n *naive) Peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	return n.decide(ctx, req, now, d, n.fault == peekCharges)
}

func (n *naive) decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision, charge bool) error {
	us := now.UnixMicro()
	was := *d
	d.BeginChecked(&limit.Request{Owner: req.Owner}, us)
	if n.fault != contextIgnored && ctx.Err() != nil {
		return ctx.Err()
	}
	if err := req.Check(); err != nil {
		first := &limit.Request{Owner: req.Owner, Charges: req.Charges[:1]}
		if n.fault == errorCharges && first.Check() == nil {
			_ = n.decide(ctx, first, now, &limit.Decision{}, true)
		}
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	us = n.storeTime(now)
	req = n.falsifyRequest(req, us)
	d.BeginChecked(req, us)
	keys, states := n.read(d, charge)
	seen := map[string]bool{}
	for i := range keys {
		if seen[keys[i]] && d.Results[i].Other {
			d.BeginChecked(&limit.Request{Owner: req.Owner}, us)
			return limit.ErrDuplicateCounter
		}
		seen[keys[i]] = true
	}
	if n.fault == race {
		n.mu.Unlock()
		runtime.Gosched() // lets other goroutines run between the read and the write
		n.mu.Lock()
	}
	for i := range states {
		d.Revise().Evaluate(i, states[i], charge)
		if n.states[keys[i]] != nil && charge && n.fault != repairLost && n.fault != race {
			n.states[keys[i]] = states[i] // unchanged, but for a repair after a clock was far ahead
		}
	}
	d.Revise().Settle()
	n.falsifyOutcome(d)
	d.Now = now.UnixMicro()
	before := make([]*limit.State, len(states))
	for i := range states {
		before[i] = states[i].Clone()
	}
	if charge {
		n.write(d, keys, states)
	}
	for i := range before {
		n.falsifyResult(d, i, before[i])
	}
	if n.fault == staleDecision && was.RetryAt != 0 {
		d.RetryAt, d.Never = was.RetryAt, was.Never
	}
	return nil
}

// storeTime returns the time that the store assumes, which is now unless the fault changes it.
func (n *naive) storeTime(now time.Time) int64 {
	if n.first.IsZero() {
		n.first = now
	}
	switch n.fault {
	case windowIgnored:
		return n.first.UnixMicro()
	case decidesOnWrongTime:
		return now.Add(-time.Second).UnixMicro()
	}
	return now.UnixMicro()
}

// read copies the states of a decision's counters.
func (n *naive) read(d *limit.Decision, charge bool) (keys []string, states []*limit.State) {
	for i := range d.Results {
		r := &d.Results[i]
		v := n.value(d.Owner, r.Tier, d.Value(i), charge)
		r.Other = v.Kind == limit.ValueOther
		key := n.key(d.Owner, r.Tier, v)
		s := new(limit.State)
		if old := n.states[key]; old != nil {
			s = old.Clone()
		}
		if n.fault == changeForgets && n.numbers[key] != r.Tier.Threshold {
			*s = limit.State{}
		}
		if n.fault == windowForgotten && r.Tier.Algorithm == limit.FixedWindow && s.Window().Start < d.Now {
			*s = limit.State{}
		}
		keys, states = append(keys, key), append(states, s)
		if n.fault == costIgnored {
			r.Cost = 1
		}
	}
	return keys, states
}

// falsifyOutcome changes the decision as the fault says.
func (n *naive) falsifyOutcome(d *limit.Decision) {
	switch n.fault {
	case retryEarly:
		n.shift(d, -1)
	case retryLate:
		n.shift(d, 1)
	case retryFirst:
		for i := range d.Results {
			if r := &d.Results[i]; !d.Allowed && !d.Never && !r.Admits && !r.Shadow() {
				d.RetryAt = r.RetryAt
				break
			}
		}
	case neverWaits:
		if d.Never {
			d.Never, d.RetryAt = false, d.Now+1
		}
	case shadowDenies:
		for i := range d.Results {
			if r := &d.Results[i]; !r.Admits {
				d.Allowed, d.Never, d.RetryAt = false, r.Never, r.RetryAt
			}
		}
	}
}

// falsifyResult changes one field of result i, as the fault says. s is the state of its counter before the charge.
func (n *naive) falsifyResult(d *limit.Decision, i int, s *limit.State) {
	r := &d.Results[i]
	saved := *r
	switch n.fault {
	case remainingLow:
		d.Revise().Credit(i, -1)
	case chargedNothing:
		if r.Shadow() {
			r.Charged = 0
		}
	case resetUncharged:
		d.Revise().Evaluate(i, s, false)
		r.Admits, r.RetryAt, r.Charged = saved.Admits, saved.RetryAt, saved.Charged
	case moreLast:
		if entries := s.Log().Entries; len(entries) > 0 && !d.Revise().Leases() &&
			(r.Charged == 0 || r.Tier.Algorithm == limit.SlidingLog) {
			last := limit.Entry{At: entries[len(entries)-1].At, Units: r.Used() - r.Charged}
			if r.Charged > 0 {
				last.At = d.Now
			}
			merged := limit.LogState{Sum: last.Units, Entries: []limit.Entry{last}}.State()
			d.Revise().Evaluate(i, &merged, false)
			r.Admits, r.RetryAt, r.Charged = saved.Admits, saved.RetryAt, saved.Charged
		}
	case bindingLast:
		if d.Allowed || r.Admits || r.Shadow() || r.Never != d.Never || !r.Never && r.RetryAt != d.RetryAt {
			return
		}
		results := slices.Clone(d.Results)
		for j := range d.Results {
			d.Results[j].Admits = j != i
		}
		d.Revise().Settle()
		copy(d.Results, results)
	}
}

func (n *naive) shift(d *limit.Decision, by int64) {
	if d.RetryAt != 0 {
		d.RetryAt += by
	}
	for i := range d.Results {
		if r := &d.Results[i]; r.RetryAt != 0 {
			r.RetryAt += by
		}
	}
}

// falsifyRequest returns the request as the fault changes its lease requests.
func (n *naive) falsifyRequest(req *limit.Request, now int64) *limit.Request {
	bent := *req
	bent.Leases = slices.Clone(req.Leases)
	for i := range bent.Leases {
		switch a := &bent.Leases[i]; n.fault {
		case leaseIgnored:
			a.Least, a.Most, a.Ample = 0, 0, 0
		case leaseGreedy:
			a.Share = limit.ShareOne
		case leaseRampNever:
			a.Ramp = false
		case backIgnored:
			a.Correction = max(a.Correction, 0)
		case slotStays:
			if len(bent.Charges) == 1 && bent.Charges[0].Limit.Tiers[i].Algorithm == limit.LeakyBucket {
				a.Correction = max(a.Correction, 0)
			}
		case owedIgnored:
			a.Correction = min(a.Correction, 0)
		case owedAtNow:
			if a.Correction > 0 {
				a.CorrectionAt = now
			}
		case backTwice:
			if a.Correction < 0 {
				a.Correction *= 2
			}
		}
	}
	if n.fault == leaseWhole && len(bent.Leases) == len(bent.Charges) {
		for i := range bent.Leases {
			bent.Leases[i].Need = bent.Charges[i].Cost
		}
	}
	n.leases = bent.Leases
	return &bent
}

// falsifyLease changes the state or the result of a charged lease as the fault says.
func (n *naive) falsifyLease(d *limit.Decision, i int, s *limit.State) {
	g, t := d.Lease(i), d.Results[i].Tier
	switch n.fault {
	case leaseRampAtOnce:
		g.Upfront = g.Units
		d.Revise().AdoptLease(i, g)
	case leaseUncharged:
		n.uncharge(t, s, g.Units*max(t.Params(d.Owner).Den, 1))
	case emptiedEndsLate:
		if t.Algorithm != limit.Quota || i >= len(n.leases) || n.leases[i].Correction >= 0 {
			return
		}
		if st := s.Quota(); st.Count == 0 {
			st.End += time.Hour.Microseconds()
			*s = st.State()
		}
	case leasePlain:
		switch {
		case g.Units == 0:
		case t.Algorithm == limit.TokenBucket:
			st := s.TokenBucket()
			st.Leased, st.Late = limit.Leased{}, limit.Late{}
			*s = st.State()
		case len(s.Log().Entries) > 0:
			entries := s.Log().Entries
			entries[len(entries)-1].At = d.Now
		}
	}
}

// uncharge removes from the state the units that a lease charged. parts are grains for a token bucket, and units
// otherwise.
func (n *naive) uncharge(t *limit.Tier, s *limit.State, parts int64) {
	switch t.Algorithm {
	case limit.TokenBucket:
		st := s.TokenBucket()
		st.Missing -= parts
		*s = st.State()
	case limit.SlidingLog, limit.SlidingBuckets:
		st := s.Log()
		st.Sum = max(st.Sum-parts, 0)
		*s = st.State()
	case limit.Quota:
		st := s.Quota()
		st.Count = max(st.Count-parts, 0)
		*s = st.State()
	case limit.FixedWindow, limit.SlidingWindow:
		st := s.Window()
		st.Count = max(st.Count-parts, 0)
		*s = st.State()
	}
}

// write charges the states, except as the fault says.
func (n *naive) write(d *limit.Decision, keys []string, states []*limit.State) {
	denied := false
	for i := range d.Results {
		r := &d.Results[i]
		commits := d.Charges(i)
		denied = denied || !r.Admits
		switch n.fault {
		case denialConsumes:
			commits = true
		case partialCharge:
			commits = r.Admits && !r.Shadow()
		case lateDenial:
			commits = commits || !denied
		case neverPoisons:
			commits = commits || r.Never
		case shadowUncharged:
			commits = commits && !r.Shadow()
		case shadowEager:
			commits = commits || (r.Shadow() && r.Admits)
		case shadowTiers:
			commits = commits || (d.Allowed && r.Admits)
		}
		if n.fault == leaseOnDenial && !d.Allowed {
			d.Revise().AdoptLease(i, limit.Lease{Units: 1, Upfront: 1, Until: d.Now + 1})
		}
		if n.fault == backOnDenial && !d.Allowed && i < len(n.leases) && n.leases[i].Correction < 0 &&
			r.Tier.Algorithm == limit.FixedWindow {
			st := states[i].Window()
			st.Count = max(st.Count+n.leases[i].Correction, 0)
			*states[i] = st.State()
			n.states[keys[i]] = states[i]
		}
		if !commits {
			continue
		}
		if n.fault == offByOne && r.Remaining() == 1 {
			d.Revise().Charge(i, states[i].Clone())
		} else {
			d.Revise().Charge(i, states[i])
			n.falsifyLease(d, i, states[i])
		}
		n.states[keys[i]], n.numbers[keys[i]] = states[i], r.Tier.Threshold
	}
	if d.Allowed {
		n.serial++
		d.ID = limit.ReceiptID{Hi: n.boot, Lo: n.serial}
		if n.fault == forgets && n.serial%7 == 0 {
			clear(n.states)
		}
		if others := 0; n.fault == keepsFew {
			for key := range n.states {
				if slices.Contains(keys, key) {
					continue
				}
				if others++; others > 64 {
					delete(n.states, key)
				}
			}
		}
	}
}

func (n *naive) Settle(ctx context.Context, r *limit.Receipt, used []int64, now time.Time) (limit.Settlement, error) {
	if n.fault != contextIgnored && ctx.Err() != nil {
		return limit.Settlement{}, ctx.Err()
	}
	out, err := r.BeginSettle(used)
	if err != nil {
		return out, err
	}
	if first := n.giveBack(r, used, now, &out); !first {
		return out, nil
	}
	over := r.Overage(used)
	if over == nil || n.fault == overageDropped {
		return out, nil
	}
	var d limit.Decision
	switch n.fault {
	case overageCapped:
		if err := n.Peek(ctx, &over.Request, now, &d); err != nil {
			return out, err
		}
		for i := range over.Leases {
			left := max(0, d.Results[i].Tier.Capacity()-d.Results[i].Used()+over.Leases[i].Correction)
			over.Leases[i].Correction = min(over.Leases[i].Correction, left)
		}
	case overageInOldWindow:
		for i := range over.Leases {
			over.Leases[i].CorrectionAt = r.Entries()[0].At()
		}
	}
	err = n.Decide(ctx, &over.Request, now, &d)
	over.Report(&d, &out)
	return out, err
}

// giveBack gives back what was not used. It reports false if the receipt settles nothing.
func (n *naive) giveBack(r *limit.Receipt, used []int64, now time.Time, out *limit.Settlement) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if us := now.UnixMicro(); us >= r.Until() && n.fault != refundExpired {
		out.Expired = r.Expired(us)
		return false
	}
	out.Repeated = n.refunded[r.ID()]
	if n.fault == refundNever || len(out.Returned) == 0 {
		return false
	}
	if out.Repeated && n.fault != refundTwice {
		return false
	}
	n.refunded[r.ID()] = true
	for i := range r.Entries() {
		e := r.Entries()[i]
		s := n.states[n.key(r.Owner(), e.Tier, e.Value)]
		if s == nil && n.fault == refundCreates {
			out.Returned[i] = e.Units
		}
		if s == nil {
			continue
		}
		units := r.Unused(i, used)
		if n.fault == refundWhole {
			units = e.Units
		}
		at := now.UnixMicro()
		isPlace := e.Tier.Limit().Unit == limit.ConcurrentRequests
		if n.fault == refundOtherWindow || n.fault == placeOfAnother && isPlace {
			n.uncharge(e.Tier, s, e.Units)
			out.Returned[i] = e.Units
			continue
		}
		out.Returned[i] = e.GiveBack(s, units, at)
		if n.fault == refundTooLarge && out.Returned[i] > 0 {
			n.uncharge(e.Tier, s, 1)
		}
	}
	return true
}

func config(f fault) limittest.Config {
	return limittest.Config{New: func(testing.TB) limit.Store { return newNaive(f) }, Scripts: 10, Goroutines: 24,
		Repeats: 40, Leases: true}
}

// Guarantees that the suite passes for a store without a fault that shares no code with the stores of this module.
func TestContractOfNaiveStore(t *testing.T) {
	limittest.RunStoreContract(t, config(none))
}

// With the flag -every, TestBrokenStores runs all guarantees for each fault, and prints those that notice it. Without
// it, the test runs one guarantee for each fault.
var every = flag.Bool("every", false, "name every guarantee that catches a fault")

// Guarantees that the suite notices each fault.
func TestBrokenStores(t *testing.T) {
	for _, tt := range []struct {
		fault fault
		by    string // the name of a guarantee that notices the fault
	}{
		{denialConsumes, "a limit admits its units and no more"},
		{partialCharge, "a cost above the capacity is never admitted and charges nothing"},
		{lateDenial, "a cost above the capacity is never admitted and charges nothing"},
		{offByOne, "a limit admits its units and no more"},
		{costIgnored, "a cost is charged in whole"},
		{tenantIgnored, "no two owners share a counter"},
		{kindIgnored, "no two owners share a counter"},
		{namesJoined, "no two values share a counter"},
		{namesFolded, "no two owners share a counter"},
		{valueIgnored, "no two values share a counter"},
		{limitIgnored, "a denial by one limit charges no other limit"},
		{modeIgnored, "a shadow limit has a counter of its own"},
		{valuesUnbounded, "values beyond the bound share one counter"},
		{windowIgnored, "a limit admits its units and no more"},
		{windowForgotten, "a limit admits its units and no more"},
		{retryEarly, "a cost is charged in whole"},
		{retryLate, "a cost is charged in whole"},
		{retryFirst, "a denied cost fits at RetryAt and not before"},
		{neverWaits, "a cost above the capacity is never admitted and charges nothing"},
		{neverPoisons, "a cost above the capacity is never admitted and charges nothing"},
		{peekCharges, "a cost above the capacity is never admitted and charges nothing"},
		{shadowDenies, "a denied cost fits at RetryAt and not before"},
		{shadowUncharged, "a shadow limit only reports"},
		{shadowEager, "a shadow limit has a counter of its own"},
		{shadowTiers, "the tiers of a shadow limit are charged together or not at all"},
		{refundTooLarge, "a refund gives back part"},
		{overageDropped, "a settlement corrects each limit by itself"},
		{overageCapped, "what was used beyond a receipt is charged, also above the limit"},
		{overageInOldWindow, "what was used beyond a receipt counts from now"},
		{placeOfAnother, "a place is renewed although all are taken, and freed once"},
		{refundTwice, "a refund happens once"},
		{refundWhole, "a refund gives back part"},
		{refundNever, "anonymous values beyond the bound share many counters"},
		{refundOtherWindow, "anonymous values beyond the bound share many counters"},
		{refundCreates, "a refund without a valid charge gives nothing back"},
		{refundExpired, "a receipt expires"},
		{changeForgets, "a changed number keeps the used units"},
		{race, "concurrent requests never exceed a limit"},
		{repairLost, "a clock that was far ahead denies nobody for long"},
		{errorCharges, "an invalid request is an error and charges nothing"},
		{contextIgnored, "a cancelled request charges nothing"},
		{staleDecision, "a reused decision keeps nothing of its previous use"},
		{forgets, "Remaining is the largest cost that is admitted"},
		{keepsFew, "a request of any size is charged in whole, and the store forgets no counter"},
		{refusesAll, "Accepts agrees with Config.Refuses"},
		{decidesOnWrongTime, "a limit admits its units and no more"},
		{leaseIgnored, "leases: the grant follows the rule"},
		{leaseUncharged, "leases: the grant follows the rule"},
		{leaseWhole, "leases: the grant follows the rule"},
		{leaseGreedy, "leases: the grant follows the rule"},
		{leaseOnDenial, "leases: a denial leases nothing"},
		{leaseRampNever, "leases: a ramp grants the units that become free until it ends"},
		{leaseRampAtOnce, "leases: a ramp grants the units that become free until it ends"},
		{leasePlain, "leases: units count until they end"},
		{backIgnored, "leases: units that are given back can be charged again"},
		{backTwice, "leases: a denial gives nothing back"},
		{backOnDenial, "leases: a denial gives nothing back"},
		{slotStays, "leases: units given back make the next free time of a leaky bucket earlier"},
		{owedIgnored, "leases: units that were admitted elsewhere count"},
		{owedAtNow, "leases: units that were admitted elsewhere before now count in an unused counter"},
		{emptiedEndsLate, "leases: a counter that was corrected to 0 goes on counting"},
		{remainingLow, "random scripts agree with the model"},
		{chargedNothing, "random scripts agree with the model"},
		{resetUncharged, "random scripts agree with the model"},
		{moreLast, "random scripts agree with the model"},
		{bindingLast, "random scripts agree with the model"},
	} {
		t.Run(string(tt.fault), func(t *testing.T) {
			if len(limittest.Record(t, config(tt.fault), tt.by)) == 0 {
				t.Fatalf("the guarantee %q does not notice the fault: %s", tt.by, tt.fault)
			}
			if !*every {
				return
			}
			var by []string
			for _, name := range limittest.Names() {
				if len(limittest.Record(t, config(tt.fault), name)) > 0 {
					by = append(by, name)
				}
			}
			t.Logf("noticed by %d guarantees: %s", len(by), strings.Join(by, "; "))
		})
	}
}
