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

// Guarantees that a function's counts become one line that CloudWatch reads, in which a 0 is no metric, and that the
// next line begins anew.
func TestMeter(t *testing.T) {
	var out bytes.Buffer
	m, err := telemetry.NewMeter(telemetry.Config{Writer: &out, Cell: "eu-1", Function: "applier"})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1_700_000_000, 0)
	if err := m.Flush(now); err != nil || out.Len() > 0 {
		t.Fatalf("a line of nothing: %v, %q", err, out.String())
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
		`"cell":"eu-1","function":"applier","events_applied":5,"events_kept":0,"waited_seconds":{"Values":[0.000001,` +
		`1.964],"Counts":[1,2]}}` + "\n"
	if got := out.String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	out.Reset()
	m.Count("events_applied", 1)
	if err := m.Flush(now); err != nil || !strings.Contains(out.String(), `"events_applied":1}`) {
		t.Errorf("%v, %s; want a line of 1", err, out.String())
	}
}

// Guarantees that a line tells as a metric what the list says, and the rest as plain numbers: of what is always told
// the 0, too, of faults only those that there are, and of what is usual nothing; a line without any metric has no
// directive, which would be none.
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
			`{"function":"f","records_read":3,"records_kept":0,"publish_seconds":1.964}`},
		{func() {
			m.Took("apply_seconds", time.Millisecond)
			m.Took("apply_seconds", 2*time.Second)
			m.Took("apply_seconds", time.Second)
		},
			`{"function":"f","apply_seconds":1.964}`},
		{func() {
			m.Count("drift", 0)
			m.Count("drift_missing", 0)
			m.Count("drift_older", 0)
			m.Count("drift_older", 2)
		},
			`{"_aws":{"Timestamp":0,"CloudWatchMetrics":[{"Namespace":"Sluice","Dimensions":[["function"]],` +
				`"Metrics":[{"Name":"drift","Unit":"Count"},{"Name":"drift_older","Unit":"Count"}]}]},` +
				`"function":"f","drift":0,"drift_missing":0,"drift_older":2}`},
		{func() { m.Count("not_listed", 0) }, `{"function":"f","not_listed":0}`},
	} {
		out.Reset()
		tt.count()
		if err := m.Flush(time.Unix(0, 0)); err != nil || out.String() != tt.want+"\n" {
			t.Errorf("got  %s, %v\nwant %s", out.String(), err, tt.want)
		}
	}
}

// Guarantees that functions which share a number tell it alike: a meter goes by its name.
func TestMetersTellAlike(t *testing.T) {
	told := map[string]telemetry.Metric{}
	for _, m := range telemetry.Metrics() {
		if slices.Contains(m.Functions, "authorizer") {
			continue
		}
		if is, there := told[m.Name]; there && (is.Always != m.Always || is.LineOnly != m.LineOnly) {
			t.Errorf("%s is told in two ways", m.Name)
		}
		told[m.Name] = m
		if m.Always && m.LineOnly {
			t.Errorf("%s is always told as a metric, and never", m.Name)
		}
	}
}

// Guarantees that no name from outside, and no number of them, breaks a line.
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

// Guarantees that whoever counts nothing need not ask, that many may count at once, and that bad settings and writers
// are told.
func TestMeterEdges(t *testing.T) {
	var none *telemetry.Meter
	none.Count("a", 1)
	none.Took("a", 1)
	if err := none.Flush(time.Now()); err != nil {
		t.Error(err)
	}
	if _, err := telemetry.NewMeter(telemetry.Config{}); err == nil {
		t.Error("a meter without a writer")
	}
	if _, err := telemetry.NewMeter(telemetry.Config{Writer: refusing{},
		Totals: func() telemetry.Totals { return telemetry.Totals{} }}); err == nil {
		t.Error("a meter with totals, which it would never ask")
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
		t.Error("a line that was not written is no error")
	}
}
