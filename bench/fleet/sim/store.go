package sim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
)

// Errors of the simulated store, for calls that got no answer.
var (
	errNoReply   = fmt.Errorf("simulated Redis: no reply in time: %w", context.DeadlineExceeded)
	errThrottled = errors.New("simulated Redis: refused, since it is asked too often")
)

// shardBytes bounds the memory of the counters of one shard. It holds more than a million tenants with one limit.
const shardBytes = 1 << 30

// shard is one node of the simulated Redis: the real store in memory, which serves one call after the other.
type shard struct {
	store  *memory.Store
	freeAt int64 // when all calls that have arrived will be done, ns

	away      bool    // calls do not arrive
	slower    float64 // factor of the service time
	throttled int64   // calls that are accepted in a second; 0: all
	taken     int64   // calls of the present second
	second    int64   // number of the present second

	ops       int64 // calls that were sent to it in the measured time
	unserved  int64 // those of ops that it did not serve
	busy      int64 // how long it served calls in the measured time, ns
	opsBefore int64 // ops at the beginning of the present second
	peak      int64 // the largest number of calls in one second
}

func newShard() (*shard, error) {
	s := &shard{slower: 1}
	return s, s.forget()
}

// forget discards all counters, as if a replica took over that had received none of them.
func (s *shard) forget() (err error) {
	s.store, err = memory.New(memory.Config{MaxBytes: shardBytes, OneBudget: true})
	return err
}

// storeCall is one call to the simulated store. It is a field of the worker that waits for it.
type storeCall struct {
	worker *worker
	shard  *shard
	tenant *tenant // whose counters the call is about; nil for those of the processes themselves
	req    *limit.Request
	d      *limit.Decision
	peek   bool
	turn   int64 // how many calls about the tenant had arrived when this one was sent
	sent   int64 // when it was sent, ns
	oneWay int64 // the time for one way of the round trip, ns
	err    error
}

// port is the simulated Redis as one process sees it.
type port struct{ process *process }

var _ limit.Store = port{}

// Accepts implements [limit.Store].
func (port) Accepts(*limit.Limit) error { return nil }

// Decide implements [limit.Store].
func (p port) Decide(_ context.Context, req *limit.Request, _ time.Time, d *limit.Decision) error {
	return p.process.run.callStore(req, d, false)
}

// Peek implements [limit.Store].
func (p port) Peek(_ context.Context, req *limit.Request, _ time.Time, d *limit.Decision) error {
	return p.process.run.callStore(req, d, true)
}

// Settle implements [limit.Store]. Simulated clients settle nothing.
func (port) Settle(context.Context, *limit.Receipt, []int64, time.Time) (limit.Settlement, error) {
	return limit.Settlement{}, errors.New("simulated Redis: there are no settlements")
}

// callStore sends a call to the store, and waits for its reply or its deadline.
func (r *run) callStore(req *limit.Request, d *limit.Decision, peek bool) error {
	w := r.current
	c := &w.call
	*c = storeCall{worker: w, req: req, d: d, peek: peek, sent: r.now, oneWay: r.costs.RoundTrip.Nanoseconds() / 2}
	c.tenant = r.tenantOf(req.Owner)
	if c.tenant != nil {
		c.turn = c.tenant.arrived
	}
	c.shard = r.shardOf(req.Owner.Name)
	r.queue.push(event{at: r.now + c.oneWay, call: c})
	r.park()
	return c.err
}

// serveCall serves a call that has come to its shard, and adds the event of its reply. If the reply comes after the
// deadline, the caller gets no reply, but what the call has charged stays charged.
func (r *run) serveCall(c *storeCall) {
	s, deadline := c.shard, c.sent+r.costs.Deadline.Nanoseconds()
	s.count(c.tenant)
	if s.away {
		s.unserved++
		c.err = errNoReply
		c.d.Clear(0)
		r.queue.push(event{at: deadline, resume: c.worker})
		return
	}
	if s.throttles(r.now) {
		s.unserved++
		c.err = errThrottled
		c.d.Clear(0)
		r.queue.push(event{at: r.now + c.oneWay, resume: c.worker})
		return
	}
	start := max(r.now, s.freeAt)
	if start-r.now > maxBacklog.Nanoseconds() { // the node's buffers are full, so it drops the connection
		s.unserved++
		c.err = errNoReply
		c.d.Clear(0)
		r.queue.push(event{at: deadline, resume: c.worker})
		return
	}
	service := int64(float64(r.costs.StoreService.Nanoseconds()) * s.slower)
	s.freeAt = start + service
	s.busy += service
	if c.tenant != nil {
		c.tenant.arrived++
		if r.scenario.plant != nil {
			r.scenario.plant(c.req, c.tenant.arrived > c.turn+1)
		}
	}
	now := r.timeAt(start)
	if c.peek {
		c.err = s.store.Peek(context.Background(), c.req, now, c.d)
	} else {
		c.err = s.store.Decide(context.Background(), c.req, now, c.d)
	}
	replied := s.freeAt + c.oneWay
	if replied > deadline {
		replied, c.err = deadline, errNoReply
		c.d.Clear(0)
	}
	r.queue.push(event{at: replied, resume: c.worker})
}

// count counts a call that was sent to the shard. t is the tenant whose counters the call is about, or nil.
func (s *shard) count(t *tenant) {
	s.ops++
	if t != nil {
		t.ops++
	}
}

// maxBacklog bounds the queue of a shard, in time. Callers wait only for milliseconds (see Costs.Deadline), so nobody
// would wait for the reply to a call that is further back in the queue.
const maxBacklog = time.Second

// throttles counts a call that has arrived, and reports whether the shard refuses it because of a fault StoreThrottles.
func (s *shard) throttles(now int64) bool {
	if s.throttled == 0 {
		return false
	}
	if second := now / 1e9; second != s.second {
		s.second, s.taken = second, 0
	}
	s.taken++
	return s.taken > s.throttled
}

// tenantOf returns the tenant that an owner is, or nil if the owner is none.
func (r *run) tenantOf(o limit.Owner) *tenant {
	if o.Kind != limit.Tenant {
		return nil
	}
	if t := r.current.tenant; t != nil && t.req.Owner.Name == o.Name {
		return t
	}
	return r.byName[o.Name]
}

// shardOf returns the shard that has the counters of an owner.
func (r *run) shardOf(owner string) *shard { return r.shards[r.hashOf(owner)%uint64(len(r.shards))] }

// hashOf returns hashName(name). It remembers the hashes of the tenants' names. Nearly always the name is that of the
// tenant whose request is decided.
func (r *run) hashOf(name string) uint64 {
	if w := r.current; w != nil && w.tenant != nil && w.tenant.req.Owner.Name == name {
		return w.tenant.hash
	}
	return hashName(name)
}

// hashName returns a hash of a name, by which the simulation chooses shards and processes: FNV-1a, mixed so that the
// low bits are as evenly distributed as the high ones.
func hashName(name string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	h ^= h >> 32
	h *= 0xd6e8feb86659fd93
	return h ^ h>>32
}
