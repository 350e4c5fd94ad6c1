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
	"github.com/sluicelimits/sluice/internal/testkit/golden"
)

// metricsOf returns the metrics of a function by name, and the names that the function has twice.
func metricsOf(all []telemetry.Metric, function string) (names map[string]telemetry.Metric, repeated []string) {
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

// functionsOf lists all functions that write metrics.
func functionsOf(all []telemetry.Metric) []string {
	var names []string
	for _, m := range all {
		names = append(names, m.Functions...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Guarantees that the list has what is needed to make alarms in CloudWatch, once for each metric and function.
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
		if _, repeated := metricsOf(all, f); repeated != nil {
			t.Errorf("%s has twice: %v", f, repeated)
		}
		if _, err := os.Stat(filepath.Join("../../functions", f, "main.go")); err != nil {
			t.Errorf("the list names the function %q, which does not exist", f)
		}
	}
}

// Guarantees that the authorizer's lines have exactly the metrics of the list, with their names and units, and always
// those that the list marks as Always.
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
	list, _ := metricsOf(telemetry.Metrics(), "authorizer")
	wrote := out.flushed(t, r)[0].Units
	delete(list, "telemetry_lines_lost") // TestFailingWriter has it
	for name, m := range list {
		if wrote[name] != m.Unit {
			t.Errorf("%s is in the list with unit %q, and written with %q", name, m.Unit, wrote[name])
		}
	}
	for name := range wrote {
		if _, there := list[name]; !there {
			t.Errorf("the metric %s is written, but is not in the list", name)
		}
	}

	var least lines
	r = newRecorder(t, telemetry.Config{Writer: &least})
	r.Panic(noon)
	wrote = least.flushed(t, r)[0].Units
	delete(wrote, "panics")
	for name, m := range list {
		if _, there := wrote[name]; there != m.Always {
			t.Errorf("%s is in a line without any events: %t, want %t as in the list", name, there, m.Always)
		}
	}
}

// meters returns the names in the calls of Count and Took in a folder, each with its unit. A name must be a text, an
// element of a list of texts in a loop, or a text followed by a value of a type of texts.
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
				names[unquote(name)] = unit
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
					names[unquote(prefix)+text] = unit
				}
			default:
				err = fmt.Errorf("%s: a metric's name is a %T", dir, name)
			}
			return true
		})
	}
	return names, err
}

// texts holds the constants that have a type of their own, and the lists of texts over which a loop runs.
func texts(files []*ast.File) (typed []string, listed map[string][]string) {
	listed = map[string][]string{}
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				if of, ok := n.Type.(*ast.Ident); ok && of.Name == "Drift" {
					typed = append(typed, unquote(n.Values[0].(*ast.BasicLit)))
				}
			case *ast.RangeStmt:
				list, isList := n.X.(*ast.CompositeLit)
				value, isNamed := n.Value.(*ast.Ident)
				if !isList || !isNamed {
					return true
				}
				for _, e := range list.Elts {
					if text, ok := e.(*ast.BasicLit); ok && text.Kind == token.STRING {
						listed[value.Name] = append(listed[value.Name], unquote(text))
					}
				}
			}
			return true
		})
	}
	return typed, listed
}

func unquote(l *ast.BasicLit) string {
	text, err := strconv.Unquote(l.Value)
	if err != nil {
		return l.Value
	}
	return text
}

// packages lists the packages that count for a function, by their paths in the folder streams.
var packages = map[string][]string{
	"publisher": {"publisher"}, "balancer": {"balancer", "publisher"}, "applier": {"applier"},
	"archiver": {"archiver"}, "anchor": {"../internal/control/audit"},
	"reconcile": {"reconcile"}, "canary": {"canary"},
}

// differences returns what a function counts that the list does not have in the same way, and the other way round.
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

// Guarantees that all metrics that the other functions count are in the list, and that the list has no metric that
// nobody counts: an alarm on such a metric would never be raised. The test reads the source, because no test can make
// every function count everything.
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
		list, _ := metricsOf(all, f)
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

// Guarantees that the check of the list can fail: it notices a name that is misspelt in the source, one that is missing
// in the list, and another unit.
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
		t.Errorf("a name that is not a constant is read as %v, want none", names)
	}
}

// alarmed returns the metrics that have alarms by a page of the documentation, by the function in whose section they
// stand.
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

// Guarantees that each alarm in the documentation is on a metric that this function writes for CloudWatch, and that the
// alarms that the design asks for are there.
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
		t.Fatalf("only the alarms of %d functions are found: the test can no longer read the page", len(names))
	}
	for function, wanted := range names {
		list, _ := metricsOf(all, function)
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

// Guarantees that the first table of docs/metrics.md is what the list says.
func TestMetricsPage(t *testing.T) {
	const file = "../../docs/metrics.md"
	const head = "\n| metric | function | unit | form | what it says |\n|---|---|---|---|---|\n"
	var table strings.Builder
	for _, m := range telemetry.Metrics() {
		always := ""
		switch {
		case m.Always:
			always = " Always written."
		case m.LineOnly:
			always = " In the line only."
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s | %s%s |\n", m.Name, strings.Join(m.Functions, ", "), m.Unit, m.Form,
			m.Meaning, always)
	}
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, hasHead := strings.Cut(string(page), head)
	_, after, hasEnd := strings.Cut(rest, "\n\n")
	if !hasHead || !hasEnd {
		t.Fatalf("%s has no table of metrics", file)
	}
	golden.CheckFile(t, file, before+head+table.String()+"\n"+after)
}

// Guarantees that a line reports the fullest counter of its second, whether a request filled it or units that were
// admitted without the store; and the cell's part of the limits, if it is known; and neither of them if it is not
// known.
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
			t.Errorf("for line %d, Gauges is called with %s, want the time of the line", i, asked[i])
		}
	}
}
