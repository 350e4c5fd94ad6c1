// Command app is the program that cdk runs: it makes the stacks of the deployment file.
//
//	app          makes them
//	app lambdas  says what scripts/cdk has to build before: the functions' GOARCH, and the folder of their zips
//
// SLUICE_DEPLOYMENT is the file, by default deployment.yaml; SLUICE_LAMBDAS the folder of the functions' zips, by
// default that of make lambdas for the deployment's architecture.
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
	goarch, folder := infra.Bundles(d)
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
		StackTraces:        jsii.Bool(false), // they are of jsii's kernel, not of this program
	})
	if _, err := infra.NewStacks(app, d, lambdas); err != nil {
		return err
	}
	if err := infra.Synth(app); err != nil {
		return err
	}
	return infra.PrintQuotas(os.Stderr, d)
}
