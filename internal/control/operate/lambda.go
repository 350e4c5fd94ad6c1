package operate

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/sluicelimits/sluice/events"
)

// Function handles the events of a Lambda function behind a REST API with IAM authorization. Make it with Lambda.
type Function struct {
	mux *Mux
	api string
}

// Lambda returns a handler for the events of a REST API's Lambda proxy integration whose methods have AWS_IAM
// authorization. The actor is requestContext.identity.userArn. API Gateway sets it after it has checked the signature;
// a client cannot set it. If it is absent, the method has no authorization, and every call is refused.
//
// api is the id and the stage of the only API that the function answers, as in "a1b2c3/v1". For an event of another
// API, or a direct invocation with any other payload, the function returns an error. If api is empty, no event is
// answered.
//
// Limitation: an identity in the account that has lambda:InvokeFunction on the function can forge a whole event with
// any userArn. Nothing in an event proves that API Gateway sent it, and a function's own policy cannot deny what an
// identity's policy allows. CloudTrail records who invoked the function: for a call through the API, the caller is
// apigateway.amazonaws.com. See docs/audit.md.
//
// The operation is the resource that API Gateway has found, or, for a resource {proxy+}, its path parameter "proxy".
// The path of the call must end with exactly that text, since API Gateway also finds a resource for a path with an
// additional slash, and decodes parameters.
func Lambda(m *Mux, api string) *Function { return &Function{m, api} }

// event is the part of a proxy event that is read. The fields of Identity are null if the method has another kind of
// authorization.
type event struct {
	Resource       string            `json:"resource"`
	Path           string            `json:"path"`
	HTTPMethod     string            `json:"httpMethod"`
	Headers        map[string]string `json:"headers"`
	PathParameters map[string]string `json:"pathParameters"`
	Body           string            `json:"body"`
	Base64         bool              `json:"isBase64Encoded"`
	RequestContext struct {
		APIID     string `json:"apiId"`
		Stage     string `json:"stage"`
		Path      string `json:"path"` // including the stage
		RequestID string `json:"requestId"`
		Identity  struct {
			AccountID string `json:"accountId"`
			Caller    string `json:"caller"` // AIDA… of a user, AROA…:session of a role
			UserArn   string `json:"userArn"`
		} `json:"identity"`
	} `json:"requestContext"`
}

// response is the form of an answer to API Gateway.
type response struct {
	StatusCode int               `json:"statusCode"`
	Headers    map[string]string `json:"headers"`
	Body       string            `json:"body"`
	Base64     bool              `json:"isBase64Encoded"`
}

var (
	errEvent  = errors.New("not an event of a REST API's Lambda proxy integration")
	errDirect = errors.New("not an event of this function's own API: call the API, which records the caller; " +
		"the function does not answer direct invocations")
)

// Invoke implements aws-lambda-go's Handler. It returns an error for a payload that is not an event of the API.
func (f *Function) Invoke(ctx context.Context, payload []byte) ([]byte, error) {
	var e event
	if err := json.Unmarshal(payload, &e); err != nil {
		return nil, errEvent
	}
	if e.HTTPMethod == "" || e.Path == "" {
		return nil, errEvent // an event of an HTTP API has neither
	}
	if from := &e.RequestContext; from.RequestID == "" || f.api == "" || from.APIID+"/"+from.Stage != f.api {
		return nil, errDirect
	}
	in := &input{actor: e.actor(), method: e.HTTPMethod, path: e.operation(), body: []byte(e.Body)}
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

// operation returns the path of the operation, below the API's stage. If the call spells the path in another way, it
// returns the path as it was sent.
func (e *event) operation() string {
	path := e.Resource
	if proxy := e.PathParameters["proxy"]; proxy != "" {
		path = "/" + proxy
	}
	if path == "" {
		path = e.Path
	}
	for _, sent := range []string{e.Path, e.RequestContext.Path} {
		if above, ends := strings.CutSuffix(sent, path); sent != "" && (!ends || !stageOrBasePath(above)) {
			return sent
		}
	}
	return path
}

// stageOrBasePath reports whether the part of a path before the operation's path is empty, a stage, or the base path
// of a domain, in their only spelling.
func stageOrBasePath(above string) bool {
	return above == "" || above[0] == '/' && above[len(above)-1] != '/' && !strings.ContainsAny(above, "%;") &&
		!strings.Contains(above, "//") && !strings.Contains(above, "/.")
}

// actor returns the caller's ARN, or, if that is too long for a record, the caller's unique id; "" if the call is not
// signed.
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
