package sim

import (
	"iter"
	"time"
)

func (r *run) timeAt(ns int64) time.Time { return epoch.Add(time.Duration(ns)) }

// after adds an event that calls action when the duration d has passed.
func (r *run) after(d time.Duration, action func()) {
	r.queue.push(event{at: r.now + d.Nanoseconds(), action: action})
}

// runAll lets one worker after the other handle events, until the run is done. The workers that still wait then are
// ended: a run that failed leaves some behind.
func (r *run) runAll() {
	for !r.done() {
		w := r.resume
		r.resume = nil
		if w == nil {
			w = r.idleWorker()
		}
		r.current = w
		w.next()
	}
	for w := range r.workers {
		w.stop()
	}
}

// done reports whether no worker must run any more: the run has failed, or its requests have ended and no event is
// left.
func (r *run) done() bool {
	return r.resume == nil && (r.failed != nil || r.draining && len(r.queue.events) == 0)
}

// idleWorker returns a worker that handles events: one that is idle, or a new one. When nothing is left for the worker
// to do, it becomes idle, or ends if there are enough idle workers.
func (r *run) idleWorker() *worker {
	n := len(r.idle)
	if n > 0 {
		w := r.idle[n-1]
		r.idle = r.idle[:n-1]
		return w
	}
	w := new(worker)
	w.next, w.stop = iter.Pull(func(yield func(struct{}) bool) {
		w.yield = yield
		defer func() {
			e := recover()
			if e != nil && e != (runEnded{}) {
				panic(e)
			}
		}()
		for {
			r.handleEvents(w)
			if len(r.idle) >= maxIdle {
				delete(r.workers, w)
				return
			}
			r.idle = append(r.idle, w)
			if !yield(struct{}{}) {
				return
			}
		}
	})
	r.workers[w] = true
	return w
}

// maxIdle bounds the workers that are kept for later, each of which has a stack of some 16 KB. Thousands are at work
// for some milliseconds when many leases end together, or when the store does not answer.
const maxIdle = 1000

// handleEvents handles requests and events in the order of their times. It returns when another worker must continue,
// when nothing is left, or when the run has failed.
func (r *run) handleEvents(w *worker) {
	for r.failed == nil {
		request := r.traffic.next // when the next request comes, ns
		if !r.draining && request >= r.end && (len(r.queue.events) == 0 || r.queue.events[0].at >= r.end) {
			r.draining, r.now = true, r.end
		}
		if !r.draining && (len(r.queue.events) == 0 || request < r.queue.events[0].at) {
			r.now = request
			r.handleRequest(w)
			continue
		}
		if len(r.queue.events) == 0 {
			return
		}
		e := r.queue.pop()
		r.now = e.at
		switch {
		case e.call != nil:
			r.serveCall(e.call)
		case e.action != nil:
			e.action()
		default:
			r.resume = e.resume
			return
		}
	}
}
