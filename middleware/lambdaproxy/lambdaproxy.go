// Package lambdaproxy puts Sluice's answers around a Lambda behind API Gateway: it reads what the authorizer decided
// from the event, answers what was denied, and adds the rate-limit headers to what the handler answers.
//
// It takes the events of REST APIs, HTTP APIs (payload 1.0 and 2.0) and WebSocket APIs with Lambda proxy integrations,
// and links neither a limiter nor aws-lambda-go. There:
//
//	lambda.StartHandler(lambdaproxy.Wrap(lambda.NewHandler(handle)))
package lambdaproxy

import (
	"context"

	"github.com/sluicelimits/sluice/caller"
	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/apigw"
)

// Handler is a Lambda's handler: lambda.Handler of aws-lambda-go is one.
type Handler interface {
	Invoke(ctx context.Context, payload []byte) ([]byte, error)
}

// HandlerFunc makes a Handler of a func.
type HandlerFunc func(ctx context.Context, payload []byte) ([]byte, error)

// Invoke implements [Handler].
func (f HandlerFunc) Invoke(ctx context.Context, payload []byte) ([]byte, error) {
	return f(ctx, payload)
}

// Wrap stands before a handler of proxy events. Calls that were allowed reach it, with the event as it came and who
// calls in the context ([caller.FromContext]). Calls that were denied, which come here only where the authorizer passes
// denials on, are answered with their 429 or 403. A call without a decision, or with one that cannot be read, is
// answered with a 403 and never reaches the handler.
//
// The handler's response gets the rate-limit headers, in place of its own of these names; all else of it is handed on
// byte for byte. In payload 2.0 a response without a statusCode, which API Gateway takes for a body, is written out as
// the response that it stands for. What is no response of a proxy, and errors, pass unchanged.
func Wrap(next Handler) Handler { return &wrapped{next} }

type wrapped struct{ next Handler }

// Invoke implements [Handler].
func (h *wrapped) Invoke(ctx context.Context, payload []byte) ([]byte, error) {
	a, version, err := apigw.ReadProxyEvent(payload)
	switch {
	case err != nil:
		denial := &apigw.Answer{Kind: answer.NoDecision, Instance: answer.NewInstance()}
		return refusal(denial), nil //nolint:nilerr // the denial is the answer; an error would become a 502
	case a.Kind != answer.Allowed:
		return refusal(a), nil
	}
	ctx = caller.NewContext(ctx, caller.Caller{Tenant: a.Tenant, Subject: a.Subject, Plan: a.Plan, KeyID: a.KeyID,
		Anonymous: a.Anonymous, StoreFailed: a.StoreFailed})
	response, err := h.next.Invoke(ctx, payload)
	if err != nil {
		return response, err
	}
	return addHeaders(response, &a.Header, version == "2.0"), nil
}
