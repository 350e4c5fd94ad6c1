package fleet

// environments are the Lambda environments that are free, and those that serve a request: each serves one at a time,
// and is frozen between its requests.
type environments struct {
	free    []*process // in the order in which they became free
	first   int        // index in free of the one that has waited longest
	serving []serving  // by the time at which they answer; all take the same time
	begins  int        // index in serving of the first
	started int        // so far, which is the number of the next
	starts  int64      // in the measured time
}

type serving struct {
	until   int64 // ns
	process *process
}

// placeOnEnvironment returns the environment that serves a request, or nil if all that may run are busy.
func (r *run) placeOnEnvironment() *process {
	r.freeEnvironments()
	s := r.scenario
	if len(r.free) > r.first {
		var p *process
		if s.Placement == RoundRobin {
			p = r.free[r.first]
			r.free[r.first] = nil
			if r.first++; r.first > len(r.free)/2 && r.first > 64 {
				r.free = append(r.free[:0], r.free[r.first:]...)
				r.first = 0
			}
		} else {
			p = r.free[len(r.free)-1]
			r.free = r.free[:len(r.free)-1]
		}
		r.occupy(p)
		return p
	}
	if len(r.live) >= s.Instances {
		return nil
	}
	if err := r.startProcess(r.started); err != nil {
		r.failed = err
		return nil
	}
	p := r.processes[r.started]
	r.started++
	r.starts++
	r.occupy(p)
	return p
}

func (r *run) occupy(p *process) {
	p.busyTo = r.now + r.scenario.Busy.Nanoseconds()
	r.serving = append(r.serving, serving{p.busyTo, p})
}

// freeEnvironments frees the environments that have answered.
func (r *run) freeEnvironments() {
	for r.begins < len(r.serving) && r.serving[r.begins].until <= r.now {
		p := r.serving[r.begins].process
		r.serving[r.begins].process = nil
		r.begins++
		switch {
		case p.dead:
		case p.deciding:
			p.overdue = true
		default:
			r.free = append(r.free, p)
		}
	}
	if r.begins > len(r.serving)/2 && r.begins > 64 {
		r.serving = append(r.serving[:0], r.serving[r.begins:]...)
		r.begins = 0
	}
}

// release frees an environment whose decision took longer than its request was to take.
func (r *run) release(p *process) {
	p.deciding = false
	if p.overdue && !p.dead {
		p.busyTo = r.now
		r.free = append(r.free, p)
	}
	p.overdue = false
}

// endIdle ends the environments that have been free for too long. They are the first in the list.
func (r *run) endIdle() {
	for r.first < len(r.free) {
		p := r.free[r.first]
		if r.now-p.busyTo < r.scenario.IdleDeath.Nanoseconds() {
			return
		}
		r.free[r.first] = nil
		r.first++
		r.die(p.number)
	}
}
