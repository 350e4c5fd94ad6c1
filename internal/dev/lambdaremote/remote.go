// Package lambdaremote calls deployed Lambda functions through Lambda's Invoke API.
//
// A call that fails is not repeated: see [New].
package lambdaremote

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/lambda/types"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/sluicelimits/sluice/internal/dev/lambdahost"
)

// connections is how many idle connections stay open. With the SDK's default of 10, a gateway under load would open a
// new connection for most calls.
const connections = 1000

// Client calls the functions of one account and region. It is safe for concurrent use. Make it with [New].
type Client struct{ api *lambda.Client }

// New makes a client with the region, the endpoint and the credentials of the configuration. If the configuration has
// an HTTP client that is not the SDK's, that client is used unchanged.
//
// The retries of the configuration are not used: a call without an answer may have run, and an authorizer that runs
// twice charges twice. API Gateway does not repeat calls, either.
func New(config aws.Config) *Client {
	shared, ok := config.HTTPClient.(*awshttp.BuildableClient)
	if config.HTTPClient == nil {
		shared, ok = awshttp.NewBuildableClient(), true
	}
	if ok {
		config.HTTPClient = shared.WithTransportOptions(func(t *http.Transport) {
			t.MaxIdleConns, t.MaxIdleConnsPerHost = connections, connections
		})
	}
	return &Client{lambda.NewFromConfig(config, func(o *lambda.Options) { o.Retryer = aws.NopRetryer{} })}
}

// Function returns the function of a name. The name may be an ARN, and may end in ":" and an alias or version. Only the
// first call finds out whether the function exists.
func (c *Client) Function(name string) *Function { return &Function{c.api, name} }

// Function is one deployed function. It is safe for concurrent use.
type Function struct {
	api  *lambda.Client
	name string
}

// Invoke calls the function, once, and returns what it answered, whether that is JSON or not. An error wraps one of
//
//   - a [*lambdahost.Error]: the function reported an error, or could not end the call
//   - [lambdahost.ErrTooLarge]: the function was not called
//   - an error of the SDK: Lambda throttled or refused the call, failed, or was not reached
//   - ctx's error: Invoke no longer waits, and the function may still be running
func (f *Function) Invoke(ctx context.Context, payload []byte) ([]byte, error) {
	if len(payload) > lambdahost.MaxRequestBytes {
		return nil, fmt.Errorf("invoke %s: %w: %d bytes, at most %d", f.name, lambdahost.ErrTooLarge, len(payload),
			lambdahost.MaxRequestBytes)
	}
	out, err := f.api.Invoke(ctx, &lambda.InvokeInput{FunctionName: &f.name,
		InvocationType: types.InvocationTypeRequestResponse, Payload: payload},
		traced(lambdahost.TraceID(ctx)))
	switch {
	case err != nil:
		return nil, fmt.Errorf("invoke %s: %w", f.name, err)
	case out.FunctionError != nil:
		return nil, fmt.Errorf("invoke %s: %w", f.name, failed(out))
	case out.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("invoke %s: Lambda answered with status %d; a synchronous call is answered with %d",
			f.name, out.StatusCode, http.StatusOK)
	}
	return out.Payload, nil
}

// traced adds a trace id to a call, unless id is "".
func traced(id string) func(*lambda.Options) {
	return func(o *lambda.Options) {
		if id != "" {
			o.APIOptions = append(o.APIOptions, smithyhttp.SetHeaderValue("X-Amzn-Trace-Id", id))
		}
	}
}

// kinds maps the types of errors that Lambda itself reports to their kinds. Only the type distinguishes them from
// errors that a function reports.
var kinds = map[string]lambdahost.Kind{
	lambdahost.TypeTimeout:      lambdahost.TimedOut,
	lambdahost.TypeExit:         lambdahost.Exited,
	lambdahost.TypeEntrypoint:   lambdahost.InitFailed,
	lambdahost.TypeResponseSize: lambdahost.ResponseSize,
}

// failed returns the error of a call that failed in the function.
func failed(out *lambda.InvokeOutput) *lambdahost.Error {
	var d struct {
		Type    string `json:"errorType"`
		Message string `json:"errorMessage"`
	}
	e := &lambdahost.Error{Kind: lambdahost.Reported, Type: lambdahost.TypeUnknown, Document: out.Payload}
	e.RequestID, _ = awsmiddleware.GetRequestIDMetadata(out.ResultMetadata)
	if err := json.Unmarshal(out.Payload, &d); err != nil {
		e.Message = "the function's error is not a JSON document of errorType and errorMessage"
		return e
	}
	e.Message = d.Message
	if d.Type != "" {
		e.Type = d.Type
	}
	if k, ok := kinds[e.Type]; ok {
		e.Kind = k
	}
	return e
}
