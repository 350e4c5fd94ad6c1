// Command app is the program that the CDK CLI runs. It makes the stacks of a deployment file.
//
//	app          makes the stacks
//	app lambdas  prints what scripts/cdk has to build first: the GOARCH of the functions, and the folder of their zips
//
// SLUICE_DEPLOYMENT is the deployment file, by default deployment.yaml. SLUICE_LAMBDAS is the folder of the functions'
// zips. Its default is the folder into which make lambdas writes for the deployment's architecture.
package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/jsii-runtime-go"

	"github.com/sluicelimits/sluice/infra"
	"github.com/sluicelimits/sluice/infra/config"
)

func main() {
	err := run(os.Args[1:])
	jsii.Close()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	d, err := deployment()
	if err != nil {
		return err
	}
	goarch, folder := infra.BuildTarget(d)
	folder = cmp.Or(os.Getenv("SLUICE_LAMBDAS"), folder)
	switch {
	case len(args) == 0:
		return synth(d, folder)
	case len(args) == 1 && args[0] == "lambdas":
		_, err := fmt.Fprintln(os.Stdout, goarch, folder)
		return err
	default:
		return errors.New("usage: app [lambdas]")
	}
}

func deployment() (*config.Deployment, error) {
	file := cmp.Or(os.Getenv("SLUICE_DEPLOYMENT"), "deployment.yaml")
	data, err := os.ReadFile(file) //nolint:gosec // the operator says which file
	if err != nil {
		return nil, fmt.Errorf("the deployment file: %w", err)
	}
	return config.Read(file, data)
}

func synth(d *config.Deployment, lambdas string) error {
	app := awscdk.NewApp(&awscdk.AppProps{
		AnalyticsReporting: jsii.Bool(false),
		StackTraces:        jsii.Bool(false), // they show the kernel of jsii, not this program
	})
	if _, err := infra.NewStacks(app, d, lambdas); err != nil {
		return err
	}
	if err := infra.Synth(app); err != nil {
		return err
	}
	return infra.PrintQuotas(os.Stderr, d)
}
