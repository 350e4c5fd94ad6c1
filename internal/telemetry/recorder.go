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

// Store is a kind of store. Metrics distinguish stores by it.
type Store uint8

// The stores.
const (
	Redis Store = iota
	DynamoDB
	Memory
	Home // the DynamoDB table of another cell, which counts limits for this cell
	OtherStore
	storeCount
)

var storeNames = [storeCount]string{Redis: "redis", DynamoDB: "dynamodb", Memory: "memory", Home: "home",
	OtherStore: "other"}

// String returns the store's name as it occurs in the names of metrics.
func (s Store) String() string { return storeNames[min(s, OtherStore)] }

// Decision holds what is counted of one decision. It has no field for a tenant or an address.
type Decision struct {
	Kind answer.Kind
	Took time.Duration // how long the stores took, without identification and configuration

	// Limit is the id of the limit that denied; "" if none did. Ids are chosen by the operator, of characters
	// [A-Za-z0-9._-], perhaps with "ip:" in front. The first 32 limits of each second are counted separately. All
	// others are counted together, and so is any value that cannot be an id.
	Limit string

	ConfigStale bool // the decision used a configuration that is older than it may be

	Mode uint8 // mode of the cell's limits, as in limit.Mode: 0 enforce, 1 shadow, 2 off
	// ShadowDenial is, of a request that was allowed in shadow, the denial by Limit that was not enforced; otherwise
	// answer.Allowed.
	ShadowDenial answer.Kind

	// Fullest is how full the fullest charged counter is, in thousandths of what its limit holds; 0 if the store
	// charged no counter.
	Fullest int64
}

// Gauges holds current values.
type Gauges struct {
	// LimitEffective is what the cell grants, in hundredths of a percent of what all cells grant. It is below 0 if that
	// is not known or was not computed.
	LimitEffective int64
	// FullestReplayed is the highest Decision.Fullest of the counters that were replayed after an outage, since the
	// last line; 0 if there were none.
	FullestReplayed int64
}

// Totals holds what other parts have counted since their start. lease.Stats and resilience.FallbackStats have these
// numbers. The metrics report by how much they grew. A total that is smaller than before was counted from 0 again.
type Totals struct {
	Backstop           int64 // decisions by the fallback limiter
	LeaseLocal         int64 // decisions from leases, without a call
	LeaseCalls         int64 // calls of the lease layer to its store
	EarlyDenials       int64 // denials from leases that would not have been necessary
	KillSwitchFailures int64 // polls of the kill switch that failed

	Undecidable int64 // requests that a store answered, but could not decide
}

// Config sets up a [Recorder].
type Config struct {
	Writer io.Writer // required; each line is one Write

	// Namespace is the namespace of the metrics in CloudWatch: 1..255 characters of [A-Za-z0-9._#/:-], not beginning
	// with "AWS/"; default "Sluice".
	Namespace string

	// Cell and Function are the dimensions; "" leaves one out. Each is 1..128 characters of [A-Za-z0-9._-], and not an
	// address. There are no other dimensions, so no request can cause a new metric.
	Cell, Function string

	// Totals is called once for each line, after the line's second, while decisions go on. It must not wait for the
	// recorder. It may be nil.
	Totals func() Totals

	// Gauges is called in the same way, with the time of the line. It may be nil.
	Gauges func(now time.Time) Gauges
}

const (
	maxWaiting = 8       // lines that wait for a slow writer; further lines are lost
	maxRecords = 1 << 20 // in one line; bounds a line whose clock does not move
	// s by which a clock must advance beyond a second before the current one, to count as a clock that was set back
	setBack    = 3
	maxLimits  = 32 // limits that are counted separately in a second
	maxLimitID = 80 // bytes of a limit's id
	maxSecond  = 253402300799
)

// Recorder counts decisions, and writes a line for each second in which there was a decision. It is safe for concurrent
// use. Recording never waits for the writer and never fails. It holds a lock while it adds a few numbers. Make it with
// [New].
//
// Time is an argument, and all calls must take it from one clock. A second ends with the first record of a later
// second, or with [Recorder.Flush]. A record of an earlier second, from a call that others overtook, counts in the
// current second. Records of a clock that was set back also count in the current second, for at most three seconds.
// After that they get lines of their own, with the time of the last line, until the clock reaches that time again. No
// line has an earlier time than the line before it.
//
// A goroutine of its own writes the lines. On Lambda, it may write a line only after the environment thaws. The time in
// the line is that of the line's second all the same.
type Recorder struct {
	c Config

	mu    sync.Mutex
	open  *bucket       // of the current second; nil if nothing was recorded in it
	last  int64         // time of the newest line, s since 1970
	queue []*bucket     // to be written, oldest first
	free  []*bucket     // buckets that were written and can be reused
	done  chan struct{} // closed when the queue is empty; nil if the queue is empty already
	lost  int64         // lines that were not written
	cause error         // why the last lost line was lost

	// Only the writing goroutine uses these fields. There is one such goroutine at a time.
	told    int64 // how many of the lost lines were reported
	before  Totals
	partial bool // the last write ended within a line
}

// bucket is what was counted in one second.
type bucket struct {
	second   int64 // the line's time, s since 1970
	clock    int64 // the recording clock's second
	earliest int64 // the earliest second that was recorded since the last record of the second clock
	records  int

	kinds        []int64 // by answer.Kind
	shadowDenied int64
	coldStarts   int64
	refused      int64
	panics       int64
	configStale  bool
	mode         uint8 // the highest mode
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
	id     string
	Denied int64 `json:"denied"`
	Shadow int64 `json:"shadow_denied"`
}

// kindCount is the number of kinds of answers.
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
		return nil, errors.New("telemetry: Namespace begins with AWS/, which is reserved for AWS")
	case !isName(c.Namespace, 255, "._#/:-"):
		return nil, errors.New("telemetry: Namespace is not 1..255 characters of [A-Za-z0-9._#/:-]")
	}
	for _, d := range []struct{ field, value string }{{"Cell", c.Cell}, {"Function", c.Function}} {
		if d.value == "" {
			continue
		}
		if !isName(d.value, 128, "._-") {
			return nil, fmt.Errorf("telemetry: %s is not 1..128 characters of [A-Za-z0-9._-]", d.field)
		}
		if _, err := netip.ParseAddr(d.value); err == nil {
			return nil, fmt.Errorf("telemetry: %s is an IP address, which must not occur in metrics", d.field)
		}
	}
	return &Recorder{c: c}, nil
}

// isName reports whether s is 1..most characters, each a letter, a digit, or a character of also.
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
	spared := d.Kind == answer.Allowed && d.ShadowDenial != answer.Allowed
	if spared {
		b.spared++
	}
	switch {
	case d.Limit == "":
	case spared:
		b.limit(d.Limit).Shadow++
	default:
		b.limit(d.Limit).Denied++
	}
	r.mu.Unlock()
}

// ShadowDenied counts a request that a limit in mode shadow would have denied.
func (r *Recorder) ShadowDenied(now time.Time, limit string) {
	r.mu.Lock()
	b := r.at(now)
	b.shadowDenied++
	b.limit(limit).Shadow++
	r.mu.Unlock()
}

// StoreCall counts a call of a store, failed or not, and how long it took.
func (r *Recorder) StoreCall(now time.Time, s Store, took time.Duration, failed bool) {
	r.mu.Lock()
	b := &r.at(now).stores[min(s, OtherStore)]
	b.took.add(took)
	if failed {
		b.errors++
	}
	r.mu.Unlock()
}

// ColdStart counts the start of an instance.
func (r *Recorder) ColdStart(now time.Time) {
	r.mu.Lock()
	r.at(now).coldStarts++
	r.mu.Unlock()
}

// Propagated counts a change of the configuration, and how long it took from the write until the change was in force in
// this process. Times below 1 µs, which occur if the writer's clock is ahead, count as 1 µs. Times above 63 s count as
// 63 s.
func (r *Recorder) Propagated(now time.Time, took time.Duration) {
	r.mu.Lock()
	r.at(now).propagation.add(took)
	r.mu.Unlock()
}

// EventRefused counts an event that the function does not handle: the function is attached to the wrong source of
// events.
func (r *Recorder) EventRefused(now time.Time) {
	r.mu.Lock()
	r.at(now).refused++
	r.mu.Unlock()
}

// Panic counts a request that ended in a panic that was caught.
func (r *Recorder) Panic(now time.Time) {
	r.mu.Lock()
	r.at(now).panics++
	r.mu.Unlock()
}

// Flush ends the current second and waits until all lines are written, or until ctx ends. It returns an error if ctx
// ended first, or if lines were lost meanwhile. Recording goes on in either case. Call it on SIGTERM: otherwise, what
// was recorded since the last line is lost.
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

// at returns the bucket for a record. The caller holds r.mu.
func (r *Recorder) at(now time.Time) *bucket {
	s := clampedSecond(now)
	if r.open != nil && (!r.open.covers(s) || r.open.records >= maxRecords) {
		r.end()
	}
	if r.open == nil {
		r.open = r.newBucket()
		r.last = max(r.last, s)
		r.open.second, r.open.clock, r.open.earliest = r.last, s, s
	}
	r.open.records++
	return r.open
}

// clampedSecond limits the time to the years 1970 to 9999. Readers cannot parse other time stamps.
func clampedSecond(now time.Time) int64 { return min(max(now.Unix(), 0), maxSecond) }

// covers reports whether a record of the second s counts in b. A single call may be late by any time. A clock is taken
// to have been set back if its seconds advance while they are earlier than the current second.
func (b *bucket) covers(s int64) bool {
	switch {
	case s > b.clock:
		return false
	case s == b.clock:
		b.earliest = s
	}
	b.earliest = min(b.earliest, s)
	return s-b.earliest < setBack
}

// limit returns the counter for a limit.
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

// release empties a bucket for reuse. The caller holds r.mu.
func (r *Recorder) release(b *bucket) {
	clear(b.kinds)
	*b = bucket{kinds: b.kinds}
	r.free = append(r.free, b)
}

// end puts the bucket of the current second into the queue. The caller holds r.mu. The goroutine that writes ends when
// the queue is empty.
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

// write writes the queue.
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
		r.mu.Unlock() // b stays in the queue while it is written, so that it counts as waiting

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

// writeLine writes the line of a bucket. If the last write ended within a line, it writes a line end first.
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
	out, err := secondLine(b, grown, stand, lost-r.told).encode(&r.c, b.second)
	if err != nil {
		return err
	}
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
		Backstop:           grown(t.Backstop, before.Backstop),
		LeaseLocal:         grown(t.LeaseLocal, before.LeaseLocal),
		LeaseCalls:         grown(t.LeaseCalls, before.LeaseCalls),
		EarlyDenials:       grown(t.EarlyDenials, before.EarlyDenials),
		KillSwitchFailures: grown(t.KillSwitchFailures, before.KillSwitchFailures),

		Undecidable: grown(t.Undecidable, before.Undecidable),
	}
}
