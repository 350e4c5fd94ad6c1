package answer

import (
	"math/rand/v2"
	"net/http"
	"strconv"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// ContentType is the media type of a problem body.
const ContentType = "application/problem+json"

// Problem is the body of an answer that does not come from the upstream (RFC 9457).
type Problem struct {
	Kind     Kind
	Instance string          // URI of this denial, from NewInstance; also in the log
	Decision *limit.Decision // the decision that denied; nil if no limit did
	Wait     Wait
	Limit    string // for NotHere: the id of the limit of which this cell grants too little; "" if not known

	// Keys and Tokens are the credentials that NoCredential asks for. Both are false if the program identifies callers
	// itself, so that the answer must not name Sluice's headers.
	Keys, Tokens bool
}

// NewInstance makes the URI of a denial: a random UUID.
func NewInstance() string {
	const hex = "0123456789abcdef"
	hi, lo := rand.Uint64()&^0xf000|0x4000, rand.Uint64()&^(3<<62)|2<<62
	b := append(make([]byte, 0, 45), "urn:uuid:"...)
	for i := range 32 {
		if i == 8 || i == 12 || i == 16 || i == 20 {
			b = append(b, '-')
		}
		half := hi
		if i >= 16 {
			half = lo
		}
		b = append(b, hex[half>>(60-4*(i%16))&15])
	}
	return string(b)
}

// Append writes the problem as JSON. It consists of fixed text, numbers, and names in the alphabet of ids. No text of a
// client can occur in it, and nothing needs an escape.
func (p *Problem) Append(b []byte) []byte {
	k := p.Kind.row()
	b = append(b, `{"type":"`...)
	b = append(b, k.typ...)
	b = append(b, `","title":"`...)
	b = append(b, k.title...)
	b = append(b, `","status":`...)
	b = strconv.AppendInt(b, int64(k.status), 10)
	b = append(b, `,"detail":"`...)
	b = append(b, k.detail...)
	if p.Kind == NoCredential {
		b = p.appendCredentials(b)
	}
	b = p.appendDetail(b)
	b = append(b, '"')
	if p.Instance != "" {
		b = append(b, `,"instance":"`...)
		b = append(b, p.Instance...)
		b = append(b, '"')
	}
	b = p.appendPolicies(b)
	if p.Wait.Known {
		b = append(b, `,"retry-after-ms":`...)
		b = strconv.AppendInt(b, p.waitMillis(), 10)
	}
	return append(b, '}')
}

// appendCredentials writes which credentials the API accepts.
func (p *Problem) appendCredentials(b []byte) []byte {
	if p.Keys {
		b = append(b, " Send an API key as 'X-API-Key: KEY' or 'Authorization: Bearer KEY'."...)
	}
	if p.Tokens {
		b = append(b, " Send a token of an issuer that this API accepts as 'Authorization: Bearer TOKEN'."...)
	}
	return b
}

// waitMillis returns the exact wait in milliseconds, rounded up, so that it is never too short. Retry-After is never
// shorter.
func (p *Problem) waitMillis() int64 { return (p.Wait.micros()-1)/1000 + 1 }

func (p *Problem) denier() *limit.Result {
	if p.Decision == nil || p.Decision.Allowed {
		return nil
	}
	return p.Decision.Binding()
}

func (p *Problem) ip() bool { return p.Decision.Owner.Kind == limit.Address }

// appendDetail writes in words what the binding limit allows and what is left of it.
func (p *Problem) appendDetail(b []byte) []byte {
	r := p.denier()
	if p.Kind == NotHere && p.Limit != "" {
		b = append(b, " The limit is '"...)
		b = append(b, p.Limit...)
		b = append(b, '\'')
		if p.Wait.Known {
			b = append(b, "; this cell grants it in "...)
			b = strconv.AppendInt(b, p.waitMillis(), 10)
			b = append(b, " ms"...)
		}
		return append(b, '.')
	}
	if r == nil && p.Kind == NeverFits {
		return append(b, "The cost is more than a limit can count."...)
	}
	if r == nil {
		return b
	}
	b = append(b, "Limit '"...)
	b = appendName(b, r.Tier, p.ip())
	b = append(b, "' "...)
	b = appendRule(b, r.Tier)
	b = append(b, "; "...)
	b = strconv.AppendInt(b, r.Remaining(), 10)
	b = append(b, " left, this request costs "...)
	b = strconv.AppendInt(b, r.Cost, 10)
	b = append(b, r.Limit().UnitSuffix()...)
	switch {
	case r.Never:
		b = append(b, ", which will never fit."...)
	case p.Wait.Known:
		b = append(b, ". It fits in "...)
		b = strconv.AppendInt(b, p.waitMillis(), 10)
		b = append(b, " ms."...)
	default:
		b = append(b, '.')
	}
	return b
}

// appendRule writes what a tier allows: "allows 100 per 10s", "allows 200 at once and 100 per 1s after that".
func appendRule(b []byte, t *limit.Tier) []byte {
	b = append(b, "allows "...)
	if t.Algorithm.HasBurst() {
		b = strconv.AppendInt(b, t.Burst, 10)
		b = append(b, " at once and "...)
	}
	b = strconv.AppendInt(b, t.Threshold, 10)
	b = append(b, t.Limit().UnitSuffix()...)
	b = append(b, " per "...)
	b = appendPeriod(b, t)
	if t.Algorithm.HasBurst() {
		b = append(b, " after that"...)
	}
	return b
}

// appendPolicies writes each policy that denied. For the binding policy, it adds what the policy allows, what is left,
// and what it counts if that is not requests.
func (p *Problem) appendPolicies(b []byte) []byte {
	r := p.denier()
	if r == nil {
		return b
	}
	b = append(b, `,"violated-policies":[`...)
	n := 0
	for i := range p.Decision.Results {
		v := &p.Decision.Results[i]
		if v.Admits || v.Shadow() {
			continue
		}
		if n++; n > 1 {
			b = append(b, ',')
		}
		b = appendQuotedName(b, v.Tier, p.ip())
	}
	b = append(b, `],"binding-policy":`...)
	b = appendQuotedName(b, r.Tier, p.ip())
	b = append(b, `,"limit":`...)
	b = strconv.AppendInt(b, r.Tier.Capacity(), 10)
	b = append(b, `,"remaining":`...)
	b = strconv.AppendInt(b, r.Remaining(), 10)
	if unit := r.Limit().OtherUnit(); unit != "" {
		b = append(append(append(b, `,"unit":"`...), unit...), '"')
	}
	return b
}

// Write sends one of our problems: its body and a line end, with headers that forbid caching. The caller must have set
// the rate-limit headers.
func Write(w http.ResponseWriter, k Kind, body []byte) {
	Describe(w.Header(), k)
	send(w, k, body)
}

// WriteUnchallenged is Write for a program that identifies callers itself: it leaves WWW-Authenticate as it is.
func WriteUnchallenged(w http.ResponseWriter, k Kind, body []byte) {
	describeBody(w.Header())
	send(w, k, body)
}

func send(w http.ResponseWriter, k Kind, body []byte) {
	w.WriteHeader(k.Status())
	_, _ = w.Write(append(body[:len(body):len(body)], '\n')) // an error means that the client is gone
}

// Describe sets the headers that belong to the body of a problem.
func Describe(h http.Header, k Kind) {
	describeBody(h)
	switch k {
	case NoCredential:
		h.Set("WWW-Authenticate", `Bearer realm="sluice"`)
	case BadCredential:
		h.Set("WWW-Authenticate", `Bearer realm="sluice", error="invalid_token"`)
	default: // a credential would not help
	}
}

func describeBody(h http.Header) {
	h.Set("Content-Type", ContentType)
	h.Set("Cache-Control", "no-store") // a cached 429 would be used after its wait
	h.Set("X-Content-Type-Options", "nosniff")
}
