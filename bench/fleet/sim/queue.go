package sim

import (
	"context"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// event is something that happens at a time: a worker continues, a call arrives at the store, or an action is done. One
// of resume, call and action is set.
type event struct {
	at     int64  // ns since the beginning of the run
	number uint64 // orders the events of one time: the first that was added happens first

	resume *worker    // the worker that continues
	call   *storeCall // the call that arrives at the store
	action func()     // the function to call
}

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.number < o.number }

// queue is a heap of events.
type queue struct {
	events []event
	added  uint64
}

func (q *queue) push(e event) {
	q.added++
	e.number = q.added
	q.events = append(q.events, e)
	i := len(q.events) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !e.before(&q.events[parent]) {
			break
		}
		q.events[i] = q.events[parent]
		i = parent
	}
	q.events[i] = e
}

// pop removes the first event. The queue must not be empty.
func (q *queue) pop() event {
	first, n := q.events[0], len(q.events)-1
	last := q.events[n]
	q.events[n] = event{}
	q.events = q.events[:n]
	if n == 0 {
		return first
	}
	i := 0
	for {
		child := 2*i + 1
		if child >= n {
			break
		}
		if child+1 < n && q.events[child+1].before(&q.events[child]) {
			child++
		}
		if !q.events[child].before(&last) {
			break
		}
		q.events[i] = q.events[child]
		i = child
	}
	q.events[i] = last
	return first
}

// worker is a coroutine that handles events. While its decision waits, another worker handles the events.
type worker struct {
	next  func() (struct{}, bool) // continues the worker until it yields
	stop  func()
	yield func(struct{}) bool // gives control back to the caller of next

	decision limit.Decision // the decision that it makes
	tenant   *tenant        // the tenant whose request it decides or decided last; nil if it has decided none
	call     storeCall      // the call to the store that it waits for
}

// park suspends the worker until an event resumes it. Another worker handles events meanwhile. If the run ends with an
// error before that, park panics with runEnded, which ends the worker.
func (r *run) park() {
	w := r.current
	if !w.yield(struct{}{}) {
		panic(runEnded{})
	}
}

// runEnded is the value of the panic that ends a worker in the middle of a decision.
type runEnded struct{}

// parkUntil suspends the worker, and adds an event that resumes it.
func (r *run) parkUntil(at int64) {
	r.queue.push(event{at: at, resume: r.current})
	r.park()
}

// wait implements clock.Runtime.Wait for a process, with which a request waits for the call of another request. The
// contexts of a simulation do not end.
func (p *process) wait(_ context.Context, done <-chan struct{}) error {
	p.waiting[done] = append(p.waiting[done], p.run.current)
	p.run.park()
	return nil
}

// wake implements clock.Runtime.Wake: the workers that wait for the channel continue, in the order in which they began
// to wait.
func (p *process) wake(done <-chan struct{}) {
	for _, w := range p.waiting[done] {
		p.run.queue.push(event{at: p.run.now, resume: w})
	}
	delete(p.waiting, done)
}
