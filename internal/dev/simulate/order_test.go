package simulate

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// entry is a line to sort. Its number is in its path.
type entry struct {
	time int64
	file int
	line int
}

// logText writes entries as a log whose times have fractions of a second.
func logText(entries []entry) string {
	var b strings.Builder
	for _, e := range entries {
		at := time.UnixMicro(e.time).UTC().Format("02/Jan/2006:15:04:05.000000 -0700")
		fmt.Fprintf(&b, "192.0.2.1 - - [%s] \"GET /%d HTTP/1.1\" 200 1\n", at, e.line)
	}
	return b.String()
}

func textLog(name, text string) Log {
	return Log{Name: name, Open: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }}
}

// shuffled returns n entries, some of them with equal times, that are out of order by up to reach seconds.
func shuffled(random *rand.Rand, file, n, reach int) []entry {
	out := make([]entry, n)
	for i := range out {
		second := int64(1_700_000_000 + i/3 - random.IntN(reach+1))
		out[i] = entry{time: second*1_000_000 + int64(random.IntN(2))*500_000, file: file, line: i + 1}
	}
	return out
}

// inOrder reads a stream to its end.
func inOrder(t *testing.T, s stream) ([]entry, error) {
	t.Helper()
	var out []entry
	var r record
	for {
		err := s.next(&r)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		if want := fmt.Sprintf("/%d", r.line); string(r.path) != want || string(r.host) != "192.0.2.1" ||
			string(r.method) != "GET" {
			t.Fatalf("line %d of log %d reads %s %s from %s; want path %s", r.line, r.file, r.method, r.path, r.host,
				want)
		}
		out = append(out, entry{r.time, r.file, int(r.line)})
	}
}

// Guarantees that records are replayed exactly in the order of time, and those with equal times in the order of the
// logs, whatever order they come in and however much fits in memory. A request replayed in the wrong order would be
// decided against a wrong state, and all later figures would be wrong.
func TestOrder(t *testing.T) {
	cases := []struct {
		name           string
		logs, lines    int
		reach          int // seconds out of order
		window, sorted int // bytes
		streams        bool
	}{
		{"one log in order", 1, 2000, 0, windowBytes, sortBytes, true},
		{"one log nearly in order", 1, 5000, 60, windowBytes, sortBytes, true},
		{"nearly in order, small window", 1, 5000, 20, 8 << 10, sortBytes, true},
		{"out of order, sorted in memory", 1, 5000, 1500, 1 << 10, sortBytes, false},
		{"out of order, sorted on disk", 1, 5000, 1500, 1 << 10, 4 << 10, false},
		{"many sorted files", 1, 12_000, 3000, 1 << 10, 1 << 12, false},
		{"three logs side by side", 3, 2000, 30, windowBytes, sortBytes, true},
		{"three logs, out of order, on disk", 3, 2000, 600, 2 << 10, 4 << 10, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			random := rand.New(rand.NewPCG(7, 11))
			r := &replay{Options: Options{windowBytes: c.window, sortBytes: c.sorted}, scratch: &scratch{parent: dir}}
			var want []entry
			for i := range c.logs {
				entries := shuffled(random, i, c.lines, c.reach)
				want = append(want, entries...)
				r.Logs = append(r.Logs, textLog(fmt.Sprint(i), logText(entries)))
			}
			slices.SortStableFunc(want, func(a, b entry) int { return cmp.Compare(a.time, b.time) })

			streams, err := r.streamed(t.Context())
			if err == nil {
				var got []entry
				// the records before the disorder was noticed are discarded
				if got, err = inOrder(t, streams); err == nil {
					compareOrder(t, got, want)
				}
			}
			if streamed := err == nil; streamed != c.streams || err != nil && !errors.Is(err, errDisorder) {
				t.Errorf("streaming gives the error %v; want success: %t", err, c.streams)
			}
			s := &sorter{scratch: r.scratch, maxBytes: c.sorted}
			sorted, err := sortAll(t.Context(), r.open, c.logs, s)
			if err != nil {
				t.Fatal(err)
			}
			got, err := inOrder(t, sorted)
			if err != nil || len(got) != len(want) {
				t.Fatalf("sorting gives %d of %d records, %v", len(got), len(want), err)
			}
			compareOrder(t, got, want)
			if spilled := len(s.runs) > 0; spilled != (c.sorted < sortBytes) {
				t.Errorf("%d sorted temporary files with %d bytes of memory", len(s.runs), c.sorted)
			}
			if len(r.scratch.files) != len(s.runs) {
				t.Errorf("%d files are open for %d runs", len(r.scratch.files), len(s.runs))
			}
			if err := r.scratch.close(); err != nil {
				t.Error(err)
			}
			leftovers(t, dir)
		})
	}
}

func compareOrder(t *testing.T, got, want []entry) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d records, want %d", len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("record %d is %+v, want %+v", i, got[i], want[i])
		}
	}
}

func leftovers(t *testing.T, dir string) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil || len(files) > 0 {
		t.Errorf("temporary files are left behind: %v, %v", files, err)
	}
}

// Guarantees that sorting ends when it is interrupted, and leaves no temporary file.
func TestSortStops(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("enough")
	text := logText(shuffled(rand.New(rand.NewPCG(1, 1)), 0, 20_000, 5000))
	log := Log{Name: "endless", Open: func() (io.ReadCloser, error) {
		half := &stopping{Reader: bytes.NewReader([]byte(text)), after: len(text) / 2, stop: func() { cancel(stop) }}
		return io.NopCloser(half), nil
	}}
	r := &replay{Options: Options{sortBytes: 4 << 10}, scratch: &scratch{parent: dir}}
	r.Logs = []Log{log}
	_, err := sortAll(ctx, r.open, 1, &sorter{scratch: r.scratch, maxBytes: 4 << 10})
	if !errors.Is(err, stop) {
		t.Errorf("an interrupted sort gives %v, want %v", err, stop)
	}
	if err := r.scratch.close(); err != nil {
		t.Error(err)
	}
	leftovers(t, dir)
}

// stopping is a log that calls stop when half of it has been read. Reading then goes on without an error, so sorting
// has to notice the interruption itself.
type stopping struct {
	io.Reader
	read, after int
	stop        func()
}

func (s *stopping) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if s.read += n; s.read > s.after {
		s.stop()
	}
	return n, err
}

// Guarantees that a failure to write a temporary file is an error that names the folder.
func TestSorterDiskFull(t *testing.T) {
	s := &sorter{scratch: &scratch{parent: t.TempDir() + "/missing"}, maxBytes: 64}
	var err error
	for i := 0; i < 10 && err == nil; i++ {
		err = s.add(&record{time: int64(i), host: []byte("192.0.2.1"), path: []byte("/")})
	}
	if err == nil || !strings.Contains(err.Error(), "temporary files") {
		t.Errorf("sorting without a place for temporary files gives %v", err)
	}
}

// Guarantees that the number of points of a timeline is bounded for a log of any length, and that no request is lost
// when points are joined.
func TestTimelineWidens(t *testing.T) {
	tl := newTimeline()
	const n, denied = 200_000, (200_000 + 1) / 3
	for i := range int64(n) {
		now := (27_000_000 + i*7) * minuteMicros // nearly three years
		tl.add(now, outcome(i%3%2), i%5 == 0)
		if i%3 == 1 {
			tl.deny(int32(i%4), now)
		}
	}
	var all, denials, limits, last int64
	for _, p := range tl.points {
		if p.slot <= last {
			t.Fatalf("point %d comes after %d", p.slot, last)
		}
		last = p.slot
		all += p.allowed + p.denied + p.other
		denials += p.denied
		for _, c := range p.limits {
			limits += c.n
		}
	}
	if len(tl.points) > maxPoints || all != n || denials != denied || limits != denials {
		t.Errorf("%d points of %d minutes hold %d requests, %d denials, %d by limit; want at most %d points, %d, "+
			"%d, %d",
			len(tl.points), tl.width, all, denials, limits, maxPoints, n, denied, denied)
	}
	if tl.width%1440 != 0 {
		t.Errorf("points are %d minutes wide, want whole days", tl.width)
	}
}

// Guarantees the bound on memory for a log that names millions of tenants. The tenant with most denials is still
// reported, and the sum over all tenants is exact.
func TestPeopleBound(t *testing.T) {
	p := newPeople(100)
	for i := range 5000 {
		for _, name := range []string{fmt.Sprintf("passer-by %d", i), "regular"} {
			who, _ := p.tenant([]byte(name))
			who.count(denied, false, int64(i+1), 5)
		}
	}
	if len(p.byName) > 100 {
		t.Errorf("%d tenants are kept, want at most 100", len(p.byName))
	}
	r := p.report(1)
	if r.Exact || len(r.Top) != 1 || r.Top[0].Name != "regular" || r.Top[0].Denied != 5000 {
		t.Errorf("the report is %+v, want regular with 5000 denials on top, and said not to be exact", r)
	}
	if r.Others.Denied != 5000 || r.Others.Count != 5000 {
		t.Errorf("others are %+v, want 5000 denials of 5000", r.Others)
	}
}

// Guarantees the form in which addresses are counted.
func TestCanonicalAddress(t *testing.T) {
	cases := []struct {
		in     string
		prefix int
		want   string
	}{
		{"192.0.2.1", 64, "192.0.2.1"},
		{"::ffff:192.0.2.1", 48, "192.0.2.1"},
		{"2001:db8:1:2:3:4:5:6", 64, "2001:db8:1:2::/64"},
		{"2001:DB8:1:2::9", 64, "2001:db8:1:2::/64"},
		{"2001:db8:1:2::9", 48, "2001:db8:1::/48"},
		{"2001:db8:1:2::9", 128, "2001:db8:1:2::9"},
		{"fe80::1%eth0", 64, "fe80::/64"},
		{"Host.Example", 64, "host.example"},
	}
	for _, c := range cases {
		if got := canonicalAddress(c.in, c.prefix); got != c.want {
			t.Errorf("canonicalAddress(%q, %d) = %q, want %q", c.in, c.prefix, got, c.want)
		}
	}
}
