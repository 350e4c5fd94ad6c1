package refresh_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicelimits/sluice/internal/limiter/refresh"
)

// Guarantees that no goroutine is left after Close: a Lambda environment that shuts down has little time.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	maxWait  = 2 * time.Second
	age      = 5 * time.Minute
	cooldown = 30 * time.Second
)

var errDown = errors.New("the source is down")

// reader is an answer of the source.
type reader func(context.Context) (string, error)

func returnValue(value string) reader {
	return func(context.Context) (string, error) { return value, nil }
}

func returnError(context.Context) (string, error) { return "", errDown }

func waitForEnd(ctx context.Context) (string, error) {
	<-ctx.Done()
	return "", ctx.Err()
}

func delayed(d time.Duration, then reader) reader {
	return func(ctx context.Context) (string, error) {
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(d):
			return then(ctx)
		}
	}
}

// world is a cache with its source.
type world struct {
	*refresh.Cache[string]
	t *testing.T

	mu     sync.Mutex
	next   reader
	asked  []time.Time
	before []string // the values that were in use when the source was called
	ended  []refresh.End[string]
}

func open(t *testing.T, next reader) *world {
	w := &world{t: t, next: next}
	w.Cache = refresh.New(refresh.Config[string]{Read: w.read, Ended: w.recordEnd, Wait: maxWait, Refresh: age,
		Cooldown: cooldown})
	t.Cleanup(w.Close)
	return w
}

func (w *world) read(ctx context.Context, before *string) (*string, error) {
	w.mu.Lock()
	next := w.next
	w.asked, w.before = append(w.asked, time.Now()), append(w.before, text(before))
	w.mu.Unlock()
	value, err := next(ctx)
	switch {
	case err != nil:
		return nil, err
	case before != nil && *before == value:
		return before, nil
	}
	return &value, nil
}

func (w *world) recordEnd(e refresh.End[string]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = append(w.ended, e)
}

func (w *world) set(next reader) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next = next
}

func (w *world) reads() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.asked)
}

func (w *world) recordedEnds() []refresh.End[string] {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.ended)
}

func text(value *string) string {
	if value == nil {
		return "none"
	}
	return *value
}

// want fails unless this value is in use, and that many reads were begun.
func (w *world) want(value string, reads int) {
	w.t.Helper()
	synctest.Wait()
	if got := text(w.Value()); got != value || w.reads() != reads {
		w.t.Errorf("the value is %s after %d reads, want %s after %d", got, w.reads(), value, reads)
	}
}

// callFirst calls First, which must return a value.
func (w *world) callFirst() {
	w.t.Helper()
	if _, err := w.First(w.t.Context(), time.Now()); err != nil {
		w.t.Fatal(err)
	}
}

func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// durationOf returns how long f takes.
func durationOf(f func()) time.Duration {
	began := time.Now()
	f()
	return time.Since(began)
}

// Guarantees that all callers that want the first value share one read, that they wait at most Config.Wait or until
// their context ends, that the error says why there is no value, and that later callers get the value that was read
// meanwhile.
func TestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := open(t, delayed(3*time.Second, returnValue("a")))
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				ctx, want, cause := t.Context(), maxWait, "longer than callers wait"
				if i%2 == 0 {
					want, cause = time.Second, context.DeadlineExceeded.Error()
					timely, cancel := context.WithTimeout(ctx, want)
					defer cancel()
					ctx = timely
				}
				took := durationOf(func() {
					if v, err := w.First(ctx, time.Now()); v != nil || err == nil ||
						!strings.Contains(err.Error(), cause) {
						t.Errorf("First = %s, %v; want an error of %q", text(v), err, cause)
					}
				})
				if took != want {
					t.Errorf("First took %v, want %v", took, want)
				}
			})
		}
		all.Wait()
		if took := durationOf(w.callFirst); took != time.Second {
			t.Errorf("First took %v, want the time that was left of the read", took)
		}
		if took := durationOf(w.callFirst); took != 0 {
			t.Errorf("First took %v although there is a value, want no wait", took)
		}
		pass(24 * time.Hour)
		w.callFirst() // only Upkeep reads a newer value
		w.want("a", 1)
	})
}

// Guarantees that callers get the cause of a failure, also at once if they come before the next read, and that a read
// whose time has ended is a failure.
func TestFirstFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := open(t, returnError)
		for range 2 {
			took := durationOf(func() {
				if v, err := w.First(t.Context(), time.Now()); v != nil || !errors.Is(err, errDown) {
					t.Errorf("First = %s, %v; want %v", text(v), err, errDown)
				}
			})
			if took != 0 {
				t.Errorf("First took %v, want an error without a wait", took)
			}
		}
		w.want("none", 1)
		pass(2 * time.Second)
		w.set(waitForEnd)
		w.Look(time.Now())
		pass(refresh.ReadTimeout)
		if e := w.recordedEnds(); len(e) != 2 || !errors.Is(e[1].Err, context.DeadlineExceeded) {
			t.Errorf("the reads ended as %v, want the second one to end with its time limit", e)
		}
	})
}

// Guarantees that the intervals between calls of a failing source grow up to a bound, and that the times differ between
// caches.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const step = 500 * time.Millisecond
		var gaps [2][]time.Duration
		for i := range gaps {
			w := open(t, returnError)
			for range int(time.Hour / step) {
				w.Warm(time.Now())
				pass(step)
			}
			for n := 1; n < len(w.asked); n++ {
				gaps[i] = append(gaps[i], w.asked[n].Sub(w.asked[n-1]))
			}
			if s := w.Stats(); s.Reads != s.Failures || int(s.Reads) != len(w.asked) || !s.From.IsZero() ||
				s.Value != nil {
				t.Errorf("Stats = %+v, want %d reads and as many failures", s, len(w.asked))
			}
			for n, e := range w.recordedEnds() {
				if e.Failures != n+1 || e.Before != nil || e.Value != nil || !errors.Is(e.Err, errDown) {
					t.Errorf("end %d is %+v, want as many failures in a row, and no value", n+1, e)
				}
			}
		}
		for n, gap := range gaps[0] {
			least := min(time.Second<<min(n, 10), refresh.MaxBackoff)
			if gap < least || gap > least*6/5+step {
				t.Errorf("read %d came after %v, want %v and up to a fifth more", n+2, gap, least)
			}
		}
		if n := len(gaps[0]); n < 50 || n > 66 {
			t.Errorf("%d reads in an hour, want about 60", n+1)
		}
		if fmt.Sprint(gaps[0]) == fmt.Sprint(gaps[1]) {
			t.Errorf("two caches call the source at the same times, want different ones: %v", gaps[0])
		}
	})
}

// Guarantees that a value stays in use while reads fail, that a failing source is called at most once per cooldown and
// less often the longer it fails, and that the first success resets this.
func TestLastKnownGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := open(t, returnValue("a"))
		w.callFirst()
		from := time.Now()
		w.set(returnError)
		for range 100 {
			pass(10 * time.Second)
			if err := w.Renew(t.Context(), time.Now()); err != nil && !errors.Is(err, errDown) {
				t.Errorf("Renew = %v, want %v", err, errDown)
			}
		}
		for n := 1; n < len(w.asked); n++ {
			least := cooldown
			if n > 7 {
				least = refresh.MaxBackoff
			}
			if gap := w.asked[n].Sub(w.asked[n-1]); gap < least {
				t.Errorf("read %d came after %v, want at least %v", n+1, gap, least)
			}
		}
		for _, e := range w.recordedEnds()[1:] {
			if text(e.Before) != "a" || e.Value != nil {
				t.Errorf("a failed read ended as %+v, want that the value a is still in use", e)
			}
		}
		s := w.Stats()
		if s.Failures != s.Reads-1 || s.Failures < 12 || text(s.Value) != "a" || !s.From.Equal(from) {
			t.Errorf("Stats = %+v, want a value from %v, and at least 12 failures", s, from)
		}
		w.set(returnValue("b"))
		pass(refresh.MaxBackoff * 6 / 5)
		if err := w.Renew(t.Context(), time.Now()); err != nil {
			t.Errorf("Renew = %v, want no error: a success ends the pause after failures", err)
		}
		w.want("b", int(s.Reads)+1)
		last := w.recordedEnds()[s.Reads]
		if text(last.Before) != "a" || text(last.Value) != "b" || int64(last.Failures) != s.Failures ||
			last.Err != nil {
			t.Errorf("the last read ended as %+v, want a, then b, after %d failures", last, s.Failures)
		}
		pass(cooldown)
		w.Look(time.Now())
		synctest.Wait()
		if e := w.recordedEnds(); e[len(e)-1].Failures != 0 || e[len(e)-1].Value != last.Value {
			t.Errorf("the next read ended as %+v, want no failures before it, and the value that it was given",
				e[len(e)-1])
		}
	})
}

// Guarantees that a young value is not read again, that a value is read in the background within a fifth after its age,
// and that it is overdue from twice its age on, also if the clock is set back.
func TestUpkeep(t *testing.T) {
	for after, want := range map[time.Duration]struct{ began, overdue bool }{
		0:                      {false, false},
		age - time.Nanosecond:  {false, false},
		age*6/5 + 1:            {true, false},
		2*age - 1:              {true, false},
		2 * age:                {true, true},
		1000 * time.Hour:       {true, true},
		-age + time.Nanosecond: {false, false},
		-age*6/5 - 1:           {true, false},
		-2 * age:               {true, true},
	} {
		t.Run(after.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := open(t, returnValue("a"))
				w.callFirst()
				r, overdue := w.Upkeep(time.Now().Add(after))
				if r.Began != want.began || overdue != want.overdue {
					t.Errorf("Upkeep says began %v, overdue %v; want %v, %v", r.Began, overdue, want.began,
						want.overdue)
				}
			})
		})
	}
}

// Guarantees that age counts from the time at which the value was requested, by the caller's clock, that each read
// resets it, and that caches which began at the same time do not read at the same times.
func TestAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := open(t, delayed(time.Second, returnValue("a")))
		asked := time.Now()
		w.callFirst()
		if from := w.Stats().From; !from.Equal(asked) {
			t.Errorf("the value is from %v, want %v", from, asked)
		}
		if r, overdue := w.Upkeep(asked.Add(2 * age)); !r.Began || !overdue {
			t.Error("at twice its age since it was requested, the value is not overdue, or no read began")
		}
		pass(time.Second)
		if r, overdue := w.Upkeep(asked.Add(3*age - 1)); r.Began || overdue {
			t.Error("a value that was just read is read again or overdue, want neither")
		}
		const caches, steps = 200, 10
		var old [steps + 1]int // the number of caches that read again, by tenths of the last fifth
		for range caches {
			w := open(t, returnValue("a"))
			w.callFirst()
			for step := range steps + 1 {
				if r, _ := w.Upkeep(time.Now().Add(age + time.Duration(step)*age/5/steps + 1)); r.Began {
					old[step]++
					break
				}
			}
		}
		for step := range steps {
			if n := old[step]; n > caches/2 || (step > 0 && n == 0) {
				t.Errorf("of %d caches, %v begin to read in the steps of the last fifth of the age, want some in each",
					caches, old)
				break
			}
		}
	})
}

// Guarantees that without a value Upkeep begins a read and reports nothing as overdue, and that Warm reads the first
// value only.
func TestNoValueYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := open(t, returnValue("a"))
		if r, overdue := w.Upkeep(time.Now()); !r.Began || overdue {
			t.Errorf("Upkeep says began %v, overdue %v; want a read, and nothing overdue", r.Began, overdue)
		}
		w.want("a", 1)
		other := open(t, delayed(time.Second, returnValue("a")))
		if took := durationOf(func() { other.Warm(time.Now()); other.Warm(time.Now()) }); took != 0 {
			t.Errorf("Warm took %v, want no wait", took)
		}
		pass(time.Second)
		other.want("a", 1)
		pass(1000 * time.Hour)
		other.Warm(time.Now())
		other.want("a", 1)
	})
}

// Guarantees that a read delays callers with an old value only while the read is young, and no longer than they may
// wait for the first value: a source that does not answer delays them by half a second, once.
func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := open(t, returnValue("a"))
		w.callFirst()
		pass(2 * age)
		w.set(waitForEnd)
		var waits []time.Duration
		for range 10 {
			r, overdue := w.Upkeep(time.Now())
			if !overdue || r.Began != (len(waits) == 0) {
				t.Fatalf("Upkeep says began %v, overdue %v; want the first call alone to begin a read, and all to "+
					"hear that it is overdue", r.Began, overdue)
			}
			if len(waits) == 0 {
				pass(200 * time.Millisecond) // in which the caller does something else
			}
			waits = append(waits, durationOf(func() { w.Await(t.Context(), r) }))
			pass(100 * time.Millisecond)
		}
		if want := append([]time.Duration{300 * time.Millisecond}, make([]time.Duration, 9)...); !slices.Equal(waits,
			want) {
			t.Errorf("callers waited %v, want %v", waits, want)
		}
		pass(refresh.ReadTimeout + 2*cooldown)
		w.set(delayed(200*time.Millisecond, returnValue("b")))
		r := w.Look(time.Now())
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if took := durationOf(func() { w.Await(gone, r) }); took != 0 {
			t.Errorf("Await took %v, want no longer than the context", took)
		}
		if took := durationOf(func() { w.Await(t.Context(), r) }); took != 200*time.Millisecond {
			t.Errorf("Await took %v, want until the read ended", took)
		}
		w.want("b", 3)
		if took := durationOf(func() { w.Await(t.Context(), refresh.Reading{}) }); took != 0 {
			t.Errorf("Await took %v without a read, want no wait", took)
		}
		hurried := refresh.New(refresh.Config[string]{Read: w.read, Ended: w.recordEnd, Wait: time.Millisecond,
			Refresh:  age,
			Cooldown: cooldown})
		defer hurried.Close()
		if took := durationOf(func() {
			hurried.Await(t.Context(),
				hurried.Look(time.Now()))
		}); took != time.Millisecond {
			t.Errorf("Await took %v, want at most Config.Wait", took)
		}
	})
}

// Guarantees that Renew reads at most once per cooldown, counted from the time of the last request, also with a clock
// that was set back, and that it returns the error of the read.
func TestRenew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := open(t, returnValue("a"))
		w.callFirst()
		asked := time.Now()
		w.set(returnValue("b"))
		renew := func(at time.Time, want error, after time.Duration) {
			t.Helper()
			took := durationOf(func() {
				if err := w.Renew(t.Context(), at); !errors.Is(err, want) {
					t.Errorf("Renew = %v, want %v", err, want)
				}
			})
			if took != after {
				t.Errorf("Renew took %v, want %v", took, after)
			}
		}
		renew(asked.Add(cooldown-1), nil, 0)
		renew(asked.Add(1-cooldown), nil, 0)
		w.want("a", 1)
		renew(asked.Add(cooldown), nil, 0)
		w.want("b", 2)
		w.set(returnValue("c"))
		renew(asked, nil, 0)
		w.want("c", 3)
		w.set(returnError)
		renew(asked.Add(cooldown), errDown, 0)
		renew(asked.Add(cooldown), errDown, 0) // nobody reads again, but there may be a newer value
		w.set(delayed(time.Second, returnValue("d")))
		renew(asked.Add(24*time.Hour), nil, time.Second)
		w.want("d", 5)
		w.set(delayed(3*time.Second, returnValue("e")))
		took := durationOf(func() {
			if err := w.Renew(t.Context(), asked.Add(48*time.Hour)); err == nil ||
				!strings.Contains(err.Error(), "longer than") {
				t.Errorf("Renew = %v, want that it took too long", err)
			}
		})
		if took != maxWait {
			t.Errorf("Renew took %v, want %v", took, maxWait)
		}
		pass(time.Second)
		w.want("e", 6)
	})
}

// Guarantees that a read that was cut off by a freeze does not prevent the next one: the caller's clock jumps, that of
// the process does not, and the answer never comes. A read that was given up changes nothing, reports nothing and is
// not counted, and its waiting callers go on. A read that may still be answered is waited for.
func TestFrozen(t *testing.T) {
	for name, way := range map[string]time.Duration{"ahead": 1, "back": -1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var late sync.WaitGroup
				w := open(t, func(ctx context.Context) (string, error) {
					<-ctx.Done()
					return "late", nil // the answer had come just before
				})
				began := time.Now()
				w.Warm(began)
				synctest.Wait()
				if r := w.Look(began.Add(way * (refresh.FrozenAfter - 1))); r.Began {
					t.Error("a read that may still be answered is given up, and another one begun")
				}
				late.Go(func() {
					if v, err := w.First(t.Context(), began); text(v) != "a" &&
						(err == nil || !strings.Contains(err.Error(), "cut off")) {
						t.Errorf("a caller that waited for the read that was given up has %s, %v; want what came in "+
							"its place, or that it was cut off", text(v), err)
					}
				})
				synctest.Wait()
				w.set(returnValue("a"))
				took := durationOf(func() {
					if v, err := w.First(t.Context(), began.Add(way*refresh.FrozenAfter)); err != nil || *v != "a" {
						t.Errorf("First = %s, %v after the thaw; want a", text(v), err)
					}
				})
				late.Wait()
				if took != 0 || time.Since(began) != 0 {
					t.Errorf("First took %v after the thaw, and all of it %v; want nothing", took, time.Since(began))
				}
				w.want("a", 2)
				if s, e := w.Stats(), w.recordedEnds(); s.Reads != 1 || s.Failures != 0 || len(e) != 1 {
					t.Errorf("Stats = %+v with ends %+v, want only the second read", s, e)
				}
			})
		})
	}
}

// Guarantees that with a freeze after each request, and a source that does not answer, there is one read per cooldown,
// and that a read which was cut off does not count as the newest value.
func TestFrozenAgainAndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := open(t, returnValue("a"))
		w.callFirst()
		w.set(waitForEnd)
		thaw := time.Now().Add(time.Hour)
		for n := range 40 {
			at := thaw.Add(time.Duration(n) * 10 * time.Second)
			r, overdue := w.Upkeep(at)
			if !overdue || r.Began != (n%3 == 0) {
				t.Errorf("request %d: Upkeep says began %v, overdue %v; want a read at each third", n, r.Began, overdue)
			}
			if n%3 != 0 {
				if err := w.Renew(t.Context(), at); err == nil || !strings.Contains(err.Error(), "cut off") {
					t.Errorf("request %d: Renew = %v, want that the latest read was cut off", n, err)
				}
			}
		}
		synctest.Wait()
		if s := w.Stats(); s.Reads != 1 || s.Failures != 0 {
			t.Errorf("Stats = %+v, want one read that ended", s)
		}
	})
}

// Guarantees that Close cancels a read and waits for it, that no read begins afterwards, that a value stays, and that a
// read which Close has cancelled is not reported as a failure.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := open(t, func(ctx context.Context) (string, error) {
			<-ctx.Done()
			<-time.After(time.Second)
			return "", ctx.Err()
		})
		w.Warm(time.Now())
		synctest.Wait()
		if took := durationOf(func() { w.Close(); w.Close() }); took != time.Second {
			t.Errorf("Close took %v, want the second that the read takes to end", took)
		}
		if _, err := w.First(t.Context(), time.Now().Add(time.Hour)); !errors.Is(err, context.Canceled) {
			t.Errorf("First after Close = %v, want context.Canceled", err)
		}
		w.want("none", 1)
		if e := w.recordedEnds(); len(e) != 0 {
			t.Errorf("Ended is called for a read that Close cancelled, want no call: %+v", e)
		}
		fresh := open(t, returnValue("a"))
		fresh.Close()
		if _, err := fresh.First(t.Context(), time.Now()); err == nil || !strings.Contains(err.Error(), "cut off") {
			t.Errorf("First after Close = %v, want that the read was cut off", err)
		}
		fresh.want("none", 0)
		had := open(t, returnValue("a"))
		had.callFirst()
		had.Close()
		pass(24 * time.Hour)
		if r, overdue := had.Upkeep(time.Now()); r.Began || !overdue {
			t.Errorf("after Close Upkeep says began %v, overdue %v; want an old value, and no read", r.Began, overdue)
		}
		had.want("a", 1)
		givenUp := open(t, waitForEnd)
		givenUp.Warm(time.Now())
		givenUp.Warm(time.Now().Add(time.Hour)) // begins another read beside it
		synctest.Wait()
		givenUp.Close() // goleak fails the test if a goroutine is left
	})
}

// Guarantees that Ended returns before the callers that wait for the read go on: keys that it removes verify nothing
// any more.
func TestEndedComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := false
		c := refresh.New(refresh.Config[string]{
			Read: func(context.Context, *string) (*string, error) { return new(string), nil },
			Ended: func(refresh.End[string]) {
				<-time.After(time.Second)
				told = true
			},
			Wait: maxWait, Refresh: age, Cooldown: cooldown,
		})
		defer c.Close()
		if err := c.Renew(t.Context(), time.Now()); err != nil || !told {
			t.Errorf("Renew = %v, and Ended is done: %v; want nil, true", err, told)
		}
	})
}

// Guarantees that the source gets the value in use and can return it unchanged, and that the context of a read ends
// with it.
func TestBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var of context.Context
		w := open(t, func(ctx context.Context) (string, error) {
			of = ctx
			return "a", nil
		})
		w.callFirst()
		synctest.Wait()
		if of.Err() == nil {
			t.Error("the context of a read has not ended with the read")
		}
		was := w.Value()
		pass(cooldown)
		w.Look(time.Now())
		w.want("a", 2)
		if w.Value() != was || w.Stats().From.Equal(time.Now().Add(-cooldown)) {
			t.Error("after a read that returned the same value, the value in use is another one, or its age was not " +
				"reset")
		}
		if want := []string{"none", "a"}; !slices.Equal(w.before, want) {
			t.Errorf("the source was given %v, want %v", w.before, want)
		}
	})
}

// Guarantees that a panic of a reader does not end the process, which may have a good value, and that its text is not
// reported.
func TestPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := open(t, func(context.Context) (string, error) { panic("a secret") })
		if v, err := w.First(t.Context(), time.Now()); v != nil || err == nil || err.Error() != "the read panicked" {
			t.Errorf("First = %s, %v; want that the read panicked", text(v), err)
		}
	})
}

// Guarantees that all methods can be called concurrently without a race, whatever the source does.
func TestConcurrently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := open(t, returnValue("a"))
		w.callFirst()
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 200 {
					now := time.Now()
					if r, overdue := w.Upkeep(now); overdue {
						w.Await(t.Context(), r)
					}
					_ = w.Renew(t.Context(), now) // if the source fails, this is an error
					w.Warm(now)
					if v, err := w.First(t.Context(), now); err != nil || v == nil || w.Stats().Value == nil {
						t.Errorf("First = %s, %v; want a value", text(v), err)
					}
					<-time.After(7 * time.Second)
				}
			})
		}
		all.Go(func() {
			for i := range 100 {
				w.set([]reader{returnValue(fmt.Sprint(i)), returnError, waitForEnd,
					delayed(time.Second, returnValue("slow"))}[i%4])
				<-time.After(13 * time.Second)
			}
		})
		all.Wait()
	})
}

// Guarantees that a request allocates nothing if there is a young value.
func TestAllocatesNothing(t *testing.T) {
	w := open(t, returnValue("a"))
	w.callFirst()
	w.Close() // a read in the background would be counted
	now := time.Now()
	if n := testing.AllocsPerRun(100, func() {
		if r, overdue := w.Upkeep(now); r.Began || overdue || w.Value() == nil {
			t.Error("a young value is read again, is overdue, or is lost")
		}
	}); n > 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

// Guarantees that age is measured by the wall clock, because the monotonic clock may stand still in a freeze. (In a
// bubble it has no reading.)
func TestWallClock(t *testing.T) {
	w := open(t, returnValue("a"))
	w.callFirst()
	if from := w.Stats().From.String(); strings.Contains(from, " m=") {
		t.Errorf("the value is from %s, want no monotonic reading", from)
	}
}

// Guarantees that a value that says how long it is valid is read again then, and not by Config's age.
func TestRefreshOfTheValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads := 0
		k := refresh.New(refresh.Config[string]{
			Read: func(context.Context, *string) (*string, error) {
				reads++
				value := fmt.Sprint(reads)
				return &value, nil
			},
			Ended: func(refresh.End[string]) {}, Wait: maxWait, Refresh: age, Cooldown: cooldown,
			RefreshOf: func(v *string) time.Duration {
				return map[string]time.Duration{"1": time.Minute,
					"2": time.Hour}[*v]
			},
		})
		defer k.Close()
		began := time.Now()
		for reads < 3 {
			r, _ := k.Upkeep(time.Now())
			k.Await(t.Context(), r)
			passed := time.Since(began)
			if early := reads == 2 && passed < time.Minute || reads == 3 && passed < time.Minute+time.Hour; early ||
				passed > 2*time.Hour {
				t.Fatalf("%d reads after %s, want a read each time the value says so", reads, passed)
			}
			<-time.After(time.Second)
		}
	})
}
