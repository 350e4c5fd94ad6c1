package pacer

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"
)

// Advice holds what one reply of a provider says about the provider's limits.
type Advice struct {
	RetryAfter time.Duration // how long the client must send nothing, 0..MaxPeriod
	Limits     []Limit       // limits that the provider states, with a period; at most maxAdvised
	Left       []Left        // what the provider says is left; at most maxAdvised
}

// Left says how many units the client may still spend until the provider refills the limit.
type Left struct {
	// Name tells apart the limits of a provider: the name of a policy, or the beginning of the names of header fields.
	Name string

	Units int64         // 0..MaxUnits
	Until time.Duration // time from the reply to the refill, 0..MaxPeriod
}

// maxAdvised is the largest number of limits that are read from one reply. No known provider states more.
const maxAdvised = 16

// ParseAdvice reads the header of a reply that was received at the given time. It understands
//
//   - Retry-After, in seconds or as a date (RFC 9110);
//   - RateLimit and RateLimit-Policy of draft-ietf-httpapi-ratelimit-headers-08 and later ("default";r=50;t=30), and of
//     draft 07 (limit=100, remaining=50, reset=30);
//   - RateLimit-Limit, -Remaining and -Reset of earlier drafts, and the same names with X-RateLimit or X-Rate-Limit in
//     front, where a reset may be a number of seconds, a time since 1970 in seconds or milliseconds, or a date;
//   - X-RateLimit-Reset-After, in seconds.
//
// It ignores fields that it does not understand, and numbers outside their bounds. It never fails.
func ParseAdvice(h http.Header, received time.Time) Advice {
	var a Advice
	if wait, ok := parseWait(h.Get("Retry-After"), received); ok {
		a.RetryAfter = wait
	}
	a.addStructured(h)
	for _, prefix := range [...]string{"Ratelimit-", "X-Ratelimit-", "X-Rate-Limit-"} {
		a.addFields(h, prefix, received)
	}
	return a
}

func (a *Advice) addLimit(units int64, period time.Duration) {
	l := Limit{Units: units, Period: period}
	if len(a.Limits) < maxAdvised && l.check() == nil {
		a.Limits = append(a.Limits, l)
	}
}

func (a *Advice) addLeft(name string, units int64, until time.Duration) {
	if len(a.Left) < maxAdvised && units >= 0 && units <= MaxUnits && until >= 0 && until <= MaxPeriod {
		a.Left = append(a.Left, Left{name, units, until})
	}
}

// addStructured reads the RateLimit and RateLimit-Policy fields, which are structured fields (RFC 9651). It ignores
// policies that count something else than requests, such as bytes, because their numbers are not in units of a pacer.
func (a *Advice) addStructured(h http.Header) {
	others := map[string]bool{} // the names of ignored policies
	for _, item := range listItems(h.Values("RateLimit-Policy")) {
		name, _ := item.Value.(string)
		if others[name] = countsOthers(item); others[name] {
			continue
		}
		units, ok := integerOf(item, "q")
		if !ok { // until draft 07 the item itself is the number
			units, ok = item.Value.(int64)
		}
		if seconds, hasPeriod := integerOf(item, "w"); ok && hasPeriod {
			a.addLimit(units, inSeconds(seconds))
		}
	}
	fields := h.Values("RateLimit")
	for _, item := range listItems(fields) {
		units, ok := integerOf(item, "r")
		if until, hasTime := integerOf(item, "t"); ok && hasTime {
			if name, _ := item.Value.(string); !others[name] {
				a.addLeft(name, units, inSeconds(until))
			}
		}
	}
	if dictionary, err := httpsfv.UnmarshalDictionary(fields); err == nil {
		member := func(name string) (int64, bool) {
			m, _ := dictionary.Get(name)
			item, _ := m.(httpsfv.Item)
			n, ok := item.Value.(int64)
			return n, ok
		}
		units, ok := member("remaining")
		if until, hasTime := member("reset"); ok && hasTime {
			a.addLeft("", units, inSeconds(until))
		}
	}
}

// countsOthers reports whether a policy counts something else than requests: by the draft's qu, or Sluice's own word.
func countsOthers(policy httpsfv.Item) bool {
	if policy.Params == nil {
		return false
	}
	unit, has := policy.Params.Get("qu") // a string or a token
	_, own := policy.Params.Get("sluice-unit")
	return own || has && !slices.Contains([]string{"requests", "request"}, fmt.Sprint(unit))
}

// listItems returns the items of a structured field that is a list, or nil if the field is something else.
func listItems(values []string) (items []httpsfv.Item) {
	list, err := httpsfv.UnmarshalList(values)
	if err != nil {
		return nil
	}
	for _, member := range list {
		if item, ok := member.(httpsfv.Item); ok && len(items) < maxAdvised {
			items = append(items, item)
		}
	}
	return items
}

// integerOf returns the parameter of an item that has the given name and is an integer.
func integerOf(item httpsfv.Item, name string) (int64, bool) {
	if item.Params == nil {
		return 0, false
	}
	value, _ := item.Params.Get(name)
	n, ok := value.(int64)
	return n, ok
}

// addFields reads the older fields, which have a name for each number: prefix+"Limit", "Remaining" and "Reset".
func (a *Advice) addFields(h http.Header, prefix string, received time.Time) {
	units, ok := parseUnits(h.Get(prefix + "Remaining"))
	if ok {
		until, known := parseWait(h.Get(prefix+"Reset-After"), received)
		if !known {
			until, known = parseWait(h.Get(prefix+"Reset"), received)
		}
		if known {
			a.addLeft(prefix, units, until)
		}
	}
	// In "100, 100;w=60" the first number is the limit that applies now, and all limits follow with their periods.
	for _, item := range listItems(h.Values(prefix + "Limit")) {
		number, isNumber := item.Value.(int64)
		for _, name := range [...]string{"w", "window"} {
			if seconds, ok := integerOf(item, name); ok && isNumber {
				a.addLimit(number, inSeconds(seconds))
			}
		}
	}
}

func parseUnits(text string) (int64, bool) {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	return n, err == nil && n >= 0 && n <= MaxUnits
}

// inSeconds returns n seconds, or -1 if n is not within 0..MaxPeriod. Callers ignore limits with a negative time.
func inSeconds(n int64) time.Duration {
	if n < 0 || n > int64(MaxPeriod/time.Second) {
		return -1
	}
	return time.Duration(n) * time.Second
}

// parseWait reads how long to wait: a number of seconds, which may have a fraction; a time in seconds or milliseconds
// since 1970; or a date. The wait until a time in the past is 0. It reports whether the text is one of these, and the
// wait at most MaxPeriod.
func parseWait(text string, received time.Time) (time.Duration, bool) {
	text = strings.TrimSpace(text)
	if text == "" {
		return 0, false
	}
	// Numbers of seconds above MaxPeriod are times since 1970. 1e11 seconds after 1970 is the year 5138, and 1e11
	// milliseconds after 1970 is the year 1973, so larger numbers are milliseconds.
	const largestSeconds = 1e11
	var until time.Time
	if n, err := strconv.ParseFloat(text, 64); err == nil {
		switch {
		case math.IsNaN(n) || n < 0 || n > 1000*largestSeconds:
			return 0, false
		case n <= MaxPeriod.Seconds():
			return time.Duration(n * float64(time.Second)), true
		case n <= largestSeconds:
			until = time.Unix(int64(n), 0)
		default:
			until = time.UnixMilli(int64(n))
		}
	} else if until, err = http.ParseTime(text); err != nil {
		if until, err = time.Parse(time.RFC3339, text); err != nil {
			return 0, false
		}
	}
	wait := max(until.Sub(received), 0)
	return wait, wait <= MaxPeriod
}
