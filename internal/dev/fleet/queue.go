package fleet

import (
	"context"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// event is what happens at a time: an action, or the continuation of a worker that waits.
type event struct {
	at     int64  // ns since the beginning of the run
	number uint64 // orders the events of one time: first added, first done

	resume *worker    // continues, or
	call   *storeCall // arrives at the store, or
	action func()     // is done
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

// worker is a coroutine that handles events. While the decision that it makes waits, it is left alone, and another
// worker handles events.
type worker struct {
	next  func() (struct{}, bool) // continues the worker, until it hands over
	stop  func()
	yield func(struct{}) bool // hands over

	decision limit.Decision // that it makes
}

// park hands over to another worker until an event resumes this one.
func (r *run) park() {
	w := r.current
	w.yield(struct{}{})
}

// parkUntil is park with an event that resumes the worker.
func (r *run) parkUntil(at int64) {
	r.queue.push(event{at: at, resume: r.current})
	r.park()
}

// wait is clock.Runtime.Wait for a process: a request waits for the call of another. Contexts do not end in a
// simulation.
func (p *process) wait(_ context.Context, done <-chan struct{}) error {
	p.waiting[done] = append(p.waiting[done], p.run.current)
	p.run.park()
	return nil
}

// wake is clock.Runtime.Wake: those who wait go on, in the order in which they came.
func (p *process) wake(done <-chan struct{}) {
	for _, w := range p.waiting[done] {
		p.run.queue.push(event{at: p.run.now, resume: w})
	}
	delete(p.waiting, done)
}
