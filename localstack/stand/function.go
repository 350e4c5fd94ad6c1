package stand

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/lambda"

	"github.com/sluicelimits/sluice/internal/testkit/lambdahost"
)

// Function is a deployed function, which is called through Lambda's Invoke API. It is safe for concurrent use.
type Function struct {
	api  *lambda.Client
	name string
}

// Function returns the function of a name. A call that fails is not repeated: it may have run, and an authorizer that
// runs twice charges twice.
func (s *Stand) Function(region, name string) *Function {
	return &Function{name: name,
		api: lambda.NewFromConfig(s.AWS(region), func(o *lambda.Options) { o.Retryer = aws.NopRetryer{} })}
}

// Invoke calls the function, once, and returns what it answered. The error wraps an [*lambdahost.Error] if the function
// reported one, and otherwise an error of the SDK.
func (f *Function) Invoke(ctx context.Context, payload []byte) ([]byte, error) {
	out, err := f.api.Invoke(ctx, &lambda.InvokeInput{FunctionName: &f.name, Payload: payload})
	if err != nil {
		return nil, fmt.Errorf("invoke %s: %w", f.name, err)
	}
	if out.FunctionError == nil {
		return out.Payload, nil
	}
	var d struct{ ErrorType, ErrorMessage string }
	if err := json.Unmarshal(out.Payload, &d); err != nil {
		d.ErrorMessage = "the function's error is not a JSON document of errorType and errorMessage"
	}
	return nil, fmt.Errorf("invoke %s: %w", f.name,
		&lambdahost.Error{Kind: lambdahost.Reported, Type: d.ErrorType, Message: d.ErrorMessage})
}
