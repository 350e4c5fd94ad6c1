package alarm_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/infra/alarm"
	"github.com/sluicelimits/sluice/infra/config"
	"github.com/sluicelimits/sluice/internal/aws/grants"
	"github.com/sluicelimits/sluice/internal/telemetry"
)

// deployment returns a deployment with a small and a full cell, and every alarm.
func deployment(t *testing.T) *config.Deployment {
	t.Helper()
	d := &config.Deployment{
		Control: config.Control{Region: "eu-west-1", MetricsNamespace: "My/Own", Audit: config.Audit{Anchors: true}},
		Alarms:  config.Alarms{Set: config.AllAlarms},
		Cells: []config.Cell{{ID: "a-1", Region: "eu-west-1"}, {ID: "us-1", Region: "eu-west-1",
			Profile: config.Full}},
	}
	if err := d.Complete(); err != nil {
		t.Fatal(err)
	}
	return d
}

// Guarantees that alarms watch each shard of a cache that is a cluster, and both nodes of each shard, with the names
// that ElastiCache gives them.
func TestShards(t *testing.T) {
	d := deployment(t)
	d.Cells[1].Cache = &config.Valkey{Cluster: true, Shards: 2}
	if err := d.Complete(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, a := range alarm.Cell(d, &d.Cells[1]) {
		if a.Name == "saturation" {
			got = append(got, fmt.Sprint(a.Target, " ", a.Metrics[1].Dimensions, " ", a.Metrics[2].Dimensions, " ",
				a.Expression))
		}
	}
	const busy = " IF(FILL(m1, 0) > 0 AND (FILL(m2, 0) > 80 OR FILL(m3, 0) > 80), 1, 0)"
	if want := []string{"0001 [{CacheClusterId sluice-us-1-cache-0001-001}] [{CacheClusterId " +
		"sluice-us-1-cache-0001-002}]" + busy,
		"0002 [{CacheClusterId sluice-us-1-cache-0002-001}] [{CacheClusterId sluice-us-1-cache-0002-002}]" +
			busy}; !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
	d.Cells[1].Cache = nil
	if got := named(t, alarm.Cell(d, &d.Cells[1]),
		"saturation").Metrics[1].Dimensions[0].Value; got != "sluice-us-1-cache-001" {
		t.Errorf("the first node is %s", got)
	}
}

// allAlarms returns all alarms of a deployment.
func allAlarms(d *config.Deployment) []alarm.Alarm {
	all := alarm.Control(d)
	for i := range d.Cells {
		all = append(all, alarm.Cell(d, &d.Cells[i])...)
	}
	return append(all, alarm.Worker("sluice-jobs", "sluice-jobs-dead", "sluice-worker", 15*time.Minute)...)
}

// amazons are the metrics of AWS that alarms watch: namespace, name and dimensions, and what the first dimension names.
var amazons = map[string][]string{
	"AWS/Lambda IteratorAge FunctionName":                  {"publisher", "balancer", "archiver"},
	"AWS/Lambda Throttles FunctionName":                    {"authorizer"},
	"AWS/SQS ApproximateNumberOfMessagesVisible QueueName": {"kept", "failed", "undelivered", "refused", "dead"},
	"AWS/SQS ApproximateAgeOfOldestMessage QueueName":      {"jobs"},
	"AWS/Lambda Errors FunctionName":                       {"worker"},
	"AWS/DynamoDB WriteThrottleEvents TableName":           {"counters"},
	"AWS/ElastiCache EngineCPUUtilization CacheClusterId":  {"001", "002"},
}

// noWriterOf says why no one writes the metric of an alarm, or "" if a function or AWS writes it.
func noWriterOf(d *config.Deployment, a *alarm.Alarm, m *alarm.Metric) string {
	var names []string
	for _, dimension := range m.Dimensions {
		names = append(names, dimension.Name)
	}
	last := func(value string) string { return value[strings.LastIndex(value, "-")+1:] }
	if m.Namespace != d.Control.MetricsNamespace {
		of := amazons[strings.Join(append([]string{m.Namespace, m.Name}, names...), " ")]
		if !slices.Contains(of, last(m.Dimensions[0].Value)) || !strings.HasPrefix(m.Dimensions[0].Value, "sluice-") {
			return "AWS has no such metric of this"
		}
		return ""
	}
	function := m.Dimensions[len(m.Dimensions)-1].Value
	f, ok := grants.Of(last(function))
	if !ok {
		return "there is no function " + function
	}
	where, want := "", "sluice-"+f.Name
	if len(m.Dimensions) > 1 {
		where = m.Dimensions[0].Value
	}
	if f.PerCell {
		want = "sluice-" + where + "-" + f.Name
	}
	if function != want {
		return function + " is called " + want
	}
	for _, told := range telemetry.Metrics() {
		if told.Name != m.Name || !slices.Contains(told.Functions, f.Name) {
			continue
		}
		switch {
		case told.LineOnly:
			return "it is in the line only"
		case !slices.Equal(told.Dimensions, names):
			return fmt.Sprintf("its dimensions are %v", told.Dimensions)
		case !fits(told.Form, m.Stat):
			return m.Stat + " tells nothing of a " + string(told.Form)
		case a.TreatMissing == alarm.Breaching && (!told.Always || f.Schedule == 0):
			return "it may be missing though all is well"
		}
		return ""
	}
	return f.Name + " does not write it"
}

func fits(form telemetry.Form, stat string) bool {
	switch form {
	case telemetry.Counted:
		return stat == "Sum"
	case telemetry.Level:
		return stat == "Maximum" || stat == "SampleCount"
	case telemetry.Spread:
		return stat == "p99"
	default:
		return stat == "Average"
	}
}

// Guarantees that each alarm watches a metric that is written, with exactly this namespace, name and dimensions, and
// uses a meaningful statistic. An alarm on a misspelt metric would never fire.
func TestSomebodyWritesIt(t *testing.T) {
	d := deployment(t)
	all := allAlarms(d)
	for i := range all {
		a := &all[i]
		for j := range a.Metrics {
			if why := noWriterOf(d, a, &a.Metrics[j]); why != "" {
				t.Errorf("%s %s: %s %s: %s", a.Name, a.Target, a.Metrics[j].Namespace, a.Metrics[j].Name, why)
			}
		}
	}

	for what, spoil := range map[string]func(*alarm.Alarm){
		"misspelt":             func(a *alarm.Alarm) { a.Metrics[0].Name += "s" },
		"of another namespace": func(a *alarm.Alarm) { a.Metrics[0].Namespace = "AWS/Lambda" },
		"of another function":  func(a *alarm.Alarm) { a.Metrics[0].Dimensions[1].Value = "sluice-a-1-ops" },
		"of a function of nobody": func(a *alarm.Alarm) {
			a.Metrics[0].Dimensions[1].Value =
				"sluice-a-1-limiter"
		},
		"of another cell":              func(a *alarm.Alarm) { a.Metrics[0].Dimensions[0].Value = "us-1" },
		"without a dimension":          func(a *alarm.Alarm) { a.Metrics[0].Dimensions = a.Metrics[0].Dimensions[1:] },
		"by another statistic":         func(a *alarm.Alarm) { a.Metrics[0].Stat = "Average" },
		"of the line only":             func(a *alarm.Alarm) { a.Metrics[0].Name = "reconcile_items" },
		"silent, and told seldom only": func(a *alarm.Alarm) { a.Metrics[0].Name = "drift_ahead" },
	} {
		drift := named(t, alarm.Cell(d, &d.Cells[0]), "drift")
		spoil(drift)
		if noWriterOf(d, drift, &drift.Metrics[0]) == "" {
			t.Errorf("the check does not detect a metric %s", what)
		}
	}
	queue := named(t, alarm.Control(d), config.Failed)
	queue.Metrics[0].Dimensions[0].Value = "sluice-changes"
	if noWriterOf(d, queue, &queue.Metrics[0]) == "" {
		t.Error("the check does not detect a queue that does not exist")
	}
}

func named(t *testing.T, all []alarm.Alarm, name string) *alarm.Alarm {
	t.Helper()
	i := slices.IndexFunc(all, func(a alarm.Alarm) bool { return a.Name == name })
	if i < 0 {
		t.Fatalf("there is no alarm %s", name)
	}
	return &all[i]
}

// Guarantees how each alarm treats missing data, which decides whether it fires when a part has stopped. A metric that
// is written on a schedule must be present. A metric that is written only if it is not 0, or only with requests, may be
// missing. An alarm on the length of a queue keeps its state while CloudWatch gets no data.
func TestMissing(t *testing.T) {
	d := deployment(t)
	want := map[string]string{
		"active_cell_count": "breaching 15m0s", "drift": "breaching 45m0s",
		"propagation_seconds a-1": "breaching 15m0s", "propagation_seconds us-1": "breaching 15m0s",
		"anchor_missing":         "breaching 3h0m0s",
		"iterator_age publisher": "breaching 15m0s", "iterator_age archiver": "breaching 15m0s",
		"kept": "ignore 1m0s", "failed": "ignore 1m0s", "undelivered": "ignore 1m0s", "refused": "ignore 1m0s",
		"worker_backlog": "ignore 1m0s", "worker_refused": "ignore 1m0s", "worker_errors": "breaching 45m0s",
	}
	for _, a := range allAlarms(d) {
		name := strings.TrimSpace(a.Name + " " + a.Target)
		got := fmt.Sprint(a.TreatMissing, " ", a.Period)
		if w := want[name]; w == "" && a.TreatMissing != alarm.NotBreaching || w != "" && got != w {
			t.Errorf("%s: missing data is treated as %s, want %s", name, got, w)
		}
	}
	d.Control.CanaryMinutes = 20
	if got := named(t, alarm.Control(d), "propagation_seconds").Period; got != time.Hour {
		t.Errorf("the alarm on a missing canary that runs every 20 min fires after %s", got)
	}
	if got := named(t, alarm.Control(d), "iterator_age").Period; got != time.Hour {
		t.Errorf("the alarm on a silent stream, with a canary every 20 min, fires after %s", got)
	}
}

// Guarantees the thresholds that the design asks for, and that CloudWatch accepts each alarm: the periods are 10, 20,
// 30 or 60 s or multiples of 60 s, and a day at most.
func TestBounds(t *testing.T) {
	d := deployment(t)
	for _, a := range allAlarms(d) {
		if a.Period%time.Minute != 0 || a.Period*time.Duration(a.EvaluationPeriods) > 24*time.Hour ||
			a.DatapointsToAlarm < 1 ||
			a.DatapointsToAlarm > a.EvaluationPeriods {
			t.Errorf("%s: %d of %d periods of %s", a.Name, a.DatapointsToAlarm, a.EvaluationPeriods, a.Period)
		}
		if a.Description == "" || strings.HasSuffix(a.Description, ".") || strings.Contains(a.Description, "`") ||
			(len(a.Metrics) > 1) != (a.Expression != "") {
			t.Errorf("the description or the expression of the alarm is wrong: %+v", a)
		}
	}
	for name, above := range map[string]float64{"over_admission": 1.5, "iterator_age": 30_000, "propagation_seconds": 5,
		"config_stale": 0, "backstop_share": 1} {
		if got := named(t, allAlarms(d), name).Threshold; got != above {
			t.Errorf("%s fires above %v, want %v", name, got, above)
		}
	}
	small, full := alarm.Cell(d, &d.Cells[0]), alarm.Cell(d, &d.Cells[1])
	if named(t, small, alarm.LimiterErrors).Metrics[0].Name != "store_errors_dynamodb" ||
		named(t, full, alarm.LimiterErrors).Metrics[0].Name != "store_errors_redis" {
		t.Error("the alarm on store errors watches another store than the one that counts")
	}
	named(t, full, "failover")
	if slices.ContainsFunc(small, func(a alarm.Alarm) bool { return a.Name == "failover" }) {
		t.Error("the alarm of a small cell waits for the failover of a cache that it does not have")
	}
}

// Guarantees that there is an alarm for everything that package grants lists as an alarm, that the usual set of alarms
// is the smaller one, and that no two alarms have the same name.
func TestAllAreThere(t *testing.T) {
	d := deployment(t)
	all := allAlarms(d)
	for _, f := range grants.Functions() {
		for _, a := range f.Alarms {
			if named(t, all, a.Metric).Threshold != a.Above {
				t.Errorf("the alarm on %s of %s has another threshold", a.Metric, f.Name)
			}
		}
		if f.Streams != nil && !slices.ContainsFunc(all, func(a alarm.Alarm) bool {
			return a.Name == "iterator_age" &&
				a.Target == f.Name
		}) {
			t.Errorf("there is no alarm if %s falls behind", f.Name)
		}
	}
	names := d.Names("aws", "123456789012", "amazonaws.com")
	seen := map[string]bool{}
	tell := func(name string) {
		if seen[name] {
			t.Errorf("there are two alarms named %s", name)
		}
		seen[name] = true
	}
	for _, a := range alarm.Control(d) {
		tell(names.ControlAlarm(a.Name, a.Target))
	}
	for i := range d.Cells {
		for _, a := range alarm.Cell(d, &d.Cells[i]) {
			tell(names.CellAlarm(d.Cells[i].ID, a.Name, a.Target))
		}
	}
	d.Alarms.Set = config.UsualAlarms
	if usual := allAlarms(d); len(usual) >= len(all) {
		t.Errorf("there are %d alarms by default, and %d in all", len(usual), len(all))
	}
}

// sections are the headings that each runbook has, in this order.
var sections = []string{"## What it means", "## First look", "## What to do", "## When it is harmless"}

// incidents are the runbooks of incidents without an alarm, with their titles.
var incidents = map[string]string{
	"leaked_pepper": "Leaked pepper", "compromised_function": "Compromised function",
	"forged_cell_documents": "Forged cell documents",
}

// runbooks returns the differences between the alarms, the incidents and the runbooks in a folder.
func runbooks(all []alarm.Alarm, dir string) (wrong []string) {
	pages := map[string]bool{}
	files, err := filepath.Glob(filepath.Join(dir, "*.md"))
	if err != nil {
		return []string{err.Error()}
	}
	for _, file := range files {
		pages[strings.TrimSuffix(filepath.Base(file), ".md")] = false
	}
	read := func(name, title string) string {
		if _, there := pages[name]; !there {
			wrong = append(wrong, "no runbook for "+name)
			return ""
		}
		pages[name] = true
		text, err := os.ReadFile(filepath.Join(dir, name+".md"))
		if err != nil {
			wrong = append(wrong, err.Error())
			return ""
		}
		at := -1
		for _, section := range append([]string{"# " + title + "\n"}, sections...) {
			next := strings.Index(string(text), section)
			if next <= at {
				wrong = append(wrong, name+".md has no "+strings.TrimSpace(section)+", or elsewhere")
			}
			at = next
		}
		return string(text)
	}
	for name, title := range incidents {
		read(name, title)
	}
	for _, a := range all {
		if pages[a.Name] {
			continue
		}
		text := read(a.Name, "`"+a.Name+"`")
		for j := range a.Metrics {
			if pages[a.Name] && !strings.Contains(text, "`"+a.Metrics[j].Name+"`") {
				wrong = append(wrong, a.Name+".md does not name the metric "+a.Metrics[j].Name)
			}
		}
	}
	for page, done := range pages {
		if !done && page != "README" {
			wrong = append(wrong, "the runbook "+page+" is of no alarm and of no incident")
		}
	}
	return wrong
}

// Guarantees that each alarm and each incident has a runbook, and that no runbook is of an alarm that no longer exists.
func TestRunbooks(t *testing.T) {
	all := allAlarms(deployment(t))
	const dir = "../../docs/runbooks"
	for _, line := range runbooks(all, dir) {
		t.Error(line)
	}
	index, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	names := slices.Collect(maps.Keys(incidents))
	for _, a := range all {
		names = append(names, a.Name)
	}
	for _, name := range names {
		if !strings.Contains(string(index), "["+name+"]("+name+".md)") {
			t.Errorf("the index of runbooks lacks %s", name)
		}
	}

	spoiled := t.TempDir()
	if err := os.CopyFS(spoiled, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"gone": "# gone", "drift": "# `drift`\n## What it means\n`drift`\n## First look\n## What to do\n",
		"failed": "# failed\n", "forged_cell_documents": "# Others\n",
	} {
		if err := os.WriteFile(filepath.Join(spoiled, name+".md"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"kept.md", "leaked_pepper.md"} {
		if err := os.Remove(filepath.Join(spoiled, name)); err != nil {
			t.Fatal(err)
		}
	}
	found := strings.Join(runbooks(all, spoiled), "\n")
	for _, want := range []string{
		"the runbook gone is of no alarm", "no runbook for kept", "no runbook for leaked_pepper",
		"forged_cell_documents.md has no # Forged", "drift.md has no ## When it is harmless",
		"failed.md has no # `failed`",
		"failed.md does not name the metric Approx",
	} {
		if !strings.Contains(found, want) {
			t.Errorf("the check does not detect: %s\nbut %s", want, found)
		}
	}
}
