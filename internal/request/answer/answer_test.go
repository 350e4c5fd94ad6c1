package answer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
	"github.com/sluicelimits/sluice/internal/request/answer"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func mustLimit(t testing.TB, l limit.Limit) *limit.Limit {
	t.Helper()
	out, err := limit.New(l)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// decide charges the cost to each limit n times at now, and returns the last decision.
func decide(t testing.TB, s limit.Store, owner limit.Owner, now time.Time, n int, cost int64,
	limits ...*limit.Limit) *limit.Decision {
	t.Helper()
	req := &limit.Request{Owner: owner}
	for _, l := range limits {
		req.Charges = append(req.Charges, limit.Charge{Limit: l, Cost: cost})
	}
	d := new(limit.Decision)
	for range n {
		if err := s.Decide(context.Background(), req, now, d); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func newStore(t testing.TB) limit.Store {
	t.Helper()
	s := memorytest.New(t)
	return s
}

func acme() limit.Owner { return limit.Owner{Kind: limit.Tenant, Name: "acme"} }
func address() limit.Owner {
	return limit.Owner{Kind: limit.Address, Name: "00112233445566778899aabbccddeeff"}
}

func bucket(id string, rate, burst int64, period time.Duration) limit.Limit {
	return limit.Limit{ID: id, Tiers: []limit.Tier{{Algorithm: limit.TokenBucket, Threshold: rate, Burst: burst,
		Period: period}}}
}

func TestHeader(t *testing.T) {
	burst := mustLimit(t, bucket("burst", 100, 200, time.Second))
	tiers := mustLimit(t, limit.Limit{ID: "put", Tiers: []limit.Tier{
		{Algorithm: limit.FixedWindow, Threshold: 20, Period: time.Second},
		{Algorithm: limit.FixedWindow, Threshold: 100, Period: 10 * time.Second},
		{Algorithm: limit.SlidingLog, Threshold: 90, Period: 10 * time.Second},
		{Algorithm: limit.LeakyBucket, Threshold: 9, Period: 1500 * time.Millisecond},
	}})
	hidden := mustLimit(t, limit.Limit{ID: "hidden", Mode: limit.Shadow,
		Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: 1, Period: time.Second}}})
	paris, err := time.LoadLocation("Europe/Paris")
	if err != nil {
		t.Fatal(err)
	}
	monthly := mustLimit(t, limit.Limit{ID: "monthly", Tiers: []limit.Tier{{Algorithm: limit.Quota, Threshold: 1000,
		Calendar: &limit.Calendar{Every: limit.Month, Location: paris}}}})
	slow := mustLimit(t, limit.Limit{ID: "slow", MaxCost: 10,
		Tiers: []limit.Tier{{Algorithm: limit.TokenBucket, Threshold: 1, Burst: 5, Period: time.Second}}})
	perIP := mustLimit(t, bucket("burst", 50, 100, time.Second))
	inUnit := func(unit string) *limit.Limit {
		l := bucket(unit, 10, 90, time.Second)
		if l.Unit = unit; unit == limit.ConcurrentRequests {
			l.Tiers[0] = limit.Tier{Algorithm: limit.SlidingBuckets, Threshold: 90, Period: 9 * time.Second}
		}
		return mustLimit(t, l)
	}

	var e answer.Encoder
	for _, c := range []struct {
		name     string
		ip, plan *limit.Decision
		wait     answer.Wait
		want     answer.Header
	}{
		{"nothing applies", nil, nil, answer.Wait{}, answer.Header{}},
		{"nothing applies, store away", nil, nil, answer.Wait{Micros: 1, Known: true}, answer.Header{RetryAfter: "1"}},
		{"one bucket", nil, decide(t, newStore(t), acme(), noon, 1, 150, burst), answer.Wait{}, answer.Header{
			Limit: "200", Remaining: "50", Reset: "2", RateLimit: `"burst";r=50;t=1`, Policy: `"burst";q=200;w=2`}},
		{"shadow only", nil, decide(t, newStore(t), acme(), noon, 1, 1, hidden), answer.Wait{}, answer.Header{}},
		{"shadow beside", nil, decide(t, newStore(t), acme(), noon, 2, 1, hidden, burst), answer.Wait{}, answer.Header{
			Limit: "200", Remaining: "198", Reset: "1", RateLimit: `"burst";r=198;t=1`, Policy: `"burst";q=200;w=2`}},
		{"tiers, binding first", nil, decide(t, newStore(t), acme(), noon.Add(300*time.Millisecond), 1, 8, tiers,
			burst), answer.Wait{}, answer.Header{
			Limit: "9", Remaining: "0", Reset: "2",
			RateLimit: `"put/1500ms";r=0;t=2, "put/1s";r=12;t=1, "put/10s";r=92;t=10, "put/10s.2";r=82;t=10, ` +
				`"burst";r=192;t=1`,
			Policy: `"put/1500ms";q=9;w=2, "put/1s";q=20;w=1, "put/10s";q=100;w=10, "put/10s.2";q=90;w=10, ` +
				`"burst";q=200;w=2`}},
		{"quota over the change to summer time", nil, decide(t, newStore(t), acme(), noon, 1, 1, monthly),
			answer.Wait{}, answer.Header{
				Limit: "1000", Remaining: "999", Reset: strconv.Itoa(31*86400 - 13*3600 - 3600),
				RateLimit: `"monthly";r=999;t=` + strconv.Itoa(31*86400-13*3600-3600), Policy: `"monthly";q=1000;w=` +
					strconv.Itoa(31*86400-3600)}},
		{"an ipLimit of the same id has its own name", decide(t, newStore(t), address(), noon, 1, 1, perIP),
			decide(t, newStore(t), acme(), noon, 1, 1, burst), answer.Wait{}, answer.Header{
				Limit: "100", Remaining: "99", Reset: "1",
				RateLimit: `"ip:burst";r=99;t=1, "burst";r=199;t=1`,
				Policy:    `"ip:burst";q=100;w=2, "burst";q=200;w=2`}},
		{"units", nil, decide(t, newStore(t), acme(), noon, 1, 9, inUnit("requests"), inUnit("tokens"), inUnit("bytes"),
			inUnit("content-bytes"), inUnit("concurrent-requests")), answer.Wait{}, answer.Header{
			Limit: "90", Remaining: "81", Reset: "1",
			RateLimit: `"requests";r=81;t=1, "tokens";r=81;t=1, "bytes";r=81;t=1, "content-bytes";r=81;t=1, ` +
				`"concurrent-requests";r=81;t=1`,
			Policy: `"requests";q=90;w=9, "tokens";q=90;w=9;sluice-unit="tokens", ` +
				`"bytes";q=90;w=9;qu="content-bytes", "content-bytes";q=90;w=9;qu="content-bytes", ` +
				`"concurrent-requests";q=90;w=9;qu="concurrent-requests"`}},
		{"denied", decide(t, newStore(t), address(), noon, 1, 1, perIP), decide(t, newStore(t), acme(), noon, 2, 150,
			burst), answer.Wait{Micros: 1_000_001, Known: true}, answer.Header{
			Limit: "200", Remaining: "50", Reset: "2", RetryAfter: "2",
			RateLimit: `"burst";r=50;t=1, "ip:burst";r=99;t=1`, Policy: `"burst";q=200;w=2, "ip:burst";q=100;w=2`}},
		{"denied until the next unit, and full long after that", nil, decide(t, newStore(t), acme(), noon, 6, 1, slow),
			answer.Wait{Micros: 1_000_000, Known: true}, answer.Header{
				Limit: "5", Remaining: "0", Reset: "5", RetryAfter: "1", RateLimit: `"slow";r=0;t=1`,
				Policy: `"slow";q=5;w=5`}},
		{"denied, and another limit is unused", nil, decide(t, newStore(t), acme(), noon, 1, 6, slow, burst),
			answer.Wait{}, answer.Header{
				Limit: "5", Remaining: "5", Reset: "0", RateLimit: `"slow";r=5;t=1, "burst";r=200;t=1`,
				Policy: `"slow";q=5;w=5, "burst";q=200;w=2`}},
	} {
		got := e.Header(c.ip, c.plan, c.wait)
		if got != c.want {
			t.Errorf("%s:\n got %+v\nwant %+v", c.name, got, c.want)
		}
		parseFields(t, &got)
	}
}

// parseFields checks that both IETF fields are structured-field lists with the same names, and with values of the right
// types.
func parseFields(t *testing.T, h *answer.Header) {
	t.Helper()
	names := func(field, value string, params ...string) (out []string) {
		list, err := httpsfv.UnmarshalList([]string{value})
		if err != nil {
			t.Fatalf("%s: %q is not a structured list: %v", field, value, err)
		}
		for _, m := range list {
			item := m.(httpsfv.Item)
			out = append(out, item.Value.(string))
			for _, p := range params {
				if v, ok := item.Params.Get(p); !ok || v.(int64) < 0 {
					t.Errorf("%s: %q: parameter %s = %v", field, value, p, v)
				}
			}
		}
		return out
	}
	if h.RateLimit == "" && h.Policy == "" {
		return
	}
	left, policies := names("RateLimit", h.RateLimit, "r", "t"), names("RateLimit-Policy", h.Policy, "q", "w")
	if len(left) == 0 || !slices.Equal(left, policies) {
		t.Errorf("RateLimit names %q, RateLimit-Policy names %q", left, policies)
	}
	slices.Sort(policies)
	if len(slices.Compact(policies)) != len(left) {
		t.Errorf("two policies share a name: %q", left)
	}
}

// Guarantees that the headers stay within the size that proxies accept, with any number of limits; that only whole
// items are left out; and that the binding limit is always included.
func TestHeaderIsBounded(t *testing.T) {
	var limits []*limit.Limit
	for i := range 200 {
		limits = append(limits, mustLimit(t, bucket(fmt.Sprintf("%s-%03d", strings.Repeat("n", 60), i), 1e9, 1e12,
			time.Second)))
	}
	limits = append(limits, mustLimit(t, bucket("least", 1, 5, time.Second)))
	var e answer.Encoder
	h := e.Header(nil, decide(t, newStore(t), acme(), noon, 1, 1, limits...), answer.Wait{})
	if h.Limit != "5" || !strings.HasPrefix(h.RateLimit, `"least";`) || !strings.HasPrefix(h.Policy, `"least";`) {
		t.Errorf("the binding limit is not first in the headers: %.80q", h.Policy)
	}
	for _, v := range []string{h.RateLimit, h.Policy} {
		list, err := httpsfv.UnmarshalList([]string{v})
		if err != nil || len(v) > 3072 || len(list) < 20 {
			t.Errorf("%d bytes, %d items, %v; want at most 3072 bytes of whole items: %.80q", len(v), len(list), err, v)
		}
	}
}

// Guarantees that Retry-After is never too early, with jitter or without, for waits of any length. Otherwise clients
// that obey it would be denied again and again.
func TestRetryAfterIsNeverEarly(t *testing.T) {
	for _, jitter := range []int{0, 10, 100} {
		e := answer.Encoder{JitterPercent: jitter}
		longer := false
		for range 20_000 {
			us := rand.Int64N(1 << (1 + rand.IntN(40)))
			h := e.Header(nil, nil, answer.Wait{Micros: us, Known: true})
			got, err := strconv.ParseInt(h.RetryAfter, 10, 64)
			most := (us+us*int64(jitter)/100)/1e6 + 1
			if err != nil || got*1e6 < us || got < 1 || got > most {
				t.Fatalf("jitter %d%%: Retry-After of %d µs is %q, want %d..%d", jitter, us, h.RetryAfter, us/1e6, most)
			}
			longer = longer || got > (us+999_999)/1e6+1
		}
		if longer != (jitter > 0) {
			t.Errorf("with a jitter of %d%%, longer waits were seen: %v", jitter, longer)
		}
	}
}

func TestSetReplacesWhatTheUpstreamSaid(t *testing.T) {
	var e answer.Encoder
	h := e.Header(nil, decide(t, newStore(t), acme(), noon, 1, 1, mustLimit(t, bucket("burst", 1, 5, time.Second))),
		answer.Wait{})
	header := http.Header{"X-Ratelimit-Limit": {"9"}, "Ratelimit": {"9", "9"}, "RateLimit-Policy": {"9"},
		"Retry-After":                   {"7"},
		"Access-Control-Expose-Headers": {"ETag"}}
	h.Set(header)
	want := http.Header{
		"X-Ratelimit-Limit": {"5"}, "X-Ratelimit-Remaining": {"4"}, "X-Ratelimit-Reset": {"1"},
		"Ratelimit": {`"burst";r=4;t=1`}, "Ratelimit-Policy": {`"burst";q=5;w=5`}, "Retry-After": {"7"},
		"Access-Control-Expose-Headers": {"ETag", answer.ExposeHeaders},
	}
	if fmt.Sprint(header) != fmt.Sprint(want) {
		t.Errorf("Set:\n got %v\nwant %v", header, want)
	}
	h.Each(func(name, value string) {
		if !strings.Contains(answer.ExposeHeaders, name) || header.Get(name) != value {
			t.Errorf("header %s: %q is not exposed or not %q", name, value, header.Get(name))
		}
	})
}

type body struct {
	Type, Title, Detail, Instance string
	Status                        int
	Violated                      []string `json:"violated-policies"`
	Binding                       string   `json:"binding-policy"`
	Limit, Remaining              *int64
	Unit                          string
	RetryAfterMs                  *int64 `json:"retry-after-ms"`
}

func parse(t *testing.T, p answer.Problem) body {
	t.Helper()
	text := p.Append(nil)
	var b body
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(&b); err != nil {
		t.Fatalf("%s: %v in %s", p.Kind, err, text)
	}
	return b
}

// Guarantees that each kind of answer except Allowed has a status, a type of its own, and a text for people.
func TestEveryKindHasItsProblem(t *testing.T) {
	types := map[string]answer.Kind{}
	for _, k := range answer.Kinds() {
		if k == answer.Allowed {
			continue
		}
		b := parse(t, answer.Problem{Kind: k, Instance: answer.NewInstance()})
		if b.Status != k.Status() || b.Status < 400 || b.Title == "" || k.String() == "" ||
			!strings.HasPrefix(b.Type, "https://") {
			t.Errorf("%s: %+v", k, b)
		}
		if other, ok := types[b.Type]; ok && !(other == answer.Limited && k == answer.IPLimited) {
			t.Errorf("%s and %s share the type %s", k, other, b.Type)
		}
		types[b.Type] = k
	}
	if answer.Kind(255).Status() != 500 {
		t.Errorf("a kind that does not exist has status %d, want 500", answer.Kind(255).Status())
	}
}

func TestProblemOfADenial(t *testing.T) {
	burst := mustLimit(t, limit.Limit{ID: "burst", MaxCost: 100,
		Tiers: []limit.Tier{{Algorithm: limit.TokenBucket, Threshold: 1, Burst: 5, Period: time.Second}}})
	window := mustLimit(t, limit.Limit{ID: "w",
		Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: 5, Period: 10 * time.Second}}})
	shadow := mustLimit(t, limit.Limit{ID: "hidden", Mode: limit.Shadow,
		Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: 1, Period: time.Hour}}})
	store := newStore(t)
	decide(t, store, acme(), noon, 5, 1, burst, window, shadow)
	d := decide(t, store, acme(), noon.Add(1500*time.Microsecond), 1, 1, burst, window, shadow)
	if d.Allowed {
		t.Fatal("the request is allowed, want a denial")
	}
	b := parse(t, answer.Problem{Kind: answer.Limited, Decision: d,
		Wait: answer.Wait{Micros: d.RetryAt - d.Now, Known: true}})
	if !slices.Equal(b.Violated, []string{"burst", "w"}) || b.Binding != "w" || *b.Limit != 5 || *b.Remaining != 0 ||
		*b.RetryAfterMs != 9999 {
		t.Errorf("denial: %+v, limit %d, remaining %d, retry-after-ms %d", b, *b.Limit, *b.Remaining, *b.RetryAfterMs)
	}
	if want := "Limit 'w' allows 5 per 10s; 0 left, this request costs 1. It fits in 9999 ms."; b.Detail != want ||
		b.Unit != "" {
		t.Errorf("detail = %q, want %q; unit %q", b.Detail, want, b.Unit)
	}
	spend := mustLimit(t, limit.Limit{ID: "spend", Unit: "micro-usd",
		Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: 500, Period: time.Minute}}})
	b = parse(t, answer.Problem{Kind: answer.Limited, Decision: decide(t, store, acme(), noon, 2, 300, spend),
		Wait: answer.Wait{Micros: 1000, Known: true}})
	if want := "Limit 'spend' allows 500 micro-usd per 1m; 200 left, this request costs 300 micro-usd. It fits in " +
		"1 ms."; b.Detail != want || b.Unit != "micro-usd" || *b.Remaining != 200 {
		t.Errorf("detail = %q, want %q; unit %q, remaining %d", b.Detail, want, b.Unit, *b.Remaining)
	}
	never := decide(t, store, acme(), noon.Add(time.Minute), 1, 6, burst)
	b = parse(t, answer.Problem{Kind: answer.NeverFits, Decision: never})
	if !never.Never || b.RetryAfterMs != nil || !strings.Contains(b.Detail, "never") || *b.Remaining != 5 {
		t.Errorf("never: %+v of %+v", b, never)
	}
	b = parse(t, answer.Problem{Kind: answer.IPLimited, Decision: decide(t, newStore(t), address(), noon, 6, 1, window),
		Wait: answer.Wait{Known: true, Micros: 1}})
	if b.Binding != "ip:w" || *b.RetryAfterMs != 1 {
		t.Errorf("ipLimit: %+v", b)
	}
}

func TestNewInstance(t *testing.T) {
	form := regexp.MustCompile(`^urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	seen := map[string]bool{}
	for range 1000 {
		i := answer.NewInstance()
		if !form.MatchString(i) || seen[i] {
			t.Fatalf("NewInstance() = %q, seen before: %v", i, seen[i])
		}
		seen[i] = true
	}
}
