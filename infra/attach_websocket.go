package infra

import (
	"fmt"

	apis "github.com/aws/aws-cdk-go/awscdk/v2/awsapigatewayv2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslambda"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"
)

// AttachWebSocketProps say which WebSocket API.
type AttachWebSocketProps struct {
	API        apis.IWebSocketApi  // required: made in this stack, or imported into it
	Authorizer awslambda.IFunction // required: the Authorizer of a Cell, or that function by ARN
}

// AttachWebSocket puts Sluice in front of a WebSocket API: a REQUEST authorizer without identity source on $connect,
// the one route that is authorized. What it denies is a 403, what has no good credential a 401. Messages are not
// counted.
//
// The error says what of the props is wrong. Refused when the template is made: a route $connect that has an authorizer
// already, and an API without that route, which everybody could connect to.
func AttachWebSocket(scope constructs.Construct, id string, props *AttachWebSocketProps) (a *Attachment, err error) {
	defer recovered(id, &err)
	if err := given(props.API, props.Authorizer); err != nil {
		return nil, fmt.Errorf("%s: %w", id, err)
	}
	own, c, err := attach(scope, id, props.API, props.Authorizer, props.API.ApiId(), nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", id, err)
	}
	// Results of a WebSocket API's authorizer are not cached, and CloudFormation takes no TTL for one.
	authorizer := apis.NewCfnAuthorizer(own, jsii.String("Authorizer"), &apis.CfnAuthorizerProps{
		ApiId: props.API.ApiId(), Name: jsii.String("sluice"), AuthorizerType: jsii.String("REQUEST"),
		AuthorizerUri: invoke(c.stack, props.Authorizer),
	})
	a = permit(own, props.Authorizer, props.API.ApiId(), authorizer.Ref())
	made := props.API.Node().DefaultChild() != nil
	if !made {
		byHand(own, authorizer.Ref(), "To put on $connect of the WebSocket API, which is then to be deployed")
	}
	c.what = func(all []constructs.IConstruct) {
		for _, node := range all {
			r, ok := node.(apis.CfnRoute)
			if !ok || !c.of(r.ApiId()) || c.text(r.RouteKey()) != "$connect" {
				continue
			}
			if c.authorize("$connect", c.text(r.AuthorizationType()), r.AuthorizerId(), authorizer.Ref()) {
				r.SetAuthorizationType(jsii.String("CUSTOM"))
				r.SetAuthorizerId(authorizer.Ref())
			}
		}
		if made && c.covered == 0 && len(c.problems) == 0 {
			c.problem("the WebSocket API has no route $connect, so connections would not be authorized")
		}
	}
	return a, nil
}
