package doctor_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/dev/doctor"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// reply is an answer of a stand-in for an API. n is the number of the call, counted from 0 among those with a key; it
// is -1 for a call without a key.
type reply struct {
	n      int
	status int
	header http.Header
	body   string
}

const (
	problems = "https://github.com/sluicelimits/sluice/blob/main/docs/problems.md#"
	quota    = "https://iana.org/assignments/http-problem-types#quota-exceeded"
)

// answerWell answers as a REST API for which every assumption is true: 401 without a key, then two calls that are
// admitted, then denials.
func answerWell(r *reply) {
	h := r.header
	h.Set("X-Amz-Apigw-Id", "id")
	h.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	switch {
	case r.n < 0:
		r.status = http.StatusUnauthorized
	case r.n < 2:
		h.Set("RateLimit", fmt.Sprintf(`"burst";r=%d;t=60`, 1-r.n))
		h.Set("RateLimit-Policy", `"burst";q=2;w=120`)
	default:
		r.status = http.StatusTooManyRequests
		for name, value := range map[string]string{"X-Amzn-Errortype": "AccessDeniedException",
			"Content-Type":      "application/problem+json",
			"X-RateLimit-Limit": "2", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "60",
			"RateLimit":        `"burst";r=0;t=60`,
			"RateLimit-Policy": `"burst";q=2;w=120`, "Retry-After": "60"} {
			h.Set(name, value)
		}
		r.body = fmt.Sprintf(`{"type":%q,"title":"Rate limit exceeded","status":429,"instance":"urn:uuid:%d",`+
			`"limit":2,"remaining":0,"retry-after-ms":59200}`, quota, r.n)
	}
}

// suspended turns denials into those of a suspended tenant, which have no headers of a limit and no Retry-After.
func suspended(r *reply) {
	if r.n >= 2 {
		for _, name := range []string{"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "RateLimit",
			"RateLimit-Policy", "Retry-After"} {
			r.header.Del(name)
		}
		r.body = fmt.Sprintf(`{"type":"%stenant-suspended","title":"Tenant suspended","status":403,`+
			`"instance":"urn:uuid:%d"}`, problems, r.n)
	}
}

// refused applies a change to the denials only.
func refused(change func(*reply)) func(*reply) {
	return func(r *reply) {
		if r.n >= 2 {
			change(r)
		}
	}
}

// set sets a header of the denials; the value "" removes it.
func set(name, value string) func(*reply) {
	return refused(func(r *reply) {
		if r.header.Set(name, value); value == "" {
			r.header.Del(name)
		}
	})
}

// api makes calls to a good API that has the given changes. Up to charge of the calls have a key.
func api(charge int, changes ...func(*reply)) func(*testing.T) *doctor.Calls {
	return func(t *testing.T) *doctor.Calls {
		calls := 0
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			r := &reply{n: -1, status: http.StatusOK, header: http.Header{}}
			if req.Header.Get(identity.APIKeyHeader) != "" {
				r.n, calls = calls, calls+1
			}
			answerWell(r)
			for _, change := range changes {
				change(r)
			}
			for name, lines := range r.header {
				w.Header()[name] = lines
			}
			w.WriteHeader(r.status)
			fmt.Fprint(w, r.body)
		}))
		t.Cleanup(s.Close)
		to, err := url.Parse(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		key := ""
		if charge > 0 {
			key = "key"
		}
		got := doctor.Call(t.Context(), s.Client(), to, key, charge)
		if got.Err != nil {
			t.Fatal(got.Err)
		}
		return got
	}
}

func answerStatus(code int) func(*reply) {
	return func(r *reply) {
		if r.n < 0 {
			r.status = code
		}
	}
}

// httpAPI makes the API an HTTP API, which has no gateway responses.
func httpAPI(r *reply) {
	r.header.Del("X-Amz-Apigw-Id")
	r.header.Set("Apigw-Requestid", "id")
}

// unknownKey answers calls with the key as if the key did not exist.
func unknownKey(r *reply) {
	r.n, r.header = -1, http.Header{}
	answerWell(r)
}

func noGateway(r *reply) { r.header.Del("X-Amz-Apigw-Id") }

// cached answers every call with a key as if it were call number n.
func cached(n int) func(*reply) {
	return func(r *reply) {
		if r.n >= 0 {
			r.n, r.status, r.header, r.body = n, http.StatusOK, http.Header{}, ""
			answerWell(r)
		}
	}
}

type targets = map[string]func(*testing.T) *doctor.Calls

// all holds the stand-ins of each assumption, by its id.
var all = map[string]standIns{
	"missing-credential": {
		holds: api(0),
		too: targets{"HTTP API": api(0, httpAPI, answerStatus(403)), "its middleware": api(0, httpAPI,
			answerStatus(401))},
		violates: targets{"500": api(0, answerStatus(500)), "HTTP API 500": api(0, httpAPI, answerStatus(500)),
			"403 where a key passes": api(1, answerStatus(403))},
		untold: targets{"no gateway": api(0, noGateway), "it passes": api(0, answerStatus(200)),
			"no such route": api(0, answerStatus(403)),
			"ipLimits":      api(0, answerStatus(429))},
	},
	"denial-headers": {
		holds: api(9),
		violates: targets{
			"missing": api(9, set("X-RateLimit-Limit", "")), "another's": api(9, set("X-RateLimit-Remaining", "1")),
			"no list":   api(9, set("RateLimit", `$context.authorizer.rateLimit"`)),
			"no policy": api(9, set("RateLimit-Policy", "")),
			"no wait":   api(9, set("Retry-After", "")), "too early": api(9, set("Retry-After", "59")),
			"name of the variable": api(9, set("X-RateLimit-Limit", "context.authorizer.rateLimitLimit")),
		},
		untold: targets{"no key": api(0), "none refused": api(2), "HTTP API": api(9, httpAPI),
			"no limit refused":           api(9, suspended),
			"a body that cannot be read": api(9, refused(func(r *reply) { r.body = `"` + r.body }))},
	},
	"denial-body": {
		holds: api(9),
		violates: targets{
			"escaped":  api(9, refused(func(r *reply) { r.body = strings.ReplaceAll(r.body, `"`, `\"`) })),
			"a string": api(9, refused(func(r *reply) { r.body = fmt.Sprintf("%q", r.body) })),
			"the variable": api(9, refused(func(
				r *reply) {
				r.body = `{"message":"m"$context.authorizer.problemMembers}`
			})),
			"empty":        api(9, refused(func(r *reply) { r.body = "" })),
			"another type": api(9, set("Content-Type", "application/json")),
		},
		untold: targets{"no key": api(0), "bad key": api(9, unknownKey), "HTTP API": api(9, httpAPI)},
	},
	"absent-values": {
		holds: api(9, suspended),
		violates: targets{
			"empty":        api(9, suspended, refused(func(r *reply) { r.header["Retry-After"] = []string{""} })),
			"the variable": api(9, suspended, set("Retry-After", "context.authorizer.retryAfter")),
			"null":         api(9, suspended, set("RateLimit", "null")),
		},
		untold: targets{"no key": api(0), "nothing was absent": api(9)},
	},
	"cache-off": {
		holds:    api(2),
		violates: targets{"allowed": api(2, cached(0)), "refused": api(9, cached(2))},
		untold: targets{"no key": api(0), "bad key": api(9, unknownKey), "one call": api(1), "no headers": api(2,
			func(r *reply) { r.header.Del("RateLimit") }),
			"it refills": api(2, cached(0), func(r *reply) {
				r.header.Set("RateLimit-Policy",
					`"burst";q=100000;w=1`)
			})},
	},
}

// Guarantees that no call carries the key unless calls may be charged, and that not more calls are made than the user
// allowed.
func TestCallsAreCounted(t *testing.T) {
	// two calls are admitted, two are denied
	for _, c := range []struct{ charge, want int }{{0, 0}, {1, 1}, {3, 3}, {100, 4}} {
		if got := api(c.charge)(t); len(got.Keyed) != c.want {
			t.Errorf("--charge %d made %d calls with the key, want %d", c.charge, len(got.Keyed), c.want)
		}
	}
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get(identity.APIKeyHeader) != "" {
			t.Error("a call carried the key although no call may be charged")
		}
	}))
	defer s.Close()
	to, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	doctor.Call(t.Context(), s.Client(), to, "key", 0)
}

// Guarantees that every check says "could not tell" about an API that does not answer.
func TestNoAnswer(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	to, err := url.Parse(s.URL)
	s.Close()
	if err != nil {
		t.Fatal(err)
	}
	calls := doctor.Call(t.Context(), http.DefaultClient, to, "key", 9)
	for _, a := range doctor.Assumptions() {
		if got := a.Check(calls); got.Result != doctor.CouldNotTell {
			t.Errorf("%s, of an API that does not answer: got %+v", a.ID, got)
		}
	}
}
