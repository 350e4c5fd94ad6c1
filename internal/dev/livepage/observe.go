package livepage

import (
	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/request/answer"
)

// ObserveAnswer counts a request by what the authorizer answered, see [Recorder.Observe].
func (r *Recorder) ObserveAnswer(a *authorizer.Answer, method string) {
	r.Observe(&Observation{At: a.At, Outcome: outcomeOf(a), Tenant: a.Tenant, Method: method, Path: a.Path(),
		Decision: a.Decision(), IPDecision: a.IPDecision(), Denied: denied(a)})
}

// denied returns the details of a denial that a.Decision does not contain.
func denied(a *authorizer.Answer) (d Denied) {
	switch {
	case a.Kind == answer.NotHere:
		d.Limit, d.Reason = a.NotGranted, NotGranted
		d.Wait, _ = a.RetryAfter()
	case a.Kind == answer.NeverFits && a.Decision() == nil:
		d.Reason, d.Never = Uncountable, true
	}
	return d
}

func outcomeOf(a *authorizer.Answer) Outcome {
	switch a.Kind {
	case answer.Allowed:
		return Allowed
	case answer.IPLimited:
		return IPLimited
	case answer.Limited, answer.NeverFits, answer.NotHere:
		return Limited
	case answer.NoCredential, answer.BadCredential:
		return Unauthorized
	case answer.NoRoute:
		return NotFound
	case answer.Unavailable, answer.Unidentified:
		return StoreFailed
	default:
		return Forbidden
	}
}
