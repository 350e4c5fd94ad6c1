package browser

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/dev/livepage"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
)

// hostile is a tenant's name that runs a script in a page that inserts it as markup.
const hostile = `</script><img src=x onerror="console.error('taken over')">`

// sceneNow is the time at which the page is read. It is not at a boundary between two steps of the ten minutes.
var sceneNow = time.Date(2026, 7, 14, 10, 32, 47, 300e6, time.UTC)

// scene is a limiter without HTTP: it decides with a real memory store. It keeps a tally of its own, which is
// independent of the recorder.
type scene struct {
	t        *testing.T
	store    *memory.Store
	recorder *livepage.Recorder
	tenants  []*sceneTenant
	paths    [2]string // the paths that the last two tenants request
	ip       *limit.Limit
	events   []event
	failure  string // the error of the last reload, or ""
	away     []string
}

type sceneTenant struct {
	id, plan  string
	suspended bool
	limits    []*limit.Limit
	applies   map[string]string
}

// event is a request in the tally.
type event struct {
	at      time.Time
	outcome livepage.Outcome
	tenant  string
	binding string
}

func newScene(t *testing.T) *scene {
	t.Helper()
	store := memorytest.New(t)
	s := &scene{t: t, store: store, recorder: livepage.NewRecorder()}
	bucket := func(rate, burst int64) limit.Tier {
		return limit.Tier{Algorithm: limit.TokenBucket, Period: time.Second, Threshold: rate, Burst: burst}
	}
	fixed := func(n int64, period time.Duration) limit.Tier {
		return limit.Tier{Algorithm: limit.FixedWindow, Period: period, Threshold: n}
	}
	quota := func(n int64, every limit.Every) limit.Tier {
		return limit.Tier{Algorithm: limit.Quota, Threshold: n, Calendar: &limit.Calendar{Every: every,
			Location: time.UTC}}
	}
	pro := []*limit.Limit{
		s.limit(limit.Limit{ID: "burst", Tiers: []limit.Tier{bucket(8, 20)}}),
		s.limit(limit.Limit{ID: "put-product", Tiers: []limit.Tier{fixed(4, time.Second), fixed(30, 10*time.Second)}}),
		s.limit(limit.Limit{ID: "monthly", Tiers: []limit.Tier{quota(1_000_000, limit.Month)}}),
		s.limit(limit.Limit{ID: "search-strict", Mode: limit.Shadow, Tiers: []limit.Tier{fixed(40, 10*time.Second)}}),
		s.limit(limit.Limit{ID: "per-user", Per: "subject", Tiers: []limit.Tier{fixed(600, time.Minute)}}),
	}
	free := []*limit.Limit{
		s.limit(limit.Limit{ID: "burst", Tiers: []limit.Tier{bucket(1, 5)}}),
		s.limit(limit.Limit{ID: "daily", Tiers: []limit.Tier{quota(500, limit.Day)}}),
	}
	s.ip = s.limit(limit.Limit{ID: "per-address", Tiers: []limit.Tier{bucket(2, 10)}})
	where := map[string]string{"put-product": "PUT /v1/organizations/{orgId}/product/*",
		"search-strict": "GET /v1/search/**"}
	s.tenants = []*sceneTenant{
		{id: "acme", plan: "pro", limits: pro, applies: where},
		{id: "globex", plan: "free", limits: free},
		{id: "initech", plan: "free", limits: free, suspended: true},
		{id: hostile, plan: "free", limits: free},
		{id: "a-tenant-whose-name-is-as-long-as-a-name-may-be-and-has-no-place-to-break-" + strings.Repeat("x", 51),
			plan: "free", limits: free},
	}
	s.paths = [2]string{"/<b>bold</b>", "/v1/reports/" + hostile}
	return s
}

func (s *scene) limit(l limit.Limit) *limit.Limit {
	s.t.Helper()
	out, err := limit.New(l)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// call makes a request of a tenant.
func (s *scene) call(at time.Time, tenant int, method, path string) {
	s.t.Helper()
	o := livepage.Observation{At: at, Outcome: livepage.Allowed, Method: method, Path: path}
	binding := ""
	switch t := s.tenants[tenant]; {
	case t.suspended:
		o.Tenant, o.Outcome = t.id, livepage.Forbidden
	default:
		o.Tenant = t.id
		o.Decision = s.decide(limit.Owner{Kind: limit.Tenant, Name: t.id}, s.charges(t, method), at)
		if !o.Decision.Allowed {
			o.Outcome, binding = livepage.Limited, o.Decision.Binding().Limit().ID
		}
	}
	s.observe(&o, binding)
}

// addRejected makes a request that is rejected before its tenant's limits are applied: one with a bad credential, all
// of which come from one address, or one without a route.
func (s *scene) addRejected(at time.Time, outcome livepage.Outcome) {
	s.t.Helper()
	o := livepage.Observation{At: at, Outcome: outcome, Method: http.MethodPost, Path: "/login"}
	binding := ""
	if outcome == livepage.Unauthorized {
		d := s.decide(limit.Owner{Kind: limit.Address, Name: "somewhere"}, []limit.Charge{{Limit: s.ip, Cost: 1}}, at)
		if o.IPDecision = d; !d.Allowed {
			o.Outcome, o.Decision, o.IPDecision, binding = livepage.IPLimited, d, nil, s.ip.ID
		}
	}
	s.observe(&o, binding)
}

func (s *scene) decide(owner limit.Owner, charges []limit.Charge, at time.Time) *limit.Decision {
	s.t.Helper()
	d := new(limit.Decision)
	if err := s.store.Decide(s.t.Context(), &limit.Request{Owner: owner, Charges: charges}, at, d); err != nil {
		s.t.Fatal(err)
	}
	return d
}

func (s *scene) observe(o *livepage.Observation, binding string) {
	s.recorder.Observe(o)
	s.events = append(s.events, event{o.At, o.Outcome, o.Tenant, binding})
}

func (s *scene) charges(t *sceneTenant, method string) []limit.Charge {
	var out []limit.Charge
	for _, l := range t.limits {
		if (l.ID == "put-product" && method != http.MethodPut) ||
			(l.ID == "search-strict" && method != http.MethodGet) {
			continue
		}
		c := limit.Charge{Limit: l, Cost: 1}
		if l.Per != limit.PerTenant {
			c.Value = limit.ValueOf("ci")
		}
		out = append(out, c)
	}
	return out
}

// runTraffic makes the requests of the eleven minutes before sceneNow. That is a minute longer than the page counts,
// so some of them are not counted.
func (s *scene) runTraffic() {
	s.t.Helper()
	start := sceneNow.Add(-11 * time.Minute)
	for i := 0; ; i++ {
		at := start.Add(time.Duration(i) * 100 * time.Millisecond)
		if at.After(sceneNow) {
			return
		}
		second := i / 10
		swell := 2 + (second%240)/60 // 2 to 5 calls in each half second
		if i%5 == 0 {
			for range swell {
				s.call(at, 0, http.MethodGet, "/v1/search/**")
			}
		}
		if i%7 == 0 && second%90 < 50 {
			s.call(at, 0, http.MethodPut, "/v1/organizations/{orgId}/product/*")
		}
		if i%8 == 0 && second%75 < 30 {
			s.call(at, 1, http.MethodGet, "/product/*")
		}
		if i%37 == 0 {
			s.call(at, 2, http.MethodGet, "/product/*")
		}
		if second%300 > 270 {
			s.call(at, 3, http.MethodGet, s.paths[0])
		}
		if i%90 == 0 {
			s.call(at, 4, http.MethodGet, s.paths[1])
		}
		if i%40 == 0 || (second%200 == 10 && i%2 == 0) || second%250 >= 60 && second%250 < 64 {
			s.addRejected(at, livepage.Unauthorized)
		}
		if i%111 == 0 {
			s.addRejected(at, livepage.NotFound)
		}
	}
}

// status returns the state of the scene, with every counter of every tenant, as the gateway does.
func (s *scene) status() livepage.Status {
	out := livepage.Status{
		Now: sceneNow, Away: s.away,
		Gateway: livepage.Gateway{
			PlansFile: "/srv/sluice/plans.yaml", LoadedMs: sceneNow.Add(-47 * time.Minute).UnixMilli(),
			LastError: s.failure, Listen: "127.0.0.1:8080", Upstream: "http://127.0.0.1:9000",
			StoreBytes: s.store.Bytes(), Routes: 12,
			TryCommands: []string{
				`for i in $(seq 30); do curl -s -o /dev/null -w '%{http_code} ' -H 'X-API-Key: sk_acme_demo' ` +
					`http://127.0.0.1:8080/product/1; done`,
				`curl -i -H 'X-API-Key: sk_globex_demo' http://127.0.0.1:8080/product/1`,
			},
		},
		IPLimits: []livepage.LimitStatus{livepage.StatusOf(&s.ip.Tiers[0], nil, sceneNow, "every route")},
	}
	for _, t := range s.tenants {
		row := livepage.TenantRow{ID: t.id, Plan: t.plan, Suspended: t.suspended}
		for _, l := range t.limits {
			row.Limits = append(row.Limits, s.peek(t, l)...)
		}
		out.Tenants = append(out.Tenants, row)
	}
	return out
}

func (s *scene) peek(t *sceneTenant, l *limit.Limit) []livepage.LimitStatus {
	applies := t.applies[l.ID]
	if applies == "" {
		applies = "every route"
	}
	var d limit.Decision
	if l.Per == limit.PerTenant {
		req := limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: t.id},
			Charges: []limit.Charge{{Limit: l, Cost: 1}}}
		if err := s.store.Peek(context.Background(), &req, sceneNow, &d); err != nil {
			s.t.Error(err)
			return nil
		}
	}
	var out []livepage.LimitStatus
	for i := range l.Tiers {
		var r *limit.Result
		if i < len(d.Results) {
			r = &d.Results[i]
		}
		out = append(out, livepage.StatusOf(&l.Tiers[i], r, sceneNow, applies))
	}
	return out
}

// serve mounts the page as the gateway does, below /_sluice/.
func (s *scene) serve() *httptest.Server {
	s.t.Helper()
	mux := http.NewServeMux()
	mux.Handle("/_sluice/", http.StripPrefix("/_sluice", livepage.Handler(s.recorder, s.status)))
	server := httptest.NewServer(mux)
	s.t.Cleanup(server.Close)
	return server
}

// count returns how many events of the ten minutes that the page shows satisfy the condition.
func (s *scene) count(matches func(e event) bool) int {
	n := 0
	for _, e := range s.events {
		if e.at.Unix()/10 > sceneNow.Unix()/10-60 && matches(e) {
			n++
		}
	}
	return n
}
