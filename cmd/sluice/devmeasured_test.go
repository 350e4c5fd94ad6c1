package main

import (
	"encoding/json"
	"net/http"
	"slices"
	"testing"

	"github.com/sluicelimits/sluice/internal/telemetry"
)

// Guarantees that who looks at cells that share limits sees how long changes take to each and that it has all of them,
// without asking for it; that what the functions count can be read; and that the changes which measure that are in the
// audit trail like others.
func TestDevCellsMeasured(t *testing.T) {
	dir := t.TempDir()
	r := startDev(t, "--data", dir, "--cells", "2")
	until(t, "both cells were measured and compared", func() bool {
		n := 0
		for _, c := range dataOf(t, r.base).Cells {
			if c.CanaryMs > 0 && c.ReconciledMs > 0 {
				n++
				if c.Missed || c.AppliedMs < 1 || c.EnforcedMs < c.AppliedMs || c.Drift != 0 {
					t.Fatalf("%+v", c)
				}
			}
		}
		return n == 2
	})
	code, h, body := get(t, r.base+"/_sluice/metrics", "")
	var told struct {
		Version int
		Metrics []telemetry.MetricValue
	}
	if err := json.Unmarshal([]byte(body), &told); err != nil || code != http.StatusOK || told.Version != 1 ||
		h.Get("Content-Type") != "application/json" {
		t.Fatalf("%d %v %v %s", code, h, err, body)
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
		if !slices.ContainsFunc(told.Metrics, func(m telemetry.MetricValue) bool {
			return m.Function == want.function && m.Cell == want.cell && m.Name == want.name
		}) {
			t.Errorf("nothing is told of %s of %s in cell %q:\n%s", want.name, want.function, want.cell, body)
		}
	}
	for _, m := range told.Metrics {
		if !known[m.Function+" "+m.Name] {
			t.Errorf("%s tells %s, which is not in the list of metrics", m.Function, m.Name)
		}
	}
	if code, _, _ := get(t, r.base+"/_sluice/metrics/x", ""); code != http.StatusNotFound {
		t.Errorf("a page below it: %d", code)
	}
	if v := sluice(t, "", "audit", "verify", "--data", dir); v.code != 0 {
		t.Errorf("audit verify: %d %s%s", v.code, v.stdout, v.stderr)
	}
	if err := r.finish(t); err != nil {
		t.Error(err)
	}
}
