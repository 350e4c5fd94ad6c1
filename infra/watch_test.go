package infra_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sluicelimits/sluice/infra"
	"github.com/sluicelimits/sluice/infra/alarm"
	"github.com/sluicelimits/sluice/infra/config"
	"github.com/sluicelimits/sluice/internal/dev/cost"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/telemetry"
)

const (
	stageARN   = "arn:aws:apigateway:us-east-1::/restapis/a1b2c3/stages/v1"
	backendARN = "arn:aws:cloudwatch:us-east-1:123456789012:alarm:backend errors"
)

// watched is a deployment of two cells in two regions, with all alarms, dashboards and firewalls.
var watched = sync.OnceValue(func() synthesized {
	d := &config.Deployment{
		Control: config.Control{Region: "eu-west-1"}, Alarms: config.Alarms{Set: config.AllAlarms,
			Email: "ops@example.com"}, Dashboards: true,
		Operators: config.Callers{Principals: []string{operatorARN}, Addresses: []string{"203.0.113.0/24",
			"2001:db8::/32"}},
		Cells: []config.Cell{{ID: "a-1", Region: "eu-west-1", NoKillSwitch: true}, {ID: "us-1", Region: "us-east-1",
			RollbackAlarms: []string{backendARN}, WAF: &config.WAF{Rate: 2000, Stages: []string{stageARN}}}},
	}
	raw, manifest, err := synthesize(d)
	return synthesized{raw, manifest, err}
})

func watchedStack(t *testing.T, name string) *template {
	t.Helper()
	all := watched()
	if all.err != nil {
		t.Fatal(all.err)
	}
	return decode(t, all.raw[name])
}

// Guarantees that every change of what only such deployments have shows as a diff of a golden file.
func TestWatchedTemplates(t *testing.T) {
	all := watched()
	if all.err != nil {
		t.Fatal(all.err)
	}
	golden(t, "control-watched.template.json", all.raw["sluice-control"])
	golden(t, "cell-watched.template.json", all.raw["sluice-cell-us-1"])
}

// alarmHolds checks what must be true of every alarm in every template.
func alarmHolds(one *template, _ string, r *resource, wrong func(string, ...any)) {
	name, description := one.text(r.get("AlarmName")), fmt.Sprint(r.get("AlarmDescription"))
	_, runbook, ok := strings.Cut(description, infra.Runbooks)
	if _, err := os.Stat(filepath.Join("../docs/runbooks", runbook)); !ok || err != nil ||
		!strings.HasPrefix(name, "sluice-") || len(description) > 1024 {
		wrong("%s: %s: there is no such runbook", name, description)
	}
	if !slices.Contains([]string{"breaching", "notBreaching", "ignore"}, fmt.Sprint(r.get("TreatMissingData"))) {
		wrong("it is not said what missing data is")
	}
	if n := len(alarmMetrics(r)); n < 1 || r.get("ComparisonOperator") == nil || r.get("EvaluationPeriods") == nil ||
		r.get("Threshold") == nil {
		wrong("it is over %d metrics, or when it rings is left open", n)
	}
	if !slices.Equal(one.texts(r.get("AlarmActions")), one.texts(r.get("OKActions"))) {
		wrong("it is not told where it ends")
	}
}

// alarmMetrics returns the names of the metrics that an alarm watches. Each of them is billed.
func alarmMetrics(r *resource) (all []string) {
	if name, ok := r.get("MetricName").(string); ok {
		return []string{name}
	}
	for _, q := range list(r.get("Metrics")) {
		if name, ok := get(q, "MetricStat", "Metric", "MetricName").(string); ok {
			all = append(all, name)
		}
	}
	return all
}

// Guarantees that the templates have exactly the listed alarms, each with its runbook and a treatment of missing data,
// and that each alarm notifies what the deployment says: nothing, or the topic of its region.
func TestAlarms(t *testing.T) {
	hold := holdOfEach("AWS::CloudWatch::Alarm", alarmHolds)
	d := world("a-1", "us-1")
	if err := d.Complete(); err != nil {
		t.Fatal(err)
	}
	cellTopic := "arn:aws:sns:eu-west-1:123456789012:sluice-alarms"
	for _, tt := range []struct {
		stack   string
		alarms  int
		heardOn string
		one     *template
	}{
		{"sluice-control", len(alarm.Control(d)), "", copyTemplate(t, "sluice-control")},
		{"sluice-cell-a-1", len(alarm.Cell(d, &d.Cells[0])), "", copyTemplate(t, "sluice-cell-a-1")},
		{"sluice-control", len(alarm.Control(d)) + 1 - 2 /* it has no anchors */, "${ControlAlarmsTopic",
			watchedStack(t, "sluice-control")},
		{"sluice-cell-a-1", len(alarm.Cell(d, &d.Cells[0])) + 5, cellTopic, watchedStack(t, "sluice-cell-a-1")},
		{"sluice-cell-us-1", len(alarm.Cell(d, &d.Cells[0])) + 7, "${CellAlarmsTopic",
			watchedStack(t, "sluice-cell-us-1")},
	} {
		wrong, looked := hold(tt.one)
		if looked != tt.alarms || len(wrong) > 0 {
			t.Errorf("%s: %d alarms, want %d; %s", tt.stack, looked, tt.alarms, strings.Join(wrong, "\n"))
		}
		for id, r := range tt.one.ofType("AWS::CloudWatch::Alarm") {
			if on := strings.Join(firstOnly(tt.one.texts(r.get("AlarmActions"))), ""); !strings.HasPrefix(on,
				tt.heardOn) ||
				(tt.heardOn == "") != (on == "") {
				t.Errorf("%s: alarm %s notifies %q, want %q", tt.stack, id, on, tt.heardOn)
			}
		}
	}
	for what, spoil := range map[string]func(*resource){
		"runbook":      func(r *resource) { r.Properties["AlarmDescription"] = "Bad. " + infra.Runbooks + "none.md" },
		"missing data": func(r *resource) { delete(r.Properties, "TreatMissingData") },
		"metric":       func(r *resource) { delete(r.Properties, "MetricName"); delete(r.Properties, "Metrics") },
		"end":          func(r *resource) { r.Properties["AlarmActions"] = []any{"arn:aws:sns:x"} },
	} {
		spoiled := copyTemplate(t, "sluice-control")
		spoil(firstOf(spoiled, "AWS::CloudWatch::Alarm"))
		if wrong, _ := hold(spoiled); len(wrong) == 0 {
			t.Errorf("the check does not detect a wrong %s", what)
		}
	}
}

func firstOnly(all []string) []string { return all[:min(len(all), 1)] }

// Guarantees that sluice cost bills the number of metrics that the deployed alarms watch.
func TestAlarmsCost(t *testing.T) {
	for name, tt := range map[string]struct {
		cells   []string
		profile cost.Profile
		looked  int
	}{
		"one small cell": {[]string{"a-1"}, cost.Small, 0}, "two": {[]string{"a-1", "us-1"}, cost.Small, 0},
		"a full one": {[]string{"a-1"}, cost.Full, 0},
	} {
		d := world(tt.cells...)
		for i := range d.Cells {
			d.Cells[i].Profile = string(tt.profile)
			d.Cells[i].Issuers, d.Cells[i].Claims = nil, nil // a full cell cannot reach their keys
		}
		if err := d.Complete(); err != nil {
			t.Fatal(err)
		}
		for _, a := range alarm.Control(d) {
			tt.looked += len(a.Metrics)
		}
		for i := range d.Cells {
			for _, a := range alarm.Cell(d, &d.Cells[i]) {
				tt.looked += len(a.Metrics)
			}
		}
		w := cost.NewWorkload(0)
		w.Cells, w.Profile, w.Anchors = int64(len(d.Cells)), tt.profile, d.Control.Audit.Anchors
		prices, err := cost.ListPrices()
		if err != nil {
			t.Fatal(err)
		}
		bill, err := cost.New(&w, prices)
		if err != nil {
			t.Fatal(err)
		}
		if bill.Usage.AlarmMetrics != int64(tt.looked) {
			t.Errorf("%s: sluice cost bills %d metrics of alarms, but %d are deployed", name, bill.Usage.AlarmMetrics,
				tt.looked)
		}
	}
	// The list contains what is deployed.
	deployed, listed := 0, 0
	for _, name := range []string{"sluice-control", "sluice-cell-a-1", "sluice-cell-us-1"} {
		for _, r := range copyTemplate(t, name).ofType("AWS::CloudWatch::Alarm") {
			deployed += len(alarmMetrics(r))
		}
	}
	d := world("a-1", "us-1")
	if err := d.Complete(); err != nil {
		t.Fatal(err)
	}
	for _, a := range slices.Concat(alarm.Control(d), alarm.Cell(d, &d.Cells[0]), alarm.Cell(d, &d.Cells[1])) {
		listed += len(a.Metrics)
	}
	if deployed != listed {
		t.Errorf("%d metrics of alarms are deployed, but %d are listed", deployed, listed)
	}
}

// topicHolds checks a topic of alarms and its key: CloudWatch, and nobody else, may use both, for alarms of this
// account only.
func topicHolds(one *template) (wrong []string) {
	topics, keys := 0, one.ofType("AWS::KMS::Key")
	for id, r := range one.ofType("AWS::SNS::Topic") {
		if r.get("TopicName") == "sluice-changes" {
			continue
		}
		topics++
		if _, ok := keys[fmt.Sprint(get(r.get("KmsMasterKeyId"), "Ref"))]; !ok {
			wrong = append(wrong, id+": CloudWatch cannot use its key")
		}
		if get(r.get("Subscription", 0), "Endpoint") != "ops@example.com" {
			wrong = append(wrong, id+": nobody hears it")
		}
	}
	policies := map[string][]any{"kms": nil, "sns": nil}
	for _, r := range keys {
		if r.get("EnableKeyRotation") != true {
			wrong = append(wrong, "the key is never another one")
		}
		policies["kms"] = list(r.get("KeyPolicy", "Statement"))
	}
	for _, r := range one.ofType("AWS::SNS::TopicPolicy") {
		policies["sns"] = append(policies["sns"], list(r.get("PolicyDocument", "Statement"))...)
	}
	want := map[string]string{"kms": "kms:Decrypt kms:GenerateDataKey", "sns": "sns:Publish"}
	for service, statements := range policies {
		found := 0
		for _, s := range statements {
			if get(s, "Principal", "Service") != "cloudwatch.amazonaws.com" {
				continue
			}
			found++
			source := one.text(get(s, "Condition", "ArnLike", "aws:SourceArn"))
			if strings.Join(one.texts(get(s, "Action")), " ") != want[service] ||
				!strings.Contains(source, ":123456789012:alarm:sluice-") {
				wrong = append(wrong, fmt.Sprintf("%s: CloudWatch may %v for %s", service, get(s, "Action"), source))
			}
		}
		if found != topics {
			wrong = append(wrong, service+": CloudWatch is let in "+fmt.Sprint(found)+" times")
		}
	}
	if topics != 1 || len(keys) != 1 {
		wrong = append(wrong, fmt.Sprintf("there are %d topics and %d keys", topics, len(keys)))
	}
	return wrong
}

// Guarantees that notifications of alarms can reach the email address. With AWS's own key for topics, all of them would
// be lost without an error.
func TestAlarmTopics(t *testing.T) {
	for _, name := range []string{"sluice-control", "sluice-cell-us-1"} {
		for _, line := range topicHolds(watchedStack(t, name)) {
			t.Errorf("%s: %s", name, line)
		}
	}
	if n := len(watchedStack(t, "sluice-cell-a-1").ofType("AWS::KMS::Key")); n != 0 {
		t.Errorf("a cell in the control plane's region has %d keys of its own, want none", n)
	}
	for what, spoil := range map[string]func(*template){
		"AWS's key": func(one *template) {
			firstOf(one,
				"AWS::SNS::Topic").Properties["KmsMasterKeyId"] = "alias/aws/sns"
		},
		"no key policy": func(one *template) {
			firstOf(one,
				"AWS::KMS::Key").Properties["KeyPolicy"] = map[string]any{}
		},
		"no policy": func(one *template) {
			firstOf(one, "AWS::SNS::TopicPolicy").Properties["PolicyDocument"] = map[string]any{}
		},
		"no rotation":   removeProperty("AWS::KMS::Key", "EnableKeyRotation"),
		"no subscriber": removeProperty("AWS::SNS::Topic", "Subscription"),
		"anybody's bell": func(one *template) {
			delete(firstOf(one, "AWS::SNS::TopicPolicy").get("PolicyDocument", "Statement", 0).(map[string]any),
				"Condition")
		},
	} {
		spoiled := watchedStack(t, "sluice-cell-us-1")
		spoil(spoiled)
		if len(topicHolds(spoiled)) == 0 {
			t.Errorf("the check does not detect %s", what)
		}
	}
}

// boardHolds returns the lines of a dashboard whose metrics nobody writes, and the number of lines.
func boardHolds(body string) (wrong []string, lines int) {
	var board struct {
		Widgets []struct {
			Type       string
			Properties struct {
				Region  string
				Metrics [][]any
				Alarms  []string
			}
		}
	}
	if err := json.Unmarshal([]byte(body), &board); err != nil {
		return []string{err.Error()}, 0
	}
	for _, w := range board.Widgets {
		if (w.Type == "alarm") != (len(w.Properties.Alarms) > 0) ||
			(w.Type == "metric") != (w.Properties.Region != "" && len(w.Properties.Metrics) > 0) {
			wrong = append(wrong, "a widget of "+w.Type+" that shows nothing")
		}
		for _, l := range w.Properties.Metrics {
			lines++
			if why := noWriterOf(l); why != "" {
				wrong = append(wrong, fmt.Sprintf("%v: %s", l, why))
			}
		}
	}
	return wrong, lines
}

// noWriterOf says why nobody writes the metric of a line, or "" if it is written.
func noWriterOf(l []any) string {
	namespace, name, values := fmt.Sprint(l[0]), fmt.Sprint(l[1]), l[2:len(l)-1]
	var dimensions []string
	for i := 0; i+1 < len(values); i += 2 {
		dimensions = append(dimensions, fmt.Sprint(values[i]))
	}
	if namespace != "Sluice" {
		return map[bool]string{true: "AWS has no such metric"}[!slices.Contains([]string{
			"AWS/Lambda IteratorAge FunctionName", "AWS/Lambda Throttles FunctionName",
			"AWS/Lambda ConcurrentExecutions FunctionName",
			"AWS/SQS ApproximateNumberOfMessagesVisible QueueName", "AWS/SQS ApproximateAgeOfOldestMessage QueueName",
			"AWS/DynamoDB ConsumedWriteCapacityUnits TableName", "AWS/DynamoDB WriteThrottleEvents TableName",
		}, strings.Join(append([]string{namespace, name}, dimensions...), " "))]
	}
	function := fmt.Sprint(values[len(values)-1])
	function = function[strings.LastIndex(function, "-")+1:]
	stat := fmt.Sprint(get(l[len(l)-1], "stat"))
	for _, m := range telemetry.Metrics() {
		if m.Name == name && slices.Contains(m.Functions, function) {
			forms := map[telemetry.Form]string{telemetry.Counted: "Sum", telemetry.Level: "Maximum",
				telemetry.Spread: stat, telemetry.Averaged: "Average"}
			if m.LineOnly || !slices.Equal(m.Dimensions, dimensions) || forms[m.Form] != stat ||
				(m.Form == telemetry.Spread) != strings.HasPrefix(stat, "p") {
				return "it is written otherwise"
			}
			return ""
		}
	}
	return function + " does not write it"
}

// Guarantees that each line of the dashboards shows a metric that is written.
func TestDashboards(t *testing.T) {
	for name, want := range map[string]int{"sluice-control": 17, "sluice-cell-us-1": 36} {
		one := watchedStack(t, name)
		body := one.text(firstOf(one, "AWS::CloudWatch::Dashboard").get("DashboardBody"))
		wrong, lines := boardHolds(body)
		for _, line := range wrong {
			t.Errorf("%s: %s", name, line)
		}
		if lines != want {
			t.Errorf("%s: %d lines, want %d", name, lines, want)
		}
		for what, spoiled := range map[string]string{
			"misspelt":             strings.Replace(body, `propagation_seconds"`, `propagation_second"`, 1),
			"without a dimension":  strings.Replace(body, `"cell","us-1",`, "", 1),
			"by another statistic": strings.ReplaceAll(body, `"stat":"p99"`, `"stat":"Sum"`),
			"of the line only":     strings.Replace(body, `"drift"`, `"reconcile_items"`, 1),
			"that AWS has not":     strings.Replace(body, `"AWS/SQS"`, `"AWS/SNS"`, 1),
		} {
			if wrong, _ := boardHolds(spoiled); len(wrong) == 0 {
				t.Errorf("%s: the check does not detect a metric %s", name, what)
			}
		}
	}
	if n := len(copyTemplate(t, "sluice-control").ofType("AWS::CloudWatch::Dashboard")); n != 0 {
		t.Errorf("there are %d dashboards in a deployment without dashboards", n)
	}
}

// switchHolds checks the kill switch.
func switchHolds(one *template) (wrong []string) {
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	profile := firstOf(one, "AWS::AppConfig::ConfigurationProfile")
	var schema struct {
		Type                 string
		Required             []string
		AdditionalProperties *bool
		Properties           map[string]struct{ Enum []string }
	}
	content, _ := profile.get("Validators", 0, "Content").(string)
	if err := json.Unmarshal([]byte(content), &schema); err != nil || get(profile.get("Validators", 0),
		"Type") != "JSON_SCHEMA" {
		say("any document can be deployed: %v", err)
	}
	for _, mode := range append(schema.Properties["mode"].Enum, "none") {
		if _, known := limit.ParseMode(mode); known != (mode != "none") {
			say("the authorizer does not know the mode %s", mode)
		}
	}
	if schema.Type != "object" || !slices.Equal(schema.Required, []string{"mode"}) ||
		schema.AdditionalProperties == nil || *schema.AdditionalProperties ||
		!slices.Equal(schema.Properties["mode"].Enum, []string{"enforce", "shadow", "off"}) ||
		len(schema.Properties) != 1 {
		say("documents can be deployed that the authorizer refuses: %s", content)
	}
	begin := firstOf(one, "AWS::AppConfig::HostedConfigurationVersion")
	if begin.get("Content") != `{"mode":"enforce"}` || begin.get("ContentType") != "application/json" {
		say("it begins with %v", begin.get("Content"))
	}
	ways := map[string]string{}
	for id, r := range one.ofType("AWS::AppConfig::DeploymentStrategy") {
		ways[id] = fmt.Sprintf("%v %v min %v %% %v min", r.get("Name"), r.get("DeploymentDurationInMinutes"),
			r.get("GrowthFactor"), r.get("FinalBakeTimeInMinutes"))
	}
	cell := cellOf(one)
	if got := slices.Sorted(maps.Values(ways)); !slices.Equal(got,
		[]string{"sluice-" + cell + "-atonce 0 min 100 % 0 min", "sluice-" + cell + "-watched 10 min 20 % 10 min"}) {
		say("the ways to deploy a mode are %v", got)
	}
	if n := len(one.ofType("AWS::AppConfig::Deployment")); n != 0 {
		say("the stack deploys %d modes while its alarms have no data, and AppConfig rolls them back", n)
	}
	var monitors []string
	for _, m := range list(firstOf(one, "AWS::AppConfig::Environment").get("Monitors")) {
		monitors = append(monitors, one.text(get(m, "AlarmArn")))
		if !strings.Contains(one.text(get(m, "AlarmRoleArn")), "KillSwitchWatching") {
			say("nobody may look at %v", m)
		}
	}
	names := map[string]bool{}
	for _, r := range one.ofType("AWS::CloudWatch::Alarm") {
		names[fmt.Sprint(r.get("AlarmName"))] = r.get("TreatMissingData") == "notBreaching"
	}
	own := 0
	for _, arn := range monitors {
		_, name, _ := strings.Cut(arn, ":alarm:")
		good, exists := names[name]
		if exists {
			own++
		}
		if exists && !good {
			say("%s has no state while nobody calls, which takes a mode back", arn)
		} else if !exists && arn != backendARN {
			say("%s is an alarm of nobody", arn)
		}
	}
	if own != 2 {
		say("of the cell's alarms %d take a mode back", own)
	}
	return wrong
}

// Guarantees the kill switch: only documents that the authorizer accepts can be deployed; the stack deploys none, and
// its only version is enforce; the alarms that AppConfig watches exist, and ring or not also without data; and there is
// a way to switch at once.
func TestKillSwitch(t *testing.T) {
	for _, one := range []*template{copyTemplate(t, "sluice-cell-a-1"), watchedStack(t, "sluice-cell-us-1")} {
		for _, line := range switchHolds(one) {
			t.Error(line)
		}
	}
	if n := len(list(firstOf(watchedStack(t, "sluice-cell-us-1"),
		"AWS::AppConfig::Environment").get("Monitors"))); n != 3 {
		t.Errorf("%d alarms roll back a change of the mode, want the cell's two and the backend's", n)
	}
	without1 := watchedStack(t, "sluice-cell-a-1")
	for id, r := range without1.Resources {
		if strings.HasPrefix(r.Type, "AWS::AppConfig::") || r.get("Environment", "Variables",
			"SLUICE_KILL_SWITCH") != nil {
			t.Errorf("the resource %s exists in a cell without a kill switch", id)
		}
	}
	for what, spoil := range map[string]func(*template){
		"schema": removeProperty("AWS::AppConfig::ConfigurationProfile", "Validators"),
		"mode": func(one *template) {
			firstOf(one, "AWS::AppConfig::HostedConfigurationVersion").Properties["Content"] = `{"mode":"off"}`
		},
		"looser schema": func(one *template) {
			v := firstOf(one, "AWS::AppConfig::ConfigurationProfile").get("Validators", 0).(map[string]any)
			v["Content"] = strings.Replace(v["Content"].(string), `"additionalProperties":false,`, "", 1)
		},
		"bake": func(one *template) {
			for _, r := range one.ofType("AWS::AppConfig::DeploymentStrategy") {
				r.Properties["FinalBakeTimeInMinutes"] = 0.0
			}
		},
		"alarm": func(one *template) {
			for _, r := range one.ofType("AWS::CloudWatch::Alarm") {
				r.Properties["AlarmName"] = fmt.Sprint(r.Properties["AlarmName"], "2")
			}
		},
		"monitors": removeProperty("AWS::AppConfig::Environment", "Monitors"),
		"deployment": func(one *template) {
			one.Resources["First"] = &resource{Type: "AWS::AppConfig::Deployment"}
		},
		"missing data": func(one *template) {
			for _, r := range one.ofType("AWS::CloudWatch::Alarm") {
				r.Properties["TreatMissingData"] = "missing"
			}
		},
	} {
		one := copyTemplate(t, "sluice-cell-a-1")
		spoil(one)
		if len(switchHolds(one)) == 0 {
			t.Errorf("the check does not detect a wrong %s", what)
		}
	}
}

// wafHolds checks the firewall.
func wafHolds(one *template) (wrong []string) {
	acl := firstOf(one, "AWS::WAFv2::WebACL")
	rule := acl.get("Rules", 0)
	if get(rule, "Statement", "RateBasedStatement", "Limit") != 2000.0 || get(rule, "Statement", "RateBasedStatement",
		"AggregateKeyType") != "IP" ||
		get(rule, "Statement", "RateBasedStatement", "EvaluationWindowSec") != 300.0 ||
		get(rule, "Action", "Block") == nil {
		wrong = append(wrong, fmt.Sprintf("its rule is %v", rule))
	}
	if acl.get("DefaultAction", "Allow") == nil || acl.get("Scope") != "REGIONAL" {
		wrong = append(wrong, "it lets nobody through, or is for CloudFront")
	}
	for _, v := range []any{acl.get("VisibilityConfig"), get(rule, "VisibilityConfig")} {
		if get(v, "SampledRequestsEnabled") != false || get(v, "CloudWatchMetricsEnabled") != true {
			wrong = append(wrong, "it keeps requests with addresses, or counts none")
		}
	}
	if at := firstOf(one, "AWS::WAFv2::WebACLAssociation"); at.get("ResourceArn") != stageARN ||
		!strings.Contains(one.text(at.get("WebACLArn")), "WAF") {
		wrong = append(wrong, "it stands before nothing")
	}
	return wrong
}

// Guarantees that there is a firewall only if the deployment asks for one, since it costs 6 USD a month.
func TestWAF(t *testing.T) {
	for _, line := range wafHolds(watchedStack(t, "sluice-cell-us-1")) {
		t.Error(line)
	}
	if n := len(watchedStack(t, "sluice-cell-a-1").ofType("AWS::WAFv2::WebACL")); n != 0 {
		t.Errorf("there are %d firewalls in a deployment without firewalls", n)
	}
	for what, spoil := range map[string]func(*template){
		"rule": removeProperty("AWS::WAFv2::WebACL", "Rules"),
		"default": func(one *template) {
			firstOf(one, "AWS::WAFv2::WebACL").Properties["DefaultAction"] = map[string]any{"Block": map[string]any{}}
		},
		"samples": func(one *template) {
			firstOf(one, "AWS::WAFv2::WebACL").get("VisibilityConfig").(map[string]any)["SampledRequestsEnabled"] = true
		},
		"stage": func(one *template) {
			firstOf(one, "AWS::WAFv2::WebACLAssociation").Properties["ResourceArn"] = "arn:aws:x"
		},
	} {
		one := watchedStack(t, "sluice-cell-us-1")
		spoil(one)
		if len(wafHolds(one)) == 0 {
			t.Errorf("the check does not detect a wrong %s", what)
		}
	}
}
