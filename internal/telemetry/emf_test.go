package telemetry_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// units are those of CloudWatch's MetricDatum.
var units = func() []string {
	all := []string{"Seconds", "Microseconds", "Milliseconds", "Percent", "Count", "Count/Second", "None"}
	for _, of := range []string{"Bytes", "Bits"} {
		for _, factor := range []string{"", "Kilo", "Mega", "Giga", "Tera"} {
			name := factor + strings.ToLower(of)
			if factor == "" {
				name = of
			}
			all = append(all, name, name+"/Second")
		}
	}
	return all
}()

// document is an EMF document as a reader sees it.
type document struct {
	Timestamp  int64
	Namespace  string
	Dimensions [][]string
	Units      map[string]string
	Root       map[string]json.RawMessage
}

// distribution is the only form of a metric that is not a single number.
type distribution struct {
	Values, Counts []float64
}

// number returns the value of a metric that is one number, or 0 if it is absent.
func (d *document) number(t testing.TB, name string) (n float64) {
	t.Helper()
	raw, ok := d.Root[name]
	if !ok {
		return 0
	}
	if err := json.Unmarshal(raw, &n); err != nil || d.Units[name] == "" {
		t.Fatalf("%s is %s with unit %q, want a metric that is a number: %v", name, raw, d.Units[name], err)
	}
	return n
}

func (d *document) distribution(t testing.TB, name string) (v distribution) {
	t.Helper()
	raw, ok := d.Root[name]
	if !ok {
		return v
	}
	if err := strict(raw, &v); err != nil || d.Units[name] == "" {
		t.Fatalf("%s is %s with unit %q, want a metric with values and counts: %v", name, raw, d.Units[name], err)
	}
	return v
}

// strict decodes one JSON value, and fails if it has unknown members.
func strict(text []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return err
	}
	if d.More() {
		return errors.New("more than one value")
	}
	return nil
}

// parseEMF checks a line against the rules of the format's specification and of CloudWatch's MetricDatum.
func parseEMF(line []byte) (*document, error) {
	text, ok := bytes.CutSuffix(line, []byte("\n"))
	switch {
	case !ok || bytes.ContainsAny(text, "\r\n"):
		return nil, errors.New("not one line")
	case len(line) > 256<<10:
		return nil, fmt.Errorf("%d bytes, CloudWatch Logs takes 256 KiB", len(line))
	case !utf8.Valid(text):
		return nil, errors.New("not UTF-8")
	}
	if err := noDuplicates(json.NewDecoder(bytes.NewReader(text))); err != nil {
		return nil, err
	}
	d := &document{Units: make(map[string]string)}
	if err := strict(text, &d.Root); err != nil {
		return nil, err
	}
	var aws struct {
		Timestamp         *int64
		CloudWatchMetrics []struct {
			Namespace  string
			Dimensions [][]string
			Metrics    []struct {
				Name, Unit        string
				StorageResolution *int
			}
		}
	}
	if err := strict(d.Root["_aws"], &aws); err != nil {
		return nil, fmt.Errorf("_aws: %w", err)
	}
	if aws.Timestamp == nil || *aws.Timestamp < 0 || len(aws.CloudWatchMetrics) != 1 {
		return nil, errors.New("_aws: no Timestamp, or not one directive")
	}
	directive := aws.CloudWatchMetrics[0]
	d.Timestamp, d.Namespace, d.Dimensions = *aws.Timestamp, directive.Namespace, directive.Dimensions
	if n := len(d.Namespace); n < 1 || n > 255 {
		return nil, fmt.Errorf("namespace of %d characters", n)
	}
	if err := d.checkDimensions(); err != nil {
		return nil, err
	}
	if n := len(directive.Metrics); n < 1 || n > 100 {
		return nil, fmt.Errorf("%d metrics, want 1..100", n)
	}
	for _, m := range directive.Metrics {
		if d.Units[m.Name] != "" || len(m.Name) < 1 || len(m.Name) > 255 || !slices.Contains(units, m.Unit) {
			return nil, fmt.Errorf("metric %q, unit %q: twice, or not a name, or not a unit", m.Name, m.Unit)
		}
		if m.StorageResolution != nil && *m.StorageResolution != 1 && *m.StorageResolution != 60 {
			return nil, fmt.Errorf("metric %s: resolution %d", m.Name, *m.StorageResolution)
		}
		d.Units[m.Name] = m.Unit
		if err := checkTarget(d.Root[m.Name]); err != nil {
			return nil, fmt.Errorf("metric %s: %w", m.Name, err)
		}
	}
	return d, nil
}

func (d *document) checkDimensions() error {
	if len(d.Dimensions) == 0 {
		return errors.New("no dimension set")
	}
	for _, set := range d.Dimensions {
		if len(set) > 30 {
			return fmt.Errorf("%d dimensions, want at most 30", len(set))
		}
		for i, name := range set {
			var value string
			if err := json.Unmarshal(d.Root[name], &value); err != nil || slices.Contains(set[:i], name) {
				return fmt.Errorf("dimension %q: twice, or no text among the members", name)
			}
			for _, s := range []string{name, value} {
				if strings.TrimSpace(s) == "" || len(s) > 250 || s[0] == ':' ||
					strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) {
					return fmt.Errorf("dimension %q=%q: not 1..250 printable ASCII characters that begin with no colon",
						name, value)
				}
			}
		}
	}
	return nil
}

// checkTarget checks what a metric refers to: a number, an array of at most 100, or values with as many counts.
func checkTarget(raw json.RawMessage) error {
	var v distribution
	switch {
	case len(raw) == 0:
		return errors.New("no such member")
	case raw[0] == '{':
		if err := strict(raw, &v); err != nil {
			return err
		}
		if len(v.Counts) != len(v.Values) {
			return fmt.Errorf("%d values and %d counts", len(v.Values), len(v.Counts))
		}
	case raw[0] == '[':
		if err := strict(raw, &v.Values); err != nil {
			return err
		}
	default:
		v.Values = make([]float64, 1)
		if err := strict(raw, &v.Values[0]); err != nil {
			return err
		}
	}
	if n := len(v.Values); n < 1 || n > 100 {
		return fmt.Errorf("%d values, want 1..100", n)
	}
	for i, x := range v.Values {
		if math.Abs(x) > math.Ldexp(1, 360) || v.Counts != nil &&
			(v.Counts[i] < 1 || slices.Contains(v.Values[:i], x)) {
			return fmt.Errorf("value %v: too large, twice, or without a count", x)
		}
	}
	return nil
}

// noDuplicates reports a member that an object has twice; a decoder would keep the last one.
func noDuplicates(d *json.Decoder) error {
	token, err := d.Token()
	if err != nil {
		return err
	}
	open, ok := token.(json.Delim)
	if !ok {
		return nil
	}
	seen := make(map[any]bool)
	for d.More() {
		if open == '{' {
			name, err := d.Token()
			if err != nil || seen[name] {
				return fmt.Errorf("member %v twice, or %w", name, err)
			}
			seen[name] = true
		}
		if err := noDuplicates(d); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}

// Guarantees that the tests that parse lines can fail: parseEMF refuses a line that breaks any one of the rules.
func TestParseEMFRefuses(t *testing.T) {
	const good = `{"_aws":{"Timestamp":1700000000000,"CloudWatchMetrics":[{"Namespace":"N","Dimensions":[["cell"]],` +
		`"Metrics":[{"Name":"a","Unit":"Count"},{"Name":"b","Unit":"Percent","StorageResolution":1}]}]},"cell":"c",` +
		`"a":1,"b":{"Values":[0,100],"Counts":[1,2]},"more":{"x":[]}}` + "\n"
	if d, err := parseEMF([]byte(good)); err != nil || d.number(t, "a") != 1 || d.distribution(t, "b").Counts[1] != 2 ||
		d.Timestamp != 1.7e12 {
		t.Fatalf("parseEMF of a good line = %+v, %v", d, err)
	}
	hundred := strings.TrimSuffix(strings.Repeat("1,", 101), ",")
	for _, c := range []struct{ what, old, new string }{
		{"two lines", `"a":1`, "\n\"a\":1"},
		{"no line end", "\n", ""},
		{"data after it", "}}\n", "}}{}\n"},
		{"too long", `"x":[]`, `"x":"` + strings.Repeat("x", 256<<10) + `"`},
		{"not UTF-8", `"cell":"c"`, "\"cell\":\"\xff\""},
		{"a member twice", `"a":1`, `"a":1,"a":2`},
		{"no time", `"Timestamp":1700000000000,`, ``},
		{"time is text", `1700000000000`, `"1700000000000"`},
		{"time is no integer", `1700000000000`, `1.5`},
		{"unknown member of _aws", `"Timestamp"`, `"Other":1,"Timestamp"`},
		{"no directive", `"CloudWatchMetrics":[{`, `"CloudWatchMetrics":[],"x":[{`},
		{"no namespace", `"N"`, `""`},
		{"no dimension set", `[["cell"]]`, `[]`},
		{"dimension is no member", `[["cell"]]`, `[["other"]]`},
		{"dimension is a number", `[["cell"]]`, `[["a"]]`},
		{"dimension twice", `[["cell"]]`, `[["cell","cell"]]`},
		{"dimension is empty", `"cell":"c"`, `"cell":" "`},
		{"dimension is not ASCII", `"cell":"c"`, `"cell":"é"`},
		{"no metrics", `{"Name":"a","Unit":"Count"},{"Name":"b","Unit":"Percent","StorageResolution":1}`, ``},
		{"101 metrics", `{"Name":"a","Unit":"Count"}`,
			strings.TrimSuffix(strings.Repeat(`{"Name":"a","Unit":"Count"},`, 100), ",")},
		{"metric twice", `"Name":"b"`, `"Name":"a"`},
		{"metric is no member", `"a":1`, `"A":1`},
		{"metric is text", `"a":1`, `"a":"1"`},
		{"no unit", `"Count"`, `"Requests"`},
		{"resolution", `"StorageResolution":1`, `"StorageResolution":10`},
		{"unknown member of a metric", `"Unit":"Count"`, `"Unit":"Count","Type":"x"`},
		{"more values than counts", `[0,100]`, `[0,1,100]`},
		{"a value twice", `[0,100]`, `[100,100]`},
		{"a count of none", `[1,2]`, `[0,2]`},
		{"no values", `{"Values":[0,100],"Counts":[1,2]}`, `{"Values":[],"Counts":[]}`},
		{"101 values", `"a":1`, `"a":[` + hundred + `]`},
		{"unknown member of values", `"Counts":[1,2]`, `"Counts":[1,2],"Sum":9`},
	} {
		bad := strings.Replace(good, c.old, c.new, 1)
		if bad == good {
			t.Fatalf("%s: nothing was replaced", c.what)
		}
		if d, err := parseEMF([]byte(bad)); err == nil {
			t.Errorf("%s: parseEMF accepts %.300s as %+v", c.what, bad, d)
		}
	}
}
