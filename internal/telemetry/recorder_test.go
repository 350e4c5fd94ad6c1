package telemetry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/telemetry"
	"github.com/sluicelimits/sluice/internal/testkit/golden"
)

// Guarantees that no goroutine that writes lines is left over. In a frozen Lambda environment it would go on at any
// later time.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// lines collects what is written, one element for each call of Write.
type lines struct {
	mu     sync.Mutex
	writes [][]byte
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writes = append(l.writes, bytes.Clone(p))
	return len(p), nil
}

func newRecorder(t testing.TB, c telemetry.Config) *telemetry.Recorder {
	t.Helper()
	r, err := telemetry.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// flushed ends the present second, and parses everything that was written. Each call of Write must have written one
// valid line, and the times of the lines must ascend.
func (l *lines) flushed(t testing.TB, r *telemetry.Recorder) []*document {
	t.Helper()
	if err := r.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []*document
	for _, line := range l.writes {
		d, err := parseEMF(line)
		if err != nil {
			t.Fatalf("%v in %.2000s", err, line)
		}
		if n := len(out); n > 0 && d.Timestamp < out[n-1].Timestamp {
			t.Fatalf("a line with the timestamp %d follows one with %d, want ascending times", d.Timestamp,
				out[n-1].Timestamp)
		}
		out = append(out, d)
	}
	return out
}

// Guarantees each byte of a line: alarms and dashboards depend on its names.
func TestGolden(t *testing.T) {
	var out lines
	totals := telemetry.Totals{Backstop: 3, LeaseLocal: 90, LeaseCalls: 10, EarlyDenials: 1}
	r := newRecorder(t, telemetry.Config{Writer: &out, Cell: "eu-1", Function: "authorizer",
		Totals: func() telemetry.Totals { return totals }})
	r.ColdStart(noon)
	for i := range 100 {
		r.Decision(noon.Add(time.Duration(i)*time.Millisecond),
			telemetry.Decision{Kind: answer.Allowed, Took: time.Duration(i) * 10 * time.Microsecond})
	}
	r.Decision(noon, telemetry.Decision{Kind: answer.Limited, Took: 3 * time.Microsecond, Limit: "burst"})
	r.Decision(noon, telemetry.Decision{Kind: answer.IPLimited, Took: time.Microsecond, Limit: "ip:per-address",
		ConfigStale: true})
	r.Decision(noon, telemetry.Decision{Kind: answer.NoCredential})
	r.ShadowDenied(noon, "burst")
	r.StoreCall(noon, telemetry.Redis, 800*time.Microsecond, false)
	r.StoreCall(noon, telemetry.Redis, 8*time.Millisecond, true)
	r.StoreCall(noon, telemetry.DynamoDB, 5*time.Millisecond, false)
	r.Propagated(noon, 1200*time.Millisecond)
	r.EventRefused(noon)
	r.Panic(noon)
	out.flushed(t, r)

	golden.Check(t, "second.json", string(out.writes[0]))
}

// Guarantees that nothing that can happen in a second makes a line that CloudWatch refuses: every outcome, every step
// of every latency, more limits than are reported separately, and the largest numbers.
func TestFullestLineFits(t *testing.T) {
	var out lines
	r := newRecorder(t, telemetry.Config{
		Writer: &out, Namespace: strings.Repeat("n", 255), Cell: strings.Repeat("c", 128),
		Function: strings.Repeat("f", 128),
		Totals: func() telemetry.Totals {
			return telemetry.Totals{Backstop: math.MaxInt64, LeaseLocal: math.MaxInt64, LeaseCalls: math.MaxInt64,
				EarlyDenials: math.MaxInt64}
		},
	})
	r.ColdStart(noon)
	for _, k := range answer.Kinds() {
		r.Decision(noon, telemetry.Decision{Kind: k})
	}
	for i := range 100 {
		r.ShadowDenied(noon, strings.Repeat("x", 70)+string(rune('a'+i/10))+string(rune('a'+i%10)))
	}
	for took := time.Microsecond; took < 2*time.Minute; took = took*21/20 + 1 {
		r.Decision(noon, telemetry.Decision{Kind: answer.Limited, Took: took, Limit: "burst"})
		for s := telemetry.Redis; s <= telemetry.OtherStore; s++ {
			r.StoreCall(noon, s, took, true)
		}
		r.Propagated(noon, took)
	}
	r.EventRefused(noon)
	r.Panic(noon)
	d := out.flushed(t, r)[0]
	if n := len(d.distribution(t, "limiter_latency").Values); n != 100 {
		t.Errorf("the limiter's latency has %d values, want all 100: the line is not the fullest", n)
	}
	var limits map[string]map[string]int64
	if err := json.Unmarshal(d.Root["limits"], &limits); err != nil || len(limits) != 33 ||
		limits["(other)"]["shadow_denied"] != 68 {
		t.Errorf("%d limits, %v, %v; want 32 and the other 68 together", len(limits), limits["(other)"], err)
	}
	t.Logf("%d bytes, %d metrics", len(out.writes[0]), len(d.Units))
}

// Guarantees that requests cannot create metrics: whatever they contain, the names are those of the package comment,
// and the dimensions are the configured ones. CloudWatch bills each metric, and a tenant's name in a metric would be
// visible to everybody who reads the dashboard.
func TestNoInputMakesAMetric(t *testing.T) {
	var out lines
	r := newRecorder(t, telemetry.Config{Writer: &out, Cell: "eu-1"})
	random := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		id := make([]byte, random.IntN(100))
		for i := range id {
			id[i] = byte(random.Uint32())
		}
		r.Decision(noon, telemetry.Decision{Kind: answer.Kind(random.IntN(256)), Limit: string(id),
			Took: time.Duration(random.Int64())})
		r.ShadowDenied(noon, "203.0.113.7, evil\"}\n")
		r.StoreCall(noon, telemetry.Store(random.IntN(256)), -time.Duration(random.Int64()), false)
	}
	known := []string{"decisions", "enforce_denied", "shadow_denied", "requests_served_by_backstop", "config_stale",
		"limiter_latency"}
	for _, k := range answer.Kinds() {
		known = append(known, "decisions_"+k.String())
	}
	for s := telemetry.Redis; s <= telemetry.OtherStore; s++ {
		known = append(known, "store_latency_"+s.String())
	}
	docs := out.flushed(t, r)
	for name := range docs[0].Units {
		if !slices.Contains(known, name) {
			t.Errorf("the line has an unknown metric %q", name)
		}
	}
	if len(docs) != 1 || !slices.Equal(docs[0].Dimensions[0], []string{"cell"}) ||
		bytes.Contains(out.writes[0], []byte("203.0.113.7")) {
		t.Errorf("%d lines, dimensions %v, in %.3000s", len(docs), docs[0].Dimensions, out.writes[0])
	}
	if got := docs[0].number(t, "decisions"); got != 5000 {
		t.Errorf("%v decisions, want 5000", got)
	}
}

// Guarantees that the first record of a second writes the line of the previous one, and that each record is counted
// exactly once.
func TestOneLineForEachSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out lines
		r := newRecorder(t, telemetry.Config{Writer: &out})
		for i := range 10 {
			for range i + 1 {
				r.Decision(noon.Add(time.Duration(i)*time.Second+time.Duration(i)*90*time.Millisecond),
					telemetry.Decision{Took: time.Millisecond})
			}
			synctest.Wait()
			if len(out.writes) != i {
				t.Fatalf("%d lines in second %d, want one for each before it", len(out.writes), i)
			}
		}
		docs := out.flushed(t, r)
		for i, d := range docs {
			n := float64(i + 1)
			if want := noon.Add(time.Duration(i) * time.Second).UnixMilli(); d.Timestamp != want ||
				d.number(t, "decisions") != n || d.distribution(t, "limiter_latency").Counts[0] != n {
				t.Errorf("line %d: time %d, %v decisions; want %d and %v", i, d.Timestamp, d.number(t, "decisions"),
					want, n)
			}
		}
		if again := out.flushed(t, r); len(docs) != 10 || len(again) != 10 {
			t.Errorf("%d lines, and %d after another flush; want 10", len(docs), len(again))
		}
	})
}

// Guarantees which lines are written if the clock jumps or is set back. flushed checks that their times ascend.
func TestClocks(t *testing.T) {
	at := func(offsets ...time.Duration) (times []time.Time) {
		for _, o := range offsets {
			times = append(times, noon.Add(o))
		}
		return times
	}
	for _, c := range []struct {
		name  string
		times []time.Time
		want  []int64 // each line's time, s after noon
	}{
		{"overtaken at the edge", at(0, time.Second, 900*time.Millisecond, time.Second), []int64{0, 1}},
		{"a leap ahead", at(0, time.Hour, time.Hour+time.Second), []int64{0, 3600, 3601}},
		{"back by one second", at(0, time.Second, 0, time.Second, 2*time.Second), []int64{0, 1, 2}},
		{"back by an hour", at(0, -3600*time.Second, -3599*time.Second, -3598*time.Second, -3597*time.Second,
			-3596*time.Second, time.Second), []int64{0, 0, 0, 1}},
		{"back twice", at(0, -9*time.Second, -20*time.Second, -18*time.Second, -17*time.Second, time.Second),
			[]int64{0, 0, 1}},
		{"ahead and back", at(0, time.Hour, 1*time.Second, 2*time.Second, 3*time.Second, 4*time.Second, time.Hour),
			[]int64{0, 3600, 3600, 3600}},
		{"calls that took long", at(0, 10*time.Second, 4*time.Second, 10*time.Second, time.Second, 10*time.Second,
			8*time.Second, 11*time.Second), []int64{0, 10, 11}},
		{"before 1970", []time.Time{{}, time.Unix(-1, 0), noon}, []int64{-noon.Unix(), 0}},
		{"after 9999", []time.Time{noon, time.Unix(1<<60, 0)}, []int64{0, 253402300799 - noon.Unix()}},
	} {
		var out lines
		r := newRecorder(t, telemetry.Config{Writer: &out})
		for _, now := range c.times {
			r.ColdStart(now)
		}
		var got []int64
		sum := 0.0
		for _, d := range out.flushed(t, r) {
			got = append(got, d.Timestamp/1000-noon.Unix())
			sum += d.number(t, "cold_starts")
		}
		if !slices.Equal(got, c.want) || int(sum) != len(c.times) {
			t.Errorf("%s: lines of %v s with %v records, want %v s with %d", c.name, got, sum, c.want, len(c.times))
		}
	}
}

// Guarantees that a line contains a bounded number of records, even if the clock stands still.
func TestStandingClock(t *testing.T) {
	var out lines
	r := newRecorder(t, telemetry.Config{Writer: &out})
	const records = 1<<20 + 1
	for range records {
		r.ColdStart(noon)
	}
	docs := out.flushed(t, r)
	if len(docs) != 2 || docs[0].number(t, "cold_starts")+docs[1].number(t, "cold_starts") != records {
		t.Errorf("%d lines for %d records, want 2 with all of them", len(docs), records)
	}
}

// Guarantees that, however the clock moves, each record is counted exactly once, and that the times of lines ascend.
func TestRandomClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(3, 4))
		for range 50 {
			var out lines
			r := newRecorder(t, telemetry.Config{Writer: &out})
			now, records := noon, 0
			for range 50 {
				now = now.Add(time.Duration(random.Int64N(int64(20*time.Second))) - 8*time.Second)
				for range 1 + random.IntN(3) {
					r.Decision(now, telemetry.Decision{Kind: answer.Limited, Limit: "a"})
					records++
				}
				synctest.Wait()
			}
			sum := 0.0
			docs := out.flushed(t, r)
			for _, d := range docs {
				sum += d.number(t, "enforce_denied")
			}
			if int(sum) != records || len(docs) < 15 {
				t.Fatalf("%v records in %d lines, %d recorded", sum, len(docs), records)
			}
		}
	})
}

// Guarantees that metrics of totals that others count report by how much these have grown, and that the average of the
// hit rate's values is the hit rate.
func TestTotals(t *testing.T) {
	var out lines
	var totals telemetry.Totals
	r := newRecorder(t, telemetry.Config{Writer: &out, Totals: func() telemetry.Totals { return totals }})
	for i, step := range []struct {
		totals                            telemetry.Totals
		backstop, early, samples, hitRate float64
	}{
		{telemetry.Totals{Backstop: 5, LeaseLocal: 75, LeaseCalls: 25, EarlyDenials: 2}, 5, 2, 100, 75},
		{telemetry.Totals{Backstop: 5, LeaseLocal: 75, LeaseCalls: 25, EarlyDenials: 2}, 0, 0, 0, 0},
		{telemetry.Totals{Backstop: 6, LeaseLocal: 79, LeaseCalls: 25, EarlyDenials: 3}, 1, 1, 4, 100},
		{telemetry.Totals{Backstop: 6, LeaseLocal: 79, LeaseCalls: 26, EarlyDenials: 3}, 0, 0, 1, 0},
		{telemetry.Totals{Backstop: 2, LeaseLocal: 3, LeaseCalls: 1}, 2, 0, 4, 75}, // counted from 0 again
	} {
		totals = step.totals
		r.Decision(noon, telemetry.Decision{})
		docs := out.flushed(t, r)
		d := docs[len(docs)-1]
		sum, samples := 0.0, 0.0
		rate := d.distribution(t, "lease_hit_rate")
		for j, n := range rate.Counts {
			samples += n
			sum += n * rate.Values[j]
		}
		if samples > 0 {
			sum /= samples
		}
		if d.number(t, "requests_served_by_backstop") != step.backstop || d.number(t, "early_denials") != step.early ||
			samples != step.samples || sum != step.hitRate {
			t.Errorf("step %d: backstop %v, early %v, hit rate %v of %v; want %+v", i,
				d.number(t, "requests_served_by_backstop"), d.number(t, "early_denials"), sum, samples, step)
		}
		if _, there := d.Root["requests_served_by_backstop"]; !there {
			t.Errorf("step %d: requests_served_by_backstop is absent: an alarm cannot tell none from not known", i)
		}
	}
}

// Guarantees that a single bad configuration among many decisions is reported, and only in its second.
func TestConfigStale(t *testing.T) {
	var out lines
	r := newRecorder(t, telemetry.Config{Writer: &out})
	for i := range 4 {
		r.Decision(noon.Add(time.Duration(i)*time.Second), telemetry.Decision{ConfigStale: i == 1 || i == 2})
		r.Decision(noon.Add(time.Duration(i)*time.Second), telemetry.Decision{})
		out.flushed(t, r)
	}
	for i, d := range out.flushed(t, r) {
		if want := []float64{0, 1, 1, 0}[i]; d.number(t, "config_stale") != want || len(d.Root["config_stale"]) == 0 {
			t.Errorf("second %d: config_stale is %v, want %v", i, d.number(t, "config_stale"), want)
		}
	}
}

// failing is a writer that fails when the test says so, and collects what was written.
type failing struct {
	err     error
	accepts int // bytes before the error
	got     bytes.Buffer
}

func (f *failing) Write(p []byte) (int, error) {
	if f.err == nil {
		return f.got.Write(p)
	}
	n, _ := f.got.Write(p[:min(f.accepts, len(p))])
	if errors.Is(f.err, errQuiet) {
		return n, nil
	}
	return n, f.err
}

var (
	errQuiet = errors.New("a writer that says nothing")
	errDisk  = errors.New("no space left")
)

// Guarantees that a line that could not be written is lost, and is counted and reported by the next line, and that half
// a line does not make the next one invalid.
func TestFailingWriter(t *testing.T) {
	for _, c := range []struct {
		name    string
		err     error
		accepts int
		want    error
	}{
		{"nothing written", errDisk, 0, errDisk},
		{"half a line", errDisk, 40, errDisk},
		{"a short write without an error", errQuiet, 40, io.ErrShortWrite},
	} {
		w := &failing{err: c.err, accepts: c.accepts}
		r := newRecorder(t, telemetry.Config{Writer: w})
		for range 2 {
			r.Decision(noon, telemetry.Decision{})
			if err := r.Flush(context.Background()); !errors.Is(err, c.want) {
				t.Errorf("%s: Flush = %v, want %v", c.name, err, c.want)
			}
		}
		w.err = nil
		for i, told := range []float64{2, 0} {
			w.got.Reset()
			r.Decision(noon, telemetry.Decision{})
			if err := r.Flush(context.Background()); err != nil {
				t.Errorf("%s: Flush = %v after the writer works again, want no error", c.name, err)
			}
			line := w.got.Bytes()
			if i == 0 && c.accepts > 0 {
				if line[0] != '\n' {
					t.Fatalf("%s: after half a line, the next output begins with %.20q, want a new line", c.name, line)
				}
				line = line[1:]
			}
			d, err := parseEMF(line)
			if err != nil {
				t.Fatalf("%s: %v in %s", c.name, err, line)
			}
			if d.number(t, "decisions") != 1 || d.number(t, "telemetry_lines_lost") != told {
				t.Errorf("%s: line %d has %v decisions and reports %v lost lines; want 1, %v",
					c.name, i, d.number(t, "decisions"), d.number(t, "telemetry_lines_lost"), told)
			}
		}
	}
}

// stuck is a writer that does not return until the test releases it.
type stuck struct {
	lines
	letGo chan struct{}
}

func (s *stuck) Write(p []byte) (int, error) {
	<-s.letGo
	return s.lines.Write(p)
}

// Guarantees that a writer that hangs delays no decision, makes the recorder use only bounded memory, and gets its
// lines in order when it continues. Otherwise a full pipe would stop the API.
func TestStuckWriter(t *testing.T) {
	w := &stuck{letGo: make(chan struct{})}
	r := newRecorder(t, telemetry.Config{Writer: w})
	for i := range 100 {
		r.Decision(noon.Add(time.Duration(i)*time.Second), telemetry.Decision{})
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.Flush(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Flush with a writer that hangs = %v, want that the context ended", err)
	}
	close(w.letGo)
	docs := w.flushed(t, r)
	if len(docs) != 8 || docs[7].Timestamp != noon.Add(7*time.Second).UnixMilli() {
		t.Fatalf("%d lines, want the 8 that had waited", len(docs))
	}
	r.Decision(noon.Add(time.Hour), telemetry.Decision{})
	docs = w.flushed(t, r)
	told := 0.0
	for _, d := range docs {
		told += d.number(t, "telemetry_lines_lost")
	}
	if told != 92 { // of 100, 8 had waited
		t.Errorf("the lines report %v lost lines, want 92", told)
	}
}

// Guarantees that concurrent requests in one process are each counted exactly once. Under the race detector, this test
// also shows that they have no race.
func TestConcurrency(t *testing.T) {
	var out lines
	var sampled int64
	r := newRecorder(t, telemetry.Config{Writer: &out, Totals: func() telemetry.Totals {
		sampled++ // one at a time, so that a caller's totals need no lock of their own
		return telemetry.Totals{Backstop: sampled}
	}})
	const workers, seconds, each = 6, 20, 200 // 6: each may have a line waiting, and none may be lost here
	for s := range seconds {
		var all sync.WaitGroup
		for range workers {
			all.Go(func() {
				now := noon.Add(time.Duration(s) * time.Second)
				for range each {
					r.Decision(now, telemetry.Decision{Kind: answer.Limited, Limit: "burst", Took: time.Millisecond})
					r.StoreCall(now, telemetry.Redis, time.Millisecond, true)
					r.ShadowDenied(now, "hidden")
				}
				if err := r.Flush(context.Background()); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
	docs := out.flushed(t, r)
	const want = workers * seconds * each
	sums := make(map[string]float64)
	for _, d := range docs {
		for _, name := range []string{"decisions", "enforce_denied", "shadow_denied", "store_errors_redis",
			"requests_served_by_backstop"} {
			sums[name] += d.number(t, name)
		}
		for _, n := range d.distribution(t, "limiter_latency").Counts { // none, where a flush fell between two records
			sums["latencies"] += n
		}
	}
	for name, got := range sums {
		if name == "requests_served_by_backstop" {
			if got != float64(len(docs)) {
				t.Errorf("Totals was called %v times for %d lines, want once for each", got, len(docs))
			}
		} else if got != want {
			t.Errorf("%s: %v in all lines, want %d", name, got, want)
		}
	}
}

// Guarantees the documented error of a single latency, and of percentiles that are computed from a line.
func TestLatencyError(t *testing.T) {
	within := func(got, want float64) bool { return math.Abs(got-want) <= 0.092*want }
	var out lines
	r := newRecorder(t, telemetry.Config{Writer: &out})
	random := rand.New(rand.NewPCG(5, 6))
	told := func(tooks ...time.Duration) distribution {
		for _, took := range tooks {
			r.StoreCall(noon, telemetry.Redis, took, false)
		}
		docs := out.flushed(t, r)
		out.writes = nil
		return docs[0].distribution(t, "store_latency_redis")
	}
	for range 1000 {
		took := time.Duration(math.Exp(random.Float64()*math.Log(69e6)) * 1e3)
		if got := told(took).Values[0]; !within(got, float64(took)/1e3) {
			t.Fatalf("a duration of %v is reported as %v µs, which differs by %.1f %%", took, got,
				100*(got*1e3/float64(took)-1))
		}
	}
	for took, want := range map[time.Duration]float64{
		-time.Hour: 1, 0: 1, 1: 1, time.Microsecond: 1, math.MinInt64: 1, 70 * time.Second: 63.3e6,
		math.MaxInt64: 63.3e6,
	} {
		if got := told(took).Values[0]; math.Abs(got-want) > 0.01*want {
			t.Errorf("a duration of %v is reported as %v µs, want %v", took, got, want)
		}
	}
	tooks := make([]time.Duration, 20_000)
	for i := range tooks {
		tooks[i] = time.Duration(math.Exp(random.NormFloat64()) * float64(time.Millisecond))
	}
	line := told(tooks...)
	slices.Sort(tooks)
	for _, p := range []float64{0.5, 0.9, 0.99, 0.999} {
		rank := int(p * float64(len(tooks)))
		want, got, seen := float64(tooks[rank])/1e3, 0.0, 0.0
		for i, value := range line.Values {
			if seen += line.Counts[i]; seen > float64(rank) {
				got = value
				break
			}
		}
		if !within(got, want) {
			t.Errorf("p%v is %.1f µs, the line says %v", 100*p, want, got)
		}
	}
}

func TestNewNamesTheField(t *testing.T) {
	for _, c := range []struct {
		config telemetry.Config
		want   string
	}{
		{telemetry.Config{}, "Writer"},
		{telemetry.Config{Namespace: "AWS/Lambda"}, "Namespace"},
		{telemetry.Config{Namespace: `a"b`}, "Namespace"},
		{telemetry.Config{Namespace: strings.Repeat("n", 256)}, "Namespace"},
		{telemetry.Config{Cell: "é"}, "Cell"},
		{telemetry.Config{Cell: "203.0.113.7"}, "Cell is an IP address"},
		{telemetry.Config{Function: `x","tenant":"acme`}, "Function"},
		{telemetry.Config{Function: strings.Repeat("f", 129)}, "Function"},
	} {
		if c.want != "Writer" {
			c.config.Writer = io.Discard
		}
		if _, err := telemetry.New(c.config); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("New(%+v) = %v, want an error about %s", c.config, err, c.want)
		}
	}
	var out lines
	r := newRecorder(t, telemetry.Config{Writer: &out})
	r.ColdStart(noon)
	if d := out.flushed(t, r)[0]; d.Namespace != "Sluice" || len(d.Dimensions) != 1 || len(d.Dimensions[0]) != 0 {
		t.Errorf("namespace %q, dimensions %v; want the default and one set of none", d.Namespace, d.Dimensions)
	}
}

// Guarantees that recording allocates nothing, because it happens in each request.
func TestRecordingDoesNotAllocate(t *testing.T) {
	r := newRecorder(t, telemetry.Config{Writer: io.Discard})
	r.ColdStart(noon)
	for name, record := range map[string]func(){
		"Decision":     func() { r.Decision(noon, telemetry.Decision{Took: time.Millisecond}) },
		"denied":       func() { r.Decision(noon, telemetry.Decision{Kind: answer.Limited, Limit: "burst"}) },
		"ShadowDenied": func() { r.ShadowDenied(noon, "burst") },
		"StoreCall":    func() { r.StoreCall(noon, telemetry.Redis, time.Millisecond, true) },
		"ColdStart":    func() { r.ColdStart(noon) },
		"Propagated":   func() { r.Propagated(noon, time.Second) },
		"EventRefused": func() { r.EventRefused(noon) },
		"Panic":        func() { r.Panic(noon) },
	} {
		if n := testing.AllocsPerRun(1000, record); n != 0 {
			t.Errorf("%s allocates %v times, want 0", name, n)
		}
	}
}
