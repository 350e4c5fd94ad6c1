package browser

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	// A child process builds the program, and the test cache does not see which files it reads. Because of this import,
	// the test runs again at least when the report's own code or templates change.
	_ "github.com/sluicelimits/sluice/internal/dev/simulate"
)

const reportPlans = `
plans:
  - id: pro
    limits:
      - { id: burst, algorithm: token_bucket, rate: 5, period: 1s, burst: 20 }
      - { id: hourly, tiers: [ { period: 1h, threshold: 900 } ] }
      - { id: trial, mode: shadow, tiers: [ { period: 1m, threshold: 12 } ] }
  - id: free
    limits:
      - { id: burst, algorithm: token_bucket, rate: 1, period: 10s, burst: 3 }
tenants:
  - { id: acme, plan: pro }
  - { id: globex, plan: free }
ipLimits:
  - { id: per-address, algorithm: sliding_window, threshold: 60, period: 1m }
`

// reportLog returns the log of 90 minutes of three tenants. One of them is unknown and has a hostile name. Some lines
// are not log lines.
func reportLog() string {
	var b strings.Builder
	start := time.Date(2026, 7, 14, 9, 0, 0, 0, time.UTC)
	line := func(at time.Time, address, user, target, agent string) {
		fmt.Fprintf(&b, "%s - %s [%s] \"GET %s HTTP/1.1\" 200 512 \"-\" %q\n",
			address, user, at.Format("02/Jan/2006:15:04:05 -0700"), target, agent)
	}
	for second := range 90 * 60 {
		at := start.Add(time.Duration(second) * time.Second)
		minute := second / 60
		if second%(5-minute/20) == 0 {
			line(at, "192.0.2.1", "acme", "/v1/search?q="+strconv.Itoa(second), "curl/8")
		}
		if minute%25 == 12 {
			for range 8 {
				line(at, "192.0.2.1", "acme", "/v1/import", "batch")
			}
		}
		if second%7 == 0 && minute%10 < 4 {
			line(at, "2001:db8::7", "globex", "/product/1", "curl/8")
		}
		if second%600 == 0 {
			line(at, "198.51.100.9", "</script><b>x", "/<img/src=x/onerror=alert(1)>",
				"</script><script>alert(1)</script>")
			b.WriteString("not a line </script><script>alert(1)</script>\n")
		}
	}
	return b.String()
}

// report is the part of the JSON that is compared with the page.
type report struct {
	Requests, Allowed, Denied int64
	SkippedLines              int64 `json:"skipped_lines"`
	Limits                    []struct {
		ID, Origin, Plan         string
		Applied, Allowed, Denied int64
		ShadowDenied             int64 `json:"shadow_denied"`
	}
	Tenants struct {
		Top []struct {
			Name                      string
			Requests, Allowed, Denied int64
		}
	}
	Timeline struct {
		Points []struct{ Allowed, Denied int64 }
	}
}

// runProgram builds the program in a folder, runs it, and returns what it prints.
func runProgram(t *testing.T, dir, module, pkg string, args ...string) []byte {
	t.Helper()
	program := filepath.Join(dir, "program")
	run := func(name string, args ...string) []byte {
		var out, problems bytes.Buffer
		c := exec.CommandContext(t.Context(), name, args...)
		c.Stdout, c.Stderr = &out, &problems
		if err := c.Run(); err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, problems.Bytes())
		}
		return out.Bytes()
	}
	run("go", "build", "-C", module, "-o", program, pkg)
	return run(program, args...)
}

// simulated runs `sluice simulate`, and returns its JSON and the address of its page.
func simulated(t *testing.T) (report, string) {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	page := filepath.Join(dir, "report.html")
	out := runProgram(t, dir, "..", "./cmd/sluice", "simulate", "--plans", write("plans.yaml", reportPlans), "--log",
		write("access.log", reportLog()),
		"--json", "--html", page)
	var r report
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("the JSON of simulate: %v in %.300s", err, out)
	}
	return r, "file://" + page
}

// Operators use this page to decide whether they enforce a limit. So it has the numbers of the JSON, and is readable.
func TestSimulationReport(t *testing.T) {
	findChromium(t) // before the build, which would be in vain if the test is skipped
	want, address := simulated(t)
	p := openTab(t, address, views[0])
	defer p.wantNoComplaints()

	for total, n := range map[string]int64{
		"requests": want.Requests, "allowed": want.Allowed, "denied": want.Denied, "skipped_lines": want.SkippedLines,
	} {
		if got := p.number(fmt.Sprintf("[data-total=%q]", total)); int64(got) != n || n == 0 {
			t.Errorf("%s: page shows %d, JSON says %d, want the same and more than none", total, got, n)
		}
	}
	if len(want.Limits) != 5 || len(want.Tenants.Top) < 2 {
		t.Fatalf("%d limits and %d tenants in the JSON, want 5 and at least 2", len(want.Limits), len(want.Tenants.Top))
	}
	for _, l := range want.Limits {
		row := fmt.Sprintf("#limits [data-limit=%q][data-origin=%q][data-plan=%q]", l.ID, l.Origin, l.Plan)
		for field, n := range map[string]int64{
			"applied": l.Applied, "allowed": l.Allowed, "denied": l.Denied, "shadow_denied": l.ShadowDenied,
		} {
			if got := p.number(fmt.Sprintf("%s [data-field=%q]", row, field)); int64(got) != n {
				t.Errorf("limit %s of %s%s, %s: page shows %d, JSON says %d", l.ID, l.Origin, l.Plan, field, got, n)
			}
		}
	}
	for _, tenant := range want.Tenants.Top {
		row := fmt.Sprintf("#tenants [data-tenant=%q]", tenant.Name)
		for field, n := range map[string]int64{"requests": tenant.Requests, "allowed": tenant.Allowed,
			"denied": tenant.Denied} {
			if got := p.number(fmt.Sprintf("%s [data-field=%q]", row, field)); int64(got) != n {
				t.Errorf("tenant %q, %s: page shows %d, JSON says %d", tenant.Name, field, got, n)
			}
		}
	}
	denied := int64(0)
	for _, text := range p.texts("#timeline-table tbody td:nth-child(3)") {
		n, err := strconv.ParseInt(strings.ReplaceAll(text, ",", ""), 10, 64)
		if err != nil {
			t.Fatalf("a cell of the timeline's table shows %q", text)
		}
		denied += n
	}
	if denied != want.Denied {
		t.Errorf("denials in the timeline's table sum up to %d, JSON says %d", denied, want.Denied)
	}
	if n := eval[int](p, "document.querySelectorAll('#timeline *').length"); n < len(want.Timeline.Points)/10 {
		t.Errorf("the plot has %d shapes for %d points: it is not drawn", n, len(want.Timeline.Points))
	}

	for _, v := range views {
		p.setView(v)
		p.until("document.querySelector('#timeline').getBoundingClientRect().width <= innerWidth")
		p.inspect(v.String())
		p.picture("report " + v.String())
	}
}

// The page of a simulated fleet has the numbers of the JSON, and shows the faults.
func TestFleetReport(t *testing.T) {
	findChromium(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "fleet.html")
	out := runProgram(t, dir, "../bench", "./fleet", "--scenario", "failover-and-storm", "--json", "--html", file)
	var r struct {
		Decisions, Denied, Over int64
		Faults                  []struct{ At float64 }
	}
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("the JSON of fleet: %v in %.300s", err, out)
	}
	p := openTab(t, "file://"+file, views[0])
	defer p.wantNoComplaints()
	for total, n := range map[string]int64{"decisions": r.Decisions, "denied": r.Denied, "over": r.Over} {
		if got := p.number(fmt.Sprintf("[data-total=%q]", total)); int64(got) != n || n == 0 {
			t.Errorf("%s: page shows %v, JSON says %d, want the same and more than none", total, got, n)
		}
	}
	if n := eval[int](p, "document.querySelectorAll('#timeline .band').length"); n != len(r.Faults) {
		t.Errorf("the plot shows %d faults, want %d", n, len(r.Faults))
	}
	if times := p.texts("#timeline text"); !slices.Contains(times, "10 s") {
		t.Errorf("the plot's texts are %q, want seconds", times)
	}
	for _, v := range views {
		p.setView(v)
		p.until("document.querySelector('#timeline').getBoundingClientRect().width <= innerWidth")
		p.inspect(v.String())
		p.picture("fleet " + v.String())
	}
}
