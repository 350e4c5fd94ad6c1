package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/audit"
	"github.com/sluicelimits/sluice/internal/control/audit/bucket"
	"github.com/sluicelimits/sluice/internal/control/embedded"
	"github.com/sluicelimits/sluice/internal/testkit/s3test"
)

// trail returns the data folder of a `sluice dev` with some changes, all of them archived. They are also written to the
// archives in to.
func trail(t *testing.T, to ...audit.Archive) (dir string) {
	t.Helper()
	dir = t.TempDir()
	tables, err := embedded.Open(filepath.Join(dir, dataTables))
	if err != nil {
		t.Fatal(err)
	}
	tables.Unsynced()
	defer tables.Close()
	own := audit.NewFolder(filepath.Join(dir, dataArchive))
	var last *control.Item
	for _, c := range []control.Change{
		{Table: control.Plans, Key: "pro", Body: []byte(`{"id":"pro","limits":[{"id":"burst","rate":100}]}`),
			Actor: "alice", Reason: "launch", Now: time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)},
		{Table: control.Plans, Key: "pro", Expect: 1,
			Body:  []byte(`{"id":"pro","limits":[{"id":"burst","rate":250},{"id":"m","quota":{"units":1}}]}`),
			Actor: "bob", Reason: "sale\u202e", Now: time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)},
		{Table: control.Plans, Key: "pro", Expect: 2, Delete: true, Actor: "alice", Reason: "gone",
			Now: time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)},
	} {
		next, err := tables.Put(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		r := control.Record{Old: last, New: next}
		data, err := events.Encode(r.Audit())
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range append([]audit.Archive{own}, to...) {
			if _, err := a.Put(t.Context(), control.ObjectName(next.Table, next.Key, next.Version), data); err != nil {
				t.Fatal(err)
			}
		}
		last = &next
	}
	return dir
}

const wholeTrail = `2026-11-20T09:00:00Z  plans/pro  version 1  created by alice
    because: launch
    + id: "pro"
    + limits[burst].id: "burst"
    + limits[burst].rate: 100
2026-11-21T09:00:00Z  plans/pro  version 2  changed by bob
    because: "sale\u202e"
    ~ limits[burst].rate: 100 → 250
    + limits[m].id: "m"
    + limits[m].quota.units: 1
2026-11-21T10:00:00Z  plans/pro  version 3  deleted by alice
    because: gone
    - id: "pro"
    - limits[burst].id: "burst"
    - limits[burst].rate: 250
    - limits[m].id: "m"
    - limits[m].quota.units: 1
`

// The trail shows who changed which field, and each flag selects the changes that it names.
func TestAuditShow(t *testing.T) {
	dir := trail(t)
	entries := strings.SplitAfter(regexp.MustCompile(`(?m)^2`).ReplaceAllString(wholeTrail, "\x002"), "\x00")
	one, two, three := strings.Trim(entries[1], "\x00"), strings.Trim(entries[2], "\x00"), strings.Trim(entries[3],
		"\x00")
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{}, wholeTrail},
		{[]string{"plans"}, wholeTrail},
		{[]string{"plans/pro"}, wholeTrail},
		{[]string{"plans/pro", "--version", "2"}, two},
		{[]string{"plans/pro", "--from", "2026-11-21T09:00:00Z"}, two + three},
		{[]string{"--to", "2026-11-21T09:00:00Z"}, one},
		{[]string{"--actor", "BOB"}, two},
		{[]string{"plans", "--since", "36500d"}, wholeTrail},
		{[]string{"tenants"}, ""},
		{[]string{"plans/free"}, ""},
	} {
		out, errs, err := execute(t, "", append([]string{"audit", "show", "--data", dir}, tt.args...)...)
		if err != nil || out != tt.want || (errs != "") != (tt.want == "") {
			t.Errorf("audit show %q: %v %s\n%s\nwant\n%s", tt.args, err, errs, out, tt.want)
		}
	}
	out, _, err := execute(t, "", "audit", "show", "plans/pro", "--data", dir, "--json")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	var second changeJSON
	if err != nil || len(lines) != 3 || json.Unmarshal([]byte(lines[1]), &second) != nil || second.Version != 2 ||
		second.Actor != "bob" || len(second.Changes) != 3 ||
		second.Changes[0] != (audit.Field{Path: "limits[burst].rate", Before: "100", After: "250"}) || second.Hidden ||
		second.Error != "" {
		t.Errorf("error %v, output %s", err, out)
	}
}

// Changes of the canary are shown only if they are asked for; otherwise their number is printed. Other changes of the
// table plans are shown. A verification includes the canary's changes.
func TestAuditShowWithoutTheCanary(t *testing.T) {
	dir := trail(t)
	tables, err := embedded.Open(filepath.Join(dir, dataTables))
	if err != nil {
		t.Fatal(err)
	}
	own := audit.NewFolder(filepath.Join(dir, dataArchive))
	var last *control.Item
	for v := range int64(2) {
		next, err := tables.Put(t.Context(), control.Change{
			Table: control.Plans, Key: events.CanaryKey, Expect: v, Body: []byte(`{"at":"x"}`), Actor: "canary",
			Reason: "canary: how long a change takes",
			Now:    time.Date(2026, 11, 22, 9, int(v), 0, 0, time.UTC),
		})
		if err != nil {
			t.Fatal(err)
		}
		r := control.Record{Old: last, New: next}
		data, err := events.Encode(r.Audit())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := own.Put(t.Context(), control.ObjectName(next.Table, next.Key, next.Version), data); err != nil {
			t.Fatal(err)
		}
		last = &next
	}
	tables.Close()
	const leftOut = "sluice: changes of the canary that are left out: 2; --canary shows them\n"
	for _, tt := range []struct {
		args   []string
		canary int
		people bool
		said   string
	}{
		{nil, 0, true, leftOut},
		{[]string{"plans"}, 0, true, leftOut},
		{[]string{"plans/pro"}, 0, true, ""},
		{[]string{"--actor", "canary"}, 0, false, leftOut + "sluice: the archive has no change that matches the " +
			"arguments and flags\n"},
		{[]string{"--canary"}, 2, true, ""},
		{[]string{"--canary", "--actor", "canary"}, 2, false, ""},
		{[]string{"plans/" + events.CanaryKey}, 2, false, ""},
		{[]string{"plans/" + events.CanaryKey, "--version", "2"}, 1, false, ""},
	} {
		out, errs, err := execute(t, "", append([]string{"audit", "show", "--data", dir}, tt.args...)...)
		if n := strings.Count(out, "plans/"+events.CanaryKey); err != nil || n != tt.canary ||
			strings.Contains(out, wholeTrail) != tt.people || errs != tt.said {
			t.Errorf("audit show %q: error %v, %d changes of the canary, standard error %q\n%s", tt.args, err, n, errs,
				out)
		}
	}
	if out, _, err := execute(t, "", "audit", "verify", "--data", dir); err != nil ||
		!strings.Contains(out, "5 versions of 2 items") {
		t.Errorf("audit verify: %v\n%s", err, out)
	}
}

// A correct trail passes. Each kind of tampering fails, as text and as JSON, and is reported with its place. The output
// says that a folder has no lock.
func TestAuditVerify(t *testing.T) {
	dir := trail(t)
	out, _, err := execute(t, "", "audit", "verify", "--data", dir)
	if err != nil || !strings.Contains(out, "3 versions of 1 item") ||
		!strings.Contains(out, "2026-11-20T09:00:00Z to 2026-11-21T10:00:00Z") ||
		!strings.Contains(out, "locks    none") || !strings.Contains(out, "breaks   none\n") ||
		!regexp.MustCompile(
			`\nNOTICE +COUNT .*\nput times not known +1 +- +the archive does not lock its objects: .*\n`+
				`no anchors +1 +- +`).MatchString(out) {
		t.Errorf("a correct trail: %v\n%s", err, out)
	}
	if err := os.Remove(filepath.Join(dir, dataArchive,
		filepath.FromSlash(control.ObjectName(control.Plans, "pro", 2)))); err != nil {
		t.Fatal(err)
	}
	out, _, err = execute(t, "", "audit", "verify", "--archive", filepath.Join(dir, dataArchive), "--data", dir)
	if err == nil || !regexp.MustCompile(`missing version +1 +plans/pro version 2 +`).MatchString(out) {
		t.Errorf("a trail that was tampered with: %v\n%s", err, out)
	}
	out, _, err = execute(t, "", "audit", "verify", "--data", dir, "--json")
	var got verified
	if err == nil || json.Unmarshal([]byte(out), &got) != nil || got.OK || got.Objects != 2 || len(got.Findings) != 1 ||
		got.Findings[0].Kind != "missing version" ||
		got.Findings[0].Object != control.ObjectName(control.Plans, "pro", 2) || got.Findings[0].Count != 1 ||
		len(got.Notices) != 2 || got.Notices[0].Kind != "put times not known" {
		t.Errorf("%v\n%s", err, out)
	}
}

// Guarantees that audit verify of a bucket checks the locks of its objects, and reads versions that newer ones hide.
func TestAuditBucket(t *testing.T) {
	now := func() time.Time { return time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC) }
	b := s3test.New(t, s3test.Config{Lock: true, Mode: "COMPLIANCE", Days: 7, Now: now})
	a := bucket.New(b.Client(), s3test.Name)
	dir := trail(t, a)
	withAWS(t, b.URL())
	where := []string{"--archive", "s3://" + s3test.Name}
	verify := append([]string{"audit", "verify", "--data", dir}, where...)
	out, _, err := execute(t, "", verify...)
	if err == nil || !regexp.MustCompile(`archived late +1 +plans/pro version 1 +`).MatchString(out) {
		t.Errorf("an object that was put 27 hours after its change: %v\n%s", err, out)
	}
	verify = append(verify, "--late", "27h")
	out, _, err = execute(t, "", verify...)
	if err != nil || !strings.Contains(out, "COMPLIANCE; the first ends") ||
		!regexp.MustCompile(`archived with a delay +3 +plans/pro version 1 +`).MatchString(out) {
		t.Errorf("%v\n%s", err, out)
	}
	name := control.ObjectName(control.Plans, "pro", 2)
	b.Lock(name, "GOVERNANCE", now().AddDate(0, 0, 7))
	weak := regexp.MustCompile(`weak lock +1 +plans/pro version 2 +` + name +
		` is locked in mode GOVERNANCE until 2026-11-28T12:00:00Z, but the bucket's default lock for it is ` +
		`COMPLIANCE until 2026-11-28T12:00:00Z`)
	if out, _, err = execute(t, "", verify...); err == nil || !weak.MatchString(out) {
		t.Errorf("an object in another mode: %v\n%s", err, out)
	}
	for earlier, accepted := range map[string]bool{
		"2026-11-21=GOVERNANCE:7": true, "2026-11-20=GOVERNANCE:7": false, "2026-11-21=GOVERNANCE:8": false,
	} {
		if out, _, err = execute(t, "", append(verify, "--earlier-lock", earlier)...); (err == nil) != accepted {
			t.Errorf("--earlier-lock %s: %v\n%s", earlier, err, out)
		}
	}
	for _, wrong := range []string{
		"2026-11-21", "2026-11-31=GOVERNANCE:7", "2026-11-21=governance:7", "2026-11-21=COMPLIANCE:0",
	} {
		captureStderr(t, func() {
			if got := run(append(verify, "--earlier-lock", wrong)); got != exitUsage {
				t.Errorf("--earlier-lock %s exits %d, want %d", wrong, got, exitUsage)
			}
		})
	}
	b.Lock(name, "COMPLIANCE", now().AddDate(0, 0, 7))
	b.Hide(control.ObjectName(control.Plans, "pro", 3))
	b.Overwrite(control.ObjectName(control.Plans, "pro", 1), []byte("forged"))
	out, _, err = execute(t, "", verify...)
	if err == nil || !strings.Contains(out, "delete marker") || !strings.Contains(out, "replaced") ||
		strings.Contains(out, "altered") {
		t.Errorf("%v\n%s", err, out)
	}
	out, _, err = execute(t, "", append([]string{"audit", "show"}, where...)...)
	if err != nil || !strings.Contains(out, "! hidden by a delete marker\n    - id") ||
		!strings.Contains(out, "! the object was overwritten with other content later\n    + id") {
		t.Errorf("%v\n%s", err, out)
	}
}

// A wrong folder or file is an error. It is never read as an empty archive that passes.
func TestAuditPlaces(t *testing.T) {
	t.Parallel()
	dir := trail(t)
	held, err := embedded.Open(filepath.Join(dir, dataTables))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"audit", "verify", "--data", dir}, "in use by another process: end the 'sluice dev' that runs"},
		{[]string{"audit", "verify", "--data", filepath.Join(dir, "none")}, "is not a folder"},
		{[]string{"audit", "verify", "--archive", dir, "--data", filepath.Join(dir, "none")},
			"there are no control tables"},
		{[]string{"audit", "show", "--archive", filepath.Join(dir, dataTables)}, "is not a folder"},
	} {
		if out, _, err := execute(t, "", tt.args...); err == nil || !strings.Contains(err.Error(), tt.want) ||
			out != "" {
			t.Errorf("%q: %v, want one with %q\n%s", tt.args, err, tt.want, out)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "none")); err == nil {
		t.Error("the command created a file that did not exist")
	}
	if out, _, err := execute(t, "", "audit", "show", "--data", dir); err != nil || out != wholeTrail {
		t.Errorf("audit show of the archive alone, while another process has the tables open: %v %s", err, out)
	}
}

// Guarantees that wrong arguments are usage errors.
func TestAuditUsage(t *testing.T) {
	for _, args := range [][]string{
		{"verify"}, {"verify", "--archive", "x"}, {"verify", "--data", "x", "--tables", ""},
		{"verify", "--data", "x", "--late", "0s"},
		{"verify", "--archive", "s3://", "--tables", "x"}, {"verify", "--archive", "s3://a/b", "--tables", "x"},
		{"verify", "more", "--data", "x"},
		{"show"}, {"show", "nothing", "--data", "x"}, {"show", "plans/", "--data", "x"}, {"show", "plans", "--version",
			"1", "--data", "x"},
		{"show", "plans/a", "--version", "0", "--data", "x"}, {"show", "--since", "1h", "--from",
			"2026-01-01T00:00:00Z", "--data", "x"},
		{"show", "--since", "yesterday", "--data", "x"}, {"show", "--since", "-1h", "--data", "x"}, {"show", "--from",
			"today", "--data", "x"},
		{"show", "a", "b", "--data", "x"}, {"nonsense"},
	} {
		captureStderr(t, func() {
			if got := run(append([]string{"audit"}, args...)); got != exitUsage {
				t.Errorf("sluice audit %s exits %d, want %d", fmt.Sprint(args), got, exitUsage)
			}
		})
	}
	for _, command := range []string{"show", "verify"} {
		if r := sluice(t, "", "audit", command); !strings.Contains(r.stderr,
			"a 'sluice dev' that runs without --data has no archive") {
			t.Errorf("sluice audit %s without an archive says %q", command, r.stderr)
		}
	}
}
