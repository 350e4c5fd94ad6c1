package answer

import (
	"math/bits"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// maxFieldBytes bounds RateLimit and RateLimit-Policy, each, because proxies and API Gateway bound the sum of all
// headers. The binding policy comes first and is never left out.
const maxFieldBytes = 3072

// maxRetryAfter bounds Retry-After and t, in seconds. It is longer than the period of any limit.
const maxRetryAfter = 10 * 366 * 86400

// ExposeHeaders is the value of Access-Control-Expose-Headers: the headers that scripts in browsers may read.
const ExposeHeaders = "RateLimit, RateLimit-Policy, Retry-After, X-RateLimit-Limit, X-RateLimit-Remaining, " +
	"X-RateLimit-Reset"

// expose is shared by all responses. Its capacity equals its length, so appending to it makes a copy.
var expose = []string{ExposeHeaders}[:1:1]

// Header holds the values of the rate-limit headers. A header that is "" is not sent. The strings share one allocation.
type Header struct {
	// X-RateLimit-…, of the binding limit; Reset is the seconds until the reset, rounded up
	Limit, Remaining, Reset string
	RateLimit, Policy       string // RateLimit, RateLimit-Policy
	RetryAfter              string // seconds, rounded up
}

// Names are the headers of [Header] as they are spelled in responses, in the order of [Header.Each].
var Names = [...]string{"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "RateLimit",
	"RateLimit-Policy", "Retry-After"}

// Each calls f for every header that is sent.
func (h *Header) Each(f func(name, value string)) {
	for i, v := range h.values() {
		if v != "" {
			f(Names[i], v)
		}
	}
}

// Set writes the headers, and Access-Control-Expose-Headers, to the headers of a response. Their names are in Go's
// canonical form, so that http.Header.Get finds them. They replace headers of these names that are spelled like that or
// as in Names. Calling Set twice has the effect of one call.
func (h *Header) Set(header http.Header) {
	values := new([len(Names)]string) // the one allocation for all values; each entry of the map is a slice of it
	*values = h.values()
	for i, v := range values {
		if i < len(Names)-1 || v != "" { // the upstream's own Retry-After stays if we have none
			delete(header, canonical[i])
			delete(header, Names[i])
		}
		if v != "" {
			header[canonical[i]] = values[i : i+1 : i+1]
		}
	}
	if exposed := header["Access-Control-Expose-Headers"]; len(exposed) == 0 {
		header["Access-Control-Expose-Headers"] = expose
	} else if !slices.Contains(exposed, ExposeHeaders) {
		header["Access-Control-Expose-Headers"] = append(slices.Clip(exposed), ExposeHeaders)
	}
}

func (h *Header) values() [len(Names)]string {
	return [...]string{h.Limit, h.Remaining, h.Reset, h.RateLimit, h.Policy, h.RetryAfter}
}

var canonical = func() (c [len(Names)]string) {
	for i, n := range Names {
		c[i] = http.CanonicalHeaderKey(n)
	}
	return c
}()

// Wait is the time until a denied request fits. The algorithms compute it (limit.Decision.RetryAt), and package
// authorizer decides which wait the client is told.
type Wait struct {
	Micros int64 // µs from the decision on; headers round it up
	Known  bool  // false if no wait helps, or none is known
}

// micros returns the wait that is sent: at least 1 µs, and at most maxRetryAfter.
func (w Wait) micros() int64 { return min(max(w.Micros, 1), maxRetryAfter*1e6) }

// Encoder makes headers. The zero Encoder is ready to use and safe for concurrent use.
type Encoder struct {
	// JitterPercent is the most by which Retry-After is lengthened, in percent of the wait, 0..100; default 0. The
	// actual part is random, so that clients that were denied together do not return together. Retry-After is never
	// shortened.
	JitterPercent int
}

// Header encodes the decisions over the ipLimits and over the plan's limits. Either may be nil. wait is that of a
// denial.
func (e *Encoder) Header(ip, plan *limit.Decision, wait Wait) Header {
	var (
		few  [768]byte
		ends [6]int
		h    Header
	)
	b := few[:0]
	if d, r := Binding(ip, plan); r != nil {
		left := CeilSeconds(r.ResetAt() - d.Now)
		b = strconv.AppendInt(b, r.Tier.Capacity(), 10)
		ends[0] = len(b)
		b = strconv.AppendInt(b, r.Remaining(), 10)
		ends[1] = len(b)
		b = strconv.AppendInt(b, left, 10)
		ends[2] = len(b)
		b = e.list(b, ip, plan, r, false)
		ends[3] = len(b)
		b = e.list(b, ip, plan, r, true)
		ends[4] = len(b)
	}
	if wait.Known {
		b = strconv.AppendInt(b, e.retryAfter(wait), 10)
	}
	ends[5] = len(b)
	s := string(b)
	h.Limit, h.Remaining, h.Reset = s[:ends[0]], s[ends[0]:ends[1]], s[ends[1]:ends[2]]
	h.RateLimit, h.Policy, h.RetryAfter = s[ends[2]:ends[3]], s[ends[3]:ends[4]], s[max(ends[4], 0):]
	return h
}

// retryAfter returns the wait in whole seconds, rounded up and with jitter, at least 1.
func (e *Encoder) retryAfter(w Wait) int64 {
	us := w.micros()
	if e.JitterPercent > 0 {
		if most := us / 100 * int64(min(e.JitterPercent, 100)); most > 0 {
			us += rand.Int64N(most + 1)
		}
	}
	return CeilSeconds(us)
}

// list writes a structured-field list with an item for each enforcing result, the binding one first. The items are what
// is left, or the policies.
func (e *Encoder) list(b []byte, ip, plan *limit.Decision, first *limit.Result, policies bool) []byte {
	start := len(b)
	for pass := range 2 {
		for _, d := range [...]*limit.Decision{plan, ip} {
			if d == nil {
				continue
			}
			for i := range d.Results {
				r := &d.Results[i]
				if r.Shadow() || (r == first) != (pass == 0) {
					continue
				}
				before := len(b)
				if before > start {
					b = append(b, ", "...)
				}
				if policies {
					b = appendPolicy(b, d, r, d == ip)
				} else {
					b = appendLeft(b, d, r, d == ip)
				}
				if len(b)-start > maxFieldBytes {
					return b[:before]
				}
			}
		}
	}
	return b
}

// appendLeft writes an item of RateLimit: "burst";r=12;t=5. The draft says that no more than r can be used within t,
// and that Retry-After should not be shorter than t. Here t is the number of seconds until more than r remains, if
// nothing is charged meanwhile. Retry-After is not shorter than the t of any limit that denied, because both are
// rounded in the same way and a denied cost needs more than r.
func appendLeft(b []byte, d *limit.Decision, r *limit.Result, ip bool) []byte {
	b = appendQuotedName(b, r.Tier, ip)
	b = append(b, ";r="...)
	b = strconv.AppendInt(b, r.Remaining(), 10)
	b = append(b, ";t="...)
	return strconv.AppendInt(b, CeilSeconds(Wait{Micros: r.MoreAt() - d.Now}.micros()), 10)
}

// appendPolicy writes an item of RateLimit-Policy: "burst";q=200;w=2. What q counts follows if it is not requests.
func appendPolicy(b []byte, d *limit.Decision, r *limit.Result, ip bool) []byte {
	b = appendQuotedName(b, r.Tier, ip)
	b = append(b, ";q="...)
	b = strconv.AppendInt(b, r.Tier.Capacity(), 10)
	b = append(b, ";w="...)
	b = strconv.AppendInt(b, WindowSeconds(r.Tier, d.Now), 10)
	if unit := r.Limit().OtherUnit(); unit != "" {
		b = appendUnit(b, unit)
	}
	return b
}

// appendUnit writes what a policy counts. The draft's parameter qu has only the values of a registry. All other units
// have a parameter of our own, with a prefix, as the draft wants it. Units need no escapes.
func appendUnit(b []byte, unit string) []byte {
	name := ";sluice-unit="
	switch unit {
	case "bytes":
		name, unit = ";qu=", "content-bytes"
	case "content-bytes", "concurrent-requests":
		name = ";qu="
	}
	return append(append(append(append(b, name...), '"'), unit...), '"')
}

// appendQuotedName writes the name as a quoted string. Its characters need no escapes.
func appendQuotedName(b []byte, t *limit.Tier, ip bool) []byte {
	b = append(b, '"')
	b = appendName(b, t, ip)
	return append(b, '"')
}

// Binding returns the result that decided a denial, or else the result with the smallest part left over both decisions;
// on a tie, that of the plan. It returns nil if there is no enforcing result. Either decision may be nil.
func Binding(ip, plan *limit.Decision) (*limit.Decision, *limit.Result) {
	if ip != nil && !ip.Allowed {
		return ip, ip.Binding()
	}
	var fromIP, fromPlan *limit.Result
	if ip != nil {
		fromIP = ip.Binding()
	}
	if plan != nil {
		fromPlan = plan.Binding()
	}
	switch {
	case fromPlan == nil:
		return ip, fromIP
	case fromIP == nil || !plan.Allowed:
		return plan, fromPlan
	}
	ihi, ilo := bits.Mul64(uint64(fromIP.Remaining()), uint64(fromPlan.Tier.Capacity()))
	phi, plo := bits.Mul64(uint64(fromPlan.Remaining()), uint64(fromIP.Tier.Capacity()))
	if ihi < phi || (ihi == phi && ilo < plo) {
		return ip, fromIP
	}
	return plan, fromPlan
}
