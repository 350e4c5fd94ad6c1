// Package limittest tests that a [limit.Store] keeps its contract, for every algorithm that the store accepts. It has a
// reference model that is simple enough to be obviously right.
//
// The test of a store calls [RunStoreContract] with a [Config] that makes empty stores. The suite runs scripts at given
// times. A store with a clock of its own gets these times through Config.SetClock. [Record] runs the suite without
// failing a test, and returns what failed.
package limittest

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// Config describes the store to the suite.
type Config struct {
	// New returns an empty store. Required. It may skip or fail tb, and register clean-ups with it.
	New func(tb testing.TB) limit.Store

	// Peer returns another handle on the counters of s, like that of a second process. It is nil if the store allows
	// only one. The concurrent cases then spread their goroutines over four handles.
	Peer func(tb testing.TB, s limit.Store) limit.Store

	// SetClock sets the store's own clock for the following calls. It is nil if the store uses the time that it is
	// given. The suite calls it before each step of a script; concurrent steps share one time.
	SetClock func(s limit.Store, now time.Time)

	// Refuses lists the algorithms that the store does not accept. The store must accept all others, and refuse these.
	Refuses []limit.Algorithm

	// MayFail is set if the store may return an error when many callers charge one counter at once. With such an error,
	// the store must have charged nothing, or too much, but never too little.
	MayFail bool

	// Leases is set if the store honours limit.Request.Leases. Otherwise the cases named "leases: …" are skipped.
	Leases bool

	// Undoes is set if the store may charge a counter, and undo the charge because another counter then denies.
	Undoes bool

	// Home is the cell that keeps limits of the suite (limit.Limit.Home); "" is the cell that decides. Homed says which
	// limits it keeps; if nil, it keeps the quotas.
	Home  string
	Homed func(l *limit.Limit) bool

	Goroutines int // in concurrent cases; 0 selects 64
	Scripts    int // random scripts that are compared with the model; 0 selects 150
	Steps      int // steps of each script; 0 selects 60
	Repeats    int // of steps that scripts repeat at other times, at least 20; 0 selects 150
	Seed       uint64
}

// leastRepeats is the fewest Repeats that the suite makes: with fewer, some cases deny nothing, and so test nothing.
const leastRepeats = 20

func (c Config) withDefaults() Config {
	if c.Goroutines == 0 {
		c.Goroutines = 64
	}
	if c.Scripts == 0 {
		c.Scripts = soak.Times(150)
	}
	if c.Steps == 0 {
		c.Steps = 60
	}
	if c.Repeats == 0 {
		c.Repeats = soak.Times(150)
	}
	c.Repeats = max(c.Repeats, leastRepeats)
	return c
}

// testCase is one guarantee.
type testCase struct {
	name string
	run  func(tb testing.TB, c Config)
}

// cases returns all guarantees of the contract.
func cases() []testCase {
	return slices.Concat(basicCases, atomicCases, keyCases, shadowCases, refundCases, settleCases, changeCases,
		clockCases, requestCases, concurrencyCases, scriptCases, leaseCases)
}

// Names lists the guarantees of the contract, in the order in which they are run.
func Names() []string {
	var names []string
	for _, tc := range cases() {
		names = append(names, tc.name)
	}
	return names
}

// underRace reports whether the case also runs under the race detector. That are the cases in which several goroutines
// use the store.
func (tc testCase) underRace() bool {
	return slices.Contains([]string{"a refund happens once", "leases: concurrent requests never lease too many units"},
		tc.name) || slices.ContainsFunc(concurrencyCases, func(c testCase) bool { return c.name == tc.name })
}

// RunStoreContract runs the whole contract. Each guarantee is a subtest with stores of its own. Under the race
// detector, only the cases with several goroutines run: it makes the others many times as slow and finds nothing in
// them, and `make test` runs the whole contract once more without it.
func RunStoreContract(t *testing.T, c Config) {
	t.Helper()
	if c.New == nil {
		t.Fatal("limittest: Config.New is required")
	}
	for _, tc := range cases() {
		if !c.runs(tc) || soak.RaceEnabled && !tc.underRace() { // the store does not make this guarantee, or see above
			continue
		}
		t.Run(tc.name, func(t *testing.T) { tc.run(placed{t, c.Home, c.Homed}, c.withDefaults()) })
	}
}

// Failure is one message of a case that failed.
type Failure struct{ Case, Message string }

// String returns the case and its message.
func (f Failure) String() string { return f.Case + ": " + f.Message }

// Record runs the named cases, or all cases, and returns their failures. It does not fail tb.
func Record(tb testing.TB, c Config, names ...string) []Failure {
	tb.Helper()
	var all []Failure
	for _, tc := range cases() {
		if !c.runs(tc) || (len(names) > 0 && !slices.Contains(names, tc.name)) {
			continue
		}
		r := &recorder{TB: tb}
		done := make(chan struct{})
		go func() { // in a goroutine of its own, so that FailNow ends the case and not the caller
			defer close(done)
			defer func() {
				if p := recover(); p != nil {
					r.note(fmt.Sprintf("panic: %v", p))
				}
			}()
			tc.run(r, c.withDefaults())
		}()
		<-done
		for _, message := range r.failures() {
			all = append(all, Failure{Case: tc.name, Message: message})
		}
	}
	return all
}

// recorder is a testing.TB that records failures and does not report them. It is safe for concurrent use.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	messages []string
	failed   bool
}

func (r *recorder) note(message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
	r.messages = append(r.messages, message)
}

func (r *recorder) failures() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed && len(r.messages) == 0 {
		return []string{"failed without a message"}
	}
	return slices.Clone(r.messages)
}

func (r *recorder) Helper()                           {}
func (r *recorder) Log(...any)                        {}
func (r *recorder) Logf(string, ...any)               {}
func (r *recorder) Error(args ...any)                 { r.note(fmt.Sprint(args...)) }
func (r *recorder) Errorf(format string, args ...any) { r.note(fmt.Sprintf(format, args...)) }
func (r *recorder) Fatal(args ...any)                 { r.note(fmt.Sprint(args...)); runtime.Goexit() }
func (r *recorder) Fatalf(format string, args ...any) {
	r.note(fmt.Sprintf(format, args...))
	runtime.Goexit()
}

func (r *recorder) FailNow() {
	r.Fail()
	runtime.Goexit()
}

func (r *recorder) Fail() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}
