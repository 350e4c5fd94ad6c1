package browser

import (
	_ "embed"
	"fmt"
	"image/png"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/dev/livepage"
)

//go:embed inspect.js
var inspect string

// inspect fails the test for everything that a person could not read or use.
func (p *tab) inspect(where string) {
	p.t.Helper()
	for _, f := range eval[[]string](p, inspect) {
		p.t.Errorf("%s: %s", where, f)
	}
}

// number returns the count that the page shows in an element.
func (p *tab) number(selector string) int {
	p.t.Helper()
	texts := p.texts(selector)
	if len(texts) != 1 {
		p.t.Fatalf("%d elements match %s, want 1", len(texts), selector)
	}
	n, err := strconv.Atoi(strings.ReplaceAll(texts[0], ",", ""))
	if err != nil {
		p.t.Fatalf("%s shows %q, want a number", selector, texts[0])
	}
	return n
}

func hasOutcome(outcomes ...livepage.Outcome) func(event) bool {
	return func(e event) bool {
		for _, o := range outcomes {
			if e.outcome == o {
				return true
			}
		}
		return false
	}
}

// The page shows the right numbers. With wrong ones, an operator would search for a fault that does not exist, or miss
// one that does. The test counts the requests itself, independently of the recorder.
func TestLivePageNumbers(t *testing.T) {
	s := newScene(t)
	s.runTraffic()
	p := openTab(t, s.serve().URL+"/_sluice/", views[0])
	defer p.wantNoComplaints()
	p.until("document.documentElement.dataset.now !== undefined")

	totals := map[string]func(event) bool{
		"requests":     func(event) bool { return true },
		"allowed":      hasOutcome(livepage.Allowed),
		"limited":      hasOutcome(livepage.Limited, livepage.IPLimited),
		"unauthorized": hasOutcome(livepage.Unauthorized),
		"other":        hasOutcome(livepage.Forbidden, livepage.NotFound, livepage.StoreFailed),
	}
	for total, matches := range totals {
		want := s.count(matches)
		if want == 0 {
			t.Errorf("the scene has no %s, so nothing is compared", total)
		}
		if got := p.number(fmt.Sprintf("[data-total=%q]", total)); got != want {
			t.Errorf("%s: page shows %d, want %d", total, got, want)
		}
	}
	for _, tenant := range s.tenants {
		for column, matches := range map[string]func(event) bool{"Allowed": hasOutcome(livepage.Allowed),
			"Limited": hasOutcome(livepage.Limited)} {
			want := s.count(func(e event) bool { return e.tenant == tenant.id && matches(e) })
			selector := fmt.Sprintf("[data-tenant=%q] [data-label=%s]", tenant.id, column)
			if got := p.number(selector); got != want {
				t.Errorf("%s of tenant %q: page shows %d, want %d", column, tenant.id, got, want)
			}
		}
	}
	p.compareLimits(s)
	p.compareDenials(s)
}

func (p *tab) compareLimits(s *scene) {
	p.t.Helper()
	for kind, outcome := range map[string]livepage.Outcome{"limit": livepage.Limited, "ip_limit": livepage.IPLimited} {
		page := 0
		for _, text := range p.texts(fmt.Sprintf("#limit-rows [data-kind=%s] td:nth-child(3)", kind)) {
			n, err := strconv.Atoi(strings.ReplaceAll(text, ",", ""))
			if err != nil {
				p.t.Fatalf("a limit's denied count shows %q", text)
			}
			page += n
		}
		if want := s.count(hasOutcome(outcome)); page != want || want == 0 {
			p.t.Errorf("denied over every %s: page shows %d, want %d and more than none", kind, page, want)
		}
	}
	if n := p.number(`[data-limit="search-strict"] td:nth-child(4)`); n == 0 {
		p.t.Error("the shadow limit would have denied requests, and the page shows none")
	}
}

// compareDenials checks that the groups of equal denials have exactly the newest denials, each in the group of its
// binding limit.
func (p *tab) compareDenials(s *scene) {
	p.t.Helper()
	want := make(map[string]int)
	for i, left := len(s.events)-1, livepage.MaxDenials; i >= 0 && left > 0; i-- {
		if e := s.events[i]; e.binding != "" {
			want[e.binding]++
			left--
		}
	}
	type group struct {
		Limit string
		Count int
	}
	groups := eval[[]group](p, `[...document.querySelectorAll('#denial-rows li')].map(
		(e) => ({ Limit: e.dataset.limit, Count: Number(e.dataset.count) }))`)
	got := make(map[string]int)
	for _, g := range groups {
		got[g.Limit] += g.Count
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		p.t.Errorf("recent denials by binding limit: page shows %v, want %v", got, want)
	}
}

// The page is readable in every theme and at every width, also with a screen reader.
func TestLivePageViews(t *testing.T) {
	for _, state := range []string{"busy", "empty", "trouble"} {
		t.Run(state, func(t *testing.T) {
			s := newScene(t)
			if state != "empty" {
				s.runTraffic()
			}
			if state == "trouble" {
				s.failure = "/srv/sluice/plans.yaml:14:9: plans[0].limits[1].rate: 0 is outside 1..1099511627776 " +
					"for token_bucket\n" + "/srv/sluice/plans.yaml:31:5: tenants[2].plan: there is no plan " +
					"\"entreprise\"; did you mean \"enterprise\"?"
			}
			p := openTab(t, s.serve().URL+"/_sluice/", views[0])
			defer p.wantNoComplaints()
			p.until("document.documentElement.dataset.now !== undefined")
			for _, v := range views {
				p.setView(v)
				p.inspect(v.String())
				p.picture("live " + state + " " + v.String())
			}
			if got, want := len(p.texts("#try:not([hidden]) pre")), map[string]int{"empty": 2}[state]; got != want {
				t.Errorf("%d commands to try are shown, want %d", got, want)
			}
			if got := p.texts("#trouble:not([hidden]) pre"); state == "trouble" &&
				(len(got) != 1 || got[0] != s.failure) {
				t.Errorf("the reload error shown is %q, want %q", got, s.failure)
			}
		})
	}
}

// readmePicture is the screenshot of the live page in the README.
const readmePicture = "../docs/images/live-page.png"

// The README has a screenshot of the page with ordinary names. `make picture` renews it. Fonts differ between machines,
// so only its width is compared.
func TestLivePageOfReadme(t *testing.T) {
	s := newScene(t)
	s.tenants[3].id, s.tenants[4].id = "hooli", "umbrella"
	s.paths = [2]string{"/v1/orders/*", "/v1/reports/*"}
	s.runTraffic()
	v := view{"light", 1400, 900}
	p := openTab(t, s.serve().URL+"/_sluice/", v)
	defer p.wantNoComplaints()
	p.until("document.documentElement.dataset.now !== undefined")
	p.inspect(v.String())
	p.picture("live page")
	if os.Getenv("SLUICE_SCREENSHOTS") != "" {
		return // this may be `make picture`, which replaces the screenshot
	}
	file, err := os.Open(readmePicture)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	size, err := png.DecodeConfig(file)
	if err != nil || size.Width != int(v.width) {
		t.Errorf("%s is %d pixels wide, %v; want %d", readmePicture, size.Width, err, v.width)
	}
}
