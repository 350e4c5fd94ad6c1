package infra

import (
	"fmt"

	apis "github.com/aws/aws-cdk-go/awscdk/v2/awsapigatewayv2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslambda"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"
)

// AttachWebSocketProps are the parameters of [AttachWebSocket].
type AttachWebSocketProps struct {
	API        apis.IWebSocketApi  // required; made in this stack, or imported into it
	Authorizer awslambda.IFunction // required; the Authorizer of a Cell, or that function imported by its ARN
}

// AttachWebSocket puts Sluice in front of a WebSocket API. It puts an authorizer of type REQUEST, without identity
// source, on $connect, the only route that API Gateway authorizes. A denied connection is answered 403, and one without
// a valid credential 401. Messages are not counted.
//
// The error says what is wrong with the props. The template is refused if the route $connect already has an authorizer,
// or if the API has no such route: anybody could then connect.
func AttachWebSocket(scope constructs.Construct, id string, props *AttachWebSocketProps) (a *Attachment, err error) {
	defer recoverError(id, &err)
	if err := checkRequired(props.API, props.Authorizer); err != nil {
		return nil, fmt.Errorf("%s: %w", id, err)
	}
	own, c, err := attach(scope, id, props.API, props.Authorizer, props.API.ApiId(), nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", id, err)
	}
	// API Gateway does not cache the results of a WebSocket API's authorizer, and CloudFormation accepts no TTL for it.
	authorizer := apis.NewCfnAuthorizer(own, jsii.String("Authorizer"), &apis.CfnAuthorizerProps{
		ApiId: props.API.ApiId(), Name: jsii.String("sluice"), AuthorizerType: jsii.String("REQUEST"),
		AuthorizerUri: invocationURI(c.stack, props.Authorizer),
	})
	a = allowInvocation(own, props.Authorizer, props.API.ApiId(), authorizer.Ref())
	made := props.API.Node().DefaultChild() != nil
	if !made {
		outputAuthorizerID(own, authorizer.Ref(), "The authorizer to put on $connect of the WebSocket API. Deploy "+
			"the API afterwards.")
	}
	c.visitAll = func(all []constructs.IConstruct) {
		for _, node := range all {
			r, ok := node.(apis.CfnRoute)
			if !ok || !c.isOfAPI(r.ApiId()) || c.plainText(r.RouteKey()) != "$connect" {
				continue
			}
			if c.authorize("$connect", c.plainText(r.AuthorizationType()), r.AuthorizerId(), authorizer.Ref()) {
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
