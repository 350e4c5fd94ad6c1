package infra_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/jsii-runtime-go"

	"github.com/sluicelimits/sluice/infra"
	"github.com/sluicelimits/sluice/infra/config"
	"github.com/sluicelimits/sluice/internal/aws/grants"
)

// Guarantees that a cell that is added in the middle of the list changes nothing of the others but what they must know
// about it: the counters table from which they lease for its tenants' quotas. Otherwise adding a cell could replace the
// tables of another one.
func TestACellMoreChangesNothingElse(t *testing.T) {
	more, _, err := synthesize(world("a-1", "b-1", "us-1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sluice-control", "sluice-cell-a-1", "sluice-cell-us-1"} {
		before, after := copyTemplate(t, name), decode(t, more[name])
		for _, problem := range differencesOf(before, after) {
			t.Errorf("%s: %s", name, problem)
		}
	}
	if want, got := countTypes(copyTemplate(t, "sluice-cell-a-1")),
		countTypes(decode(t, more["sluice-cell-b-1"])); !maps.Equal(got,
		want) {
		t.Errorf("the cell b-1 has %v, and a-1 %v", got, want)
	}

	// The comparison is shown to detect changes.
	for what, spoil := range map[string]func(*template){
		"an id": func(one *template) {
			one.Resources["Other"] = firstOf(one, "AWS::DynamoDB::Table")
			delete(one.Resources, slices.Sorted(maps.Keys(one.ofType("AWS::DynamoDB::Table")))[0])
		},
		"a name":     func(one *template) { firstOf(one, "AWS::DynamoDB::Table").Properties["TableName"] = "x" },
		"a variable": removeProperty("AWS::Lambda::Function", "Environment"),
		"a type":     func(one *template) { firstOf(one, "AWS::SQS::Queue").Type = "AWS::SNS::Topic" },
	} {
		after := copyTemplate(t, "sluice-cell-a-1")
		spoil(after)
		if len(differencesOf(copyTemplate(t, "sluice-cell-a-1"), after)) == 0 {
			t.Errorf("the comparison does not detect a change of %s", what)
		}
	}
}

// countTypes counts the resources of each type.
func countTypes(one *template) map[string]int {
	all := map[string]int{}
	for _, r := range one.Resources {
		all[r.Type]++
	}
	return all
}

// knowing lists the properties that concern all cells, by type.
var knowing = map[string][]string{
	"AWS::IAM::Role": {"Policies"}, "AWS::CloudTrail::Trail": {"AdvancedEventSelectors"},
}

// knowingVariables are the variables that name all cells.
var knowingVariables = []string{"SLUICE_HOMES", "SLUICE_CANARY_CELLS", "SLUICE_STATUS_CELLS"}

// differencesOf returns the differences, except in these properties and variables.
func differencesOf(before, after *template) (all []string) {
	for _, id := range slices.Sorted(maps.Keys(merged(before.Resources, after.Resources))) {
		b, a := before.Resources[id], after.Resources[id]
		if b == nil && a.Type == "AWS::CloudWatch::Alarm" && strings.Contains(fmt.Sprint(a.get("Dimensions")), "b-1") {
			continue // of the canary, which measures the new cell, too
		}
		if a == nil || b == nil || a.Type != b.Type {
			all = append(all, id+" came or went")
			continue
		}
		for _, r := range []*resource{a, b} {
			for _, property := range knowing[r.Type] {
				delete(r.Properties, property)
			}
			variables, _ := r.get("Environment", "Variables").(map[string]any)
			for _, name := range knowingVariables {
				delete(variables, name)
			}
		}
		if !reflect.DeepEqual(a, b) {
			all = append(all, id+" differs")
		}
	}
	return all
}

func merged[V any](a, b map[string]V) map[string]V {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// Guarantees that cells are deployed one at a time, in the order of the file: the first after the control plane, and
// each other one after the cell before it.
func TestCellsOneAtATime(t *testing.T) {
	all := made()
	if all.err != nil {
		t.Fatal(all.err)
	}
	var manifest struct {
		Artifacts map[string]struct {
			Type         string
			Dependencies []string
		}
	}
	if err := json.Unmarshal(all.manifest, &manifest); err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for name, artifact := range manifest.Artifacts {
		if artifact.Type == "aws:cloudformation:stack" {
			got[name] = slices.DeleteFunc(artifact.Dependencies,
				func(d string) bool { return strings.HasSuffix(d, ".assets") })
		}
	}
	for name, before := range map[string]string{"sluice-cell-a-1": "sluice-control",
		"sluice-cell-us-1": "sluice-cell-a-1"} {
		if !slices.Contains(got[name], before) {
			t.Errorf("%s waits for %v, want %s", name, got[name], before)
		}
	}
	if len(got) != 3 || len(got["sluice-control"]) != 0 {
		t.Errorf("the stacks, and the stacks that they wait for, are %v", got)
	}
}

// Guarantees that what cannot be deployed is refused when templates are made, in one line that says what, instead of by
// CloudFormation in the middle of a deployment.
func TestRefusals(t *testing.T) {
	app := awscdk.NewApp(&awscdk.AppProps{AnalyticsReporting: jsii.Bool(false), Outdir: outdir(t)})
	many := world("a-1")
	for i := range 49 {
		many.Cells = append(many.Cells, config.Cell{ID: fmt.Sprintf("us-%d", i), Region: "us-east-1"})
	}
	for name, tt := range map[string]struct {
		deployment *config.Deployment
		lambdas    string
		want       string
	}{
		"a cell twice": {world("a-1", "a-1"), "", `cells[1].id: the id "a-1" is used twice, first in cells[0]`},
		"unknown region": {&config.Deployment{Control: config.Control{Region: "eu-west-1"},
			Cells: []config.Cell{{ID: "a", Region: "x"}}}, "", `cells[0].region: "x" is not a known region`},
		"no zip":             {world("a-1"), t.TempDir(), "publisher.zip does not exist: run make lambdas ARCH=arm64"},
		"too many variables": {many, "", "its environment variables have "},
		"COMPLIANCE": {&config.Deployment{Control: config.Control{Region: "eu-west-1",
			Audit: config.Audit{Mode: config.Compliance}}, Cells: []config.Cell{{ID: "a", Region: "eu-west-1"}}}, "",
			"control.audit.mode: nobody can undo COMPLIANCE"},
		"an issuer that no token can be of": {issuing(world("a-1"), "HS256"), "",
			`cells[0].issuers[0].algorithms[0]: "HS256" is not RS, PS or ES`},
	} {
		t.Run(name, func(t *testing.T) {
			lambdas := tt.lambdas
			if lambdas == "" {
				lambdas = stubs()
			}
			scope := awscdk.NewStage(app, jsii.String(strings.ReplaceAll(strings.ReplaceAll(name, " ", "-"), ".", "")),
				nil)
			_, err := infra.NewStacks(scope, tt.deployment, lambdas)
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v\nwant one line with %q", err, tt.want)
			}
		})
	}
}

func issuing(d *config.Deployment, algorithm string) *config.Deployment {
	d.Cells[0].Issuers[0].Algorithms = []string{algorithm}
	return d
}

// Guarantees that a panic of CDK reaches the caller as an error, and does not end the program.
func TestPanicsStayInside(t *testing.T) {
	app := awscdk.NewApp(&awscdk.AppProps{AnalyticsReporting: jsii.Bool(false), Outdir: outdir(t)})
	s := awscdk.NewStack(app, jsii.String("Twice"),
		&awscdk.StackProps{Env: &awscdk.Environment{Region: jsii.String("eu-west-1")}})
	props := &infra.CellProps{Deployment: world("a-1"), Cell: "a-1", Lambdas: stubs()}
	if _, err := infra.NewCell(s, "Cell", props); err != nil {
		t.Fatal(err)
	}
	if _, err := infra.NewCell(s, "Cell", props); err == nil || !strings.Contains(err.Error(), "Cell") {
		t.Errorf("a second construct of the same id: %v", err)
	}
	if _, err := infra.NewCell(s, "Nobody", &infra.CellProps{Deployment: world("a-1"), Cell: "b-1",
		Lambdas: stubs()}); err == nil || err.Error() != `the deployment has no cell "b-1"` {
		t.Errorf("a cell that is not in the deployment: %v", err)
	}
}

// Guarantees that docs/deploy.md names the concurrency that the functions reserve, and says what to do if a first
// deployment fails after its protected tables were made.
func TestReservedConcurrency(t *testing.T) {
	control, cell := 0, 0
	for _, f := range grants.Functions() {
		if f.PerCell {
			cell += f.Reserved
		} else {
			control += f.Reserved
		}
	}
	const unreserved, instances = 100, 100
	text, err := os.ReadFile("../docs/deploy.md")
	if err != nil {
		t.Fatal(err)
	}
	page := strings.Join(strings.Fields(string(text)), " ") // without line breaks
	for _, want := range []string{
		fmt.Sprintf("%d in the control plane's region with anchors, and for each cell `maxInstances` and %d more",
			control, cell),
		fmt.Sprintf("a quota of %d.", control+cell+instances+unreserved),
		"`make deploy CDKFLAGS=--no-rollback`", "--no-deletion-protection-enabled",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("docs/deploy.md does not contain %q", want)
		}
	}
}

// Guarantees settings that only some deployments have: a confirmed lock, less logging, and no trail.
func TestModes(t *testing.T) {
	out := *outdir(t)
	app := awscdk.NewApp(&awscdk.AppProps{AnalyticsReporting: jsii.Bool(false), Outdir: &out})
	d := &config.Deployment{
		Control: config.Control{Region: "eu-south-1", NoTrail: true, LogDays: 90, CanaryMinutes: 1,
			NoPlatformLogs: true, Audit: config.Audit{
				Mode: config.Compliance, RetentionDays: 7, Confirm: config.Confirmation(7)}},
		Cells: []config.Cell{{ID: "here", Region: "eu-south-1"}},
	}
	if _, err := infra.NewStacks(app, d, stubs()); err != nil {
		t.Fatal(err)
	}
	app.Synth(nil)
	read := func(name string) *template {
		raw, err := os.ReadFile(filepath.Join(out, name+".template.json"))
		if err != nil {
			t.Fatal(err)
		}
		return decode(t, raw)
	}

	control := read("sluice-control")
	quiet := map[string]any{"LogFormat": "JSON", "SystemLogLevel": "WARN", "ApplicationLogLevel": "TRACE"}
	for _, r := range control.ofType("AWS::Lambda::Function") {
		for setting, want := range quiet {
			if got := r.get("LoggingConfig", setting); got != want {
				t.Errorf("with less logging, %v has %s = %v, want %v", r.get("FunctionName"), setting, got,
					want)
			}
		}
	}
	var rates []string
	for _, r := range control.ofType("AWS::Events::Rule") {
		rates = append(rates, fmt.Sprint(r.get("ScheduleExpression")))
	}
	if slices.Sort(rates); !slices.Equal(rates, []string{"rate(1 minute)", "rate(1 minute)"}) {
		t.Errorf("balancer and canary run at the rates %q, want each minute", rates)
	}
	if n := len(control.ofType("AWS::S3::Bucket")) + len(control.ofType("AWS::CloudTrail::Trail")); n != 1 {
		t.Errorf("without a trail there are %d buckets and trails, want 1", n)
	}
	lock := firstOf(control, "AWS::S3::Bucket").get("ObjectLockConfiguration", "Rule", "DefaultRetention")
	if get(lock, "Mode") != "COMPLIANCE" || get(lock, "Days") != 7.0 {
		t.Errorf("the lock of the bucket is %v", lock)
	}
	if days := firstOf(control, "AWS::Logs::LogGroup").get("RetentionInDays"); days != 90.0 {
		t.Errorf("logs are kept for %v days, want 90", days)
	}
}

// Guarantees that each cell's queue accepts messages from SNS under the correct service principal. In a region that an
// account has to enable, the name differs, and with the wrong name no message arrives. The names are those of
// "Cross-region delivery support to Amazon SQS" in the documentation of SNS.
func TestTopicReachesQueues(t *testing.T) {
	for control, cells := range map[string]map[string]string{
		"eu-south-1": {"eu-south-1": "sns.amazonaws.com", "eu-west-1": "sns.eu-south-1.amazonaws.com",
			"ap-east-1": "sns.ap-east-1.amazonaws.com"},
		"eu-west-1": {"eu-west-1": "sns.amazonaws.com", "us-east-1": "sns.amazonaws.com",
			"eu-south-1": "sns.eu-south-1.amazonaws.com"},
	} {
		out := *outdir(t)
		app := awscdk.NewApp(&awscdk.AppProps{AnalyticsReporting: jsii.Bool(false), Outdir: &out})
		d := &config.Deployment{Control: config.Control{Region: control}}
		for region := range cells {
			d.Cells = append(d.Cells, config.Cell{ID: region, Region: region})
		}
		if _, err := infra.NewStacks(app, d, stubs()); err != nil {
			t.Fatal(err)
		}
		app.Synth(nil)
		for region, want := range cells {
			raw, err := os.ReadFile(filepath.Join(out, "sluice-cell-"+region+".template.json"))
			if err != nil {
				t.Fatal(err)
			}
			one, got := decode(t, raw), []string(nil)
			for _, p := range one.ofType("AWS::SQS::QueuePolicy") {
				for _, s := range list(p.get("PolicyDocument", "Statement")) {
					if get(s, "Effect") == "Allow" {
						got = append(got, one.texts(get(s, "Principal", "Service"))...)
					}
				}
			}
			if !slices.Equal(got, []string{want}) {
				t.Errorf("from %s to %s: the queue accepts messages from %v, want %s", control, region, got, want)
			}
			if at := firstOf(one, "AWS::SNS::Subscription").get("Region"); at != control {
				t.Errorf("from %s to %s: the queue is subscribed in %v, which is not the region of the topic", control,
					region, at)
			}
		}
	}
}
