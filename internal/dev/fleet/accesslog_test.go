package fleet_test

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/dev/fleet"
	"github.com/sluicelimits/sluice/internal/dev/simulate"
	"github.com/sluicelimits/sluice/internal/plan"
)

// logOf returns an access log with a line for each entry: its second, and its user.
func logOf(entries ...any) simulate.Log {
	var text strings.Builder
	for i := 0; i < len(entries); i += 2 {
		fmt.Fprintf(&text, "198.51.100.7 - %s [17/May/2015:10:05:%02d +0000] \"GET /a HTTP/1.1\" 200 1\n", entries[i+1],
			entries[i])
	}
	return simulate.Log{Name: "access.log", Open: func() (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(text.String())), nil
	}}
}

// Guarantees that each line of an access log makes as many requests of its tenant as the scale says, within the second
// of the line, that the same seed gives the same report, and that lines which make no request are counted.
func TestAccessLog(t *testing.T) {
	config, err := plan.Parse(configyaml.Source("plans.yaml", []byte(`
plans:
  - { id: pro, limits: [ { id: few, algorithm: fixed_window, tiers: [ { period: 10s, threshold: 50 } ] } ] }
  - { id: free, limits: [ { id: few, algorithm: fixed_window, tiers: [ { period: 10s, threshold: 15 } ] } ] }
tenants: [ { id: acme, plan: pro }, { id: closed, plan: pro, suspended: true } ]
`)))
	if err != nil {
		t.Fatal(err)
	}
	lines := logOf(4, "acme", 0, "acme", 0, "globex", 9, "globex", 4, "-", 12, "acme", 5, "closed", 50, "acme")
	simulated := func(defaults string, scale int, seed uint64, change func(*fleet.Scenario)) (*fleet.Report, error) {
		log, err := fleet.ReadLog(t.Context(), simulate.Options{Config: config, Logs: []simulate.Log{lines},
			DefaultPlan: defaults}, scale)
		if err != nil {
			return nil, err
		}
		s := &fleet.Scenario{Name: "log", Measured: 20 * time.Second, Instances: 2}
		change(s)
		return fleet.Run(t.Context(), fleet.Options{Scenario: s, Seed: seed, Config: config, Path: "/", Log: log})
	}
	unchanged := func(*fleet.Scenario) {}
	r, err := simulated("free", 20, 1, unchanged)
	if err != nil {
		t.Fatal(err)
	}
	// acme: 40 requests before second 10, of 50, and 20 after it. globex: 40 requests, of 15.
	if r.Total != 100 || r.Allowed != 75 || r.Denied != 25 || r.Over != 0 || r.Tenants != 2 {
		t.Errorf("%d requests of %d tenants, %d allowed, %d denied, %d over; want 100 of 2, 75, 25, 0", r.Total,
			r.Tenants, r.Allowed, r.Denied, r.Over)
	}
	if want := (fleet.LogUse{Lines: simulate.Lines{Read: 8, WithoutTenant: 1, Suspended: 1}, Scale: 20,
		Later: 1}); r.Log == nil || *r.Log != want {
		t.Errorf("the report says of the log %+v, want %+v", r.Log, want)
	}
	var within [20]int64
	for i, p := range r.Timeline.Points {
		within[i] = p.Allowed + p.Denied
	}
	if within != [20]int64{0: 40, 4: 20, 9: 20, 12: 20} {
		t.Errorf("requests by second: %v, want 40, 20, 20 and 20 in the seconds 0, 4, 9 and 12", within)
	}
	text := func(r *fleet.Report, err error) string {
		b, jsonErr := json.Marshal(r)
		if err != nil || jsonErr != nil {
			t.Fatal(err, jsonErr)
		}
		return string(b)
	}
	again, other := text(simulated("free", 20, 1, unchanged)), text(simulated("free", 20, 2, unchanged))
	if first := text(r, nil); again != first || other == first {
		t.Error("the same seed gave another report, or another seed gave the same one")
	}
	if r, err = simulated("", 20, 1, unchanged); err != nil || r.Total != 60 || r.Log.UnknownTenant != 2 {
		t.Errorf("without a default plan: %+v, %v; want the 60 requests of acme, and 2 lines of an unknown tenant", r,
			err)
	}
	whole := func(s *fleet.Scenario) { s.Measured = 0 }
	if r, err = simulated("free", 1, 1, whole); err != nil || r.Seconds != 51 || r.Log.Later != 0 {
		t.Errorf("without the length of the run: %+v, %v; want the 51 seconds of the log", r, err)
	}
	for want, change := range map[string]func(*fleet.Scenario){
		"requestsPerSecond has no effect with an access log": func(s *fleet.Scenario) { s.Requests = 5 },
		"dailySwing has no effect with an access log":        func(s *fleet.Scenario) { s.DailySwing = 0.5 },
		"rampUp has no effect with an access log":            func(s *fleet.Scenario) { s.RampUp = time.Second },
		"retryStorm at 1s: it has no effect with an access log": func(s *fleet.Scenario) {
			s.Faults = []fleet.Fault{{Kind: fleet.RetryStorm, At: time.Second, For: time.Second, Factor: 2}}
		},
	} {
		if _, err := simulated("free", 20, 1, change); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want %q", err, want)
		}
	}
	for _, scale := range []int{0, -1, 2_000_000} {
		if _, err := simulated("free", scale, 1, unchanged); err == nil || !strings.Contains(err.Error(), "scale") {
			t.Errorf("scale %d gives error %v, want one that names the scale", scale, err)
		}
	}
	lines = logOf(1, "-", 2, "globex")
	if _, err := simulated("", 1, 1, unchanged); err == nil || !strings.Contains(err.Error(), "--tenant-from") {
		t.Errorf("a log without tenants gives error %v, want one that names --tenant-from", err)
	}
}
