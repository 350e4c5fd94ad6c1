package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/request/answer"
)

// ofTheAPI returns the assumptions that are checked with an API's answers.
func ofTheAPI() []Assumption {
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
	}, {
		ID: "foreign-denials",
		Says: "If API Gateway itself denies a call (ACCESS_DENIED, for example by a resource policy), the body says " +
			"so, although the authorizer has set no body.",
		Do:    "tell those whom the policy denies to look for `X-Amzn-Errortype`, and report it as an issue of Sluice",
		check: foreignDenials,
	}, {
		ID:    "clocks",
		Says:  "The clocks of API Gateway, of Lambda's environments and of DynamoDB differ by less than 5 s.",
		Do:    "see first whether the clock of this machine is right (`timedatectl`); if it is, report it to AWS",
		check: clocks,
	}}
}

func missingCredential(_ context.Context, t *Target) Finding {
	if f := t.whyUnchecked(); f != nil {
		return *f
	}
	status, passed := t.Calls.Anonymous.Status, false
	for _, a := range t.Calls.Keyed {
		passed = passed || a.Status < http.StatusMultipleChoices
	}
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden && t.Calls.kind() == httpAPI:
		return confirmed("%s answered %d to a call without a credential", t.Calls.kind(), status)
	case status == http.StatusTooManyRequests:
		return unknown("wait a minute and run it again",
			"the call without a credential was answered 429: ipLimits were used up, or a policy denies it")
	case status >= http.StatusInternalServerError, passed && status >= http.StatusBadRequest:
		return violated("%s answered %d to a call without a credential", t.Calls.kind(), status)
	case status < http.StatusBadRequest:
		return unknown(giveURL,
			"a call without a credential was answered %d: the plans let it pass, or the route has no authorizer",
			status)
	}
	return unknown(giveURL, "a call without a credential was answered %d, as where there is no such route", status)
}

func denialHeaders(_ context.Context, t *Target) Finding {
	refusals, f := t.refusals()
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

func denialBody(_ context.Context, t *Target) Finding {
	refusals, f := t.refusals()
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

func absentValues(_ context.Context, t *Target) Finding {
	if f := t.whyUnchecked(); f != nil {
		return *f
	}
	for _, a := range t.Calls.all() {
		for _, name := range answer.Names {
			for _, v := range a.Header.Values(name) {
				if v == "" || v == "null" || strings.Contains(v, "context.") {
					return violated("an answer %d has %s: %q", a.Status, name, v)
				}
			}
		}
	}
	refusals, f := t.refusals()
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

func cacheOff(_ context.Context, t *Target) Finding {
	if f := t.whyUnchecked(); f != nil {
		return *f
	}
	c := t.Calls
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

func foreignDenials(_ context.Context, t *Target) Finding {
	if f := t.whyUnchecked(); f != nil {
		return *f
	}
	for _, a := range t.Calls.all() {
		if !a.denied() || a.isSluices() {
			continue
		}
		var body map[string]any
		if err := json.Unmarshal(a.Body, &body); err != nil || len(body) == 0 {
			return violated("a call that API Gateway itself denied was answered %d with the body %q", a.Status,
				clip(string(a.Body), 80))
		}
		return confirmed("a call that API Gateway itself denied was answered %d with the body %s", a.Status,
			clip(string(a.Body), 120))
	}
	return unknown("run it from an address that a resource policy of the API denies",
		"no call was denied by API Gateway itself")
}

// maxSkew is the clock skew that stores correct, and that changes of shares allow for.
const maxSkew = limit.MaxSkew

func clocks(_ context.Context, t *Target) Finding {
	seen := map[string]*Answer{}
	if t.Calls != nil && t.Calls.Anonymous != nil {
		seen["the API"] = t.Calls.Anonymous
	}
	if t.Operators != nil && t.Operators.Dated != nil {
		seen["the operators' API"] = t.Operators.Dated
	}
	worst := time.Duration(-1)
	for who, a := range seen {
		date, err := http.ParseTime(a.Header.Get("Date"))
		if err != nil {
			continue
		}
		// The answer's second, which began at date, overlaps the call. Of all offsets that explain it, these are the
		// ends.
		low, high := date.Sub(a.Got), date.Add(time.Second).Sub(a.Sent)
		switch {
		case low > maxSkew || high < -maxSkew:
			return violated("the clock of %s is %s off this machine's", who, low.Round(time.Second))
		case low < -maxSkew || high > maxSkew:
			return unknown("run it again over a faster connection", "%s took %s to answer, which hides an offset", who,
				a.Got.Sub(a.Sent).Round(time.Millisecond))
		}
		worst = max(worst, low.Abs(), high.Abs())
	}
	if worst < 0 {
		return unknown(giveURL, "no answer with a Date was seen")
	}
	return confirmed("at most %s off this machine's clock", worst.Round(100*time.Millisecond))
}
