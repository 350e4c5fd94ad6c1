package main

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/cell/planfile"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/dev/doctor"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/testkit/apigateway"
	"github.com/sluicelimits/sluice/internal/testkit/apigateway/template"
)

// keyFile writes a key to a file for --key-file.
func keyFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "key.txt")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// findings returns the lines of doctor's output with the results, without the lines about what was seen.
func findings(text string) (out []string) {
	for line := range strings.Lines(text) {
		for _, r := range []doctor.Result{doctor.Holds, doctor.DoesNotHold, doctor.CouldNotTell} {
			if strings.HasPrefix(line, string(r)) {
				out = append(out, strings.TrimSpace(line))
			}
		}
	}
	return out
}

// serveAPI serves an API of infra's template through the model of API Gateway: the one whose logical id begins with the
// prefix. Its authorizer has the example plans. serveAPI returns the URL of the API's stage.
func serveAPI(t *testing.T, prefix string) string {
	t.Helper()
	const file = "../../infra/testdata/attach.template.json"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	id := regexp.MustCompile(`"(` + prefix + `[0-9A-F]{8})": \{`).FindSubmatch(text)
	if id == nil {
		t.Fatalf("the template has no API %s", prefix)
	}
	d, err := template.Parse(file, text, template.Options{API: string(id[1])})
	if err != nil {
		t.Fatal(err)
	}
	plans, err := planfile.Open(planfile.Config{Source: configyaml.Source(exampleName, examplePlans),
		Peppers: map[string][]byte{identity.DevPepperID: identity.DevPepper()}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	counters := memorytest.New(t)
	z, err := authorizer.New(authorizer.Config{Source: authorizer.Current(plans.Current), Store: counters,
		Now: time.Now, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	function, err := authorizer.NewHandler(authorizer.HandlerConfig{Authorizer: z,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	api, err := apigateway.New(apigateway.Config{Description: d, Log: slog.New(slog.DiscardHandler),
		Functions: map[string]apigateway.Function{"sluice-eu-1-authorizer": function, "orders": function}})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	return server.URL + d.Prefix()
}

// Guarantees that doctor on the model of API Gateway prints what the page shows, and no part of its key.
func TestDoctor(t *testing.T) {
	url, globex := serveAPI(t, "Rest")+"/product/1", identity.ExampleKey("globex")
	got := sluice(t, "", "doctor", url, "--key-file", keyFile(t, globex+"\nmore\n"), "--charge", "20")
	if got.code != 0 || strings.Contains(got.stdout+got.stderr, globex) {
		t.Errorf("exit code %d:\n%s%s", got.code, got.stdout, got.stderr)
	}
	t.Logf("\n%s", got.stdout)
	if second := sluice(t, "", "doctor", url, "--key-file", keyFile(t, identity.ExampleKey("initech")), "--charge",
		"2"); !slices.Contains(findings(second.stdout), "holds           absent-values") {
		t.Errorf("with the key of a suspended tenant:\n%s", second.stdout)
	}
	page, err := os.ReadFile("../../docs/assumptions.md")
	if err != nil {
		t.Fatal(err)
	}
	// What differs from run to run: numbers, and the id of an answer. Lines break by their length.
	varying := regexp.MustCompile(`urn:uuid:[0-9a-f-]+|[0-9.]+(ms|s)?`)
	words := func(text string) string {
		return strings.Join(strings.Fields(varying.ReplaceAllString(text, "N")), " ")
	}
	if have, want := words(got.stdout), words(shownOn(t, string(page), "On the model of API Gateway")); have != want {
		t.Errorf("the page shows\n%s\nand doctor prints\n%s", want, have)
	}
	onLocalStack := words(shownOn(t, string(page), "On LocalStack"))
	for _, a := range doctor.Assumptions() {
		if says := words(a.ID + " " + a.Says); strings.Count(onLocalStack, says) != 1 {
			t.Errorf("what the page shows for LocalStack lacks %q", says)
		}
	}
}

// shownOn returns the output of a command that a section of a page shows.
func shownOn(t *testing.T, page, section string) string {
	t.Helper()
	_, text, _ := strings.Cut(page, "\n## "+section+"\n")
	_, text, _ = strings.Cut(text, "\n```text\n$ sluice doctor ")
	_, text, _ = strings.Cut(text, "\n")
	text, _, found := strings.Cut(text, "\n```\n")
	if !found {
		t.Fatalf("the page shows no output of doctor in its section %q", section)
	}
	return text
}

// Guarantees that the exit status is 1 if an assumption does not hold, and that --json contains everything that the
// text does.
func TestDoctorDoesNotHold(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Apigw-Requestid", "id")
		w.WriteHeader(http.StatusInternalServerError)
	}))
	defer s.Close()
	got := sluice(t, "", "doctor", s.URL, "--json")
	var out struct{ Checks []diagnosis }
	if err := json.Unmarshal([]byte(got.stdout), &out); err != nil || got.code != exitFailed ||
		len(out.Checks) != len(doctor.Assumptions()) {
		t.Fatalf("exit code %d, %v: %s%s", got.code, err, got.stdout, got.stderr)
	}
	if c := out.Checks[0]; c.ID != "missing-credential" || c.Result != doctor.DoesNotHold || c.Do == "" ||
		c.Assumption == "" {
		t.Errorf("the first finding is %+v", c)
	}
	if !strings.Contains(got.stderr, "assumptions that do not hold: 1") {
		t.Errorf("standard error is %q, want the number of assumptions that do not hold", got.stderr)
	}
}

// If no API Gateway answers, the exit status says that nothing was checked: neither that all is well, nor that
// something is wrong.
func TestDoctorChecksNothing(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	couldTell := func(line string) bool { return !strings.HasPrefix(line, string(doctor.CouldNotTell)) }
	for _, more := range [][]string{nil, {"--json"}} {
		got := sluice(t, "", append([]string{"doctor", s.URL}, more...)...)
		if got.code != exitUnchecked || !strings.Contains(got.stderr, "no assumption could be checked") {
			t.Errorf("%v: exit code %d, want %d: %s", more, got.code, exitUnchecked, got.stderr)
		}
		if have := findings(got.stdout); more == nil && (len(have) != len(doctor.Assumptions()) ||
			slices.ContainsFunc(have, couldTell)) {
			t.Errorf("the findings are\n%s", got.stdout)
		}
	}
}

// Guarantees that a wrong command line makes no call, and that no key is sent to another machine in plain text.
func TestDoctorCommandLine(t *testing.T) {
	const good = "https://api.example.com/"
	for _, c := range []struct {
		code int
		says string
		args []string
	}{
		{exitUsage, "want the URL of a route", []string{"http://api.example.com/"}},
		{exitUsage, "want the URL of a route", []string{"ws://api.example.com/"}},
		{exitUsage, "want the URL of a route", []string{"https://key@api.example.com/"}},
		{exitUsage, "want the URL of a route", []string{"api.example.com"}},
		{exitUsage, `"--charge" flag: want a number within 0..1000`, []string{good, "--charge", "1001"}},
		{exitUsage, "want URL, got 0 arguments", nil},
		{exitUsage, "want URL, got 2 arguments", []string{"https://a.example.com", "https://b.example.com"}},
		{exitFailed, "none: there is no such file: correct the name",
			[]string{good, "--key-file", filepath.Join(t.TempDir(), "none")}},
		{exitFailed, "the first line is empty", []string{good, "--key-file", keyFile(t, "\nslk_x\n")}},
	} {
		if got := sluice(t, "", append([]string{"doctor"}, c.args...)...); got.code != c.code ||
			!strings.Contains(got.stderr, c.says) {
			t.Errorf("sluice doctor %q: exit code %d, %q; want %d, %q", c.args, got.code, got.stderr, c.code, c.says)
		}
	}
}
