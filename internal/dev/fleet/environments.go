package fleet

import (
	"cmp"
	"time"
)

// environments are the Lambda environments of all functions.
type environments struct {
	functions []function
	started   int   // environments started so far; the number of the next one
	starts    int64 // environments that were started in the measured time
}

// function holds the environments of one function, in two lists: those that are free, and those that serve a request.
// An environment serves one request at a time, and is frozen between its requests.
type function struct {
	free    []*process // in the order in which they became free
	first   int        // index in free of the environment that has been free for the longest time
	serving []serving  // ordered by the time at which the requests end
	begins  int        // index in serving of the first entry that is still in use
}

type serving struct {
	until   int64 // when the request ends, ns
	process *process
}

// placeOnEnvironment returns the environment that serves a request of a tenant, and how long the environment takes to
// start first. It returns nil if all environments that may run are busy.
func (r *run) placeOnEnvironment(tenant int) (p *process, starts time.Duration) {
	f := &r.environments.functions[hashNumber(tenant)%uint64(len(r.environments.functions))]
	f.freeEnvironments(r.now)
	s := r.scenario
	if len(f.free) > f.first {
		if s.Placement == RoundRobin {
			p = f.free[f.first]
			f.free[f.first] = nil
			f.first++
			if f.first > len(f.free)/2 && f.first > 64 {
				f.free = append(f.free[:0], f.free[f.first:]...)
				f.first = 0
			}
		} else {
			p = f.free[len(f.free)-1]
			f.free = f.free[:len(f.free)-1]
		}
		r.occupy(p, 0)
		return p, 0
	}
	if len(r.live) >= s.Instances {
		return nil, 0
	}
	if err := r.startProcess(r.environments.started); err != nil {
		r.failed = err
		return nil, 0
	}
	p = r.processes[r.environments.started]
	p.function = f
	r.environments.started++
	r.environments.starts++
	if r.traffic.busy == 0 { // the recorded time of a request includes the cold start
		starts = s.ColdStart
	}
	r.occupy(p, starts)
	return p, starts
}

// occupy lets an environment serve the present request, after the time that it takes to start.
func (r *run) occupy(p *process, starts time.Duration) {
	p.busyTo = r.now + (starts + cmp.Or(r.traffic.busy, r.scenario.Busy)).Nanoseconds()
	all := append(p.function.serving, serving{p.busyTo, p})
	// All generated requests take the same time, so the newest one ends last. A recorded one may end before earlier
	// ones, and is then moved to its place.
	for i := len(all) - 1; i > p.function.begins && all[i-1].until > p.busyTo; i-- {
		all[i-1], all[i] = all[i], all[i-1]
	}
	p.function.serving = all
}

// freeEnvironments moves the environments whose requests have ended from serving to free. An environment whose decision
// is still under way is marked as overdue instead: release frees it.
func (f *function) freeEnvironments(now int64) {
	for f.begins < len(f.serving) && f.serving[f.begins].until <= now {
		p := f.serving[f.begins].process
		f.serving[f.begins].process = nil
		f.begins++
		switch {
		case p.dead:
		case p.deciding:
			p.overdue = true
		default:
			f.free = append(f.free, p)
		}
	}
	if f.begins > len(f.serving)/2 && f.begins > 64 {
		f.serving = append(f.serving[:0], f.serving[f.begins:]...)
		f.begins = 0
	}
}

// release is called when a decision ends. It frees the environment if its request was meant to end earlier: after Busy.
func (r *run) release(p *process) {
	p.deciding = false
	if p.overdue && !p.dead {
		p.busyTo = r.now
		p.function.free = append(p.function.free, p)
	}
	p.overdue = false
}

// endIdle ends the environments that have been free for at least IdleDeath. These come first in the list of their
// function.
func (r *run) endIdle() {
	for i := range r.environments.functions {
		f := &r.environments.functions[i]
		for f.first < len(f.free) && r.now-f.free[f.first].busyTo >= r.scenario.IdleDeath.Nanoseconds() {
			p := f.free[f.first]
			f.free[f.first] = nil
			f.first++
			r.die(p.number)
		}
	}
}
