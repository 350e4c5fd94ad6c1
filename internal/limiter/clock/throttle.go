package clock

import (
	"sync/atomic"
	"time"
)

// Throttle says which lines of one kind are logged: one in each second. The zero Throttle is ready for use. It is safe
// for concurrent use.
type Throttle struct {
	last       atomic.Int64 // when a line was last logged, in seconds since 1970; 0: never
	suppressed atomic.Int64 // lines since then
}

// Admit reports whether a line may be logged at the time now. If so, it also returns how many lines were suppressed
// since the last one.
func (t *Throttle) Admit(now time.Time) (suppressed int64, ok bool) {
	last, second := t.last.Load(), now.Unix()
	if second == last || !t.last.CompareAndSwap(last, second) {
		t.suppressed.Add(1)
		return 0, false
	}
	return t.suppressed.Swap(0), true
}
