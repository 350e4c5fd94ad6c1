package browser

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/dev/livepage"
)

// inspect finds all faults that it looks for on a page that has them all. Otherwise it would prove nothing about other
// pages.
func TestInspectFindsFaults(t *testing.T) {
	const broken = `<!doctype html><html><head><link rel="icon" href="data:,"></head><body style="background:#fff">
		<h1>One</h1><h3 id="a">Three</h3><div id="a" aria-labelledby="nowhere" style="width:2000px">wide</div>
		<img src="data:,"><svg width="20" height="20"></svg><input><button></button><div role="meter">m</div>
		<table><tr><td>cell</td></tr></table><p style="color:#999">pale</p>
		<p style="font-size:9px">small</p></body></html>`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte(broken))
	}))
	t.Cleanup(server.Close)
	p := openTab(t, server.URL, views[0])
	found := strings.Join(eval[[]string](p, inspect), "\n")
	for _, want := range []string{
		"no lang", "no title", "0 main", "follows a heading of level 1", "id a twice", "names nowhere", "no alt",
		"neither a named image", "no label", "<button> \"\" has no name", "<div> \"m\" has no name",
		"no column headers",
		"neither caption", "has contrast 2.8", "9 px", "2008 px wide in a window of 1400", "too small to hit",
		"texts were checked",
	} {
		if !strings.Contains(found, want) {
			t.Errorf("inspect does not report %q; it reports\n%s", want, found)
		}
	}
}

// The page shows new requests without a reload. It says so when it gets no data, and shows new data again when it does:
// people would rely on an outdated page that looks up to date.
func TestLivePageFollows(t *testing.T) {
	s := newScene(t)
	var unavailable atomic.Bool
	handler := livepage.Handler(s.recorder, s.status)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if unavailable.Load() {
			http.Error(w, "unavailable", http.StatusServiceUnavailable)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	p := openTab(t, server.URL+"/", views[0])
	p.until("document.getElementById('link').dataset.state === 'live'")
	p.until("document.querySelector('#try:not([hidden])') !== null")

	s.call(sceneNow, 1, http.MethodGet, "/product/*")
	p.until("document.querySelector('[data-total=allowed]').textContent === '1'")
	p.until("document.querySelector('#try:not([hidden])') === null")
	for range 10 {
		s.call(sceneNow, 1, http.MethodGet, "/product/*")
	}
	p.until("document.querySelector('[data-total=limited]').textContent === '6'")
	p.until("document.querySelector('#denial-rows li').dataset.count === '6'")
	var order []string
	for _, i := range []int{1, 3, 4, 0, 2} { // first the only tenant with denials, then the others by id
		order = append(order, s.tenants[i].id)
	}
	if got := p.texts("[data-tenant] .who bdi"); fmt.Sprint(got) != fmt.Sprint(order) {
		t.Errorf("the order of the tenants is %q, want %q", got, order)
	}
	p.wantNoComplaints()

	unavailable.Store(true)
	p.until("document.getElementById('link').dataset.state === 'lost'")
	if got := p.texts("#link-text"); got[0] != "The data was refused with status 503" {
		t.Errorf("while the data is unavailable, the page says %q", got)
	}
	if got := p.number("[data-total=limited]"); got != 6 {
		t.Errorf("the page does not show its last data: %d limited, want 6", got)
	}
	unavailable.Store(false)
	p.until("document.getElementById('link').dataset.state === 'live'")

	server.CloseClientConnections()
	server.Close()
	p.until("document.getElementById('link-text').textContent === 'Connection lost; trying again'")
}

// Each denial says which limit denied the request, or the reason in words, and how long to wait if that is known.
func TestLivePageSaysWhy(t *testing.T) {
	s := newScene(t)
	for i, d := range []livepage.Denied{
		{Limit: "burst", Reason: livepage.NotGranted},
		{Reason: livepage.Uncountable, Never: true},
		{Limit: "put-product", Tier: "10s", Wait: 2 * time.Second},
		{},
	} {
		s.recorder.Observe(&livepage.Observation{At: sceneNow, Outcome: livepage.Limited, Tenant: "globex",
			Method: http.MethodGet,
			Path:   fmt.Sprint("/", i), Denied: d})
	}
	p := openTab(t, s.serve().URL+"/_sluice/", views[0])
	p.until("document.querySelectorAll('#denial-rows li').length === 4")
	want := map[string]string{
		"/0": "burst · not granted in this cell · globex|", "/1": "costs more than a limit can count · globex|never " +
			"fits",
		"/2": "put-product 10s · globex|wait 2.0 s", "/3": "reason not known · globex|",
	}
	got := eval[map[string]string](p, `Object.fromEntries([...document.querySelectorAll('#denial-rows li')].map((e) =>
		[e.querySelector('.req bdi').textContent,
			e.querySelector('.why').textContent + '|' + e.querySelector('.times small').textContent]))`)
	if !maps.Equal(got, want) {
		t.Errorf("the page says %q, want %q", got, want)
	}
	p.wantNoComplaints()
}
