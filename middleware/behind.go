package middleware

import (
	"net/http"
	"strings"

	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/apigw"
)

// Source is where a service behind API Gateway finds what the authorizer decided. Use the one that your gateway writes,
// and no other: what it does not write, a client can.
type Source uint8

// The sources.
const (
	// MappedHeaders are headers that the gateway overwrites with values of the authorizer's context. X-Sluice-Caller is
	// required: it holds the decision and who calls, and is always there, so a client's own never gets through a
	// mapping that has it. The service must not be reachable around the gateway, nor by a route without the authorizer,
	// where the value is absent. As parameter mappings of an HTTP API's integration:
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
	// as request parameters of a REST API's integration:
	//
	//	integration.request.header.x-sluice-caller  context.authorizer.caller
	//
	// and so on. All but the first only shape the answer that this very client gets.
	MappedHeaders Source = iota + 1

	// LambdaWebAdapter is the header x-amzn-request-context that the AWS Lambda Web Adapter writes, over a client's
	// own, when it runs a web service as a Lambda behind API Gateway.
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

// maxLineBytes is longer than any line that the authorizer writes.
const maxLineBytes = 8 << 10

// Behind stands in a service behind API Gateway with Sluice's authorizer. Requests that were allowed reach the handler,
// and their answers get the rate-limit headers. Where the authorizer passes denials on (the only way to a true 429 or
// 403 on an HTTP API), it answers them. A request without a decision, with two, or with one that it does not understand
// gets a 403 and never reaches the handler, and so does each one where the source is unknown.
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
						Anonymous: a.Anonymous, StoreFailed: a.StoreFailed})
			}
		})
	}
}

// read finds the decision in a request's headers.
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

// only is the one line of a header. Two are one too many: a mapping overwrites, so somebody else wrote the second.
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

// oneLine is the one line of a header that may be left out, if the authorizer could have written it; "" otherwise.
func oneLine(h http.Header, name string) string {
	line, err := only(h, name)
	if err != nil || len(line) > maxLineBytes ||
		strings.IndexFunc(line, func(c rune) bool { return c < ' ' || c > '~' }) >= 0 {
		return ""
	}
	return line
}
