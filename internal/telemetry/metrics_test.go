package telemetry_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/telemetry"
)

// of are the metrics of a function by name; repeated are names that it has twice.
func of(all []telemetry.Metric, function string) (names map[string]telemetry.Metric, repeated []string) {
	names = map[string]telemetry.Metric{}
	for _, m := range all {
		if !slices.Contains(m.Functions, function) {
			continue
		}
		if _, there := names[m.Name]; there {
			repeated = append(repeated, m.Name)
		}
		names[m.Name] = m
	}
	return names, repeated
}

// functionsOf are all functions that write metrics.
func functionsOf(all []telemetry.Metric) []string {
	var names []string
	for _, m := range all {
		names = append(names, m.Functions...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Guarantees that whoever makes alarms of the list finds in it what CloudWatch has to be told, once for each function.
func TestMetricsAreWhole(t *testing.T) {
	all := telemetry.Metrics()
	form := regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)
	for _, m := range all {
		if !form.MatchString(m.Name) || !slices.Contains(units, m.Unit) || !strings.HasSuffix(m.Meaning, ".") ||
			len(m.Functions) == 0 {
			t.Errorf("%+v: not a name, a unit of CloudWatch, functions and a sentence", m)
		}
		if d := strings.Join(m.Dimensions, " "); d != "function" && d != "cell function" {
			t.Errorf("%s has the dimensions %q", m.Name, d)
		}
		if !slices.Contains([]telemetry.Form{telemetry.Counted, telemetry.Level, telemetry.Spread, telemetry.Averaged},
			m.Form) {
			t.Errorf("%s has the form %q", m.Name, m.Form)
		}
	}
	for _, f := range functionsOf(all) {
		if _, repeated := of(all, f); repeated != nil {
			t.Errorf("%s has twice: %v", f, repeated)
		}
		if _, err := os.Stat(filepath.Join("../../functions", f, "main.go")); err != nil {
			t.Errorf("there is no function %q", f)
		}
	}
}

// Guarantees that the authorizer's lines have the metrics of the list, under their names and units, those and no
// others; and that those which the list says are always told are.
func TestRecorderWritesTheList(t *testing.T) {
	var out lines
	r := newRecorder(t, telemetry.Config{
		Writer: &out, Cell: "eu-1", Function: "authorizer",
		Totals: func() telemetry.Totals {
			return telemetry.Totals{Backstop: 1, LeaseLocal: 1, LeaseCalls: 1, EarlyDenials: 1, KillSwitchFailures: 1,
				Undecidable: 1}
		},
		Gauges: func(time.Time) telemetry.Gauges { return telemetry.Gauges{LimitEffective: 3333} },
	})
	for _, k := range answer.Kinds() {
		r.Decision(noon, telemetry.Decision{Kind: k, Fullest: 500, Mode: 1, ShadowDenial: answer.Limited})
	}
	r.ShadowDenied(noon, "l")
	for s := telemetry.Redis; s <= telemetry.OtherStore; s++ {
		r.StoreCall(noon, s, time.Millisecond, true)
	}
	r.ColdStart(noon)
	r.Propagated(noon, time.Second)
	r.EventRefused(noon)
	r.Panic(noon)
	list, _ := of(telemetry.Metrics(), "authorizer")
	wrote := out.flushed(t, r)[0].Units
	delete(list, "telemetry_lines_lost") // TestFailingWriter has it
	for name, m := range list {
		if wrote[name] != m.Unit {
			t.Errorf("%s is in the list with unit %q, and written with %q", name, m.Unit, wrote[name])
		}
	}
	for name := range wrote {
		if _, there := list[name]; !there {
			t.Errorf("%s is written, and not in the list", name)
		}
	}

	var least lines
	r = newRecorder(t, telemetry.Config{Writer: &least})
	r.Panic(noon)
	wrote = least.flushed(t, r)[0].Units
	delete(wrote, "panics")
	for name, m := range list {
		if _, there := wrote[name]; there != m.Always {
			t.Errorf("%s is in the least line: %t, and the list says %t", name, there, m.Always)
		}
	}
}

// meters are the names in a folder's calls of Count and Took, with the unit that each has. A name must be a text, one
// of a list of texts that is gone through, or a text with a value of a type of texts behind it.
func meters(dir string) (map[string]string, error) {
	names := map[string]string{}
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("%s: %d files, %w", dir, len(files), err)
	}
	var parsed []*ast.File
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), f, nil, 0)
		if err != nil {
			return nil, err
		}
		parsed = append(parsed, file)
	}
	typed, listed := texts(parsed)
	for _, file := range parsed {
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 2 {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || method.Sel.Name != "Count" && method.Sel.Name != "Took" {
				return true
			}
			unit := map[string]string{"Count": "Count", "Took": "Seconds"}[method.Sel.Name]
			switch name := call.Args[0].(type) {
			case *ast.BasicLit:
				names[unquoted(name)] = unit
			case *ast.Ident:
				if listed[name.Name] == nil {
					err = fmt.Errorf("%s: a metric's name is the variable %s", dir, name.Name)
				}
				for _, text := range listed[name.Name] {
					names[text] = unit
				}
			case *ast.BinaryExpr:
				prefix, ok := name.X.(*ast.BasicLit)
				if !ok || typed == nil {
					err = fmt.Errorf("%s: a metric's name is put together in a way that this test does not know", dir)
					return false
				}
				for _, text := range typed {
					names[unquoted(prefix)+text] = unit
				}
			default:
				err = fmt.Errorf("%s: a metric's name is a %T", dir, name)
			}
			return true
		})
	}
	return names, err
}

// texts are the constants that have a type of their own, and the lists of texts that a variable goes through.
func texts(files []*ast.File) (typed []string, listed map[string][]string) {
	listed = map[string][]string{}
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				if of, ok := n.Type.(*ast.Ident); ok && of.Name == "Drift" {
					typed = append(typed, unquoted(n.Values[0].(*ast.BasicLit)))
				}
			case *ast.RangeStmt:
				list, isList := n.X.(*ast.CompositeLit)
				value, isNamed := n.Value.(*ast.Ident)
				if !isList || !isNamed {
					return true
				}
				for _, e := range list.Elts {
					if text, ok := e.(*ast.BasicLit); ok && text.Kind == token.STRING {
						listed[value.Name] = append(listed[value.Name], unquoted(text))
					}
				}
			}
			return true
		})
	}
	return typed, listed
}

func unquoted(l *ast.BasicLit) string {
	text, err := strconv.Unquote(l.Value)
	if err != nil {
		return l.Value
	}
	return text
}

// packages are those that count for a function.
var packages = map[string][]string{
	"publisher": {"publisher"}, "balancer": {"balancer", "publisher"}, "applier": {"applier"},
	"archiver": {"archiver"}, "anchor": {"anchor"},
	"reconcile": {"reconcile"}, "canary": {"canary"},
}

// differences are what a function counts that the list does not have so, and the other way round.
func differences(list map[string]telemetry.Metric, counts map[string]string) (wrong []string) {
	for name, unit := range counts {
		if m, there := list[name]; !there || m.Unit != unit {
			wrong = append(wrong, fmt.Sprintf("%s is counted in %s, and listed in %q", name, unit, m.Unit))
		}
	}
	for name := range list {
		// which Flush writes, see TestMeterNames
		if _, there := counts[name]; !there && name != "telemetry_names_lost" {
			wrong = append(wrong, name+" is listed, and counted by nobody")
		}
	}
	return wrong
}

// Guarantees that what the other functions count is in the list, and that nothing is in it which nobody counts: an
// alarm on a metric that is never written would never ring. It looks at the source, for no test can make every function
// count everything.
func TestMetersWriteTheList(t *testing.T) {
	all := telemetry.Metrics()
	for _, f := range functionsOf(all) {
		if f == "authorizer" {
			continue
		}
		counts := map[string]string{}
		for _, p := range packages[f] {
			names, err := meters(filepath.Join("../../streams", p))
			if err != nil {
				t.Fatal(err)
			}
			maps.Copy(counts, names)
		}
		list, _ := of(all, f)
		for _, wrong := range differences(list, counts) {
			t.Errorf("%s: %s", f, wrong)
		}
		main, err := os.ReadFile(filepath.Join("../../functions", f, "main.go"))
		if err != nil {
			t.Fatal(err)
		}
		whole := bytes.Contains(main, []byte(`process.Meter("")`))
		for _, m := range list {
			if whole == slices.Contains(m.Dimensions, "cell") {
				t.Errorf("%s is listed with the dimensions %v, and its function has a meter of a cell: %t", m.Name,
					m.Dimensions, !whole)
			}
		}
	}
	entries, err := os.ReadDir("../../streams")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names, err := meters(filepath.Join("../../streams", e.Name()))
		if err == nil && len(names) > 0 && packages[e.Name()] == nil && e.Name() != "streamstest" {
			t.Errorf("streams/%s counts %v, and this test does not know of which function", e.Name(), names)
		}
	}
}

// Proves that the check of the list can fail: for a name that is misspelt in the source, one that is forgotten in the
// list, and another unit.
func TestDifferences(t *testing.T) {
	dir := t.TempDir()
	const source = "package p\ntype Drift string\nconst A Drift = \"a\"\nfunc f(m M, d Drift) " +
		"{\n\tm.Count(\"right\", 1)\n\tm.Count(\"misspelt\", 1)\n\tm.Took(\"unit\", 1)\n" +
		"\tm.Count(\"drift_\"+string(d), 1)\n\tfor _, n := range []string{\"listed\"} {\n\t\tm.Count(n, 0)\n\t}\n}\n"
	write := func(text string) map[string]string {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "p.go"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		names, err := meters(dir)
		if err != nil {
			t.Log(err)
			return nil
		}
		return names
	}
	list := map[string]telemetry.Metric{}
	for _, name := range []string{"right", "spelt", "unit", "drift_a", "listed"} {
		list[name] = telemetry.Metric{Name: name, Unit: "Count"}
	}
	got := differences(list, write(source))
	slices.Sort(got)
	want := []string{
		`misspelt is counted in Count, and listed in ""`, "spelt is listed, and counted by nobody",
		`unit is counted in Seconds, and listed in "Count"`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if names := write("package p\nfunc f(m M, name string) { m.Count(name, 1) }\n"); names != nil {
		t.Errorf("a name that comes from anywhere is taken for %v", names)
	}
}

// alarmed are the metrics that a page says to have alarms on, by the function in whose section that stands.
func alarmed(page string) map[string][]string {
	names := map[string][]string{}
	word := regexp.MustCompile("`([a-z]+(?:_[a-z]+)+)`")
	section, inAlarms := "", false
	for line := range strings.Lines(page) {
		switch {
		case strings.HasPrefix(line, "## "):
			section = strings.TrimSpace(line[3:])
		case strings.Contains(line, "Alarms"), strings.HasPrefix(line, "| alarm |"):
			inAlarms = true
		case strings.TrimSpace(line) == "":
			inAlarms = false
		}
		if inAlarms {
			for _, m := range word.FindAllStringSubmatch(line, -1) {
				names[section] = append(names[section], m[1])
			}
		}
	}
	return names
}

// Guarantees that every alarm that the docs ask for is on a metric of CloudWatch that this function writes, and that
// those which the design asks for are there.
func TestAlarmsAreOnMetricsThatThereAre(t *testing.T) {
	page, err := os.ReadFile("../../docs/functions.md")
	if err != nil {
		t.Fatal(err)
	}
	all := telemetry.Metrics()
	names := alarmed(string(page))
	page, err = os.ReadFile("../../docs/authorizer.md")
	if err != nil {
		t.Fatal(err)
	}
	names["authorizer"] = alarmed(string(page))["Output"]
	if len(names) < 5 || len(names["authorizer"]) < 5 {
		t.Fatalf("alarms of %d functions: this test does not read the page any more", len(names))
	}
	for function, wanted := range names {
		list, _ := of(all, function)
		for _, name := range wanted {
			if m, there := list[name]; !there || m.LineOnly {
				t.Errorf("the docs have an alarm of %s on %s, which it does not write as a metric", function, name)
			}
		}
	}
	if got := alarmed("## a\n`no_alarm`\n\nAlarms: `x_y` above 0,\n`z_w` too\n\n`not_this`\n\n| alarm | what " +
		"|\n|---|---|\n| `in_table` (Sum) above 0 | x |\n\n`nor_this`\n")["a"]; !slices.Equal(got,
		[]string{"x_y", "z_w", "in_table"}) {
		t.Errorf("alarms are read as %v", got)
	}
	for _, name := range []string{
		"decisions", "limiter_latency", "store_latency_redis", "store_latency_dynamodb", "store_errors_redis",
		"store_errors_dynamodb",
		"requests_served_by_backstop", "config_stale", "propagation_seconds", "active_cell_count",
		"per_cell_limit_effective",
		"over_admission_ratio", "lease_hit_rate", "early_denials", "drift", "canary_missed",
	} {
		if !slices.ContainsFunc(all, func(m telemetry.Metric) bool { return m.Name == name && !m.LineOnly }) {
			t.Errorf("there is no metric %s", name)
		}
	}
}

// Guarantees that docs/metrics.md is what the list says.
func TestMetricsPage(t *testing.T) {
	const file = "../../docs/metrics.md"
	var b strings.Builder
	b.WriteString(metricsHead)
	for _, m := range telemetry.Metrics() {
		always := ""
		switch {
		case m.Always:
			always = " Always written."
		case m.LineOnly:
			always = " In the line only."
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s%s |\n", m.Name, strings.Join(m.Functions, ", "), m.Unit, m.Form,
			m.Meaning, always)
	}
	b.WriteString(metricsTail)
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(page) != b.String() {
		t.Errorf("%s is not what the list says; make golden rewrites it", file)
	}
}

const metricsHead = `# Metrics

This page lists what Sluice's functions report to CloudWatch, and what its
[other programs](#prometheus-and-opentelemetry) report to Prometheus or OpenTelemetry. It is for operators who build
dashboards and alarms. The first list is generated from the list of which the alarms are made.

The functions write metrics in the embedded metric format to their logs. The namespace is
` + "`SLUICE_METRICS_NAMESPACE`" + `, by default ` +
	"`Sluice`" + `. The dimensions of the authorizer, applier, reconcile and canary are
` + "`cell`" + ` and ` +
	"`function`" + ` (the function's name in AWS). The other functions have the dimension ` + "`function`" + ` alone. No
tenant and no address is ever a dimension.

The form says which statistic is useful:

- a *count*: Sum;
- a *level*: Maximum or Minimum, never Sum;
- a *spread*: percentiles, with a relative error of at most 9.2 %;
- a *rate*: Average.

CloudWatch charges for each hour in which a metric is written, so few are written if nobody uses Sluice:

- *always written*: the metric is in each line, batch or run, even if it is 0. If it is missing, nothing ran.
- *in the line only*: the number is not a metric, but a member of the JSON line. No alarm can use it. Logs Insights
  finds it. Of a spread, the line has the maximum.
- All others are metrics if they are not 0, and their alarms take missing data for 0. A 0 that was counted is in the
  line.

A query over the log group of a function (not yet tried on AWS):

    filter ispresent(records_read) | stats sum(records_read), sum(objects_made), max(archive_seconds) by bin(1h)

The age of a stream's iterator is not in the list. CloudWatch has it as ` + "`IteratorAge`" + ` in the namespace
` + "`AWS/Lambda`" + `, with the dimension ` + "`FunctionName`" + `.

| metric | function | unit | form | what it says |
|---|---|---|---|---|
`

const metricsTail = `
## Prometheus and OpenTelemetry

The functions have no port to scrape. The [rate limit service](envoy.md), the local gateway and the
[Go library](library.md#metrics) report to Prometheus, in its text format:

| program | where | beside the metrics below |
|---|---|---|
| ` + "`sluice serve`" + ` | ` + "`/metrics`" + ` of ` + "`--debug`" + `; by OTLP with ` + "`--otlp`" + ` | |
| ` + "`sluice dev`" + ` | ` + "`/_sluice/metrics`" + `, if ` + "`Accept`" + ` prefers ` + "`text/plain`" + ` to ` +
	"`application/json`" + ` | the first list, as ` + "`sluice_NAME`" + ` (a count: ` + "`sluice_NAME_total`" + `; ` +
	`a spread: with the label ` + "`quantile`" + `), and each metric with the label ` + "`cell`" + ` |
| the library | ` + "`Limiter.WriteMetrics`, `Limiter.Metrics`" + ` | |

OpenTelemetry gets the same names and labels. Times are in seconds, as histograms.

| metric | labels | of | what it says |
|---|---|---|---|
| ` + "`sluice_request_seconds`" + ` | method, code | service | Requests. The code ` + "`OVER_LIMIT`" +
	` is a decision that denies. |
| ` + "`sluice_hits_total`" + ` | key, outcome | service | Hits by the name of the statistics of a descriptor. |
| ` + "`sluice_config_loads_total`" + ` | result | service | Configurations that were read: put in force, or refused. |
| ` + "`sluice_rate_limit_errors_total`" + ` | cause | service | Requests of Envoy that were not decided. |
| ` + "`sluice_refund_errors_total`" + ` | | service | Charges that could not be given back after ` +
	`another limit had denied. |
| ` + "`sluice_decision_seconds`" + ` | reason | gateway, library | Decisions. The library needs ` +
	"`Config.Measure`" +
	`; not counted by a gateway with ` + "`--api`" + `. |
| ` + "`sluice_gateway_requests_total`" + ` | outcome | gateway | Requests. |
| ` + "`sluice_store_call_seconds`" + ` | store, failed | all | Calls of the stores of counters. |
| ` + "`sluice_lease_decisions_total`" + ` | how | all | Decisions from leases alone (` + "`admitted_from_leases`, " +
	"`denied_from_memory`" + `), and those that called a store (` + "`called`" + `). |
| ` + "`sluice_lease_units_lost_total`" + ` | | all | Units that were leased, and neither spent nor given back. |
| ` + "`sluice_fallback_decisions_total`" + ` | policy | all | Decisions that a store did not make, by what applied. |
| ` + "`sluice_breaker_open`" + ` | store | all | 1 while a circuit breaker makes no calls, or only probes. |
| ` + "`sluice_instances`" + ` | | all | Processes that share the store, as far as is known. |
| ` + "`go_goroutines`, `go_memstats_alloc_bytes`, `go_memstats_sys_bytes`" + ` | | service, ` +
	`gateway | Goroutines and memory, under the names of Prometheus's Go client. |

The number of metrics is bounded: no tenant and no address is a label. The key of ` +
	"`sluice_hits_total`" + ` has values of
requests only where a file says so (` + "`detailed_metric`, `value_to_metric`" + `), and then ` + "`--max-stats`" + `
bounds them.

[grafana.json](../examples/envoy/grafana.json) is a dashboard of the service for Grafana. Its queries are checked
against what the service has; it was not looked at in Grafana yet.
`

// Guarantees that a line tells the fullest counter of its second, whether a request filled it or what an outage
// admitted, and the cell's part of the limits where it is known; and neither where nobody knows.
func TestGauges(t *testing.T) {
	var out lines
	asked, stand := []time.Time{}, []telemetry.Gauges{{LimitEffective: 3334},
		{LimitEffective: -1, FullestReplayed: 2250},
		{LimitEffective: 10000}, {LimitEffective: -1}}
	r := newRecorder(t, telemetry.Config{Writer: &out, Gauges: func(now time.Time) telemetry.Gauges {
		asked = append(asked, now)
		return stand[len(asked)-1]
	}})
	for second, fullest := range [][]int64{{10, 875, 0}, {1000}, {1001}, {0}} {
		for _, f := range fullest {
			r.Decision(noon.Add(time.Duration(second)*time.Second), telemetry.Decision{Fullest: f})
		}
		if err := r.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	docs := out.flushed(t, r)
	for i, want := range []struct{ over, part float64 }{{0.875, 33.34}, {2.25, 0}, {1.001, 100}, {0, 0}} {
		if over, part := docs[i].number(t, "over_admission_ratio"),
			docs[i].number(t, "per_cell_limit_effective"); over != want.over || part != want.part {
			t.Errorf("line %d: over_admission_ratio %v, per_cell_limit_effective %v, want %v", i, over, part, want)
		}
		if !asked[i].Equal(noon.Add(time.Duration(i) * time.Second)) {
			t.Errorf("line %d asks for %s", i, asked[i])
		}
	}
	if _, err := telemetry.NewMeter(telemetry.Config{Writer: &out,
		Gauges: func(time.Time) telemetry.Gauges { return telemetry.Gauges{} }}); err == nil {
		t.Error("a meter with gauges, which it would never ask")
	}
}
