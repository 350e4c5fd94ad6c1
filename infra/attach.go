package infra

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslambda"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"

	"github.com/sluicelimits/sluice/internal/request/answer"
)

// Attachment is Sluice's authorizer in front of one API. [AttachREST], [AttachHTTP] and [AttachWebSocket] make it. It
// puts the authorizer on every route of the API that is in the stack when CDK makes the template, including routes that
// are added later. If a route cannot have the authorizer, CDK refuses the stack.
//
// If the API is only imported by its id, its routes are elsewhere, and no construct can change them. Attachment then
// makes only the authorizer, the permission to invoke the function, and an output with the authorizer's id.
// docs/attach.md has the two commands that put the authorizer on a route.
type Attachment struct {
	Construct constructs.Construct

	AuthorizerID  *string // a CDK token
	AuthorizerARN *string // the only source that may invoke the function for this authorizer; a CDK token
}

// contextMembers maps the headers that tell a backend of the decision to the members of the authorizer's context from
// which API Gateway fills them. middleware.Behind(middleware.MappedHeaders) reads the headers.
var contextMembers = map[string]string{
	callerHeader:                "caller",
	"x-sluice-limit":            "rateLimitLimit",
	"x-sluice-remaining":        "rateLimitRemaining",
	"x-sluice-reset":            "rateLimitReset",
	"x-sluice-ratelimit":        "rateLimit",
	"x-sluice-ratelimit-policy": "rateLimitPolicy",
	"x-sluice-retry-after":      "retryAfter",
	"x-sluice-problem":          "problem",
}

const (
	callerHeader = "x-sluice-caller"
	// noDecision is the value of callerHeader on routes without the authorizer. The middleware denies such requests,
	// because there is no decision about them.
	noDecision = "none"
)

// ExposedHeaders returns the names of the response headers that CORS must expose, so that scripts in browsers can read
// them. Add them to the CORS setting of an API that Sluice does not change.
func ExposedHeaders() []string { return strings.Split(answer.ExposeHeaders, ", ") }

// cover puts the authorizer on the routes in an API's stack. CDK calls Visit when it makes the template, and asks
// Validate for problems afterwards.
type cover struct {
	stack    awscdk.Stack
	api      any    // the API's id as it will be in the template
	function string // the authorizer function's ARN as it will be in the template, as JSON
	except   []string
	visitAll func(all []constructs.IConstruct) // puts the authorizer on the constructs of the stack

	found    map[string]bool // entries of except that name a route of the API
	covered  int             // how many routes have the authorizer
	problems []string
}

// attach makes what all kinds of APIs have in common. The error says that the API is in another stack.
func attach(
	scope constructs.Construct, id string, api constructs.IConstruct, function awslambda.IFunction, apiID *string,
	except []string,
) (constructs.Construct, *cover, error) {
	own := constructs.NewConstruct(scope, &id)
	c := &cover{stack: awscdk.Stack_Of(own), except: except, found: make(map[string]bool)}
	if of := awscdk.Stack_Of(api); *of.Node().Addr() != *c.stack.Node().Addr() {
		return nil, nil, fmt.Errorf("the API is in the stack %s, and the attachment in the stack %s: make the "+
			"attachment in the API's stack, "+"where its routes are", *of.StackName(), *c.stack.StackName())
	}
	c.api, c.function = c.stack.Resolve(apiID), asJSON(c.stack.Resolve(function.FunctionArn()))
	awscdk.Aspects_Of(c.stack).Add(c, nil)
	own.Node().AddValidation(c)
	return own, c, nil
}

// Visit implements awscdk.IAspect. CDK visits the stack before all constructs in it, and Visit does all of its work
// then.
func (c *cover) Visit(node constructs.IConstruct) {
	if *node.Node().Addr() != *c.stack.Node().Addr() {
		return
	}
	c.covered, c.problems = 0, nil
	c.visitAll(*c.stack.Node().FindAll(constructs.ConstructOrder_PREORDER))
	for _, name := range c.except {
		if !c.found[name] {
			c.problem("Except names %s, but the API has no such route", name)
		}
	}
}

// Validate implements constructs.IValidation.
func (c *cover) Validate() *[]*string { return jsii.Strings(c.problems...) }

func (c *cover) problem(format string, args ...any) {
	c.problems = append(c.problems, fmt.Sprintf(format, args...))
}

// isOfAPI reports whether a property holds the id of the API.
func (c *cover) isOfAPI(apiID *string) bool {
	return apiID != nil && reflect.DeepEqual(c.stack.Resolve(apiID), c.api)
}

// resolved returns a property as it will be in the template, or nil if it is not set.
func (c *cover) resolved(v any) any { return resolved(c.stack, v) }

func resolved(stack awscdk.Stack, v any) any {
	if isNil(v) {
		return nil
	}
	return stack.Resolve(v)
}

// plainText returns a property that is a plain string in the template, and "" for any other one.
func (c *cover) plainText(v any) string {
	s, _ := c.resolved(v).(string)
	return s
}

func isNil(v any) bool {
	return v == nil || reflect.ValueOf(v).Kind() == reflect.Pointer && reflect.ValueOf(v).IsNil()
}

// excepted reports whether Except names a route.
func (c *cover) excepted(name string) bool {
	if slices.Contains(c.except, name) {
		c.found[name] = true
		return true
	}
	return false
}

// authorize decides about one route, and reports whether it gets the authorizer. kind and authorizer are the route's
// present authorization type and authorizer.
func (c *cover) authorize(name, kind string, authorizer any, own *string) bool {
	switch {
	case c.excepted(name):
		return false
	case kind == "CUSTOM" && reflect.DeepEqual(c.resolved(authorizer), c.resolved(own)):
	case kind != "" && kind != "NONE":
		c.problem("%s already has an authorizer (%s): remove that authorizer, or name the route in Except", name, kind)
		return false
	}
	c.covered++
	return true
}

// refuseOtherAuthorizer reports a problem if another authorizer of the API invokes Sluice's function. API Gateway may
// cache its results, or pass it no client address.
func (c *cover) refuseOtherAuthorizer(path string, uri any) {
	if strings.Contains(asJSON(c.resolved(uri)), strings.Trim(c.function, `"`)) {
		c.problem("%s is another authorizer that invokes Sluice's function. An authorizer of type TOKEN sees "+
			"neither the "+"client's address nor the route, so ipLimits, per: ip and anonymousPlan would not hold: "+
			"remove it", path)
	}
}

func asJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil { // not reached: the value came from a template
		return err.Error()
	}
	return string(b)
}

// invocationURI returns the URI by which API Gateway invokes a function.
func invocationURI(s awscdk.Stack, function awslambda.IFunction) *string {
	return jsii.String("arn:" + *s.Partition() + ":apigateway:" + *s.Region() + ":lambda:path/2015-03-31/functions/" +
		*function.FunctionArn() + "/invocations")
}

// allowInvocation lets exactly one authorizer invoke the function.
func allowInvocation(own constructs.Construct, function awslambda.IFunction, apiID, authorizerID *string) *Attachment {
	arn := awscdk.Stack_Of(own).FormatArn(&awscdk.ArnComponents{Service: jsii.String("execute-api"), Resource: apiID,
		ResourceName: jsii.String("authorizers/" + *authorizerID)})
	awslambda.NewCfnPermission(own, jsii.String("MayInvoke"), &awslambda.CfnPermissionProps{
		Action: jsii.String("lambda:InvokeFunction"), FunctionName: function.FunctionArn(),
		Principal: jsii.String("apigateway.amazonaws.com"), SourceArn: arn,
	})
	return &Attachment{Construct: own, AuthorizerID: authorizerID, AuthorizerARN: arn}
}

// checkRequired returns an error if a required property is missing.
func checkRequired(api, function any) error {
	switch {
	case isNil(api):
		return errors.New("property API is missing")
	case isNil(function):
		return errors.New("property Authorizer is missing: give the Authorizer of a Cell, or that " +
			"function imported by its ARN")
	}
	return nil
}

// outputAuthorizerID adds an output with the authorizer's id, for an API whose routes are in no stack of the app.
func outputAuthorizerID(own constructs.Construct, authorizerID *string, what string) {
	awscdk.NewCfnOutput(own, jsii.String("AuthorizerId"), &awscdk.CfnOutputProps{Value: authorizerID,
		Description: &what})
}

// Synth makes the templates of an app. CDK reports errors in Go by panicking. Synth turns a panic into an error. If
// constructs refused the app, the error has one line for each problem.
func Synth(app awscdk.App) (err error) {
	defer func() {
		if p := recover(); p != nil {
			var lines []string
			for line := range strings.SplitSeq(fmt.Sprint(p), "\n") {
				if line = strings.TrimSpace(line); strings.HasPrefix(line, "[") {
					lines = append(lines, line)
				}
			}
			if len(lines) == 0 {
				lines = []string{fmt.Sprint(p)}
			}
			err = errors.New(strings.Join(lines, "\n"))
		}
	}()
	app.Synth(nil)
	return nil
}

// escapeKey escapes the dots in a key, so that a property override takes it as one step of its path.
func escapeKey(key string) string { return strings.ReplaceAll(key, ".", `\.`) }

// headerNames returns the keys of contextMembers in order.
func headerNames() []string { return slices.Sorted(maps.Keys(contextMembers)) }
