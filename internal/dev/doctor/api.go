package doctor

import (
	"cmp"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/sluicelimits/sluice/internal/request/answer"
)

// Assumptions returns the assumptions that are checked, in the order of docs/assumptions.md.
func Assumptions() []Assumption {
	return []Assumption{{
		ID: "missing-credential",
		Says: "A call without a credential is answered with 401 by REST and WebSocket APIs, whose authorizer " +
			"returns the error \"Unauthorized\", and with 403 by HTTP APIs, or 401 by the middleware behind them.",
		Do:    "tell clients that this API answers a missing credential with that status; limits hold all the same",
		check: missingCredential,
	}, {
		ID:   "denial-headers",
		Says: "A gateway response's header can be set from `context.authorizer`.",
		Do: "have clients read `limit`, `remaining` and `retry-after-ms` in the body, and report it as an issue " +
			"of Sluice",
		check: denialHeaders,
	}, {
		ID: "denial-body",
		Says: "A gateway response's template puts `$context.authorizer.problemMembers` into the body as it is, " +
			"without escapes.",
		Do:    "have clients read the headers instead of the body, and report it as an issue of Sluice",
		check: denialBody,
	}, {
		ID:    "absent-values",
		Says:  "A header that is mapped from a value which the authorizer's context does not have is left out.",
		Do:    "have clients ignore the empty header; behind a proxy of yours, remove it",
		check: absentValues,
	}, {
		ID: "cache-off",
		Says: "With a result TTL of 0 and no identity source, the authorizer is asked for each call and none of its " +
			"answers is used for another one.",
		Do:    "set the authorizer's result TTL to 0 and deploy the API; until then limits do not hold on it",
		check: cacheOff,
	}}
}

func missingCredential(c *Calls) Finding {
	if f := c.whyUnchecked(); f != nil {
		return *f
	}
	status, passed := c.Anonymous.Status, false
	for _, a := range c.Keyed {
		passed = passed || a.Status < http.StatusMultipleChoices
	}
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden && c.kind() == httpAPI:
		return confirmed("%s answered %d to a call without a credential", c.kind(), status)
	case status == http.StatusTooManyRequests:
		return unknown("wait a minute and run it again",
			"the call without a credential was answered 429: ipLimits were used up, or a policy denies it")
	case status >= http.StatusInternalServerError, passed && status >= http.StatusBadRequest:
		return violated("%s answered %d to a call without a credential", c.kind(), status)
	case status < http.StatusBadRequest:
		return unknown(giveURL,
			"a call without a credential was answered %d: the plans let it pass, or the route has no authorizer",
			status)
	}
	return unknown(giveURL, "a call without a credential was answered %d, as where there is no such route", status)
}

func denialHeaders(c *Calls) Finding {
	refusals, f := c.refusals()
	if f != nil {
		return *f
	}
	seen := 0
	for _, r := range refusals {
		p, ok := r.problem()
		if !ok || p.Limit == nil || p.Remaining == nil {
			continue // the check of denial-body reports bodies that cannot be read
		}
		seen++
		for name, want := range map[string]int64{"X-RateLimit-Limit": *p.Limit, "X-RateLimit-Remaining": *p.Remaining} {
			if got := r.Header.Get(name); got != strconv.FormatInt(want, 10) {
				return violated("a refusal has %s: %q, and %d in its body", name, clip(got, 40), want)
			}
		}
		for _, name := range []string{"RateLimit", "RateLimit-Policy"} {
			if _, err := httpsfv.UnmarshalList(r.Header.Values(name)); err != nil || r.Header.Get(name) == "" {
				return violated("a refusal has %s: %q", name, clip(r.Header.Get(name), 40))
			}
		}
		if wait, err := strconv.ParseInt(r.Header.Get("Retry-After"), 10, 64); p.RetryAfterMs != nil &&
			(err != nil || wait*1000 < *p.RetryAfterMs) {
			return violated("a refusal has Retry-After: %q, and a wait of %d ms in its body",
				clip(r.Header.Get("Retry-After"), 40), *p.RetryAfterMs)
		}
	}
	if seen == 0 {
		return unknown(giveKey, "no refusal by a limit with a body that can be read was seen")
	}
	return confirmed("the headers of a refusal say the same as its body: RateLimit: %s",
		clip(refusals[0].Header.Get("RateLimit"), 80))
}

func denialBody(c *Calls) Finding {
	refusals, f := c.refusals()
	if f != nil {
		return *f
	}
	var p problem
	for _, r := range refusals {
		var ok bool
		if p, ok = r.problem(); !ok {
			return violated("the body of a refusal is no problem of ours: %q", clip(string(r.Body), 80))
		}
		if kind := r.Header.Get("Content-Type"); !strings.HasPrefix(kind, answer.ContentType) {
			return violated("a refusal has Content-Type: %q", clip(kind, 80))
		}
	}
	return confirmed("the body of a refusal is a problem: %q", p.Title)
}

func absentValues(c *Calls) Finding {
	if f := c.whyUnchecked(); f != nil {
		return *f
	}
	for _, a := range c.all() {
		for _, name := range answer.Names {
			for _, v := range a.Header.Values(name) {
				if v == "" || v == "null" || strings.Contains(v, "context.") {
					return violated("an answer %d has %s: %q", a.Status, name, v)
				}
			}
		}
	}
	refusals, f := c.refusals()
	if f != nil {
		return *f
	}
	for _, r := range refusals {
		if p, ok := r.problem(); ok && (p.Limit == nil || p.RetryAfterMs == nil) {
			return confirmed("a refusal without all values has no empty header: %q", p.Title)
		}
	}
	return unknown("give the key of a suspended tenant", "every refusal had all values")
}

func cacheOff(c *Calls) Finding {
	if f := c.whyUnchecked(); f != nil {
		return *f
	}
	switch {
	case !c.HasKey || c.Charge < 2:
		return unknown(giveKey+", at least 2", "it takes two calls with a key")
	case len(c.Keyed) < 2:
		return unknown("run it again", "the API did not answer two calls with the key: %v", c.Err)
	case c.badKey():
		return unknown(giveGoodKey, "a call with the key was answered 401")
	}
	cached := ""
	for i := 1; i < len(c.Keyed); i++ {
		same, differs := compare(&c.Keyed[i-1], &c.Keyed[i])
		if differs != "" {
			return confirmed("two calls in a row differ: %s", clip(differs, 100))
		}
		cached = cmp.Or(cached, same)
	}
	if cached != "" {
		return violated("two calls in a row have the same %s", clip(cached, 100))
	}
	return unknown("give a key whose plan has a quota, or a limit that --charge reaches; calls that pass, and all "+
		"calls of an HTTP API, tell what is left where the backend has the middleware",
		"the answers do not tell what is left, or the limits refill between two calls")
}

// compare compares two consecutive answers. same says what is equal and should differ, which shows that the first
// answer was cached; differs says what differs. Both are "" if nothing can be concluded.
func compare(before, after *Answer) (same, differs string) {
	p, refused := before.problem()
	q, again := after.problem()
	if refused && again && p.Instance != "" {
		if p.Instance == q.Instance {
			return "instance: " + p.Instance, ""
		}
		return "", "instance: " + q.Instance
	}
	left := after.Header.Get("RateLimit")
	switch {
	case refused || again || left == "" || before.Header.Get("RateLimit") == "":
	case left != before.Header.Get("RateLimit"):
		return "", "RateLimit: " + left
	case slow(after, after.Got.Sub(before.Sent)):
		return "RateLimit: " + left, ""
	}
	return "", ""
}

// slow reports whether some limit of an answer refills by less than one unit in the time d. Then its remaining units
// must change with every call.
func slow(a *Answer, d time.Duration) bool {
	list, err := httpsfv.UnmarshalList(a.Header.Values("RateLimit-Policy"))
	if err != nil {
		return false
	}
	for _, member := range list {
		item, ok := member.(httpsfv.Item)
		if !ok {
			continue
		}
		q, _ := item.Params.Get("q")
		w, _ := item.Params.Get("w")
		units, isInt := q.(int64)
		seconds, areInt := w.(int64)
		if isInt && areInt && float64(units)*d.Seconds() < float64(seconds) {
			return true
		}
	}
	return false
}
