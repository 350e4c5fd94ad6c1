package authorizer

import (
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
)

// logThrottle bounds how often lines that any client can cause are logged: one line a second for each class. A
// class is a word of this package, such as "token_expired" (see reason.go), and never a client's text, so there are
// few.
type logThrottle struct {
	classes sync.Map // class to *clock.Throttle
}

// admit reports whether a line of the class may be logged now. If so, it also returns how many lines of the class were
// suppressed since the last one was logged.
func (t *logThrottle) admit(class string, now time.Time) (suppressed int64, ok bool) {
	found, loaded := t.classes.Load(class)
	if !loaded {
		found, _ = t.classes.LoadOrStore(class, new(clock.Throttle))
	}
	return found.(*clock.Throttle).Admit(now)
}
