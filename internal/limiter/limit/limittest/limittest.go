// Package limittest is the contract that every [limit.Store] must keep, for every algorithm it accepts, and a reference
// model that is obviously right.
//
// A store's own test is a few lines: [RunStoreContract] with a [Config] that makes fresh stores. The suite drives the
// store through scripts at given times; a store that reads a clock of its own takes them through Config.SetClock.
// [Record] runs the suite without failing a test, and tells what a broken store was caught at.
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

// Config plugs a store into the suite.
type Config struct {
	// New makes an empty store. Required. It may skip or fail tb, and register clean-ups there.
	New func(tb testing.TB) limit.Store

	// Peer makes another handle on the counters of s, as a second process would have. Nil where a store has only one.
	// The concurrent cases then spread their goroutines over four handles.
	Peer func(tb testing.TB, s limit.Store) limit.Store

	// SetClock makes the store's own clock show now, from the next call on. Nil for a store that goes by the time it is
	// given. It is called before each step of a script; concurrent steps share one time.
	SetClock func(s limit.Store, now time.Time)

	// Refuses lists the algorithms that the store does not accept; it must accept all others, and refuse these.
	Refuses []limit.Algorithm

	// MayFail is set for a store that may answer with an error where many charge one counter at once. Such an answer
	// must have charged nothing, or else have counted too much, never too little.
	MayFail bool

	// Leases is set for a store that honours limit.Request.Leases; without it the cases named "leases: …" are skipped.
	Leases bool

	// KeepsAhead is set for a store that may lease although it denies: what Decision.Lease then says was charged.
	KeepsAhead bool

	// Home is the cell that keeps limits of the suite (limit.Limit.Home); "" is the one that decides. Homed says which
	// limits it keeps; if nil, it keeps the quotas.
	Home  string
	Homed func(l *limit.Limit) bool

	// Parallel runs the cases side by side, for a store that waits much.
	Parallel bool

	Goroutines int // in concurrent cases; 0 means 64
	Scripts    int // random scripts that are run beside the model; 0 means 150
	Steps      int // steps in each; 0 means 60
	Repeats    int // of what scripts do again and again at other times; 0 means 150, and 20 is the least
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

// cases are the contract.
func cases() []testCase {
	return slices.Concat(basicCases, atomicCases, keyCases, shadowCases, refundCases, changeCases, clockCases,
		requestCases, concurrencyCases, scriptCases, leaseCases)
}

// Names lists the guarantees of the contract, in the order they are run.
func Names() []string {
	var names []string
	for _, tc := range cases() {
		names = append(names, tc.name)
	}
	return names
}

// RunStoreContract runs the whole contract, each guarantee as a subtest on stores of its own.
func RunStoreContract(t *testing.T, c Config) {
	t.Helper()
	if c.New == nil {
		t.Fatal("limittest: Config.New is required")
	}
	for _, tc := range cases() {
		if !c.runs(tc) { // a contract that the store does not make
			continue
		}
		t.Run(tc.name, func(t *testing.T) { tc.run(placed{t, c.Home, c.Homed}, c.withDefaults()) })
	}
}

// Failure is one message of a case that failed.
type Failure struct{ Case, Message string }

// String is the case and its message.
func (f Failure) String() string { return f.Case + ": " + f.Message }

// Record runs the cases whose names are given, or all of them, and returns what failed instead of failing tb.
func Record(tb testing.TB, c Config, names ...string) []Failure {
	tb.Helper()
	var all []Failure
	for _, tc := range cases() {
		if !c.runs(tc) || (len(names) > 0 && !slices.Contains(names, tc.name)) {
			continue
		}
		r := &recorder{TB: tb}
		done := make(chan struct{})
		go func() { // a goroutine of its own, so that FailNow ends the case and not the caller
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

// recorder is a testing.TB that keeps failures to itself. It may be used by several goroutines.
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
