// Command sample is an example program for the CDK CLI, to read and to copy. It makes a REST API behind the authorizer
// of each cell of a deployment file:
//
//	scripts/cdk synth --quiet --app "go run ./sample" --output sample.out
//
// It stands for an app of yours. It knows only the name of a cell. Its stacks, PREFIX-sample-CELL, contain nothing of
// Sluice except what [infra.AttachREST] puts in front of the API. SLUICE_DEPLOYMENT is the deployment file, by default
// deployment.yaml.
package main

import (
	"cmp"
	"fmt"
	"os"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsapigateway"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslambda"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"

	"github.com/sluicelimits/sluice/infra"
	"github.com/sluicelimits/sluice/infra/config"
)

const (
	backend = "https://backend.example.com" // the service behind the API
	page    = "https://app.example.com"     // the origin of a web page that calls it
)

func main() {
	err := run()
	jsii.Close()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	file := cmp.Or(os.Getenv("SLUICE_DEPLOYMENT"), "deployment.yaml")
	data, err := os.ReadFile(file) //nolint:gosec // the operator says which file
	if err != nil {
		return fmt.Errorf("the deployment file: %w", err)
	}
	d, err := config.Read(file, data) // with its defaults filled in
	if err != nil {
		return err
	}
	return synth(awscdk.NewApp(&awscdk.AppProps{AnalyticsReporting: jsii.Bool(false), StackTraces: jsii.Bool(false)}),
		d)
}

// synth makes the templates, with one stack for each cell.
func synth(app awscdk.App, d *config.Deployment) error {
	for i := range d.Cells {
		if err := newStack(app, d, &d.Cells[i]); err != nil {
			return err
		}
	}
	return infra.Synth(app)
}

// newStack makes the stack with the API in front of which a cell's authorizer is put, in the cell's region.
func newStack(app awscdk.App, d *config.Deployment, cell *config.Cell) error {
	env := &awscdk.Environment{Region: &cell.Region}
	if d.Account != "" {
		env.Account = &d.Account
	}
	stack := awscdk.NewStack(app, jsii.String(d.Prefix+"-sample-"+cell.ID), &awscdk.StackProps{
		Env: env, AnalyticsReporting: jsii.Bool(false), Description: jsii.String("An API behind Sluice's cell " +
			cell.ID),
	})
	api := newAPI(stack)

	// This stack refers to the cell's stack by names only, so each can be deployed without the other.
	names := config.Names{Prefix: d.Prefix, Partition: *stack.Partition(), Account: *stack.Account(),
		Suffix: *stack.UrlSuffix()}
	authorizer := awslambda.Function_FromFunctionArn(stack, jsii.String("Authorizer"),
		jsii.String(names.CellFunctionARN(cell.Region, cell.ID, config.Authorizer)))
	_, err := infra.AttachREST(stack, "Sluice", &infra.AttachRESTProps{API: api, Authorizer: authorizer,
		AllowOrigin: page})
	return err
}

// newAPI makes an API like any without Sluice: all of its methods lead to one service.
func newAPI(scope constructs.Construct) awsapigateway.RestApi {
	api := awsapigateway.NewRestApi(scope, jsii.String("Api"), &awsapigateway.RestApiProps{
		CloudWatchRole: jsii.Bool(false), EndpointTypes: &[]awsapigateway.EndpointType{
			awsapigateway.EndpointType_REGIONAL},
		// This answers preflight requests. The attachment adds CORS headers to the answers that API Gateway gives by
		// itself, and the service adds them to its own.
		DefaultCorsPreflightOptions: &awsapigateway.CorsOptions{
			AllowOrigins: jsii.Strings(page), AllowHeaders: jsii.Strings("Authorization", "Content-Type", "X-API-Key"),
		},
	})
	product := api.Root().AddResource(jsii.String("product"), nil).AddResource(jsii.String("{id}"), nil)
	orders := api.Root().AddResource(jsii.String("orders"), nil)
	v1 := api.Root().AddResource(jsii.String("v1"), nil).AddResource(jsii.String("{proxy+}"), nil)
	route(product, "GET", "/product/{id}", "id")
	route(product, "PUT", "/product/{id}", "id")
	route(orders, "GET", "/orders")
	route(orders, "POST", "/orders")
	route(v1, "ANY", "/v1/{proxy}", "proxy")
	return api
}

// route forwards a method of a resource to a path of the service. parameters are the path parameters that the path
// contains.
func route(at awsapigateway.Resource, method, path string, parameters ...string) {
	declared, filled := map[string]*bool{}, map[string]*string{}
	for _, name := range parameters {
		declared["method.request.path."+name] = jsii.Bool(true)
		filled["integration.request.path."+name] = jsii.String("method.request.path." + name)
	}
	at.AddMethod(&method, awsapigateway.NewHttpIntegration(jsii.String(backend+path),
		&awsapigateway.HttpIntegrationProps{
			HttpMethod: &method, Options: &awsapigateway.IntegrationOptions{RequestParameters: &filled},
		}), &awsapigateway.MethodOptions{RequestParameters: &declared})
}
