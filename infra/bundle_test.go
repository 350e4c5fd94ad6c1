package infra_test

import (
	"debug/elf"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/jsii-runtime-go"

	"github.com/sluicelimits/sluice/infra"
	"github.com/sluicelimits/sluice/infra/config"
)

// Guarantees that a function is deployed for the architecture that it was built for. AWS accepts a program for another
// architecture, and then every call fails.
func TestArchitecture(t *testing.T) {
	app := awscdk.NewApp(&awscdk.AppProps{AnalyticsReporting: jsii.Bool(false), Outdir: outdir(t)})
	spoiled := func(text []byte) string {
		dir := bundles(elf.EM_AARCH64)
		if err := os.WriteFile(filepath.Join(dir, "publisher.zip"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	for name, tt := range map[string]struct {
		architecture, lambdas string
		want                  string // expected in the error
	}{
		"arm64":  {config.ARM64, stubs(), ""},
		"x86-64": {config.X8664, bundles(elf.EM_X86_64), ""},
		"built for another": {config.X8664, stubs(), "publisher.zip is built for EM_AARCH64, and the deployment's " +
			"functions are for amd64: run make lambdas ARCH=amd64"},
		"default": {"", bundles(elf.EM_X86_64), "publisher.zip is built for EM_X86_64, and the " +
			"deployment's functions are for arm64: run make lambdas ARCH=arm64"},
		"no zip": {config.ARM64, spoiled([]byte("publisher")),
			"publisher.zip: zip: not a valid zip file: run make lambdas ARCH=arm64"},
		"no program": {config.ARM64, spoiled(zipped("main", "x")),
			"publisher.zip: open bootstrap: file does not exist: run make lambdas"},
		"a script": {config.ARM64, spoiled(zipped("bootstrap", "#!/bin/sh\nexec sleep 100\n")),
			"publisher.zip: bootstrap is not a program for Linux: run make lambdas"},
		"an empty program": {config.ARM64, spoiled(zipped("bootstrap", "")),
			"publisher.zip: bootstrap is not a program for Linux: run make lambdas"},
	} {
		t.Run(name, func(t *testing.T) {
			d := world("a-1")
			d.Architecture = tt.architecture
			scope := awscdk.NewStage(app, jsii.String(strings.ReplaceAll(name, " ", "-")), nil)
			s, err := infra.NewStacks(scope, d, tt.lambdas)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("%v\nwant %q", err, tt.want)
			}
			if err != nil {
				return
			}
			if got := *s.Cells[0].Cell.Authorizer.Architecture().Name(); got != tt.architecture {
				t.Errorf("the authorizer runs on %s", got)
			}
		})
	}
	for architecture, want := range map[string]string{config.ARM64: "arm64 ../dist/lambdas",
		config.X8664: "amd64 ../dist/lambdas-amd64"} {
		if goarch, folder := infra.BuildTarget(&config.Deployment{Architecture: architecture}); goarch+" "+
			folder != want {
			t.Errorf("for %s %s is built in %s, want %s", architecture, goarch, folder, want)
		}
	}
}

// Guarantees that templates can be made from the deployment file for LocalStack, as it is in the repository and with
// one more cell, as the tests on LocalStack add it. Both kinds of cells use the cache beside LocalStack and no other.
func TestStandTemplates(t *testing.T) {
	const file = "../localstack/deployment.yaml"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	more := strings.Replace(string(text), "\ncells:\n", "\ncells:\n  - { id: eu-2, region: eu-west-1, maxInstances: "+
		"4, killSwitch: false, deadlines: { dynamodb: 2s, home: 2s } }\n", 1)
	d, err := config.Read(file, []byte(more))
	if err != nil || len(d.Cells) != 3 {
		t.Fatalf("the deployment is %+v, %v", d, err)
	}
	if d.Account != "000000000000" || d.Control.Audit.RetentionDays != 1 || d.Cells[2].Profile != config.Full ||
		d.Cells[1].Profile != config.Small {
		t.Errorf("the file is not a deployment for LocalStack: %+v", d)
	}
	if _, err := config.Read(file, text); err != nil {
		t.Error(err)
	}
	dir := *outdir(t)
	app := awscdk.NewApp(&awscdk.AppProps{AnalyticsReporting: jsii.Bool(false), Outdir: &dir})
	machine := map[string]elf.Machine{config.ARM64: elf.EM_AARCH64, config.X8664: elf.EM_X86_64}[d.Architecture]
	if _, err := infra.NewStacks(app, d, bundles(machine)); err != nil {
		t.Fatal(err)
	}
	app.Synth(nil)
	for name, redis := range map[string]string{"sluice-cell-eu-1": "", "sluice-cell-eu-2": "",
		"sluice-cell-us-1": "127.0.0.1:6390"} {
		raw, err := os.ReadFile(filepath.Join(dir, name+".template.json"))
		if err != nil {
			t.Fatal(err)
		}
		one := decode(t, raw)
		for id, f := range one.ofType("AWS::Lambda::Function") {
			if !strings.HasPrefix(id, "CellAuthorizer") {
				continue
			}
			if got, _ := f.get("Environment", "Variables", "SLUICE_REDIS").(string); got != redis ||
				f.get("Environment", "Variables", "SLUICE_DYNAMODB_DEADLINE") != "2s" {
				t.Errorf("%s: the authorizer counts in %q, want %q", name, got, redis)
			}
		}
		for kind, n := range countTypes(one) {
			if strings.HasPrefix(kind, "AWS::ElastiCache::") || kind == "AWS::EC2::VPC" ||
				kind == "AWS::EC2::NatGateway" {
				t.Errorf("%s: %d resources of type %s, which LocalStack does not support", name, n, kind)
			}
		}
	}
}
