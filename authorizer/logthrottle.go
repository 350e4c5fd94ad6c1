package authorizer

import (
	"sync"
	"sync/atomic"
	"time"
)

// logThrottle bounds how often lines that any client can cause are logged: one line a second for each class. A
// class is a word of this package, such as "token_expired" (see reason.go), and never a client's text, so there are
// few.
type logThrottle struct {
	classes sync.Map // class to *throttledClass
}

type throttledClass struct {
	lastSecond atomic.Int64 // when the last line was logged, s since 1970; 0: never
	suppressed atomic.Int64 // lines that were not logged since then
}

// admit reports whether a line of the class may be logged now. If so, it also returns how many lines of the class were
// suppressed since the last one was logged.
func (t *logThrottle) admit(class string, now time.Time) (suppressed int64, ok bool) {
	found, loaded := t.classes.Load(class)
	if !loaded {
		found, _ = t.classes.LoadOrStore(class, new(throttledClass))
	}
	c := found.(*throttledClass)
	last, second := c.lastSecond.Load(), now.Unix()
	if second == last || !c.lastSecond.CompareAndSwap(last, second) {
		c.suppressed.Add(1)
		return 0, false
	}
	return c.suppressed.Swap(0), true
}
