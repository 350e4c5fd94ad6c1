package infra_test

import (
	"debug/elf"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslambda"
	"github.com/aws/aws-cdk-go/awscdk/v2/awssns"
	"github.com/aws/aws-cdk-go/awscdk/v2/awssqs"
	"github.com/aws/jsii-runtime-go"

	"github.com/sluicelimits/sluice/infra"
	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/aws/grants"
)

// workerStack returns a stack with a queue and everything that a worker needs.
func workerStack(app awscdk.App) (awscdk.Stack, func() *infra.WorkerProps) {
	stack := awscdk.NewStack(app, jsii.String("sluice-worker"), nil)
	dead := awssqs.NewQueue(stack, jsii.String("Dead"), nil)
	queue := awssqs.NewQueue(stack, jsii.String("Jobs"), &awssqs.QueueProps{
		DeadLetterQueue: &awssqs.DeadLetterQueue{Queue: dead, MaxReceiveCount: jsii.Number(3)}})
	target := awslambda.Function_FromFunctionArn(stack, jsii.String("Sender"),
		jsii.String("arn:aws:lambda:eu-west-1:123456789012:function:sender"))
	alarms := awssns.NewTopic(stack, jsii.String("Alarms"), nil)
	return stack, func() *infra.WorkerProps {
		return &infra.WorkerProps{Queue: queue, DeadLetters: dead, Target: target, Limit: "100/s", Lambdas: stubs(),
			Topics: []awssns.ITopic{alarms}}
	}
}

// madeWorker holds the template of a stack with a worker.
var madeWorker = sync.OnceValue(func() synthesized {
	dir, err := os.MkdirTemp(templates, "")
	if err != nil {
		return synthesized{err: err}
	}
	app := awscdk.NewApp(&awscdk.AppProps{AnalyticsReporting: jsii.Bool(false), Outdir: &dir})
	stack, props := workerStack(app)
	if _, err = infra.NewWorker(stack, "Worker", props()); err != nil {
		return synthesized{err: err}
	}
	app.Synth(nil)
	raw, err := os.ReadFile(filepath.Join(dir, "sluice-worker.template.json"))
	return synthesized{raw: map[string][]byte{"sluice-worker": raw}, err: err}
})

// Guarantees that every change of the worker shows as a change of a golden file.
func TestWorker(t *testing.T) {
	w := madeWorker()
	if w.err != nil {
		t.Fatal(w.err)
	}
	golden(t, "worker.template.json", w.raw["sluice-worker"])
}

// Guarantees that wrong properties are refused by name.
func TestWorkerRefuses(t *testing.T) {
	stack, props := workerStack(awscdk.NewApp(&awscdk.AppProps{Outdir: outdir(t)}))
	other := bundles(elf.EM_X86_64)
	for want, change := range map[string]func(*infra.WorkerProps){
		"Queue is missing":       func(p *infra.WorkerProps) { p.Queue = nil },
		"DeadLetters is missing": func(p *infra.WorkerProps) { p.DeadLetters = nil },
		"Target is missing":      func(p *infra.WorkerProps) { p.Target = nil },
		"Limit: ":                func(p *infra.WorkerProps) { p.Limit = "fast" },
		"longer than a minute":   func(p *infra.WorkerProps) { p.Limit = "5/h" },
		"ClockError of 500ms":    func(p *infra.WorkerProps) { p.ClockError = 500 * time.Millisecond },
		"MaxDelay of -1s":        func(p *infra.WorkerProps) { p.MaxDelay = -time.Second },
		"SLUICE_PARALLEL":        func(p *infra.WorkerProps) { p.Parallel = 2000 },
		"SLUICE_VISIBILITY":      func(p *infra.WorkerProps) { p.Visibility = time.Second },
		"below a minute":         func(p *infra.WorkerProps) { p.MaxAge = time.Second },
		"Architecture is":        func(p *infra.WorkerProps) { p.Architecture = "sparc" },
		"worker.zip is built":    func(p *infra.WorkerProps) { p.Lambdas = other },
		"does not exist":         func(p *infra.WorkerProps) { p.Lambdas = t.TempDir() },
	} {
		p := props()
		change(p)
		if _, err := infra.NewWorker(stack, "Bad"+strings.Fields(want)[0], p); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// Guarantees that the worker may do what it needs, on its queue, its target and its log group, and nothing else; that
// only its schedule may call it; that there is one call at a time; and that its settings are valid.
func TestWorkerHolds(t *testing.T) {
	w := madeWorker()
	if w.err != nil {
		t.Fatal(w.err)
	}
	for _, wrong := range workerHolds(decode(t, w.raw["sluice-worker"])) {
		t.Error(wrong)
	}
	for mistake, spoil := range map[string]func(*template){
		"it may do more": func(one *template) {
			s := get(firstOf(one, "AWS::IAM::Role").get("Policies"), 0, "PolicyDocument", "Statement", 0)
			s.(map[string]any)["Action"] = "sqs:*"
		},
		"it may use any queue": func(one *template) {
			s := get(firstOf(one, "AWS::IAM::Role").get("Policies"), 0, "PolicyDocument", "Statement", 0)
			s.(map[string]any)["Resource"] = "*"
		},
		"others may call it": func(one *template) {
			delete(firstOf(one, "AWS::Lambda::Permission").Properties, "SourceArn")
		},
		"two calls at once": func(one *template) {
			firstOf(one, "AWS::Lambda::Function").Properties["ReservedConcurrentExecutions"] = 2.0
		},
		"calls wait for hours": func(one *template) {
			delete(firstOf(one, "AWS::Lambda::EventInvokeConfig").Properties, "MaximumEventAgeInSeconds")
		},
		"Lambda receives": func(one *template) {
			one.Resources["Mapping"] = &resource{Type: "AWS::Lambda::EventSourceMapping"}
		},
		"it does not start": func(one *template) {
			variables := firstOf(one, "AWS::Lambda::Function").get("Environment", "Variables").(map[string]any)
			variables["SLUICE_LIMITS"] = "1/s"
		},
		"nobody hears an alarm": func(one *template) {
			delete(firstOf(one, "AWS::CloudWatch::Alarm").Properties, "AlarmActions")
		},
	} {
		one := decode(t, w.raw["sluice-worker"])
		spoil(one)
		if len(workerHolds(one)) == 0 {
			t.Errorf("the check does not detect: %s", mistake)
		}
	}
}

func workerHolds(one *template) (wrong []string) {
	bad := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	queue, group := "", ""
	for id, r := range one.ofType("AWS::SQS::Queue") {
		if r.get("RedrivePolicy") != nil {
			queue = "${" + id + ".Arn}"
		}
	}
	for id := range one.ofType("AWS::Logs::LogGroup") {
		group = "${" + id + ".Arn}"
	}
	const target = "arn:aws:lambda:eu-west-1:123456789012:function:sender"
	of := map[grants.Resource]string{grants.Jobs: queue, grants.Target: target, grants.Logs: group}
	want, given := map[string]bool{}, map[string]bool{}
	for _, g := range grants.Worker().Grants {
		for _, action := range g.Actions {
			want[action+" on "+of[g.On]] = true
		}
	}
	for _, role := range one.ofType("AWS::IAM::Role") {
		if role.get("ManagedPolicyArns") != nil || len(list(role.get("Policies"))) != 1 {
			bad("the role has further policies")
		}
		for _, s := range list(role.get("Policies", 0, "PolicyDocument", "Statement")) {
			for _, action := range one.texts(get(s, "Action")) {
				for _, on := range one.texts(get(s, "Resource")) {
					given[action+" on "+on] = true
				}
			}
		}
	}
	if !maps.Equal(given, want) {
		bad("it may %q, want %q", slices.Sorted(maps.Keys(given)), slices.Sorted(maps.Keys(want)))
	}
	for kind, n := range map[string]int{"AWS::IAM::Role": 1, "AWS::IAM::Policy": 0, "AWS::Lambda::Function": 1,
		"AWS::Lambda::EventSourceMapping": 0, "AWS::Lambda::Permission": 1, "AWS::CloudWatch::Alarm": 3,
		"AWS::Lambda::EventInvokeConfig": 1} {
		if got := len(one.ofType(kind)); got != n {
			bad("%d of %s, want %d", got, kind, n)
			return wrong
		}
	}
	permission, calls := firstOf(one, "AWS::Lambda::Permission"), firstOf(one, "AWS::Lambda::EventInvokeConfig")
	if one.text(permission.get("Principal")) != "events.amazonaws.com" || permission.get("SourceArn") == nil {
		bad("others than its schedule may call it")
	}
	if calls.get("MaximumEventAgeInSeconds") != 60.0 || calls.get("MaximumRetryAttempts") != 0.0 {
		bad("calls that come too early are kept")
	}
	function := firstOf(one, "AWS::Lambda::Function")
	if function.get("ReservedConcurrentExecutions") != 1.0 || function.get("Timeout") != 900.0 {
		bad("it has %v calls at once, of %v s", function.get("ReservedConcurrentExecutions"), function.get("Timeout"))
	}
	variables, _ := function.get("Environment", "Variables").(map[string]any)
	var environment []string
	for name, value := range variables {
		text := one.text(value)
		if name == "SLUICE_QUEUE" {
			text = "https://sqs.eu-west-1.amazonaws.com/123456789012/jobs"
		}
		environment = append(environment, name+"="+text)
	}
	if s, err := environ.Read[environ.Worker](environment); err != nil || s.Target != target || s.Limit != "100/s" {
		bad("it would not start: %v", err)
	}
	for id, a := range one.ofType("AWS::CloudWatch::Alarm") {
		if len(list(a.get("AlarmActions"))) != 1 || len(list(a.get("OKActions"))) != 1 {
			bad("nobody hears %s", id)
		}
		text, err := json.Marshal(a.get("Dimensions"))
		if err != nil || !strings.Contains(string(text), "Fn::GetAtt") && !strings.Contains(string(text), "Ref") {
			bad("%s looks at %s", id, text)
		}
	}
	return wrong
}
