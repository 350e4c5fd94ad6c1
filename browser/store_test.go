package browser

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluicelimits/sluice/internal/dev/livepage"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// withStore makes the scene that of a gateway with a shared store whose breaker is in the given state.
func (s *scene) withStore(state string) {
	s.t.Helper()
	s.shared = &livepage.StoreStatus{
		Instances: 3,
		Breakers:  []livepage.BreakerStatus{{Name: "Redis", State: state}, {Name: "DynamoDB", State: "closed"}},
		Leases: &livepage.LeaseStatus{Counters: 12, Units: 431, Local: 91_234, Denied: 4_120, Early: 17, Calls: 1_204,
			Waited:   96,
			Returned: 2_345, Lost: 88},
	}
	if state == "closed" {
		return
	}
	s.shared.Breakers[0].Opened, s.shared.Breakers[0].Probes, s.shared.Breakers[0].Refused = 1, 3, 12_345
	s.shared.Outage = livepage.OutageStatus{Failures: 1_234, Backstop: 1_200, Open: 30, Closed: 4, ChargedBack: 77,
		Dropped: 2, Waiting: 3}
	d := s.decide(limit.Owner{Kind: limit.Tenant, Name: "globex"}, s.charges(s.tenants[1], http.MethodGet), sceneNow)
	d.Degraded = true
	for _, outcome := range []livepage.Outcome{livepage.Allowed, livepage.Limited, livepage.Limited,
		livepage.StoreFailed} {
		o := livepage.Observation{At: sceneNow, Outcome: outcome, Tenant: "globex", Method: http.MethodGet,
			Path: "/while/away"}
		if outcome != livepage.StoreFailed {
			o.Decision = d
		}
		s.observe(&o, "")
	}
}

// addLeases gives some of the limits leases. While the store is unavailable, it also gives some limits each way to
// count without the store.
func (s *scene) addLeases(out *livepage.Status) {
	if s.shared == nil {
		return
	}
	out.Store = s.shared
	out.Tenants[1].Limits[0].Leased = 3
	for i := range out.Tenants[0].Limits {
		out.Tenants[0].Limits[i].Leased = int64(3 * (i + 1))
	}
	if s.shared.Breakers[0].State == "closed" {
		return
	}
	for i, c := range []livepage.Counting{livepage.CountedHere, livepage.CountedOpen, livepage.CountedClosed,
		livepage.CountedUnknown} {
		m := &out.Tenants[0].Limits[i]
		if m.Counted = c; c != livepage.CountedHere {
			m.Used = -1
		}
	}
}

// The page shows whether limits are counted for all gateways or in this process only, and what the leases and the
// backstop do. It is readable in every theme and at every width.
func TestLivePageStore(t *testing.T) {
	for _, state := range []string{"closed", "open", "probing"} {
		t.Run(state, func(t *testing.T) {
			s := newScene(t)
			s.runTraffic()
			s.withStore(state)
			p := openTab(t, s.serve().URL+"/_sluice/", views[0])
			defer p.wantNoComplaints()
			p.until("document.documentElement.dataset.now !== undefined")
			for _, v := range views {
				p.setView(v)
				p.inspect(v.String())
				p.picture("store " + state + " " + v.String())
			}
			banner := p.texts("#away:not([hidden]) h2")
			if away := state != "closed"; away != (len(banner) == 1) {
				t.Errorf("the banner says %q", banner)
			} else if away && banner[0] != "Redis does not answer: limits are counted in this process" {
				t.Errorf("the banner says %q", banner[0])
			}
			if got, want := p.texts("#breaker-rows th"), "[Redis DynamoDB]"; fmt.Sprint(got) != want {
				t.Errorf("stores are %v, want %s", got, want)
			}
			if got := p.texts("[data-breaker=Redis] td:nth-child(2)"); len(got) != 1 ||
				!strings.HasPrefix(got[0], state+": ") {
				t.Errorf("the first store's state is %q, want %s and what that means", got, state)
			}
			for count, want := range map[string]string{
				"local": "91,234", "calls": "1,204", "share": "99 %", "waited": "96", "denied": "4,120", "early": "17",
				"units":    "431",
				"counters": "12", "returned": "2,345", "lost": "88", "failures": fmt.Sprint(s.shared.Outage.Failures),
				"backstop": fmt.Sprint(s.shared.Outage.Backstop), "open": fmt.Sprint(s.shared.Outage.Open),
				"closed": fmt.Sprint(s.shared.Outage.Closed), "charged_back": fmt.Sprint(s.shared.Outage.ChargedBack),
				"waiting": fmt.Sprint(s.shared.Outage.Waiting), "dropped": fmt.Sprint(s.shared.Outage.Dropped),
			} {
				got := p.texts(fmt.Sprintf("[data-count=%s] dd", count))
				if len(got) != 1 || strings.ReplaceAll(got[0], ",", "") != strings.ReplaceAll(want, ",", "") {
					t.Errorf("%s: page shows %q, want %s", count, got, want)
				}
			}
			p.compareAway(state != "closed")
		})
	}
}

// compareAway checks that exactly the four requests of withStore are marked as decided without the store.
func (p *tab) compareAway(away bool) {
	p.t.Helper()
	p.choose("minute")
	marks, word := 0, ""
	if away {
		marks, word = 1, "4 decided without the store"
	}
	if got := p.texts("#away-key:not([hidden]) span"); len(got) != marks || marks > 0 && got[0] != word {
		p.t.Errorf("the text below the totals is %q, want %q", got, word)
	}
	if got := p.texts("[data-tenant=globex] .lone:not([hidden])"); len(got) != marks || marks > 0 &&
		got[0] != "4 without the store" {
		p.t.Errorf("the tenant is marked with %q", got)
	}
	if got := p.texts("[data-degraded=true] .tag.away"); len(got) != marks || marks > 0 && got[0] != "backstop" {
		p.t.Errorf("recent denials are marked %q, want %d line of them", got, marks)
	}
	if got := p.texts("[data-degraded=false] .tag.away"); len(got) != 0 {
		p.t.Errorf("denials by the store are marked %q, want no mark", got)
	}
	if got := p.texts("[data-tenant=acme] .what .tag.away"); len(got) != marks {
		p.t.Errorf("%d limits of the tenant are marked as counted here, want %d", len(got), marks)
	}
	apart := strings.Join(p.texts("[data-tenant=acme] .apart"), "; ")
	for _, says := range []string{": all admitted, 6 leased", ": all denied, 9 leased", ": use not known, 12 leased"} {
		if strings.Contains(apart, says) != away {
			p.t.Errorf("limits without a known use say %q; contains %q: want %v", apart, says, away)
		}
	}
	value := eval[string](p, "document.querySelector('[data-tenant=globex] .track').getAttribute('aria-valuetext')")
	if !strings.HasSuffix(value, ", 3 more leased here") {
		p.t.Errorf("a meter with a lease says %q", value)
	}
	if got := eval[float64](p, "document.querySelector('[data-tenant=globex] .track "+
		".held').getBoundingClientRect().width"); got <= 0 {
		p.t.Errorf("a lease of 3 units is drawn %.1f px wide", got)
	}
}

// The page follows the state of the store without a reload, also back to the first state.
func TestLivePageFollowsTheStore(t *testing.T) {
	s := newScene(t)
	s.runTraffic()
	s.withStore("closed")
	var state atomic.Value
	state.Store("closed")
	handler := livepage.Handler(s.recorder, func() livepage.Status {
		out := s.status()
		store := *out.Store
		store.Breakers = []livepage.BreakerStatus{{Name: "Redis", State: state.Load().(string)}}
		out.Store = &store
		return out
	})
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	p := openTab(t, server.URL+"/", views[0])
	defer p.wantNoComplaints()
	p.until("document.querySelector('[data-breaker=Redis]') !== null")
	eval[string](p, "window.row = document.querySelector('[data-breaker=Redis]'), ''")
	for _, next := range []string{"open", "probing", "closed"} {
		state.Store(next)
		p.until(fmt.Sprintf("document.querySelector('[data-breaker=Redis] td').textContent.startsWith(%q)", next))
		if got, want := eval[bool](p, "document.getElementById('away').checkVisibility()"),
			next != "closed"; got != want {
			t.Errorf("%s: the banner is shown: %v, want %v", next, got, want)
		}
		if !eval[bool](p, "window.row.isConnected") {
			t.Errorf("%s: the row was replaced, so a screen reader that was there has lost its place", next)
		}
	}
}

// If a page is still open when another version of the program starts, its data may have fields that it does not know,
// or lack fields that it expects. It shows the rest.
func TestLivePageSurvivesBadData(t *testing.T) {
	s := newScene(t)
	s.runTraffic()
	s.withStore("open")
	type object = map[string]any
	var change atomic.Value // of func(object)
	inner := livepage.Handler(s.recorder, s.status)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f, ok := change.Load().(func(object))
		if r.URL.Path != "/data.json" || !ok {
			inner.ServeHTTP(w, r)
			return
		}
		plain := httptest.NewRecorder()
		inner.ServeHTTP(plain, r)
		var data object
		if err := json.Unmarshal(plain.Body.Bytes(), &data); err != nil {
			t.Error(err)
		}
		f(data)
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(data); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	p := openTab(t, server.URL+"/", views[0])
	defer p.wantNoComplaints()
	p.until("document.querySelector('#away:not([hidden])') !== null")

	store := func(d object) object { return d["store"].(object) }
	stamp := 1e12
	for _, tt := range []struct {
		name   string
		change func(object)
		shown  bool   // whether the section about the store is shown
		banner bool   // whether the banner is shown
		holds  string // the selector of an element
		text   string // the element's text
	}{
		{"no section", func(d object) { delete(d, "store") }, false, false, "[data-total=requests]", ""},
		{"an unknown state", func(d object) {
			store(d)["breakers"] = []object{{"name": "Redis", "state": "melted", "opened": 1, "probes": 2,
				"refused": 3}}
		}, true, false, "[data-breaker=Redis] td", "melted"},
		{"no state and no counts", func(d object) { store(d)["breakers"] = []object{{"name": "Redis"}} }, true, false,
			"[data-breaker=Redis] td", "not known"},
		{"breakers that are not a list", func(d object) { store(d)["breakers"] = "three" }, true, false,
			"[data-count=local] dd", "91,234"},
		{"a breaker that is null", func(d object) { store(d)["breakers"] = []any{nil} }, true, false,
			"[data-count=local] dd", "91,234"},
		{"no leases", func(d object) { delete(store(d), "leases") }, true, true, "#leases-empty:not([hidden])",
			"Off: each decision asks the store."},
		{"no counts of leases", func(d object) { store(d)["leases"] = object{} }, true, true, "[data-count=local] dd",
			"–"},
		{"no outage", func(d object) { delete(store(d), "outage") }, true, true, "[data-count=backstop] dd", "–"},
		{"an empty section", func(d object) { d["store"] = object{} }, true, false, "#leases-empty:not([hidden])",
			"Off: each decision asks the store."},
		{"no marks", func(d object) {
			for _, w := range d["windows"].([]any) {
				delete(w.(object)["totals"].(object), "degraded")
			}
			for _, row := range d["tenants"].([]any) {
				for _, c := range row.(object)["counts"].([]any) {
					delete(c.(object), "degraded")
				}
				for _, m := range row.(object)["limits"].([]any) {
					delete(m.(object), "counted")
					delete(m.(object), "leased")
				}
			}
			for _, x := range d["denials"].([]any) {
				delete(x.(object), "degraded")
			}
		}, true, true, "[data-total=requests]", ""},
		{"an unknown way to count", func(d object) {
			d["tenants"].([]any)[0].(object)["limits"].([]any)[0].(object)["counted"] = "elsewhere"
		}, true, true, "[data-count=local] dd", "91,234"},
		{"no change", func(object) {}, true, true, "[data-count=local] dd", "91,234"},
	} {
		stamp++
		at := stamp
		change.Store(func(d object) { tt.change(d); d["now_ms"] = at })
		p.until(fmt.Sprintf("document.documentElement.dataset.now === '%.0f'", at))
		if got := eval[bool](p, "document.getElementById('store').checkVisibility()"); got != tt.shown {
			t.Errorf("%s: the section is shown: %v, want %v", tt.name, got, tt.shown)
		}
		if got := eval[bool](p, "document.getElementById('away').checkVisibility()"); got != tt.banner {
			t.Errorf("%s: the banner is shown: %v, want %v", tt.name, got, tt.banner)
		}
		got := p.texts(tt.holds)
		if len(got) == 0 || tt.text != "" && got[0] != tt.text {
			t.Errorf("%s: %s shows %q, want %q", tt.name, tt.holds, got, tt.text)
		}
		if strings.Contains(eval[string](p, "document.body.innerText"), "undefined") ||
			strings.Contains(eval[string](p, "document.body.innerText"), "NaN") {
			t.Errorf("%s: the page shows \"undefined\" or \"NaN\"", tt.name)
		}
	}
}
