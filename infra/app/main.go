// Command app is the program that cdk runs: it makes the stacks of the deployment file.
//
// SLUICE_DEPLOYMENT is the file, by default deployment.yaml; SLUICE_LAMBDAS the folder of the functions' zips.
package main

import (
	"cmp"
	"fmt"
	"os"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/jsii-runtime-go"

	"github.com/sluicelimits/sluice/infra"
	"github.com/sluicelimits/sluice/infra/config"
)

func main() {
	err := synth()
	jsii.Close()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func synth() error {
	file := cmp.Or(os.Getenv("SLUICE_DEPLOYMENT"), "deployment.yaml")
	data, err := os.ReadFile(file) //nolint:gosec // the operator says which file
	if err != nil {
		return fmt.Errorf("the deployment file: %w", err)
	}
	d, err := config.Read(file, data)
	if err != nil {
		return err
	}
	app := awscdk.NewApp(&awscdk.AppProps{
		AnalyticsReporting: jsii.Bool(false),
		StackTraces:        jsii.Bool(false), // they are of jsii's kernel, not of this program
	})
	if _, err := infra.NewStacks(app, d, cmp.Or(os.Getenv("SLUICE_LAMBDAS"), infra.DefaultLambdas)); err != nil {
		return err
	}
	return infra.Synth(app)
}
