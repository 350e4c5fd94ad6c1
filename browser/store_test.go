package browser

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluicelimits/sluice/internal/dev/livepage"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// The page says which shared stores do not answer, and how many requests were decided without them, and no longer says
// so when they answer again. A use that is not known, and a lease, are shown as such. It is readable in every theme and
// at every width.
func TestLivePageFollowsTheStore(t *testing.T) {
	s := newScene(t)
	s.runTraffic()
	d := s.decide(limit.Owner{Kind: limit.Tenant, Name: "globex"}, s.charges(s.tenants[1], http.MethodGet), sceneNow)
	d.Degraded = true
	for _, outcome := range []livepage.Outcome{livepage.Allowed, livepage.Limited} {
		s.observe(&livepage.Observation{At: sceneNow, Outcome: outcome, Tenant: "globex", Method: http.MethodGet,
			Path: "/while/away", Decision: d}, "")
	}
	s.observe(&livepage.Observation{At: sceneNow, Outcome: livepage.StoreFailed, Tenant: "globex"}, "")
	var away atomic.Value // of []string
	away.Store([]string{})
	server := httptest.NewServer(livepage.Handler(s.recorder, func() livepage.Status {
		out := s.status()
		out.Away, _ = away.Load().([]string)
		out.Tenants[0].Limits[1].Used, out.Tenants[0].Limits[1].Leased = -1, 6
		out.Tenants[1].Limits[0].Leased = 3
		return out
	}))
	t.Cleanup(server.Close)
	p := openTab(t, server.URL+"/", views[0])
	defer p.wantNoComplaints()
	p.until("document.documentElement.dataset.now !== undefined")
	const banner = "document.getElementById('away').checkVisibility()"
	for _, next := range [][]string{{"Redis"}, {"Redis", "DynamoDB"}, {}} {
		away.Store(next)
		if len(next) == 0 {
			p.until("!" + banner)
			break
		}
		want := strings.Join(next, " and ")
		p.until(banner + " && document.getElementById('away-h').textContent.startsWith('" + want + " do')")
		for _, v := range views {
			p.setView(v)
			p.inspect(want + " " + v.String())
			p.picture("store " + want + " " + v.String())
		}
	}
	if got := p.texts("#away-key:not([hidden]) span"); len(got) != 1 || got[0] != "3 decided without the store" {
		t.Errorf("the text below the totals is %q", got)
	}
	if apart := strings.Join(p.texts("[data-tenant=acme] .apart"), "; "); !strings.Contains(apart,
		": use not known, 6 leased") {
		t.Errorf("a limit without a known use says %q", apart)
	}
	value := eval[string](p, "document.querySelector('[data-tenant=globex] .track').getAttribute('aria-valuetext')")
	if !strings.HasSuffix(value, ", 3 more leased here") {
		t.Errorf("a meter with a lease says %q", value)
	}
	if got := eval[float64](p, "document.querySelector('[data-tenant=globex] .track "+
		".held').getBoundingClientRect().width"); got <= 0 {
		t.Errorf("a lease of 3 units is drawn %.1f px wide", got)
	}
}
