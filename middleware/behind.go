package middleware

import (
	"net/http"
	"strings"

	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/apigw"
)

// Source says where a service behind API Gateway finds the authorizer's decision. Use the source that your gateway
// writes, and no other: a client can write what the gateway does not.
type Source uint8

// The sources.
const (
	// MappedHeaders are headers that the gateway overwrites with values of the authorizer's context. X-Sluice-Caller is
	// required. It holds the decision and the caller. It always has a value, so the mapping always replaces what a
	// client sends. The service must not be reachable around the gateway, or by a route without the authorizer, where
	// the value is absent. For an HTTP API, set these parameter mappings of the integration:
	//
	//	overwrite:header.x-sluice-caller            $context.authorizer.caller
	//	overwrite:header.x-sluice-limit             $context.authorizer.rateLimitLimit
	//	overwrite:header.x-sluice-remaining         $context.authorizer.rateLimitRemaining
	//	overwrite:header.x-sluice-reset             $context.authorizer.rateLimitReset
	//	overwrite:header.x-sluice-ratelimit         $context.authorizer.rateLimit
	//	overwrite:header.x-sluice-ratelimit-policy  $context.authorizer.rateLimitPolicy
	//	overwrite:header.x-sluice-retry-after       $context.authorizer.retryAfter
	//	overwrite:header.x-sluice-problem           $context.authorizer.problem
	//
	// For a REST API, set request parameters of the integration:
	//
	//	integration.request.header.x-sluice-caller  context.authorizer.caller
	//
	// and the others in the same way. All headers but the first only affect the answer to the client that sends them.
	MappedHeaders Source = iota + 1

	// LambdaWebAdapter is the header x-amzn-request-context. The AWS Lambda Web Adapter writes it, over a client's own,
	// when it runs a web service as a Lambda function behind API Gateway.
	LambdaWebAdapter
)

// The headers of MappedHeaders, in canonical form.
const (
	callerHeader     = "X-Sluice-Caller"
	limitHeader      = "X-Sluice-Limit"
	remainingHeader  = "X-Sluice-Remaining"
	resetHeader      = "X-Sluice-Reset"
	rateLimitHeader  = "X-Sluice-Ratelimit"
	policyHeader     = "X-Sluice-Ratelimit-Policy"
	retryAfterHeader = "X-Sluice-Retry-After"
	problemHeader    = "X-Sluice-Problem"

	adapterHeader = "X-Amzn-Request-Context"
)

// maxLineBytes is more than the length of any header that the authorizer writes.
const maxLineBytes = 8 << 10

// Behind is for a service behind API Gateway with Sluice's authorizer. Requests that were allowed reach the handler,
// and their answers get the rate-limit headers. If the authorizer passes denials on, which is the only way to a true
// 429 or 403 on an HTTP API, Behind answers them. It answers 403, without calling the handler, if a request has no
// decision, two decisions, or one that cannot be read, and if the source is unknown.
func Behind(source Source) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			a, err := source.read(r.Header)
			switch {
			case err != nil:
				none := apigw.Answer{Kind: answer.NoDecision, Instance: answer.NewInstance()}
				answer.Write(w, none.Kind, none.Body())
			case a.Kind != answer.Allowed:
				a.Header.Set(w.Header())
				answer.Write(w, a.Kind, a.Body())
			default:
				pass(next, w, r, a.Header.Set,
					&Caller{Tenant: a.Tenant, Subject: a.Subject, Plan: a.Plan, KeyID: a.KeyID,
						Anonymous: a.Anonymous, StoreFailed: a.StoreFailed}, nil)
			}
		})
	}
}

// read returns the decision that the headers of a request hold.
func (s Source) read(h http.Header) (*apigw.Answer, error) {
	switch s {
	case MappedHeaders:
		return readMapped(h)
	case LambdaWebAdapter:
		line, err := only(h, adapterHeader)
		if err != nil {
			return nil, err
		}
		return apigw.ReadRequestContext([]byte(line))
	}
	return nil, apigw.ErrContext
}

// only returns the value of a header that occurs once. A second value is an error: a mapping overwrites, so somebody
// else wrote one of the two.
func only(h http.Header, name string) (string, error) {
	if lines := h[name]; len(lines) == 1 {
		return lines[0], nil
	}
	return "", apigw.ErrContext
}

func readMapped(h http.Header) (*apigw.Answer, error) {
	text, err := only(h, callerHeader)
	if err != nil {
		return nil, err
	}
	a, err := apigw.ReadCaller(text)
	if err != nil {
		return nil, err
	}
	a.Header = answer.Header{Limit: oneLine(h, limitHeader), Remaining: oneLine(h, remainingHeader),
		Reset:     oneLine(h, resetHeader),
		RateLimit: oneLine(h, rateLimitHeader), Policy: oneLine(h, policyHeader),
		RetryAfter: oneLine(h, retryAfterHeader)}
	a.Problem = []byte(oneLine(h, problemHeader))
	return &a, nil
}

// oneLine returns the value of an optional header if the authorizer could have written it, and "" otherwise.
func oneLine(h http.Header, name string) string {
	line, err := only(h, name)
	if err != nil || len(line) > maxLineBytes ||
		strings.IndexFunc(line, func(c rune) bool { return c < ' ' || c > '~' }) >= 0 {
		return ""
	}
	return line
}
