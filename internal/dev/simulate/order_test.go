package simulate

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"regexp"
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

// inOrder reads all records.
func inOrder(t *testing.T, o *order) ([]entry, error) {
	t.Helper()
	var out []entry
	for {
		r, err := o.next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		if want := fmt.Sprintf("/%d", r.line); r.path != want || r.host != "192.0.2.1" ||
			r.method != "GET" {
			t.Fatalf("line %d of log %d reads %s %s from %s; want path %s", r.line, r.file, r.method, r.path, r.host,
				want)
		}
		out = append(out, entry{r.time, r.file, int(r.line)})
	}
}

// Guarantees that records are replayed exactly in the order of time, and those with equal times in the order of the
// logs. A request replayed in the wrong order would be decided against a wrong state, and all later figures would be
// wrong. A line that is further out of order than the window reaches is an error that names it and says how late it is.
func TestOrder(t *testing.T) {
	cases := []struct {
		name        string
		logs, lines int
		reach       int // seconds out of order
		window      int // bytes for each log
		tooLate     bool
	}{
		{"one log in order", 1, 2000, 0, leastWindowBytes, false},
		{"one log nearly in order", 1, 5000, 60, leastWindowBytes, false},
		{"nearly in order, small window", 1, 5000, 20, 24 << 10, false},
		{"a small log in any order", 1, 12_000, 12_000, 8 << 20, false},
		{"out of order", 1, 5000, 1500, 1 << 10, true},
		{"three logs side by side", 3, 2000, 30, leastWindowBytes, false},
		{"three logs in any order", 3, 2000, 2000, leastWindowBytes, false},
		{"three logs, out of order", 3, 2000, 600, 2 << 10, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(7, 11))
			r := &replay{Options: Options{windowBytes: c.window}}
			var want []entry
			for i := range c.logs {
				entries := shuffled(random, i, c.lines, c.reach)
				want = append(want, entries...)
				r.Logs = append(r.Logs, textLog(fmt.Sprint("log ", i), logText(entries)))
			}
			slices.SortStableFunc(want, func(a, b entry) int { return cmp.Compare(a.time, b.time) })

			records, err := r.records()
			var got []entry
			if err == nil {
				got, err = inOrder(t, records)
			}
			if !c.tooLate {
				if err != nil {
					t.Fatal(err)
				}
				compareOrder(t, got, want)
				return
			}
			if err == nil || !regexp.MustCompile(`^log \d, line \d+: the line is [1-9]\S*s older than`).MatchString(
				err.Error()) {
				t.Errorf("lines that come too late give %v, want an error with log, line and time", err)
			}
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

// Guarantees the bound on memory for a log that names millions of tenants. The tenant with most denials is still
// reported, and the sum over all tenants is exact.
func TestPeopleBound(t *testing.T) {
	p := newPeople(100)
	for i := range 5000 {
		for _, name := range []string{fmt.Sprintf("passer-by %d", i), "regular"} {
			who, _ := p.get(name)
			who.count(denied, false, time.Unix(int64(i+1), 0), 5*time.Microsecond)
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
