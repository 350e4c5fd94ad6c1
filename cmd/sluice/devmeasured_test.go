package main

import (
	"encoding/json"
	"net/http"
	"slices"
	"testing"

	"github.com/sluicelimits/sluice/internal/telemetry"
)

// With cells that share limits, the live page shows for each cell how long changes take and whether any is missing. The
// metrics of the functions can be read. The changes that are made for this measurement are in the audit trail.
func TestDevCellsMeasured(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := startDev(t, "--data", dir, "--cells", "2")
	waitUntil(t, "both cells were measured and compared", func() bool {
		n := 0
		for _, c := range dataOf(t, r.base).Cells {
			if c.CanaryMs > 0 && c.ReconciledMs > 0 {
				n++
				if c.Missed || c.AppliedMs < 1 || c.EnforcedMs < c.AppliedMs || c.Drift != 0 {
					t.Fatalf("the live page shows the cell as %+v", c)
				}
			}
		}
		return n == 2
	})
	code, h, body := get(t, r.base+"/_sluice/metrics", "")
	var answer struct {
		Version int
		Metrics []telemetry.MetricValue
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil || code != http.StatusOK || answer.Version != 1 ||
		h.Get("Content-Type") != "application/json" {
		t.Fatalf("the metrics: status %d, headers %v, %v: %s", code, h, err, body)
	}
	known := map[string]bool{}
	for _, m := range telemetry.Metrics() {
		for _, f := range m.Functions {
			known[f+" "+m.Name] = true
		}
	}
	for _, want := range []struct{ function, cell, name string }{
		{"publisher", "", "events_published"}, {"balancer", "", "active_cell_count"}, {"applier", "cell-2",
			"apply_seconds"}, {"archiver", "", "objects_made"},
		{"canary", "cell-1", "propagation_seconds"}, {"reconcile", "cell-2", "drift"}, {"authorizer", "cell-1",
			"per_cell_limit_effective"},
	} {
		if !slices.ContainsFunc(answer.Metrics, func(m telemetry.MetricValue) bool {
			return m.Function == want.function && m.Cell == want.cell && m.Name == want.name
		}) {
			t.Errorf("there is no metric %s of %s in cell %q:\n%s", want.name, want.function, want.cell, body)
		}
	}
	for _, m := range answer.Metrics {
		if !known[m.Function+" "+m.Name] {
			t.Errorf("%s writes %s, which is not in the list of metrics", m.Function, m.Name)
		}
	}
	if code, _, _ := get(t, r.base+"/_sluice/metrics/x", ""); code != http.StatusNotFound {
		t.Errorf("a page below that of the metrics: status %d", code)
	}
	if v := sluice(t, "", "audit", "verify", "--data", dir); v.code != 0 {
		t.Errorf("audit verify: exit status %d: %s%s", v.code, v.stdout, v.stderr)
	}
	if err := r.finish(t); err != nil {
		t.Error(err)
	}
}
