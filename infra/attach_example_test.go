package infra_test

import (
	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsapigateway"
	apis "github.com/aws/aws-cdk-go/awscdk/v2/awsapigatewayv2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslambda"
	"github.com/aws/jsii-runtime-go"

	"github.com/sluicelimits/sluice/infra"
)

// Attaches the API of a shop, in its own stack, to the authorizer of a cell that is already deployed.
func ExampleAttachREST() {
	app := awscdk.NewApp(nil)
	stack := awscdk.NewStack(app, jsii.String("Shop"), nil)
	api := awsapigateway.NewRestApi(stack, jsii.String("Api"), nil)
	api.Root().AddResource(jsii.String("product"), nil).AddMethod(jsii.String("GET"),
		awsapigateway.NewHttpIntegration(jsii.String("https://shop.example.com/product"), nil), nil)

	function := awslambda.Function_FromFunctionName(stack, jsii.String("Authorizer"),
		jsii.String("sluice-eu-1-authorizer"))
	if _, err := infra.AttachREST(stack, "Sluice", &infra.AttachRESTProps{
		API: api, Authorizer: function, AllowOrigin: "https://app.example.com",
	}); err != nil {
		panic(err)
	}
	app.Synth(nil)
}

// Attaches an HTTP API whose denials are answered by the middleware in the backend, and a WebSocket API.
func ExampleAttachHTTP() {
	var (
		stack    awscdk.Stack
		function awslambda.IFunction
		shop     apis.HttpApi
		chat     apis.WebSocketApi
	)
	if _, err := infra.AttachHTTP(stack, "SluiceShop", &infra.AttachHTTPProps{
		API: shop, Authorizer: function, Except: []string{"GET /healthz"}, PassDenials: true,
	}); err != nil {
		panic(err)
	}
	if _, err := infra.AttachWebSocket(stack, "SluiceChat", &infra.AttachWebSocketProps{API: chat,
		Authorizer: function}); err != nil {
		panic(err)
	}
}
