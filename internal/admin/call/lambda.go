package call

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/sluicelimits/sluice/events"
)

// Function is a Lambda function's handler behind a REST API with IAM authorization. Make it with Lambda.
type Function struct{ mux *Mux }

// Lambda answers the events of a REST API's Lambda proxy integration whose methods have AWS_IAM authorization. The actor is
// requestContext.identity.userArn: API Gateway fills it in after it has checked the signature, and nothing that a client
// sends gets there. Without it the method is open, and every call is refused.
//
// The operation is the path parameter "proxy", of a resource {proxy+}, or else the path.
func Lambda(m *Mux) *Function { return &Function{m} }

// event is what of a proxy event is read. Identity's fields are null where the method has another authorization.
type event struct {
	Resource       string            `json:"resource"`
	Path           string            `json:"path"`
	HTTPMethod     string            `json:"httpMethod"`
	Headers        map[string]string `json:"headers"`
	PathParameters map[string]string `json:"pathParameters"`
	Body           string            `json:"body"`
	Base64         bool              `json:"isBase64Encoded"`
	RequestContext struct {
		Identity struct {
			AccountID string `json:"accountId"`
			Caller    string `json:"caller"` // AIDA… of a user, AROA…:session of a role
			UserArn   string `json:"userArn"`
		} `json:"identity"`
	} `json:"requestContext"`
}

// response is what API Gateway makes the answer of.
type response struct {
	StatusCode int               `json:"statusCode"`
	Headers    map[string]string `json:"headers"`
	Body       string            `json:"body"`
	Base64     bool              `json:"isBase64Encoded"`
}

var errEvent = errors.New("not an event of a REST API's Lambda proxy integration")

// Invoke implements aws-lambda-go's Handler. The error is for what is no such event.
func (f *Function) Invoke(ctx context.Context, payload []byte) ([]byte, error) {
	var e event
	if err := json.Unmarshal(payload, &e); err != nil {
		return nil, errEvent
	}
	if e.HTTPMethod == "" || e.Path == "" {
		return nil, errEvent // an HTTP API's has neither
	}
	in := &input{actor: e.actor(), method: e.HTTPMethod, path: e.Path, body: []byte(e.Body)}
	if proxy := e.PathParameters["proxy"]; proxy != "" {
		in.path = proxy
	}
	for name, value := range e.Headers {
		if strings.EqualFold(name, "Content-Type") {
			in.mediaType = value
		}
	}
	if e.Base64 {
		body, err := base64.StdEncoding.DecodeString(e.Body)
		if err != nil {
			return nil, fmt.Errorf("%w: its body is not base64", errEvent)
		}
		in.body = body
	}
	status, answer := f.mux.do(ctx, in)
	return json.Marshal(response{StatusCode: status, Body: string(answer), Headers: map[string]string{
		"Content-Type": "application/json", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
	}})
}

// actor is the caller's ARN, or, where that is too long for a record, its unique id; "" where nobody signed.
func (e *event) actor() string {
	id := &e.RequestContext.Identity
	if id.AccountID == "" || id.Caller == "" || !strings.HasPrefix(id.UserArn, "arn:") {
		return ""
	}
	if events.CheckText(id.UserArn) == nil {
		return id.UserArn
	}
	return "caller " + id.Caller
}
