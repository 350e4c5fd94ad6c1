// Package lambdaproxy wraps a Lambda function behind API Gateway. It reads the authorizer's decision from the event,
// answers denied requests, and adds the rate-limit headers to the handler's answers.
//
// It takes the events of REST APIs, HTTP APIs (payload 1.0 and 2.0) and WebSocket APIs with Lambda proxy integrations.
// It links neither a limiter nor aws-lambda-go. With aws-lambda-go:
//
//	lambda.StartHandler(lambdaproxy.Wrap(lambda.NewHandler(handle)))
package lambdaproxy

import (
	"context"

	"github.com/sluicelimits/sluice/caller"
	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/apigw"
)

// Handler is the handler of a Lambda function. lambda.Handler of aws-lambda-go implements it.
type Handler interface {
	Invoke(ctx context.Context, payload []byte) ([]byte, error)
}

// HandlerFunc makes a Handler of a function.
type HandlerFunc func(ctx context.Context, payload []byte) ([]byte, error)

// Invoke implements [Handler].
func (f HandlerFunc) Invoke(ctx context.Context, payload []byte) ([]byte, error) {
	return f(ctx, payload)
}

// Wrap puts itself in front of a handler of proxy events. Calls that were allowed reach the handler, with the event
// unchanged and the caller in the context ([caller.FromContext]). Calls that were denied arrive only if the authorizer
// passes denials on. They are answered with their 429 or 403. A call without a decision, or with a decision that cannot
// be read, is answered with a 403 and never reaches the handler.
//
// The rate-limit headers replace the headers of these names in the handler's response. The rest of the response is
// unchanged, byte for byte. In payload 2.0, API Gateway takes a response without a statusCode for a body: Wrap writes
// it as the complete response that it means. Anything that is not a proxy response passes unchanged, and so do errors.
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
