package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/request/answer"
)

// Store is a kind of store, as far as metrics tell them apart.
type Store uint8

// The stores.
const (
	Redis Store = iota
	DynamoDB
	Memory
	Home // the DynamoDB of another cell, which keeps quotas
	OtherStore
	storeCount
)

var storeNames = [storeCount]string{Redis: "redis", DynamoDB: "dynamodb", Memory: "memory", Home: "home",
	OtherStore: "other"}

// String is the store's name in those of its metrics.
func (s Store) String() string { return storeNames[min(s, OtherStore)] }

// Decision is what is counted of one decision. It has no place for a tenant or an address.
type Decision struct {
	Kind answer.Kind
	Took time.Duration // of the limiter's step, without identity and configuration

	// Limit is the id of the limit that denied; "" where none did. Ids are the operator's, of [A-Za-z0-9._-], also with
	// "ip:" before them. The first 32 of each second are told apart, the rest are counted together, and so is what is
	// no id.
	Limit string

	ConfigStale bool // decided on a configuration that is older than it may be

	Mode uint8 // of the cell's limits, as limit.Mode: 0 enforced, 1 in shadow, 2 off
	// of what was allowed in shadow, the denial that it would have been, of Limit; else answer.Allowed
	Spared answer.Kind

	// Fullest is what the fullest counter that was charged has taken in, in thousandths of what its limit holds; 0
	// where the store charged none.
	Fullest int64
}

// Gauges is how things stand.
type Gauges struct {
	// what the cell grants, in hundredths of a percent of what all cells do; below 0: not known, or not looked at
	LimitEffective int64
	// Decision.Fullest of what was charged since the last time without a decision: after an outage; 0 where nothing was
	ChargedBack int64
}

// Totals is what other parts have counted since their start; lease.Stats and resilience.FallbackStats have these
// numbers. The metrics are by how much they grew. One that shrank was counted from 0 again.
type Totals struct {
	Backstop   int64 // decisions made by a backstop
	LeaseLocal int64 // decisions from leases, without a call
	LeaseCalls int64 // calls of the store beneath the leases
	Early      int64 // denials from leases that turned out to be early
	Unheard    int64 // polls of the kill switch that came to nothing

	Undecidable int64 // requests that a store answered and could not decide
}

// Config sets up a [Recorder].
type Config struct {
	Writer io.Writer // required; each line is one Write

	// of the metrics in CloudWatch: 1..255 of [A-Za-z0-9._#/:-], not beginning with "AWS/"; default "Sluice"
	Namespace string

	// Cell and Function are the dimensions, "" for none: 1..128 of [A-Za-z0-9._-], and no addresses. There are no
	// others, so that no request can make a metric of its own.
	Cell, Function string

	// Totals is asked once for each line, after its second and beside decisions. It must not wait for the recorder; nil
	// where there is nothing to ask.
	Totals func() Totals

	// Gauges is asked in the same way, with the time of the line; nil where there is nothing to ask.
	Gauges func(now time.Time) Gauges
}

const (
	maxWaiting = 8       // lines that wait for a slow writer; a further one is lost
	maxRecords = 1 << 20 // in one line: it bounds what a clock that stands still can gather
	// s by which a clock has to go on before the second under way to count as one that was set back
	setBack    = 3
	maxLimits  = 32 // limits that are told apart in a second
	maxLimitID = 80 // bytes of a limit's id
	maxSecond  = 253402300799
)

// Recorder counts decisions and writes a line for each second in which there was one. It is safe for concurrent use.
// Recording never waits for the writer and never fails; it takes a lock for as long as some additions take. Make it
// with [New].
//
// Time is an argument, and all calls must have it from one clock. A second ends with the first record of another one,
// or with [Recorder.Flush]. A record of an earlier one, of a call that others overtook, counts in the second under way.
// So do those of a clock that was set back, for at most three seconds, and then in lines of their own, which have the
// time of the last one until the clock has reached it again: no line has a time before that of the last one.
//
// Writing is done beside the caller. On Lambda it may so happen after the environment thaws; the line's time is its
// second's.
type Recorder struct {
	c    Config
	head string // of the directive: namespace and dimensions
	dims string // the dimensions as members

	mu    sync.Mutex
	open  *bucket       // of the second under way; nil where nothing was recorded in it
	last  int64         // the newest line's time, s since 1970
	queue []*bucket     // to be written, oldest first
	free  []*bucket     // written, to be used again
	done  chan struct{} // closed when nothing waits any more; nil where nothing does
	lost  int64         // lines that were not written
	cause error         // why, of the last one

	// What follows is the writing goroutine's; there is one at a time.
	line    lineBuilder
	told    int64 // of lost, how many lines have told
	before  Totals
	partial bool // the last write ended within a line
}

// bucket is what was counted in one second.
type bucket struct {
	second  int64 // the line's time, s since 1970
	clock   int64 // the recording clock's second
	back    int64 // the earliest second that was recorded since there was a record of clock
	records int

	kinds        []int64 // by answer.Kind
	shadowDenied int64
	coldStarts   int64
	refused      int64
	panics       int64
	configStale  bool
	mode         uint8 // the farthest from enforcing
	spared       int64
	fullest      int64 // thousandths
	limiter      histogram
	propagation  histogram
	stores       [storeCount]storeBucket
	limits       [maxLimits]limitBucket
	limitCount   int
	otherLimits  limitBucket
}

type storeBucket struct {
	took   histogram
	errors int64
}

type limitBucket struct {
	id             string
	denied, shadow int64
}

// kindCount is how many outcomes there are.
var kindCount = len(answer.Kinds())

// New checks the configuration and makes a recorder. The error names the field.
func New(c Config) (*Recorder, error) {
	if c.Namespace == "" {
		c.Namespace = "Sluice"
	}
	switch {
	case c.Writer == nil:
		return nil, errors.New("telemetry: Writer is missing")
	case strings.HasPrefix(c.Namespace, "AWS/"):
		return nil, errors.New("telemetry: Namespace begins with AWS/, which is Amazon's own")
	case !isName(c.Namespace, 255, "._#/:-"):
		return nil, errors.New("telemetry: Namespace is not 1..255 of [A-Za-z0-9._#/:-]")
	}
	for _, d := range []struct{ field, value string }{{"Cell", c.Cell}, {"Function", c.Function}} {
		if d.value == "" {
			continue
		}
		if !isName(d.value, 128, "._-") {
			return nil, fmt.Errorf("telemetry: %s is not 1..128 of [A-Za-z0-9._-]", d.field)
		}
		if _, err := netip.ParseAddr(d.value); err == nil {
			return nil, fmt.Errorf("telemetry: %s is an address; a metric has none", d.field)
		}
	}
	r := &Recorder{c: c}
	r.head, r.dims = headOf(&c)
	return r, nil
}

// isName reports whether s is 1..most letters, digits and characters of also.
func isName(s string, most int, also string) bool {
	for _, c := range []byte(s) {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !letter && strings.IndexByte(also, c) < 0 {
			return false
		}
	}
	return 0 < len(s) && len(s) <= most
}

// Decision counts a decision.
func (r *Recorder) Decision(now time.Time, d Decision) {
	kind := int(d.Kind)
	if kind >= kindCount {
		kind = int(answer.Internal)
	}
	r.mu.Lock()
	b := r.at(now)
	b.kinds[kind]++
	b.limiter.add(d.Took)
	b.configStale = b.configStale || d.ConfigStale
	b.fullest = max(b.fullest, d.Fullest)
	b.mode = max(b.mode, d.Mode)
	spared := d.Kind == answer.Allowed && d.Spared != answer.Allowed
	if spared {
		b.spared++
	}
	switch {
	case d.Limit == "":
	case spared:
		b.limit(d.Limit).shadow++
	default:
		b.limit(d.Limit).denied++
	}
	r.mu.Unlock()
}

// ShadowDenied counts that a shadow limit would have denied.
func (r *Recorder) ShadowDenied(now time.Time, limit string) {
	r.mu.Lock()
	b := r.at(now)
	b.shadowDenied++
	b.limit(limit).shadow++
	r.mu.Unlock()
}

// StoreCall counts a call of a store, and how long it took, whether it failed or not.
func (r *Recorder) StoreCall(now time.Time, s Store, took time.Duration, failed bool) {
	r.mu.Lock()
	b := &r.at(now).stores[min(s, OtherStore)]
	b.took.add(took)
	if failed {
		b.errors++
	}
	r.mu.Unlock()
}

// ColdStart counts that an instance started.
func (r *Recorder) ColdStart(now time.Time) {
	r.mu.Lock()
	r.at(now).coldStarts++
	r.mu.Unlock()
}

// Propagated counts a change of the configuration, and how long it took from its write until it was in force here.
// Latencies below 1 µs, of a writer whose clock is ahead, count as 1 µs; above 63 s as 63 s.
func (r *Recorder) Propagated(now time.Time, took time.Duration) {
	r.mu.Lock()
	r.at(now).propagation.add(took)
	r.mu.Unlock()
}

// EventRefused counts an event that is none that the function answers: it is attached to the wrong thing.
func (r *Recorder) EventRefused(now time.Time) {
	r.mu.Lock()
	r.at(now).refused++
	r.mu.Unlock()
}

// Panic counts a request that ended in a panic which was caught.
func (r *Recorder) Panic(now time.Time) {
	r.mu.Lock()
	r.at(now).panics++
	r.mu.Unlock()
}

// Lost is how many lines were not written: the writer failed, or so many waited for it that there was no room.
func (r *Recorder) Lost() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lost
}

// Flush ends the second under way and waits until everything is written, at most until ctx ends. The error says that it
// ended first, or that lines were lost meanwhile; recording goes on either way. Call it on SIGTERM, for what was
// recorded since the last line is lost otherwise.
func (r *Recorder) Flush(ctx context.Context) error {
	r.mu.Lock()
	lost := r.lost
	r.end()
	done := r.done
	r.mu.Unlock()
	if done != nil {
		select {
		case <-done:
		case <-ctx.Done():
			return fmt.Errorf("telemetry: flush: %w", ctx.Err())
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost > lost {
		return fmt.Errorf("telemetry: flush: %d lines lost: %w", r.lost-lost, r.cause)
	}
	return nil
}

// Run ends each second when it is over, also where nothing more is recorded, until ctx ends. Flush then. A Lambda
// function cannot run it, and need not: between two requests it does not run at all.
func (r *Recorder) Run(ctx context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			r.mu.Lock()
			if r.open != nil && !r.open.holds(clampedSecond(now)) {
				r.end()
			}
			r.mu.Unlock()
		}
	}
}

// at is the bucket for a record; mu is held.
func (r *Recorder) at(now time.Time) *bucket {
	s := clampedSecond(now)
	if r.open != nil && (!r.open.holds(s) || r.open.records >= maxRecords) {
		r.end()
	}
	if r.open == nil {
		r.open = r.newBucket()
		r.last = max(r.last, s)
		r.open.second, r.open.clock, r.open.back = r.last, s, s
	}
	r.open.records++
	return r.open
}

// clampedSecond keeps to the years 1970 to 9999: a time stamp outside them would be no number that others read.
func clampedSecond(now time.Time) int64 { return min(max(now.Unix(), 0), maxSecond) }

// holds reports whether a record of the second s counts in b. Single calls are late by any time; what goes on second by
// second is the clock.
func (b *bucket) holds(s int64) bool {
	switch {
	case s > b.clock:
		return false
	case s == b.clock:
		b.back = s
	}
	b.back = min(b.back, s)
	return s-b.back < setBack
}

// limit is the counter for a limit.
func (b *bucket) limit(id string) *limitBucket {
	for i := range b.limitCount {
		if b.limits[i].id == id {
			return &b.limits[i]
		}
	}
	if b.limitCount == maxLimits || !isName(id, maxLimitID, "._-:") {
		return &b.otherLimits
	}
	l := &b.limits[b.limitCount]
	b.limitCount++
	l.id = id
	return l
}

func (r *Recorder) newBucket() *bucket {
	if n := len(r.free); n > 0 {
		b := r.free[n-1]
		r.free = r.free[:n-1]
		return b
	}
	return &bucket{kinds: make([]int64, kindCount)}
}

// release empties a bucket that no line needs any more; mu is held.
func (r *Recorder) release(b *bucket) {
	clear(b.kinds)
	*b = bucket{kinds: b.kinds}
	r.free = append(r.free, b)
}

// end hands the bucket of the second under way over to be written; mu is held. The goroutine that writes ends when it
// has nothing left to do.
func (r *Recorder) end() {
	b := r.open
	if r.open = nil; b == nil {
		return
	}
	if len(r.queue) == maxWaiting {
		r.lost++
		r.cause = errSlow
		r.release(b)
		return
	}
	r.queue = append(r.queue, b)
	if r.done == nil {
		r.done = make(chan struct{})
		go r.write(r.done)
	}
}

var errSlow = errors.New("the writer is too slow")

// write writes what waits.
func (r *Recorder) write(done chan struct{}) {
	defer close(done)
	for {
		r.mu.Lock()
		if len(r.queue) == 0 {
			r.done = nil
			r.mu.Unlock()
			return
		}
		b, lost := r.queue[0], r.lost
		r.mu.Unlock() // b keeps its place: what is being written waits, too

		err := r.writeLine(b, lost)

		r.mu.Lock()
		r.queue = append(r.queue[:0], r.queue[1:]...)
		r.release(b)
		if err != nil {
			r.lost++
			r.cause = err
		}
		r.mu.Unlock()
	}
}

// writeLine writes a bucket's line. After a write that ended within a line, it begins with a line end.
func (r *Recorder) writeLine(b *bucket, lost int64) error {
	var grown Totals
	if r.c.Totals != nil {
		now := r.c.Totals()
		grown = now.since(r.before)
		r.before = now
	}
	stand := Gauges{LimitEffective: -1}
	if r.c.Gauges != nil {
		stand = r.c.Gauges(time.Unix(b.second, 0))
	}
	out := r.line.build(r, b, grown, stand, lost-r.told)
	if r.partial {
		out = append([]byte{'\n'}, out...)
	}
	n, err := r.c.Writer.Write(out)
	if err == nil && n < len(out) {
		err = io.ErrShortWrite
	}
	if err != nil {
		r.partial = r.partial || n > 0
		return err
	}
	r.partial, r.told = false, lost
	return nil
}

func (t Totals) since(before Totals) Totals {
	grown := func(now, before int64) int64 {
		if now < before {
			return max(now, 0)
		}
		return now - before
	}
	return Totals{
		Backstop:   grown(t.Backstop, before.Backstop),
		LeaseLocal: grown(t.LeaseLocal, before.LeaseLocal),
		LeaseCalls: grown(t.LeaseCalls, before.LeaseCalls),
		Early:      grown(t.Early, before.Early),
		Unheard:    grown(t.Unheard, before.Unheard),

		Undecidable: grown(t.Undecidable, before.Undecidable),
	}
}
