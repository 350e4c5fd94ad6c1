package infra_test

import (
	"os"
	"strings"
	"testing"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsapigateway"
	"github.com/aws/jsii-runtime-go"

	"github.com/sluicelimits/sluice/infra"
)

// Makes an API key for each plan of a file, on a REST API whose methods require a key.
func ExampleNewUsagePlans() {
	app := awscdk.NewApp(nil)
	stack := awscdk.NewStack(app, jsii.String("Shop"), nil)
	api := awsapigateway.NewRestApi(stack, jsii.String("Api"), &awsapigateway.RestApiProps{
		DefaultMethodOptions: &awsapigateway.MethodOptions{ApiKeyRequired: jsii.Bool(true)},
	})
	plans, err := os.ReadFile("plans.yaml")
	if err != nil {
		panic(err)
	}

	usagePlans, err := infra.NewUsagePlans(stack, "UsagePlans", &infra.UsagePlansProps{
		Stage: api.DeploymentStage(), Plans: plans, Tenants: map[string]int{"free": 10_000},
	})
	if err != nil {
		panic(err)
	}
	// the output is the id of the key; API Gateway knows its value
	awscdk.NewCfnOutput(stack, jsii.String("FreeKey"), &awscdk.CfnOutputProps{Value: usagePlans.Keys["free"].Ref()})
	app.Synth(nil)
}

// Guarantees that the Go code in docs/operate.md is copied from the example, which compiles.
func TestUsagePlansPage(t *testing.T) {
	page, err := os.ReadFile("../docs/operate.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("usageplans_example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	flat := func(code string) string {
		var lines []string
		for line := range strings.Lines(code) {
			lines = append(lines, strings.TrimSpace(line))
		}
		return strings.TrimSpace(strings.Join(lines, "\n"))
	}
	_, code, _ := strings.Cut(string(page), "```go\n")
	code, _, found := strings.Cut(code, "```")
	if !found || !strings.Contains(flat(string(source)), flat(code)) {
		t.Errorf("docs/operate.md has code that is in no example:\n%s", code)
	}
}
