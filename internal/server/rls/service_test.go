package rls_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
	"github.com/sluicelimits/sluice/internal/server/envoyconfig"
	"github.com/sluicelimits/sluice/internal/server/rls"
)

// start is 10 s after the beginning of a minute, an hour and a day.
var start = time.Date(2026, 3, 1, 0, 0, 10, 0, time.UTC)

// world is a service with a clock that the test sets.
type world struct {
	*rls.Service
	t     testing.TB
	now   time.Time
	store limit.Store
}

func newWorld(t testing.TB, c rls.Config, yaml string) *world {
	t.Helper()
	w := &world{t: t, now: start}
	if c.Store == nil {
		store, err := memory.New(memory.Config{Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		c.Store = store
	}
	c.Now = func() time.Time { return w.now }
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	w.store = c.Store
	var err error
	if w.Service, err = rls.New(c); err != nil {
		t.Fatal(err)
	}
	w.load(yaml)
	return w
}

func (w *world) load(yaml string) {
	w.t.Helper()
	config, err := envoyconfig.Load([]envoyconfig.File{{Name: "test", Data: []byte(yaml)}}, envoyconfig.Options{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.SetConfig(config)
}

// capturing is a store that records the owners it is asked about.
type capturing struct {
	limit.Store
	owners []limit.Owner
}

func (c *capturing) Decide(ctx context.Context, r *limit.Request, now time.Time, d *limit.Decision) error {
	c.owners = append(c.owners, r.Owner)
	return c.Store.Decide(ctx, r, now, d)
}

// Guarantees that the stores, whose errors are logged with the owner and the key of a counter, get no value that a
// client chose.
func TestOwnersHoldNoValues(t *testing.T) {
	inMemory := memorytest.New(t)
	store := &capturing{Store: inMemory}
	w := newWorld(t, rls.Config{Store: store}, file)
	w.ask(descriptor("a=slk_SECRET"), descriptor("a="+strings.Repeat("slk_SECRET", 100)), descriptor("b=slk_SECRET"))
	for _, o := range store.owners {
		if strings.Contains(o.Name, "SECRET") {
			t.Errorf("an owner of counters has the name %.80q", o.Name)
		}
	}
	if len(store.owners) != 3 {
		t.Errorf("the store was asked about %d owners, want 3", len(store.owners))
	}
}

// Guarantees that the limits of requests are remembered in little memory, however long the keys of their descriptors
// are.
func TestOverridesOfLongKeys(t *testing.T) {
	w := newWorld(t, rls.Config{}, file)
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for i := range 300 {
		d := descriptor(fmt.Sprintf("%060000d=x", i))
		d.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1,
			Unit: typev3.RateLimitUnit_MINUTE}
		w.ask(d)
	}
	if kept := heap() - before; kept > 6<<20 {
		t.Errorf("300 keys of 60,000 bytes are kept in %d bytes, want at most 6 MiB", kept)
	}
	runtime.KeepAlive(w)
}

// Guarantees that requests which bring limits of their own and 0 hits log no value, and at most one line a second.
func TestQueriesAreLoggedWithoutValues(t *testing.T) {
	var log strings.Builder
	w := newWorld(t, rls.Config{Log: slog.New(slog.NewTextHandler(&log, nil))}, file)
	for i := range 20 {
		d := descriptorWithHits(fmt.Sprintf("a%d=203.0.113.5", i), 0)
		d.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1,
			Unit: typev3.RateLimitUnit_MINUTE}
		w.ask(d)
	}
	if text := log.String(); strings.Count(text, "\n") != 1 || strings.Contains(text, "203") ||
		!strings.Contains(text, "descriptor=d.a0") {
		t.Errorf("the log is\n%s\nwant one line, which names the keys alone", text)
	}
}

// descriptor returns a descriptor with the entries, which are written as "key=value,key=value".
func descriptor(entries string) *ratelimitv3.RateLimitDescriptor {
	d := new(ratelimitv3.RateLimitDescriptor)
	for pair := range strings.SplitSeq(entries, ",") {
		key, value, _ := strings.Cut(pair, "=")
		d.Entries = append(d.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	return d
}

func descriptorWithHits(entries string, n uint64) *ratelimitv3.RateLimitDescriptor {
	d := descriptor(entries)
	d.HitsAddend = wrapperspb.UInt64(n)
	return d
}

func negative(entries string, n uint64) *ratelimitv3.RateLimitDescriptor {
	d := descriptorWithHits(entries, n)
	d.IsNegativeHits = true
	return d
}

func (w *world) ask(descriptors ...*ratelimitv3.RateLimitDescriptor) *rlsv3.RateLimitResponse {
	w.t.Helper()
	out, err := w.ShouldRateLimit(w.t.Context(), &rlsv3.RateLimitRequest{Domain: "d", Descriptors: descriptors})
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// summary writes a response in short, such as "over: ok 2 over 0": the overall code, and of each status the code and
// the units that remain, or "-" if the status has no limit.
func summary(r *rlsv3.RateLimitResponse) string {
	code := func(c rlsv3.RateLimitResponse_Code) string {
		if c == rlsv3.RateLimitResponse_OK {
			return "ok"
		}
		return "over"
	}
	out := code(r.GetOverallCode()) + ":"
	for _, s := range r.GetStatuses() {
		out += " " + code(s.GetCode())
		if s.GetCurrentLimit() != nil || s.GetLimitRemaining() > 0 {
			out += fmt.Sprint(" ", s.GetLimitRemaining())
		} else {
			out += " -"
		}
	}
	return out
}

func (w *world) want(want string, descriptors ...*ratelimitv3.RateLimitDescriptor) *rlsv3.RateLimitResponse {
	w.t.Helper()
	out := w.ask(descriptors...)
	if got := summary(out); got != want {
		w.t.Errorf("%v: %q, want %q", descriptors, got, want)
	}
	return out
}

const file = `
domain: d
descriptors:
  - {key: a, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: b, rate_limit: {unit: hour, requests_per_unit: 5, name: b}, sluice: {countDenied: false}}
  - {key: zero, rate_limit: {unit: second, requests_per_unit: 0}}
  - {key: free, rate_limit: {unlimited: true, replaces: [{name: b}]}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: q1, quota_mode: true, metadata: {from: q1, m: {x: 1}}, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: q2, quota_mode: true, metadata: {from: q2, m: {y: 2}}, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: qs, quota_mode: true, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: nothing}
  - key: mixed
    rate_limit: {unit: minute, requests_per_unit: 10}
    sluice: {limits: [{id: burst, algorithm: token_bucket, rate: 1, period: 10s, burst: 2}]}
  - {key: tokens, rate_limit: {unit: minute, requests_per_unit: 10}, sluice: {countDenied: true}}
  - {key: bucket, sluice: {limits: [{id: x, algorithm: token_bucket, rate: 1, period: 1s, burst: 2}]}}
  - {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: part, value: 'x*', share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 2}}
`

// Guarantees that the status of one descriptor says how many units remain and when the window ends, and that all units
// are free in the next window.
func TestOneDescriptor(t *testing.T) {
	w := newWorld(t, rls.Config{}, file)
	for _, want := range []string{"ok: ok 2", "ok: ok 1", "ok: ok 0", "over: over 0"} {
		s := w.want(want, descriptor("a=x")).GetStatuses()[0]
		if l := s.GetCurrentLimit(); l.GetRequestsPerUnit() != 3 ||
			l.GetUnit() != rlsv3.RateLimitResponse_RateLimit_MINUTE ||
			l.GetName() != "" || l.GetUnitMultiplier() != nil || s.GetDurationUntilReset().GetSeconds() != 50 {
			t.Errorf("the status is %v, which differs from the matched limit or its reset", s)
		}
	}
	w.want("ok: ok 2", descriptor("a=y"))
	w.now = w.now.Add(49*time.Second + 999*time.Millisecond)
	if s := w.want("over: over 0", descriptor("a=x")).GetStatuses()[0]; s.GetDurationUntilReset().GetSeconds() != 1 {
		t.Errorf("just before the end of the window the status is %v, want a reset in 1 s", s)
	}
	w.now = w.now.Add(time.Millisecond)
	if s := w.want("ok: ok 2", descriptor("a=x")).GetStatuses()[0]; s.GetDurationUntilReset().GetSeconds() != 60 {
		t.Errorf("at the beginning of a window the status is %v, want a reset in 60 s", s)
	}
	w.want("ok: ok -", descriptor("nothing=x"))
	w.want("ok: ok -", descriptor("unknown=x"))
	w.want("ok: ok 4294967295", descriptor("free=x"))
	if s := w.want("over: over 0", descriptor("zero=x")).GetStatuses()[0]; s.GetDurationUntilReset().GetSeconds() != 1 {
		t.Errorf("a limit of 0 has the status %v, want a reset in 1 s", s)
	}
	w.want("ok: ok 0", descriptorWithHits("zero=x", 0))
	w.want("ok: ok 1", descriptor("part=x1"))
	w.want("ok: ok 0", descriptor("part=x2"))
	w.want("over: over 0", descriptor("part=x3"))
}

// Guarantees that a request that is denied by one of its descriptors charges none of the others, whichever comes first.
func TestAllOrNothing(t *testing.T) {
	for _, order := range []bool{false, true} {
		w := newWorld(t, rls.Config{PeekAfterDenial: true}, file)
		both := func(want string) {
			t.Helper()
			a, b := descriptor("a=x"), descriptor("b=x")
			if order {
				w.want(strings.ReplaceAll(want, "A", " ok"), a, b)
			} else {
				parts := strings.Fields(want) // overall, code, left, code, left
				w.want(strings.Join([]string{parts[0], parts[3], parts[4], parts[1], parts[2]}, " "), b, a)
			}
		}
		both("ok: ok 2 ok 4")
		both("ok: ok 1 ok 3")
		both("ok: ok 0 ok 2")
		for range 20 {
			both("over: over 0 ok 2")
		}
		w.want("ok: ok 1", descriptor("b=x"))
		w.want("ok: ok 0", descriptor("b=x"))
		both("over: over 0 over 0")
	}
}

// Guarantees that without PeekAfterDenial the descriptors that a denial leaves out have no limit in the response, and
// cost no call to the store, and that the descriptor that denied last is charged first.
func TestAfterDenial(t *testing.T) {
	inner := memorytest.New(t)
	store := &failing{Store: inner, from: 1 << 30}
	w := newWorld(t, rls.Config{Store: store}, file)
	for range 3 {
		w.ask(descriptor("a=x"), descriptor("b=x"))
	}
	w.want("over: over 0 ok -", descriptor("a=x"), descriptor("b=x"))
	w.want("over: ok 5 over 0", descriptor("b=y"), descriptorWithHits("a=y", 4)) // b is charged, and refunded
	before := store.calls
	w.want("over: ok - over 0", descriptor("b=x"), descriptor("a=x"))
	if n := store.calls - before; n != 1 {
		t.Errorf("a request that is denied once more makes %d calls to the store, want 1", n)
	}
	w.want("ok: ok 1", descriptor("b=x"))
}

// Guarantees that with CountDenied every request is counted, as envoyproxy/ratelimit does: the units of a rule are
// spent also if another one denies, and hits beyond the limit count.
func TestCountDenied(t *testing.T) {
	w := newWorld(t, rls.Config{CountDenied: true}, file)
	for _, want := range []string{"ok: ok 2 ok 4", "ok: ok 1 ok 3", "ok: ok 0 ok 2", "over: over 0 ok 1",
		"over: over 0 ok 0", "over: over 0 over 0"} {
		w.want(want, descriptor("a=x"), descriptor("b=x"))
	}
	w.want("over: over 0", descriptorWithHits("b=x", 0))
	w.want("ok: ok 0", negative("b=x", 1))
	w.want("over: over 0", descriptor("b=x"))
	w.want("ok: ok 3", negative("b=x", 4))

	w = newWorld(t, rls.Config{}, file)
	w.want("ok: ok 2", descriptorWithHits("tokens=x", 8))
	w.want("over: over 0", descriptorWithHits("tokens=x", 8))
	w.want("over: over 0", descriptorWithHits("tokens=x", 0))
}

// late is a store whose clock is ahead of the caller's at each call, by the next of the durations: the time that a call
// takes to arrive.
type late struct {
	limit.Store
	by []time.Duration
}

func (l *late) now(t time.Time) time.Time {
	by := l.by[0]
	l.by = l.by[1:]
	return t.Add(by)
}

func (l *late) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	return l.Store.Decide(ctx, req, l.now(now), d)
}

func (l *late) Peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	return l.Store.Peek(ctx, req, l.now(now), d)
}

// Guarantees that hits which are counted in any case, and negative hits, are counted in the window in which the store
// decides, also if the call before took much longer to arrive, and that such hits cost one call to the store.
func TestCountDeniedNearAWindowsEdge(t *testing.T) {
	inner := memorytest.New(t)
	const soon, slow = time.Millisecond, 600 * time.Millisecond
	store := &late{Store: inner, by: []time.Duration{slow, soon, slow, soon, soon, soon}}
	w := newWorld(t, rls.Config{Store: store, CountDenied: true},
		"domain: d\ndescriptors: [{key: a, rate_limit: {unit: second, requests_per_unit: 10}}]")
	w.now = start.Add(300 * time.Millisecond)
	w.want("ok: ok 9", descriptor("a=x"))
	w.now = start.Add(600 * time.Millisecond)
	w.want("ok: ok 1", descriptorWithHits("a=x", 8))
	w.now = start.Add(1300 * time.Millisecond) // the next window
	w.want("ok: ok 2", descriptorWithHits("a=x", 8))
	w.now = start.Add(1600 * time.Millisecond)
	w.want("ok: ok 7", negative("a=x", 5)) // two calls: one gives back, and one peeks
	w.want("ok: ok 6", descriptor("a=x"))
}

// Guarantees that hits which are counted in any case are decided by the fallback limiter while the store is away, and
// recorded as its decision says.
func TestCountDeniedStoreAway(t *testing.T) {
	inner := memorytest.New(t)
	store, err := resilience.NewFallback(resilience.FallbackConfig{Store: &failing{Store: inner, from: 1},
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, rls.Config{Store: store, CountDenied: true}, file)
	w.want("ok: ok 1", descriptorWithHits("a=x", 2))
	w.want("over: over 0", descriptorWithHits("a=x", 2))
	w.want("ok: ok 0", descriptor("a=x"))
	got := map[string]int64{}
	w.Stats().Each(func(name string, n int64) { got[name] = n })
	if n := got["ratelimit.service.rate_limit.d.a.over_limit"]; n != 2 {
		t.Errorf("over_limit is %d, want 2", n)
	}
}

// Guarantees that negative hits which the store does not take are no error and deny nothing: the other descriptors of
// the request are decided as ever. Their status has no limit, since nothing is known of their counters. What was lost
// is counted.
func TestNegativeHitsStoreAway(t *testing.T) {
	inner := memorytest.New(t)
	away := &failing{Store: inner, from: 1}
	store, err := resilience.NewFallback(resilience.FallbackConfig{Store: away, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, rls.Config{Store: store, Headers: rls.Headers{Exact: true, Plain: true}}, file)
	if got := headers(w.want("ok: ok -", negative("b=x", 1))); got != "" {
		t.Errorf("the headers tell of a counter of which nothing is known:\n%s", got)
	}
	for _, want := range []string{"ok: ok - ok 2", "ok: ok - ok 1", "ok: ok - ok 0", "over: ok - over 0"} {
		w.want(want, negative("b=x", 1), descriptor("a=x"))
	}
	if lost, failed := w.Stats().RefundError.Load(), w.Stats().StoreError.Load(); lost != 5 || failed != 0 {
		t.Errorf("%d lost refunds and %d undecided requests are counted, want 5 and 0", lost, failed)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	away.err = context.Canceled
	_, err = w.ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{Domain: "d",
		Descriptors: []*ratelimitv3.RateLimitDescriptor{negative("b=x", 1)}})
	if lost := w.Stats().RefundError.Load(); status.Code(err) != codes.Canceled || lost != 5 {
		t.Errorf("after the client has gone: error %v, %d lost refunds are counted, want Canceled and 5", err, lost)
	}
}

// Guarantees that a request with negative hits that are not allowed changes nothing, whatever the order of its
// descriptors.
func TestNegativeHitsAllOrNothing(t *testing.T) {
	w := newWorld(t, rls.Config{CountDenied: true}, file)
	w.want("ok: ok 4", descriptor("b=x"))
	descriptors := []*ratelimitv3.RateLimitDescriptor{negative("b=x", 1), descriptor("a=x"), negative("bucket=x", 1)}
	_, err := w.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "d", Descriptors: descriptors})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("negative hits of a token bucket: %v", err)
	}
	w.want("ok: ok 3 ok 2", descriptor("b=x"), descriptor("a=x"))
}

// Guarantees that a request whose client has gone is not counted as a failure of the store, and is not logged.
func TestClientGivesUp(t *testing.T) {
	var log strings.Builder
	store := memorytest.New(t)
	s, err := rls.New(rls.Config{Store: &failing{Store: store, from: 1, err: context.Canceled},
		Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Service: s, t: t}
	w.load(file)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = w.ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{Domain: "d",
		Descriptors: []*ratelimitv3.RateLimitDescriptor{descriptor("a=x")}})
	if stats := w.Stats(); status.Code(err) != codes.Canceled || stats.StoreError.Load() != 0 ||
		stats.Canceled.Load() != 1 || log.Len() > 0 {
		t.Errorf("error %v; %d failures of the store and %d cancelled requests are counted; log %s", err,
			stats.StoreError.Load(), stats.Canceled.Load(), log.String())
	}
}

// Guarantees that what was charged for a client that gives up before its request is decided is given back nevertheless.
func TestRefundOutlivesTheClient(t *testing.T) {
	inner := memorytest.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	store := &failing{Store: inner, from: 2, err: context.Canceled, onFailure: cancel}
	w := newWorld(t, rls.Config{Store: store}, file)
	_, err := w.ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{Domain: "d",
		Descriptors: []*ratelimitv3.RateLimitDescriptor{descriptor("a=x"), descriptor("b=x")}})
	if lost := w.Stats().RefundError.Load(); status.Code(err) != codes.Canceled || lost != 0 {
		t.Errorf("error %v, %d refunds are lost; want Canceled and 0", err, lost)
	}
	store.from = 1 << 30
	w.want("ok: ok 2 ok 4", descriptor("a=x"), descriptor("b=x"))
}

// Guarantees that a rule of 0 units denies every request with hits: also if denied hits are counted, which charges the
// other descriptors nevertheless, and in whatever order the descriptors come. Its status says so also if another
// descriptor has denied before it.
func TestRuleThatAdmitsNothing(t *testing.T) {
	w := newWorld(t, rls.Config{CountDenied: true}, file)
	w.want("over: over 0", descriptor("zero=x"))
	w.want("over: over 0 ok 2", descriptor("zero=x"), descriptor("a=x"))
	w.want("over: ok 1 over 0", descriptor("a=x"), descriptor("zero=x"))
	w.want("ok: ok 0", descriptorWithHits("zero=x", 0))
	w.want("ok: ok 0", negative("zero=x", 1))

	w = newWorld(t, rls.Config{PeekAfterDenial: true}, file)
	w.want("over: over 0 over 0", descriptorWithHits("a=x", 4), descriptor("zero=x"))
	w.want("over: ok 5 over 0 over 0", descriptor("b=x"), descriptorWithHits("a=x", 4), descriptor("zero=x"))
}

// Guarantees that a descriptor's number of hits takes precedence over that of the request, that 0 hits charge nothing,
// and that hits that can never fit are denied without a charge.
func TestHits(t *testing.T) {
	w := newWorld(t, rls.Config{}, file)
	w.want("ok: ok 1", descriptorWithHits("b=x", 4))
	w.want("ok: ok 1", descriptorWithHits("b=x", 0))
	w.want("over: over 0", descriptorWithHits("b=x", 2))
	w.want("over: over 0", descriptorWithHits("b=x", 1<<60))
	w.want("ok: ok 0", descriptorWithHits("b=x", 1))
	w.want("ok: ok 0", descriptorWithHits("b=x", 0))
	out, err := w.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{
		Domain: "d", HitsAddend: 2, Descriptors: []*ratelimitv3.RateLimitDescriptor{descriptor("b=y"),
			descriptorWithHits("b=z", 5)}})
	if err != nil || summary(out) != "ok: ok 3 ok 0" {
		t.Errorf("%v, %v", out, err)
	}
}

// Guarantees that negative hits are subtracted from a counter, which stays at least 0, that their status is OK, and
// that limits that do not know which hits still count refuse them.
func TestNegativeHits(t *testing.T) {
	w := newWorld(t, rls.Config{},
		"domain: d\ndescriptors: [{key: key1, value: foo, rate_limit: {unit: minute, requests_per_unit: 50}}, "+
			"{key: bucket, sluice: {limits: [{id: x, algorithm: token_bucket, rate: 1, period: 1s, burst: 2}]}}]")
	w.want("ok: ok 45", descriptorWithHits("key1=foo", 5))
	w.want("ok: ok 48", negative("key1=foo", 3))
	w.want("ok: ok 47", descriptorWithHits("key1=foo", 1))
	w.want("ok: ok 50", negative("key1=foo", 1000))
	w.want("ok: ok 49", descriptor("key1=foo"))
	_, err := w.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "d",
		Descriptors: []*ratelimitv3.RateLimitDescriptor{negative("bucket=x", 1)}})
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "token_bucket") {
		t.Errorf("negative hits of a token bucket: %v", err)
	}
}

// Guarantees that shadow_mode never denies, that quota_mode denies only if all rules with quota_mode deny, and that the
// service's own modes apply to all rules.
func TestModes(t *testing.T) {
	w := newWorld(t, rls.Config{}, file)
	w.want("ok: ok 0 ok 2", descriptor("shadow=x"), descriptor("a=x"))
	w.want("ok: ok 0 ok 1", descriptor("shadow=x"), descriptor("a=x"))
	w.want("ok: ok 0", descriptor("shadow=x"))

	w.want("ok: ok 0 ok 1", descriptor("q1=x"), descriptor("q2=x"))
	w.want("ok: over 0 ok 0", descriptor("q1=x"), descriptor("q2=x"))
	w.want("over: over 0 over 0 ok 1", descriptor("q1=x"), descriptor("q2=x"), descriptor("a=x"))
	w.want("ok: ok 0", descriptor("a=x")) // its unit was refunded when the quotas denied
	w.want("over: over 0", descriptor("q1=x"))

	w = newWorld(t, rls.Config{CountDenied: true}, file) // both modes at once never deny, also once over the limit
	w.want("ok: ok 0", descriptor("qs=x"))
	w.want("ok: ok 0", descriptor("qs=x"))

	w = newWorld(t, rls.Config{ShadowMode: true}, file)
	for _, want := range []string{"ok: ok 2 ok 4", "ok: ok 1 ok 3", "ok: ok 0 ok 2", "ok: over 0 ok 1"} {
		w.want(want, descriptor("a=x"), descriptor("b=x"))
	}
	w.want("ok: over 0 ok 0", descriptor("a=x"), descriptor("q1=x")) // the quota does not make up for the denial of a
	w.want("ok: over 0", descriptor("a=x"))
	if n := w.Stats().GlobalShadowMode.Load(); n != 3 {
		t.Errorf("the service's shadow mode let %d requests pass, want the last 3", n)
	}
	w = newWorld(t, rls.Config{QuotaMode: true}, file)
	for range 3 {
		w.ask(descriptor("a=x"))
	}
	w.want("over: over 0", descriptor("a=x"))
	w.want("ok: over 0 ok 4", descriptor("a=x"), descriptor("b=x"))
	w.want("ok: over 0 ok -", descriptor("a=x"), descriptor("unknown=x"))
}

// Guarantees that rules do not apply if another rule of the request replaces them, in whatever order they come, also if
// that rule is unlimited.
func TestReplaces(t *testing.T) {
	w := newWorld(t, rls.Config{}, file)
	w.want("ok: ok - ok 4294967295", descriptor("b=x"), descriptor("free=x"))
	w.want("ok: ok 4294967295 ok -", descriptor("free=x"), descriptor("b=x"))
	w.want("ok: ok 4", descriptor("b=x"))
}

// Guarantees that a descriptor can set a limit itself, which shares its counter with the configured limit of the same
// unit, but not with other values that share the configured threshold, and that a limit without a unit is an error.
func TestOverride(t *testing.T) {
	w := newWorld(t, rls.Config{}, file)
	own := func(entries string, n uint32, unit typev3.RateLimitUnit) *ratelimitv3.RateLimitDescriptor {
		d := descriptor(entries)
		d.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: n, Unit: unit}
		return d
	}
	w.want("ok: ok 2", descriptor("a=x"))
	w.want("ok: ok 8", own("a=x", 10, typev3.RateLimitUnit_MINUTE))
	w.want("ok: ok 9", own("a=x", 10, typev3.RateLimitUnit_HOUR))
	w.want("ok: ok 0", descriptor("a=x"))
	w.want("ok: ok 6", own("unknown=x", 7, typev3.RateLimitUnit_DAY))
	w.want("over: over 0", own("unknown=x", 0, typev3.RateLimitUnit_DAY))
	w.want("ok: ok 2", own("part=x1", 3, typev3.RateLimitUnit_MINUTE))
	w.want("ok: ok 2", own("part=x2", 3, typev3.RateLimitUnit_MINUTE))
	_, err := w.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "d",
		Descriptors: []*ratelimitv3.RateLimitDescriptor{own("a=x", 1, 0)}})
	if err == nil || !strings.Contains(err.Error(), "invalid rate limit unit 'UNKNOWN'") {
		t.Errorf("a limit without a unit: %v", err)
	}
	out, err := w.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "e",
		Descriptors: []*ratelimitv3.RateLimitDescriptor{own("a=x", 0, 1)}})
	if err != nil || summary(out) != "ok: ok -" {
		t.Errorf("an unknown domain: %v, %v", out, err)
	}
}

// Guarantees that several limits of one descriptor are charged together or not at all, that the status is about the
// binding one, and that the headers list all of them.
func TestSeveralLimits(t *testing.T) {
	w := newWorld(t, rls.Config{Headers: rls.Headers{Exact: true}}, file)
	w.want("ok: ok 1", descriptor("mixed=x"))
	w.want("ok: ok 0", descriptor("mixed=x"))
	out := w.want("over: over 0", descriptor("mixed=x"))
	s := out.GetStatuses()[0]
	if l := s.GetCurrentLimit(); l.GetRequestsPerUnit() != 2 ||
		l.GetUnit() != rlsv3.RateLimitResponse_RateLimit_SECOND ||
		l.GetUnitMultiplier().GetValue() != 10 || s.GetDurationUntilReset().GetSeconds() != 10 {
		t.Errorf("the status is %v, which differs from the matched limit or its reset", s)
	}
	const want = `RateLimit: "mixed/burst";r=0;t=10, "mixed";r=8;t=50` + "\n" +
		`RateLimit-Policy: "mixed/burst";q=2;w=20, "mixed";q=10;w=60` + "\nRetry-After: 10\n"
	if got := headers(out); got != want {
		t.Errorf("headers\n%s want\n%s", got, want)
	}
	w.now = w.now.Add(10 * time.Second)
	w.want("ok: ok 0", descriptor("mixed=x"))
}

func headers(r *rlsv3.RateLimitResponse) string {
	var b strings.Builder
	for _, h := range r.GetResponseHeadersToAdd() {
		fmt.Fprintf(&b, "%s: %s\n", h.GetKey(), h.GetValue())
	}
	return b.String()
}

// Guarantees that the plain headers are about the limit with the fewest units left or the last one that denied, and
// that the exact headers list every limit, the binding one first.
func TestHeaders(t *testing.T) {
	w := newWorld(t, rls.Config{PeekAfterDenial: true, Headers: rls.Headers{Plain: true, Exact: true,
		Limit: "X-Limit"}}, file)
	a, b := descriptor("a=x"), descriptor("b=x")
	want := "X-Limit: 3\nRateLimit-Remaining: 2\nRateLimit-Reset: 50\n" +
		"RateLimit: \"a\";r=2;t=50, \"b\";r=4;t=3590\nRateLimit-Policy: \"a\";q=3;w=60, \"b\";q=5;w=3600\n"
	if got := headers(w.ask(b, a)); got != want {
		t.Errorf("admitted:\n%s want\n%s", got, want)
	}
	w.ask(a)
	w.ask(a)
	want = "X-Limit: 3\nRateLimit-Remaining: 0\nRateLimit-Reset: 50\n" +
		"RateLimit: \"a\";r=0;t=50, \"b\";r=4;t=3590\nRateLimit-Policy: \"a\";q=3;w=60, \"b\";q=5;w=3600\n" +
		"Retry-After: 50\n"
	if got := headers(w.ask(b, a)); got != want {
		t.Errorf("denied:\n%s want\n%s", got, want)
	}
	if got := headers(w.ask(descriptor("free=x"), descriptor("unknown=x"))); got != "" {
		t.Errorf("nothing limited: %s", got)
	}
	if got := headers(w.ask(descriptorWithHits("b=x", 6))); strings.Contains(got, "Retry-After") {
		t.Errorf("a cost that never fits: %s", got)
	}
}

const waits = `
domain: d
descriptors:
  - {key: minute, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: hour, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: year, rate_limit: {unit: year, requests_per_unit: 2}, sluice: {countDenied: false}}
  - {key: other, rate_limit: {unit: year, requests_per_unit: 9}}
  - {key: zero, rate_limit: {unit: minute, requests_per_unit: 0}}
  - {key: q1, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: q2, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: q3, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - key: bucket
    sluice: {countDenied: true, limits: [{id: x, algorithm: token_bucket, rate: 1, period: 10s, burst: 6}]}
  - key: sliding
    sluice: {countDenied: true, limits: [{id: x, algorithm: sliding_log, threshold: 4, period: 60s}]}
  - key: both
    rate_limit: {unit: minute, requests_per_unit: 2}
    sluice: {countDenied: true, limits: [{id: x, algorithm: fixed_window, threshold: 3, period: 1h}]}
`

// retryAfter returns the header Retry-After, or "" if there is none.
func retryAfter(r *rlsv3.RateLimitResponse) string {
	for _, h := range r.GetResponseHeadersToAdd() {
		if h.GetKey() == "Retry-After" {
			return h.GetValue()
		}
	}
	return ""
}

// Guarantees that Retry-After is when the same request fits: when every limit that denies alone admits, and one of
// those with quota_mode, if all of them deny.
func TestRetryAfter(t *testing.T) {
	for _, c := range []struct {
		name  string
		spent string // descriptors that are asked before, separated by spaces
		ask   string
		want  string
	}{
		{"two limits", "minute hour", "minute hour", "3590"},
		{"two quotas", "q1 q2", "q1 q2", "50"},
		{"two quotas, and a limit that admits", "q2 q3", "minute q3 q2", "3590"},
		{"a quota denies, and another one admits", "minute q3", "minute q3 q1", "50"},
		{"quotas and a limit deny", "minute q2 q3", "minute q2 q3", "3590"},
		{"a limit of 0", "minute", "minute zero", ""},
	} {
		w := newWorld(t, rls.Config{PeekAfterDenial: true, Headers: rls.Headers{Exact: true}}, waits)
		for spent := range strings.FieldsSeq(c.spent) {
			w.ask(descriptor(spent + "=x"))
		}
		var asked []*ratelimitv3.RateLimitDescriptor
		for key := range strings.FieldsSeq(c.ask) {
			asked = append(asked, descriptor(key+"=x"))
		}
		if out := w.ask(asked...); out.GetOverallCode() != rlsv3.RateLimitResponse_OVER_LIMIT ||
			retryAfter(out) != c.want {
			t.Errorf("%s: %s, Retry-After %q, want a denial and %q", c.name, summary(out), retryAfter(out), c.want)
		}
	}
}

// Guarantees that without PeekAfterDenial Retry-After includes what is known, without a call to the store, of the
// limits that a denial leaves out: that such a limit can never admit the hits, or that it denied as many hits, or
// fewer, in an earlier request, and has neither admitted as many nor got hits back since. What is not known is left
// out, so that the wait can be too short.
func TestRetryAfterWithoutPeek(t *testing.T) {
	w := newWorld(t, rls.Config{Headers: rls.Headers{Exact: true}}, waits)
	want := func(want string, asked ...*ratelimitv3.RateLimitDescriptor) {
		t.Helper()
		if out := w.ask(asked...); retryAfter(out) != want {
			t.Errorf("%v: %s, Retry-After %q, want %q", asked, summary(out), retryAfter(out), want)
		}
	}
	minute, year, other := descriptor("minute=x"), descriptor("year=x"), descriptor("other=x")
	w.ask(descriptorWithHits("year=x", 2))
	w.ask(minute)
	want("50", minute, year) // nothing is known of year
	want("", minute, descriptorWithHits("year=x", 3))
	want("", minute, descriptor("zero=x"))
	want("25228790", year, other) // years of 365 days, counted from 1970
	w.now = w.now.Add(time.Second)
	want("49", minute, other)
	want("25228789", minute, year)
	w.now = w.now.Add(time.Second)
	want("25228788", minute, year, other)
	want("48", minute, descriptorWithHits("year=x", 0))

	w.ask(negative("year=x", 1)) // year admits again, and a request shows it
	w.ask(year, other)
	want("48", minute, year)
	want("25228788", descriptorWithHits("year=x", 2), other)
	w.load(waits)
	want("48", minute, descriptorWithHits("year=x", 2)) // another configuration may have other limits

	w.ask(descriptor("year=y"))
	two := descriptorWithHits("year=y", 2)
	want("25228788", two)
	want("25228788", minute, two) // a request with one descriptor is remembered, too
	want("48", minute, descriptor("year=y"))
	w.ask(descriptor("year=y")) // fewer hits than were denied
	want("25228788", minute, two)
	more := descriptorWithHits("year=y", 2)
	more.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 9, Unit: typev3.RateLimitUnit_YEAR}
	w.ask(more) // the same counter has admitted as many
	want("48", minute, two)
	want("25228788", two)
	w.ask(negative("year=y", 4))
	want("48", minute, two)
}

// Guarantees that Retry-After of a limit that counts denied hits is when the same hits fit, of every algorithm and also
// if several limits are exceeded, and that there is none if they never fit.
func TestRetryAfterCountDenied(t *testing.T) {
	for _, c := range []struct {
		key  string
		hits []uint64
		want string
	}{
		{"bucket", []uint64{5, 5}, "90"},    // level -4: nine units are missing, one in 10 s
		{"bucket", []uint64{5, 2}, "30"},    // level -1
		{"bucket", []uint64{5, 7}, ""},      // more than the burst
		{"sliding", []uint64{4, 1}, "60"},   // the first entry ends, and the second one stays
		{"both", []uint64{2, 2}, "3590"},    // both are exceeded
		{"both", []uint64{1, 1, 1}, "3590"}, // the minute denies, and one more does not fit into the hour either
	} {
		w := newWorld(t, rls.Config{Headers: rls.Headers{Exact: true}}, waits)
		var out *rlsv3.RateLimitResponse
		for _, hits := range c.hits {
			out = w.ask(descriptorWithHits(c.key+"=x", hits))
		}
		if retryAfter(out) != c.want || out.GetOverallCode() != rlsv3.RateLimitResponse_OVER_LIMIT {
			t.Errorf("%s %v: %s, Retry-After %q, want a denial and %q", c.key, c.hits, summary(out), retryAfter(out),
				c.want)
		}
	}
}

// Guarantees that the dynamic metadata holds the request and the merged metadata of the rules that do not deny, and
// that of two values of one name the first rule's stays.
func TestDynamicMetadata(t *testing.T) {
	w := newWorld(t, rls.Config{DynamicMetadata: true}, file)
	text := func(r *rlsv3.RateLimitResponse) string {
		b, err := protojson.Marshal(r.GetDynamicMetadata())
		if err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(string(b), " ", "")
	}
	const want = `{"descriptors":[{"entries":["q1=x"]},{"entries":["q2=x"],"hitsAddend":1}],"domain":"d",` +
		`"metadata":{"from":"q1","m":{"x":1,"y":2}}}`
	if got := text(w.ask(descriptor("q1=x"), descriptorWithHits("q2=x", 1))); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if got := text(w.ask(descriptor("q1=x"), descriptorWithHits("q2=x", 1))); !strings.Contains(got,
		`"metadata":{"from":"q2","m":{"y":2}}`) {
		t.Errorf("one rule denies: %s", got)
	}
	if got := text(w.ask(descriptor("zero=x"), descriptor("q2=y"))); strings.Contains(got, `"metadata"`) {
		t.Errorf("a rule that was not asked: %s", got)
	}
}

// Guarantees that invalid requests are errors that say what is wrong with them, and that they are counted.
func TestBadRequests(t *testing.T) {
	w := newWorld(t, rls.Config{}, file)
	one := []*ratelimitv3.RateLimitDescriptor{descriptor("a=x")}
	many := make([]*ratelimitv3.RateLimitDescriptor, 10_000)
	for i := range many {
		many[i] = one[0]
	}
	for _, c := range []struct {
		request *rlsv3.RateLimitRequest
		want    string
	}{
		{&rlsv3.RateLimitRequest{Descriptors: one}, "rate limit domain must not be empty"},
		{&rlsv3.RateLimitRequest{Domain: "d"}, "rate limit descriptor list must not be empty"},
		{&rlsv3.RateLimitRequest{Domain: "d", Descriptors: many},
			"the request has 10000 descriptors, at most 1000 are allowed"},
	} {
		if _, err := w.ShouldRateLimit(t.Context(), c.request); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q", err, c.want)
		}
	}
	if n := w.Stats().ServiceError.Load(); n != 3 {
		t.Errorf("%d service errors are counted, want 3", n)
	}
	if out := w.ask(many[:1000]...); out.GetOverallCode() != rlsv3.RateLimitResponse_OVER_LIMIT {
		t.Error("a request with one descriptor 1000 times is admitted by a limit of 3")
	}
	w.want("ok: ok 2", many[0]) // and none of it was charged
	w.want("ok: ok - ok -", &ratelimitv3.RateLimitDescriptor{}, nil)
	fresh, err := rls.New(rls.Config{Store: w.store})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fresh.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "d",
		Descriptors: one}); err == nil ||
		!strings.Contains(err.Error(), "no rate limit configuration loaded") {
		t.Errorf("without a configuration: %v", err)
	}
}

// Guarantees that descriptors have separate counters if their keys are long, or if their keys and values would be equal
// when joined with "_".
func TestKeysAreApart(t *testing.T) {
	w := newWorld(t, rls.Config{}, "domain: d\ndescriptors: [{key: a_b, rate_limit: {unit: day, requests_per_unit: "+
		"1}}, {key: a, rate_limit: {unit: day, requests_per_unit: 1}, descriptors: [{key: c, rate_limit: {unit: "+
		"day, requests_per_unit: 1}}]}]")
	long := strings.Repeat("x", 100_000)
	for _, entries := range []string{"a=b_c", "a_b=c", "a=z,c=", "a=z,c=1", "a=" + long, "a=" + long + "y", "a=1:b"} {
		w.want("ok: ok 0", descriptor(entries))
	}
}

// failing is a store whose Decide fails from the call with the number from on, counted from 1.
type failing struct {
	limit.Store
	calls, from int
	err         error // if nil, errUnavailable
	onFailure   func()
}

var errUnavailable = errors.New("the store is unavailable")

func (f *failing) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	if f.calls++; f.calls < f.from {
		return f.Store.Decide(ctx, req, now, d)
	}
	if f.onFailure != nil {
		f.onFailure()
	}
	return cmp.Or(f.err, errUnavailable)
}

func (f *failing) Settle(ctx context.Context, r *limit.Receipt, used []int64, now time.Time) (limit.Settlement, error) {
	if err := ctx.Err(); err != nil {
		return limit.Settlement{}, err
	}
	return f.Store.Settle(ctx, r, used, now)
}

// Guarantees that a request is an error if the store fails after its first charge, that the error does not tell clients
// the cause, and that the charge is refunded.
func TestStoreFails(t *testing.T) {
	inner := memorytest.New(t)
	store := &failing{Store: inner, from: 2}
	w := newWorld(t, rls.Config{Store: store}, file)
	_, err := w.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "d",
		Descriptors: []*ratelimitv3.RateLimitDescriptor{descriptor("a=x"), descriptor("b=x")}})
	if status.Code(err) != codes.Unknown || strings.Contains(err.Error(), "unavailable") ||
		w.Stats().StoreError.Load() != 1 {
		t.Errorf("error %v, %d counted", err, w.Stats().StoreError.Load())
	}
	store.from = 1 << 30
	w.want("ok: ok 2 ok 4", descriptor("a=x"), descriptor("b=x"))
}

// Guarantees the names and numbers of the statistics, that they survive a new configuration, and that values of
// requests cannot add names without bound.
func TestStats(t *testing.T) {
	const yaml = "domain: d\ndescriptors:\n  - {key: a, rate_limit: {unit: minute, requests_per_unit: 10}}\n" +
		"  - {key: ip, value_to_metric: true, rate_limit: {unit: minute, requests_per_unit: 10}}\n" +
		"  - {key: s, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}\n"
	w := newWorld(t, rls.Config{MaxStats: 3}, yaml)
	w.ask(descriptorWithHits("a=x", 9))
	w.load(yaml)
	w.ask(descriptorWithHits("a=x", 2))
	w.ask(negative("a=x", 2))
	w.ask(descriptor("s=x"))
	w.ask(descriptor("s=x"))
	for i := range 50 {
		w.ask(descriptor(fmt.Sprint("ip=10.0.0.", i)))
	}
	_, _ = w.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "other",
		Descriptors: []*ratelimitv3.RateLimitDescriptor{descriptor("a=x")}})
	got := map[string]int64{}
	w.Stats().Each(func(name string, n int64) { got[name] = n })
	for name, want := range map[string]int64{
		"d.a.total_hits": 11, "d.a.within_limit": 9, "d.a.near_limit": 1, "d.a.over_limit": 2,
		"d.a.total_negative_hits": 2,
		"d.s.shadow_mode":         1, "d.s.total_hits": 2, "d.ip_10_0_0_0.total_hits": 1,
		"d.ip_10_0_0_2.within_limit": 1,
		"d.ip.total_hits":            47, "other.domain_not_found": 1,
	} {
		if n, ok := got["ratelimit.service.rate_limit."+name]; !ok || n != want {
			t.Errorf("%s is %d, want %d", name, n, want)
		}
	}
	if _, ok := got["ratelimit.service.rate_limit.d.ip_10_0_0_3.total_hits"]; ok ||
		got["ratelimit.service.config_load_success"] != 2 {
		t.Errorf("statistics %v", got)
	}
}

// Guarantees that neither a value nor a domain of a request can add a line to the statistics, or control a terminal.
func TestStatsCannotBeForged(t *testing.T) {
	w := newWorld(t, rls.Config{}, "domain: d\ndescriptors: [{key: a, value_to_metric: true, rate_limit: "+
		"{unit: minute, requests_per_unit: 10}}]")
	const forged = "x\n\r\v\f\x1b[2J\u0085\u2028\u2029\u202eforged: 1"
	w.ask(descriptor("a=" + forged))
	_, _ = w.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: forged,
		Descriptors: []*ratelimitv3.RateLimitDescriptor{descriptor("a=x")}})
	names := 0
	w.Stats().Each(func(name string, _ int64) {
		if strings.Contains(name, "forged") {
			names++
		}
		if strings.ContainsAny(name, "\n\r\v\f\x1b\u0085\u2028\u2029\u202e") {
			t.Errorf("a statistic has the name %q", name)
		}
	})
	if names != 8 {
		t.Errorf("%d statistics have names with the forged text, want 7 of the descriptor and 1 of the domain", names)
	}
}

// Guarantees that concurrent requests with two descriptors never get more than either limit, and that the refunds of
// denied requests are not lost.
func TestConcurrent(t *testing.T) {
	w := newWorld(t, rls.Config{Together: true}, "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, "+
		"requests_per_unit: 500}}, {key: b, rate_limit: {unit: day, requests_per_unit: 300}}]")
	var group sync.WaitGroup
	var mu sync.Mutex
	admitted := 0
	for range 8 {
		group.Go(func() {
			for i := range 100 {
				list := []*ratelimitv3.RateLimitDescriptor{descriptor("a=x"), descriptor("b=x")}
				if i%2 == 0 {
					list[0], list[1] = list[1], list[0]
				}
				if w.ask(list...).GetOverallCode() == rlsv3.RateLimitResponse_OK {
					mu.Lock()
					admitted++
					mu.Unlock()
				}
			}
		})
	}
	group.Wait()
	if admitted != 300 {
		t.Errorf("admitted %d, want 300", admitted)
	}
	w.want("ok: ok 200", descriptorWithHits("a=x", 0))
}

// withoutPeek is a store whose Peek fails.
type withoutPeek struct{ limit.Store }

func (withoutPeek) Peek(context.Context, *limit.Request, time.Time, *limit.Decision) error {
	return errUnavailable
}

// Guarantees that a descriptor without hits is decided as onStoreFailure says while the store is away, as one with hits
// is: the request is no error, which Envoy would admit by default. A descriptor with negative hits that were given back
// is OK.
func TestNoHitsStoreAway(t *testing.T) {
	inner := memorytest.New(t)
	store, err := resilience.NewFallback(resilience.FallbackConfig{Store: withoutPeek{inner},
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, rls.Config{Store: store}, `
domain: d
descriptors:
  - {key: closed, rate_limit: {unit: minute, requests_per_unit: 3}, sluice: {onStoreFailure: closed}}
  - {key: open, rate_limit: {unit: minute, requests_per_unit: 3}, sluice: {onStoreFailure: open}}
`)
	w.want("over: over 0", descriptorWithHits("closed=x", 0))
	w.want("ok: ok 3", descriptorWithHits("open=x", 0))
	w.want("ok: ok 2", descriptor("closed=x"))
	w.want("ok: ok -", negative("closed=x", 1)) // nothing is known of what is left
	w.want("ok: ok 2", descriptor("closed=x"))
}
