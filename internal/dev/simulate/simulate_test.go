package simulate_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/dev/simulate"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/testkit/golden"
)

const small = "testdata/small.log"

func smallText(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile(small)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func text(name, content string) simulate.Log {
	return simulate.Log{Name: name, Open: func() (io.ReadCloser,
		error) {
		return io.NopCloser(strings.NewReader(content)), nil
	}}
}

// newPipeLog returns a log that can be opened only once, like a pipe.
func newPipeLog(t *testing.T, name, content string) simulate.Log {
	t.Helper()
	opened := false
	return simulate.Log{Name: name, Open: func() (io.ReadCloser, error) {
		if opened {
			t.Errorf("a log that can be read once is opened again")
		}
		opened = true
		return io.NopCloser(&dribble{strings.NewReader(content)}), nil
	}}
}

// dribble returns a few bytes per read, as pipes do, so that a disorder is noticed long before the end of the log.
type dribble struct{ from io.Reader }

func (d *dribble) Read(p []byte) (int, error) { return d.from.Read(p[:min(len(p), 512)]) }

func gzipped(t testing.TB, content string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := io.WriteString(z, content); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// line is one request of a log.
func line(address, user, at, request string) string {
	return fmt.Sprintf("%s - %s [29/Feb/2024:%s +0000] %q 200 1 \"https://ref.example/r1\" \"agent/x1\"\n", address,
		user, at, request)
}

func asJSON(t testing.TB, r *simulate.Report) string {
	t.Helper()
	out, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

const smallPlans = `
plans:
  - id: free
    limits:
      - { id: burst, algorithm: token_bucket, rate: 3, period: 1m, burst: 5 }
      - { id: orders, match: { methods: [GET], pathPattern: "/v1/orders/**" }, tiers: [ { period: 1m, threshold: 2 } ] }
      - { id: hourly, mode: shadow, tiers: [ { period: 1h, threshold: 60 } ] }
      - { id: sent, unit: bytes, cost: 0, tiers: [ { period: 1h, threshold: 9000 } ] }
tenants:
  - { id: ann, plan: free }
  - { id: bob, plan: free, suspended: true }
ipLimits:
  - { id: per-address, tiers: [ { period: 1m, threshold: 12 } ] }
`

// Guarantees that the report does not depend on how the lines come: plain, gzip, from a pipe, in several files, in any
// order.
func TestSameWhateverWrapsIt(t *testing.T) {
	content := smallText(t)
	lines := strings.SplitAfter(strings.TrimSuffix(content, "\n"), "\n")
	var late []string // the second half of the log first; lines of the same second keep their order
	late = append(late, lines[len(lines)/2:]...)
	late[len(late)-1] += "\n"
	backwards := strings.Join(late, "") + strings.Join(lines[:len(lines)/2], "")
	half := len(lines) / 2

	cases := []struct {
		name string
		logs []simulate.Log
	}{
		{"plain", []simulate.Log{text("a", content)}},
		{"gzip", []simulate.Log{text("a", gzipped(t, content))}},
		{"pipe", []simulate.Log{newPipeLog(t, "a", content)}},
		{"CRLF", []simulate.Log{text("a", strings.ReplaceAll(content, "\n", "\r\n"))}},
		{"two halves", []simulate.Log{text("a", strings.Join(lines[:half], "")),
			text("b", strings.Join(lines[half:], ""))}},
		{"out of order", []simulate.Log{text("a", backwards)}},
		{"out of order, from a pipe", []simulate.Log{newPipeLog(t, "a", backwards)}},
		{"out of order, gzip from a pipe", []simulate.Log{newPipeLog(t, "a", gzipped(t, backwards))}},
	}
	c := config(t, smallPlans)
	want := run(t, simulate.Options{Config: c, Logs: []simulate.Log{text("a", content)}})
	if want.Requests != 419 || want.Denied == 0 || want.SkippedLines != 6 || len(want.OddLines) != 6 {
		t.Fatalf("the plain log is no test, since it needs denials and skipped lines: %s", asJSON(t, want))
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			got := run(t, simulate.Options{Config: c, Logs: tc.logs})
			got.Logs, got.OddLines = want.Logs, want.OddLines
			if a, b := asJSON(t, got), asJSON(t, want); a != b {
				t.Errorf("got %s\nwant %s", a, b)
			}
		})
	}
	_, err := simulate.Run(t.Context(), simulate.Bounded(simulate.Options{Config: c,
		Logs: []simulate.Log{text("a", backwards)}}, 1<<9))
	if err == nil || !strings.HasPrefix(err.Error(), "a, line ") || !strings.Contains(err.Error(), "--log of its own") {
		t.Errorf("a log out of order that does not fit into the window gives %v, want the line and what to do", err)
	}
}

// Guarantees which tenant is charged for a line, for each way to find the tenant, and what happens with lines without a
// tenant.
func TestTenants(t *testing.T) {
	const plans = `
plans:
  - { id: one, limits: [ { id: l, quota: { units: 1, every: day } } ] }
  - { id: two, limits: [ { id: l, quota: { units: 2, every: day } } ] }
tenants: [ { id: ann, plan: one }, { id: r1, plan: one }, { id: x1, plan: one }, { id: "192.0.2.1", plan: one },
  { id: "of york", plan: one } ]
`
	log := line("192.0.2.1", "ann", "10:00:00", "GET /orgs/ann/a?t=ann HTTP/1.1") +
		line("192.0.2.1", "ann", "10:00:01", "GET /orgs/ann/b?t=ann HTTP/1.1") +
		line("192.0.2.1", "-", "10:00:02", "GET /none HTTP/1.1") +
		line("192.0.2.2", "zoe", "10:00:03", "GET /orgs/zoe/ HTTP/1.1") +
		line("192.0.2.2", "zoe", "10:00:04", "GET /orgs/zoe/ HTTP/1.1") +
		line("192.0.2.2", "zoe", "10:00:05", "GET /orgs/zoe/ HTTP/1.1")
	cases := []struct {
		from, defaultPlan        string
		allowed, denied, unknown int64
	}{
		{"user", "", 2, 1, 3},
		{"user", "two", 4, 2, 0},
		{"address", "", 4, 2, 0}, // 192.0.2.2 belongs to no tenant: a request without a credential
		{"address", "two", 3, 3, 0},
		{"path:^/orgs/([^/]+)/", "", 2, 1, 3},
		{"path:^/(orgs)/(?P<tenant>[^/]+)/", "two", 4, 2, 0},
		{"target:[?&]t=(\\w+)", "", 5, 1, 0},
		{"fixed:ann", "", 1, 5, 0},
		{"fixed:anyone", "two", 2, 4, 0},
		{"none", "", 6, 0, 0},
	}
	c := config(t, plans)
	for _, tc := range cases {
		t.Run(tc.from+" "+tc.defaultPlan, func(t *testing.T) {
			from, err := simulate.ParseTenantFrom(tc.from)
			if err != nil {
				t.Fatal(err)
			}
			r := run(t, simulate.Options{Config: c, Logs: []simulate.Log{text("a", log)}, TenantFrom: &from,
				DefaultPlan: tc.defaultPlan})
			if r.Requests != 6 || r.Allowed != tc.allowed || r.Denied != tc.denied || r.UnknownTenant != tc.unknown {
				t.Errorf("%d allowed, %d denied, %d unknown; want %d, %d, %d", r.Allowed, r.Denied, r.UnknownTenant,
					tc.allowed, tc.denied, tc.unknown)
			}
		})
	}
	t.Run("default", func(t *testing.T) {
		if r := run(t, simulate.Options{Config: c, Logs: []simulate.Log{text("a", log)}}); r.UnknownTenant != 3 ||
			r.Denied != 1 {
			t.Errorf("without a choice %d are unknown and %d denied; want the user to be the tenant: 3 and 1",
				r.UnknownTenant, r.Denied)
		}
	})
	t.Run("only plan", func(t *testing.T) {
		user, _ := simulate.ParseTenantFrom("user")
		lone := config(t, `plans: [ { id: one, limits: [ { id: l, quota: { units: 1, every: day } } ] } ]`)
		r := run(t, simulate.Options{Config: lone, Logs: []simulate.Log{text("a", log)}, TenantFrom: &user})
		if r.Allowed != 3 || r.Denied != 3 || len(r.Notes) != 1 {
			t.Errorf("%d allowed, %d denied, notes %q; want the only plan to apply to ann and zoe: 3, 3, and said so",
				r.Allowed, r.Denied, r.Notes)
		}
		if r := run(t, simulate.Options{Config: lone, Logs: []simulate.Log{text("a", log)}}); r.Allowed != 6 ||
			len(r.Notes) != 1 {
			t.Errorf("%d allowed, notes %q; want all 6, and a note that no limit applied", r.Allowed, r.Notes)
		}
	})
	t.Run("requests in flight", func(t *testing.T) {
		user, _ := simulate.ParseTenantFrom("user")
		lone := config(t, `plans: [ { id: one, limits: [ { id: l, concurrency: 1, holdFor: 24h }, `+
			`{ id: m, quota: { units: 2, every: day } } ] } ]`)
		r := run(t, simulate.Options{Config: lone, Logs: []simulate.Log{text("a", log)}, TenantFrom: &user})
		if r.Allowed != 5 || r.Denied != 1 || len(r.Notes) != 2 || !strings.Contains(r.Notes[1], "concurrency") {
			t.Errorf("%d allowed, %d denied, notes %q; want the quota alone to deny, and said so", r.Allowed, r.Denied,
				r.Notes)
		}
	})
	t.Run("only ipLimits apply", func(t *testing.T) {
		both := config(t, plans+"ipLimits: [ { id: i, tiers: [ { period: 1m, threshold: 9 } ] } ]\n")
		none, _ := simulate.ParseTenantFrom("none")
		r := run(t, simulate.Options{Config: both, Logs: []simulate.Log{text("a", log)}, TenantFrom: &none})
		var out strings.Builder
		if err := r.WriteText(&out); err != nil {
			t.Fatal(err)
		}
		first, _, _ := strings.Cut(out.String(), "\n")
		for _, want := range []string{"no limit of a plan applied to any request", "--tenant-from", "--default-plan"} {
			if !strings.Contains(first, want) {
				t.Errorf("the report begins with %q, without %q", first, want)
			}
		}
	})
	t.Run("anonymous", func(t *testing.T) {
		anonymous := config(t, plans+"anonymousPlan: two\n")
		from, _ := simulate.ParseTenantFrom("none")
		r := run(t, simulate.Options{Config: anonymous, Logs: []simulate.Log{text("a", log)}, TenantFrom: &from})
		last := r.Limits[len(r.Limits)-1]
		if r.Allowed != 2 || r.Denied != 4 || last.Origin != "anonymousPlan" || last.Denied != 4 {
			t.Errorf("%d allowed, %d denied, last limit %+v; want 2 and 4 by the anonymous plan", r.Allowed, r.Denied,
				last)
		}
	})
	t.Run("odd names", func(t *testing.T) {
		odd := line("192.0.2.1", "of york", "10:00:00", "GET / HTTP/1.1") + line("192.0.2.1", "of york", "10:00:01",
			"GET / HTTP/1.1") +
			line("192.0.2.1", strings.Repeat("x", 300), "10:00:02", "GET / HTTP/1.1") + line("192.0.2.1", `\xff\xfe`,
			"10:00:03", "GET / HTTP/1.1")
		r := run(t, simulate.Options{Config: c, Logs: []simulate.Log{text("a", odd)}, DefaultPlan: "two"})
		if r.Allowed != 1 || r.Denied != 1 || r.UnknownTenant != 2 {
			t.Errorf("%d allowed, %d denied, %d unknown; want 1, 1 and the two names that no tenant can have",
				r.Allowed, r.Denied, r.UnknownTenant)
		}
	})
}

func TestParseTenantFrom(t *testing.T) {
	for _, bad := range []string{"", "users", "user:x", "path:", "path:[", "path:no group", "agent:(x)", "fixed:",
		"none:"} {
		if _, err := simulate.ParseTenantFrom(bad); !errors.Is(err, simulate.ErrTenantFrom) ||
			!strings.Contains(err.Error(), fmt.Sprintf("%q", bad)) {
			t.Errorf("ParseTenantFrom(%q) = %v, want an error that quotes it", bad, err)
		}
	}
}

// Guarantees the meaning of each number if several limits apply to a request: all limits are charged or none; a denial
// counts for the binding limit; every attempt counts for the address; shadow limits deny nothing.
func TestCounts(t *testing.T) {
	const plans = `
plans:
  - id: p
    limits:
      - { id: day, quota: { units: 3, every: day } }
      - { id: put, match: { methods: [PUT], pathPattern: "/a/*" }, quota: { units: 1, every: day } }
      - { id: trial, mode: shadow, quota: { units: 2, every: day } }
      - { id: idle, match: { methods: [DELETE], pathPattern: "/a/*" }, quota: { units: 1, every: day } }
tenants: [ { id: ann, plan: p } ]
ipLimits: [ { id: ip, quota: { units: 6, every: day } } ]
routes: [ { pathPattern: "/a/*" } ]
`
	requests := []string{
		"PUT /a/1",   // 1: admitted
		"PUT /a/2",   // 2: put denies; day is not charged
		"GET /a/3",   // 3: admitted
		"GET /a/4",   // 4: admitted, trial would deny
		"GET /a/5",   // 5: day denies
		"GET /x",     // 6: no route, but an attempt of the address
		"GET /a/7",   // 7: the address has made six attempts: ip denies
		"GET /a/%38", // 8: the same
	}
	var log strings.Builder
	for i, request := range requests {
		log.WriteString(line("192.0.2.1", "ann", fmt.Sprintf("10:00:%02d", i), request+" HTTP/1.1"))
	}
	r := run(t, simulate.Options{Config: config(t, plans), Logs: []simulate.Log{text("a", log.String())}})
	if r.Requests != 8 || r.Allowed != 3 || r.Denied != 4 || r.NoRoute != 1 || r.ShadowDenied != 1 {
		t.Errorf("%d requests, %d allowed, %d denied, %d no route, %d shadow; want 8, 3, 4, 1, 1",
			r.Requests, r.Allowed, r.Denied, r.NoRoute, r.ShadowDenied)
	}
	want := map[string][4]int64{ // applied, allowed, denied, shadow
		"ip": {8, 3, 2, 0}, "day": {5, 3, 1, 0}, "put": {2, 1, 1, 0}, "trial": {5, 2, 0, 1}, "idle": {0, 0, 0, 0},
	}
	for _, l := range r.Limits {
		if got := [4]int64{l.Applied, l.Allowed, l.Denied, l.ShadowDenied}; got != want[l.ID] {
			t.Errorf("limit %s: applied, allowed, denied, shadow are %d, want %d", l.ID, got, want[l.ID])
		}
	}
	if len(r.Limits) != len(want) {
		t.Errorf("%d limits, want %d", len(r.Limits), len(want))
	}
	hours := int64(14*3600*1000) - 1000 // from 10:00:01 to midnight
	if w := r.LongestWait; w == nil || w.MS != hours || w.Limit != "put" || w.Tenant != "ann" {
		t.Errorf("longest wait %+v, want %d ms by put for ann", w, hours)
	}
	if m := r.WorstMinutes; len(m) != 1 || m[0].Denied != 4 || m[0].Limit != "ip" || m[0].LimitDenied != 2 ||
		m[0].TenantDenied != 4 {
		t.Errorf("worst minutes %+v, want one with 4 denials, 2 of them by ip, 4 for ann", m)
	}
}

// Guarantees that all addresses of a /64 network share one limit.
func TestIPv6(t *testing.T) {
	log := line("2001:db8::1", "-", "10:00:00", "GET / HTTP/1.1") + line("2001:db8::2", "-", "10:00:01",
		"GET / HTTP/1.1") +
		line("2001:db8:0:1::1", "-", "10:00:02", "GET / HTTP/1.1")
	r := run(t, simulate.Options{Config: config(t, `ipLimits: [ { id: ip, quota: { units: 1, every: day } } ]`),
		Logs: []simulate.Log{text("a", log)}})
	if r.Allowed != 2 || r.Denied != 1 || len(r.Addresses.Top) != 2 || r.Addresses.Top[0].Name != "2001:db8::/64" {
		t.Errorf("%d allowed, %d denied, addresses %+v; want 2 and 1, two networks", r.Allowed, r.Denied,
			r.Addresses.Top)
	}
}

// Guarantees that a boost ends by the time in the log, not by today's.
func TestBoosts(t *testing.T) {
	const plans = `
plans: [ { id: p, limits: [ { id: l, tiers: [ { period: 1m, threshold: 1 } ] } ] } ]
tenants: [ { id: ann, plan: p, boosts: [ { id: l, factor: 2, until: 2024-02-29T10:01:00Z } ] } ]
`
	var log strings.Builder
	for _, at := range []string{"10:00:00", "10:00:01", "10:00:02", "10:01:00", "10:01:01", "10:01:02"} {
		log.WriteString(line("192.0.2.1", "ann", at, "GET / HTTP/1.1"))
	}
	r := run(t, simulate.Options{Config: config(t, plans), Logs: []simulate.Log{text("a", log.String())}})
	if r.Allowed != 3 || r.Denied != 3 || len(r.Limits) != 1 {
		t.Errorf("%d allowed, %d denied, %d limits; want 2 in the boosted minute and 1 after it, of one limit",
			r.Allowed, r.Denied, len(r.Limits))
	}
}

// Guarantees that bad data in a log never ends the replay: each bad line is counted and shown, or is an error with its
// place, and everything else is replayed.
func TestGarbage(t *testing.T) {
	noise := make([]byte, 1<<20)
	if _, err := rand.Read(noise); err != nil {
		t.Fatal(err)
	}
	noise[0] = 'x' // so that it does not begin like a gzip file
	var long strings.Builder
	for i := range 3000 {
		long.WriteString(line("192.0.2.1", fmt.Sprint(i*7919%10007), "10:00:00", "GET / HTTP/1.1"))
	}
	cut := gzipped(t, long.String())
	cut = cut[:len(cut)*2/3]
	good := line("192.0.2.1", "-", "10:00:00", "GET / HTTP/1.1")
	cases := []struct {
		name       string
		logs       []simulate.Log
		requests   int64
		skipped    bool
		incomplete string
	}{
		{"noise", []simulate.Log{text("noise", string(noise))}, 0, true, ""},
		{"empty", []simulate.Log{text("empty", "")}, 0, false, ""},
		{"giant line", []simulate.Log{text("giant", strings.Repeat("x", 4<<20)+"\n"+good)}, 1, true, ""},
		{"cut gzip", []simulate.Log{text("cut.gz", cut)}, -1, false, "read cut.gz, line "},
		{"broken gzip header", []simulate.Log{text("bad.gz", "\x1f\x8bxxxxxxxxxxxxxxxx"), text("good", good)}, 1,
			false, "read bad.gz"},
	}
	c := config(t, `ipLimits: [ { id: ip, quota: { units: 1, every: day } } ]`)
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			r := run(t, simulate.Options{Config: c, Logs: tc.logs})
			if tc.requests >= 0 && r.Requests != tc.requests || tc.requests < 0 && r.Requests == 0 {
				t.Errorf("%d requests, want %d", r.Requests, tc.requests)
			}
			if r.Requests+r.SkippedLines != r.Lines || r.SkippedLines > 0 != tc.skipped {
				t.Errorf("%d requests and %d skipped lines do not add up to %d lines", r.Requests, r.SkippedLines,
					r.Lines)
			}
			if got := strings.Join(r.Incomplete, "; "); tc.incomplete == "" && got != "" ||
				!strings.Contains(got, tc.incomplete) {
				t.Errorf("Incomplete is %q, want %q", got, tc.incomplete)
			}
			var table bytes.Buffer
			if err := r.WriteText(&table); err != nil || table.Len() == 0 {
				t.Errorf("writing the report: %v", err)
			}
			for _, c := range table.String() {
				if c < ' ' && c != '\n' || c == 0x7f {
					t.Fatalf("the tables contain the control character %q", c)
				}
			}
		})
	}
}

// Guarantees that a mistake which would make the numbers meaningless is an error without a report, and that the error
// says what to do.
func TestErrors(t *testing.T) {
	c := config(t, smallPlans)
	var addresses strings.Builder
	for i := range 2000 {
		addresses.WriteString(line(fmt.Sprintf("10.0.%d.%d", i/250, i%250), "-", "10:00:00", "GET / HTTP/1.1"))
	}
	fixed, err := simulate.ParseTenantFrom("fixed:nobody")
	if err != nil {
		t.Fatal(err)
	}
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	cases := []struct {
		name string
		ctx  context.Context
		o    simulate.Options
		is   error
		says string
	}{
		{"no log", context.Background(), simulate.Options{Config: c}, simulate.ErrNoLogs, ""},
		{"missing log", context.Background(), simulate.Options{Config: c,
			Logs: []simulate.Log{simulate.FileLog("testdata/missing.log")}}, os.ErrNotExist, "missing.log"},
		{"directory", context.Background(), simulate.Options{Config: c,
			Logs: []simulate.Log{simulate.FileLog("testdata")}}, nil, "testdata is a directory"},
		{"missing plan", context.Background(), simulate.Options{Config: c, Logs: []simulate.Log{text("a", "")},
			DefaultPlan: "gold"}, simulate.ErrUnknownPlan, "gold"},
		{"missing tenant", context.Background(), simulate.Options{Config: c, Logs: []simulate.Log{text("a", "")},
			TenantFrom: &fixed}, simulate.ErrUnknownTenant, "nobody"},
		{"full", context.Background(), simulate.Options{Config: c, Logs: []simulate.Log{text("a", addresses.String())},
			StoreBytes: 64 << 10}, limit.ErrFull, "more memory"},
		{"interrupted", cancelled, simulate.Options{Config: c, Logs: []simulate.Log{text("a", addresses.String())}},
			context.Canceled, ""},
		{"interrupted pipe", cancelled, simulate.Options{Config: c,
			Logs: []simulate.Log{newPipeLog(t, "a", addresses.String())}}, context.Canceled, ""},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			r, err := simulate.Run(tc.ctx, tc.o)
			if err == nil || r != nil || tc.is != nil && !errors.Is(err, tc.is) ||
				!strings.Contains(err.Error(), tc.says) {
				t.Errorf("Run gives %v and %v; want no report and %v that says %q", r, err, tc.is, tc.says)
			}
		})
	}
}

// Guarantees that an interrupt ends a simulation that waits for a pipe without data.
func TestSilentPipe(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	in, out := io.Pipe()
	defer func() { _ = out.Close() }()
	log := simulate.Log{Name: "pipe", Open: func() (io.ReadCloser, error) { return in, nil }}
	go func() {
		// returns when the line has been read
		_, _ = io.WriteString(out, line("192.0.2.1", "-", "10:00:00", "GET / HTTP/1.1"))
		cancel()
	}()
	if _, err := simulate.Run(ctx, simulate.Options{Config: config(t, smallPlans),
		Logs: []simulate.Log{log}}); !errors.Is(err, context.Canceled) {
		t.Errorf("Run gives %v, want context.Canceled", err)
	}
}

// Guarantees that the JSON form does not change unnoticed: fields are only ever added.
func TestJSON(t *testing.T) {
	golden.Check(t, "small.json", asJSON(t, run(t, simulate.Options{Config: config(t, smallPlans),
		Logs: []simulate.Log{simulate.FileLog(small)}}))+"\n")
}

// Guarantees that the tables do not change unnoticed.
func TestText(t *testing.T) {
	var out bytes.Buffer
	if err := run(t, simulate.Options{Config: config(t, smallPlans),
		Logs: []simulate.Log{simulate.FileLog(small)}}).WriteText(&out); err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "small.txt", out.String())
}

// Guarantees that memory does not grow with the length of a sorted log: ten times the lines need the same heap.
func TestMemoryIsFlat(t *testing.T) {
	if testing.Short() {
		t.Skip("replays some 600,000 lines")
	}
	c := config(t, generatedPlans)
	heap := func(lines int) uint64 {
		var most uint64
		read, next := 0, 0
		log := generatedLog(lines)
		log.Open = func() (io.ReadCloser, error) {
			return &generator{lines: lines, onRead: func(n int) {
				if read += n; read >= next {
					next += 4 << 20
					runtime.GC()
					var m runtime.MemStats
					runtime.ReadMemStats(&m)
					most = max(most, m.HeapAlloc)
				}
			}}, nil
		}
		o := simulate.Options{Config: c, Logs: []simulate.Log{log}}
		r := run(t, simulate.Bounded(o, 4<<20)) // less than the shorter log has
		if r.Requests != int64(lines) || r.Denied != int64(lines)/10*3 {
			t.Fatalf("%d requests, %d denied; want %d, %d", r.Requests, r.Denied, lines, lines/10*3)
		}
		return most
	}
	short, long := heap(60_000), heap(600_000)
	t.Logf("heap at most %d KiB for 60,000 lines, %d KiB for 600,000", short>>10, long>>10)
	if long > short+short/4 {
		t.Errorf("the heap grows from %d to %d bytes when the log is ten times as long", short, long)
	}
}
