package telemetry_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/telemetry"
)

// Guarantees that the counts of a function become one line that CloudWatch can read, in which a count of 0 is no
// metric, and that the next line starts at 0 again.
func TestMeter(t *testing.T) {
	var out bytes.Buffer
	m, err := telemetry.NewMeter(telemetry.Config{Writer: &out, Cell: "eu-1", Function: "applier"})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1_700_000_000, 0)
	if err := m.Flush(now); err != nil || out.Len() > 0 {
		t.Fatalf("Flush without events: %v, writes %q; want nothing", err, out.String())
	}
	m.Count("events_applied", 2)
	m.Count("events_applied", 3)
	m.Count("events_kept", 0)
	m.Took("waited_seconds", 2*time.Second)
	m.Took("waited_seconds", 2*time.Second)
	m.Took("waited_seconds", -time.Hour)
	if err := m.Flush(now); err != nil {
		t.Fatal(err)
	}
	const want = `{"_aws":{"Timestamp":1700000000000,"CloudWatchMetrics":[{"Namespace":"Sluice",` +
		`"Dimensions":[["cell","function"]],` +
		`"Metrics":[{"Name":"events_applied","Unit":"Count"},{"Name":"waited_seconds","Unit":"Seconds"}]}]},` +
		`"cell":"eu-1","events_applied":5,"events_kept":0,"function":"applier","waited_seconds":{"Values":[0.000001,` +
		`1.964],"Counts":[1,2]}}` + "\n"
	if got := out.String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	out.Reset()
	m.Count("events_applied", 1)
	if err := m.Flush(now); err != nil || !strings.Contains(out.String(), `"events_applied":1,`) {
		t.Errorf("%v, %s; want a line of 1", err, out.String())
	}
}

// Guarantees that a line contains as metrics only those that the list has as metrics, and the others as plain numbers.
// Those marked Always are there even if they are 0. A fault is a metric only if it has occurred, and usual events are
// none. A line without any metric has no directive for CloudWatch, because an empty one is invalid.
func TestMeterTellsByTheList(t *testing.T) {
	var out bytes.Buffer
	m, err := telemetry.NewMeter(telemetry.Config{Writer: &out, Function: "f"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		count func()
		want  string
	}{
		{func() {
			m.Count("records_read", 3)
			m.Count("records_kept", 0)
			m.Took("publish_seconds", 2*time.Second)
		},
			`{"function":"f","publish_seconds":1.964,"records_kept":0,"records_read":3}`},
		{func() {
			m.Took("apply_seconds", time.Millisecond)
			m.Took("apply_seconds", 2*time.Second)
			m.Took("apply_seconds", time.Second)
		},
			`{"apply_seconds":1.964,"function":"f"}`},
		{func() {
			m.Count("drift", 0)
			m.Count("drift_missing", 0)
			m.Count("drift_older", 0)
			m.Count("drift_older", 2)
		},
			`{"_aws":{"Timestamp":0,"CloudWatchMetrics":[{"Namespace":"Sluice","Dimensions":[["function"]],` +
				`"Metrics":[{"Name":"drift","Unit":"Count"},{"Name":"drift_older","Unit":"Count"}]}]},` +
				`"drift":0,"drift_missing":0,"drift_older":2,"function":"f"}`},
		{func() { m.Count("not_listed", 0) }, `{"function":"f","not_listed":0}`},
	} {
		out.Reset()
		tt.count()
		if err := m.Flush(time.Unix(0, 0)); err != nil || out.String() != tt.want+"\n" {
			t.Errorf("got  %s, %v\nwant %s", out.String(), err, tt.want)
		}
	}
}

// Guarantees that functions that share a metric's name report it in the same way, because a meter knows it only by its
// name.
func TestMetersTellAlike(t *testing.T) {
	told := map[string]telemetry.Metric{}
	for _, m := range telemetry.Metrics() {
		if slices.Contains(m.Functions, "authorizer") {
			continue
		}
		if is, there := told[m.Name]; there && (is.Always != m.Always || is.LineOnly != m.LineOnly) {
			t.Errorf("the metric %s is reported in two ways", m.Name)
		}
		told[m.Name] = m
		if m.Always && m.LineOnly {
			t.Errorf("the metric %s is Always and LineOnly, which contradict each other", m.Name)
		}
	}
}

// Guarantees that neither names that come from outside, nor many of them, make a line invalid.
func TestMeterNames(t *testing.T) {
	var out bytes.Buffer
	m, err := telemetry.NewMeter(telemetry.Config{Writer: &out})
	if err != nil {
		t.Fatal(err)
	}
	m.Count(`a"b`, 1)
	m.Took("", time.Second)
	for i := range 100 {
		m.Count(fmt.Sprintf("count_%d", i), 1)
	}
	if err := m.Flush(time.Unix(0, 0)); err != nil {
		t.Fatal(err)
	}
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	if got := line["telemetry_names_lost"]; got != 2.0+36 {
		t.Errorf("telemetry_names_lost is %v, want 38: %s", got, out.String())
	}
}

type refusing struct{}

func (refusing) Write([]byte) (int, error) { return 0, errors.New("full") }

// Guarantees that a nil meter can be used by code that counts nothing, that many goroutines can count concurrently, and
// that invalid settings and failing writers are reported.
func TestMeterEdges(t *testing.T) {
	var none *telemetry.Meter
	none.Count("a", 1)
	none.Took("a", 1)
	if err := none.Flush(time.Now()); err != nil {
		t.Error(err)
	}
	if _, err := telemetry.NewMeter(telemetry.Config{}); err == nil {
		t.Error("NewMeter accepts a configuration without a writer, want an error")
	}
	m, err := telemetry.NewMeter(telemetry.Config{Writer: refusing{}})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { m.Count("a", 1); m.Took("b", time.Second) })
	}
	all.Wait()
	if err := m.Flush(time.Now()); err == nil {
		t.Error("Flush returns no error although the line was not written, want one")
	}
}
