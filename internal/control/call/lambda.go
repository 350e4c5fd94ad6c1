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
type Function struct {
	mux *Mux
	api string
}

// Lambda answers the events of a REST API's Lambda proxy integration whose methods have AWS_IAM authorization. The
// actor is requestContext.identity.userArn: API Gateway fills it in after it has checked the signature, and nothing
// that a client sends gets there. Without it the method is open, and every call is refused.
//
// api is the id and the stage of the one API that the function answers, as in "a1b2c3/v1". An event of another one,
// and a direct invocation with any other payload, is an error of the function. If empty, no event is answered.
//
// What this cannot do: an identity in the account that has lambda:InvokeFunction on the function can make up a whole
// event, with any userArn in it. Nothing in an event proves that API Gateway sent it, and a function's own policy
// cannot deny what an identity's policy allows. CloudTrail records who invoked the function: the caller of an honest
// call is apigateway.amazonaws.com. See docs/audit.md.
//
// The operation is the resource that API Gateway has found, or, of a resource {proxy+}, its path parameter "proxy". The
// path of the call must end with exactly that: API Gateway finds a resource for a path with a slash more, too, and
// decodes parameters.
func Lambda(m *Mux, api string) *Function { return &Function{m, api} }

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
		APIID     string `json:"apiId"`
		Stage     string `json:"stage"`
		Path      string `json:"path"` // with the stage
		RequestID string `json:"requestId"`
		Identity  struct {
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

var (
	errEvent  = errors.New("not an event of a REST API's Lambda proxy integration")
	errDirect = errors.New("not an event of this function's own API: call the API, which records who calls; " +
		"the function answers nobody who invokes it directly")
)

// Invoke implements aws-lambda-go's Handler. The error is for what is no such event, and for one of another API.
func (f *Function) Invoke(ctx context.Context, payload []byte) ([]byte, error) {
	var e event
	if err := json.Unmarshal(payload, &e); err != nil {
		return nil, errEvent
	}
	if e.HTTPMethod == "" || e.Path == "" {
		return nil, errEvent // an HTTP API's has neither
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

// operation is the path that the call is for below the API's stage, or the path as it was sent if that is another
// spelling.
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

// stageOrBasePath reports whether a call may have this before the path of its operation: nothing, a stage, or the base
// path of a domain, in the one spelling that these have.
func stageOrBasePath(above string) bool {
	return above == "" || above[0] == '/' && above[len(above)-1] != '/' && !strings.ContainsAny(above, "%;") &&
		!strings.Contains(above, "//") && !strings.Contains(above, "/.")
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
