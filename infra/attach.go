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

// Attachment is Sluice's authorizer in front of one API. It covers every route of the API that is in the stack when
// templates are made, those added later too, and refuses a stack in which one is not covered: [AttachREST],
// [AttachHTTP] and [AttachWebSocket] say which.
//
// The routes of an API that is only named by its id are elsewhere, and no construct can change them: Attachment then
// makes the authorizer, what it needs, and an output with its id, and docs/attach.md has the two commands that put it
// on a route.
type Attachment struct {
	Construct constructs.Construct

	AuthorizerID  *string // a token
	AuthorizerARN *string // the one source that may invoke the function for this authorizer; a token
}

// mapped are the headers in which middleware.Behind(middleware.MappedHeaders) finds a decision, and the members of the
// authorizer's context that they are overwritten with.
var mapped = map[string]string{
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
	// in callerHeader where no authorizer was asked: no decision, so the middleware lets nobody through
	nobody = "none"
)

// ExposedHeaders are those of answers that browsers must be allowed to show to scripts, for an API's own setting of
// CORS.
func ExposedHeaders() []string { return strings.Split(answer.ExposeHeaders, ", ") }

// cover puts the authorizer on what is in an API's stack. CDK calls it when the stack is made into a template, and asks
// it for what is wrong then.
type cover struct {
	stack    awscdk.Stack
	api      any    // the API's id, resolved
	function string // its ARN, resolved, as JSON
	except   []string
	what     func(all []constructs.IConstruct) // does it

	found    map[string]bool // of except
	covered  int
	problems []string
}

// attach makes what all kinds of APIs have in common. api is in the same stack, or imported into it.
func attach(
	scope constructs.Construct, id string, api constructs.IConstruct, function awslambda.IFunction, apiID *string,
	except []string,
) (constructs.Construct, *cover, error) {
	own := constructs.NewConstruct(scope, &id)
	c := &cover{stack: awscdk.Stack_Of(own), except: except, found: make(map[string]bool)}
	if of := awscdk.Stack_Of(api); *of.Node().Addr() != *c.stack.Node().Addr() {
		return nil, nil, fmt.Errorf("the API is in the stack %s, and it is attached to in %s: use its stack, where "+
			"its routes are", *of.StackName(), *c.stack.StackName())
	}
	c.api, c.function = c.stack.Resolve(apiID), asJSON(c.stack.Resolve(function.FunctionArn()))
	awscdk.Aspects_Of(c.stack).Add(c, nil)
	own.Node().AddValidation(c)
	return own, c, nil
}

// Visit implements awscdk.IAspect. The stack is the first that CDK shows, and all is done then.
func (c *cover) Visit(node constructs.IConstruct) {
	if *node.Node().Addr() != *c.stack.Node().Addr() {
		return
	}
	c.covered, c.problems = 0, nil
	c.what(*c.stack.Node().FindAll(constructs.ConstructOrder_PREORDER))
	for _, name := range c.except {
		if !c.found[name] {
			c.problem("Except names %s, which the API has not", name)
		}
	}
}

// Validate implements constructs.IValidation.
func (c *cover) Validate() *[]*string { return jsii.Strings(c.problems...) }

func (c *cover) problem(format string, args ...any) {
	c.problems = append(c.problems, fmt.Sprintf(format, args...))
}

// of reports whether a property names the API.
func (c *cover) of(apiID *string) bool {
	return apiID != nil && reflect.DeepEqual(c.stack.Resolve(apiID), c.api)
}

// resolved is a property as it will be in the template; nil where it is not there.
func (c *cover) resolved(v any) any { return resolved(c.stack, v) }

func resolved(stack awscdk.Stack, v any) any {
	if none(v) {
		return nil
	}
	return stack.Resolve(v)
}

// text is one that is plain text; "" where it is not there or not that.
func (c *cover) text(v any) string {
	s, _ := c.resolved(v).(string)
	return s
}

func none(v any) bool {
	return v == nil || reflect.ValueOf(v).Kind() == reflect.Pointer && reflect.ValueOf(v).IsNil()
}

// excepted reports whether a route is to be left alone.
func (c *cover) excepted(name string) bool {
	if slices.Contains(c.except, name) {
		c.found[name] = true
		return true
	}
	return false
}

// authorize decides about one route: true puts the authorizer on it. kind and authorizer are what it has.
func (c *cover) authorize(name, kind string, authorizer any, own *string) bool {
	switch {
	case c.excepted(name):
		return false
	case kind == "CUSTOM" && reflect.DeepEqual(c.resolved(authorizer), c.resolved(own)):
	case kind != "" && kind != "NONE":
		c.problem("%s already has an authorizer (%s): take it off, or leave the route alone by Except", name, kind)
		return false
	}
	c.covered++
	return true
}

// invokedBy refuses another authorizer with our function: answers to one may be cached, or tell of no address.
func (c *cover) invokedBy(path string, uri any) {
	if strings.Contains(asJSON(c.resolved(uri)), strings.Trim(c.function, `"`)) {
		c.problem("%s is another authorizer with Sluice's function: of type TOKEN it sees no address and no route, "+
			"so ipLimits, per: ip and anonymousPlan would not hold; attach instead", path)
	}
}

func asJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil { // not reached: it came from a template
		return err.Error()
	}
	return string(b)
}

// invoke is the URI by which API Gateway invokes the function.
func invoke(s awscdk.Stack, function awslambda.IFunction) *string {
	return jsii.String("arn:" + *s.Partition() + ":apigateway:" + *s.Region() + ":lambda:path/2015-03-31/functions/" +
		*function.FunctionArn() + "/invocations")
}

// permit lets exactly one authorizer invoke the function.
func permit(own constructs.Construct, function awslambda.IFunction, apiID, authorizerID *string) *Attachment {
	arn := awscdk.Stack_Of(own).FormatArn(&awscdk.ArnComponents{Service: jsii.String("execute-api"), Resource: apiID,
		ResourceName: jsii.String("authorizers/" + *authorizerID)})
	awslambda.NewCfnPermission(own, jsii.String("MayInvoke"), &awslambda.CfnPermissionProps{
		Action: jsii.String("lambda:InvokeFunction"), FunctionName: function.FunctionArn(),
		Principal: jsii.String("apigateway.amazonaws.com"), SourceArn: arn,
	})
	return &Attachment{Construct: own, AuthorizerID: authorizerID, AuthorizerARN: arn}
}

// given refuses props without what is required.
func given(api, function any) error {
	none := func(v any) bool {
		return v == nil || reflect.ValueOf(v).Kind() == reflect.Pointer && reflect.ValueOf(v).IsNil()
	}
	switch {
	case none(api):
		return errors.New("no API is given")
	case none(function):
		return errors.New("no Authorizer is given: the Authorizer of a Cell, or its function by ARN")
	}
	return nil
}

// byHand is the output of an attachment to an API whose routes are elsewhere.
func byHand(own constructs.Construct, authorizerID *string, what string) {
	awscdk.NewCfnOutput(own, jsii.String("AuthorizerId"), &awscdk.CfnOutputProps{Value: authorizerID,
		Description: &what})
}

// Synth makes the templates of an app. Where CDK panics, as it does in Go, the error has what it says, and of what
// attachments refuse a line each.
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

// escaped is a key that is one step of the path of a property override, whatever dots it has.
func escaped(key string) string { return strings.ReplaceAll(key, ".", `\.`) }

// sorted are the names of mapped.
func sorted() []string { return slices.Sorted(maps.Keys(mapped)) }
