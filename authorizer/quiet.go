package authorizer

import (
	"sync"
	"sync/atomic"
	"time"
)

// quiet bounds how often a line is logged: one in a second for each class. Classes are words of ours, and so few.
type quiet struct {
	classes sync.Map // string to *spoken
}

type spoken struct {
	second atomic.Int64 // in which the last line was; those of 1970 are nobody's
	more   atomic.Int64 // that were left out since
}

// speak reports whether a line of the class is logged at now, and how many were left out since the last.
func (q *quiet) speak(class string, now time.Time) (more int64, ok bool) {
	found, loaded := q.classes.Load(class)
	if !loaded {
		found, _ = q.classes.LoadOrStore(class, new(spoken))
	}
	s := found.(*spoken)
	last, second := s.second.Load(), now.Unix()
	if second == last || !s.second.CompareAndSwap(last, second) {
		s.more.Add(1)
		return 0, false
	}
	return s.more.Swap(0), true
}

// onceFlag is true the first time.
type onceFlag struct{ done atomic.Bool }

func (f *onceFlag) first() bool { return !f.done.Load() && f.done.CompareAndSwap(false, true) }
