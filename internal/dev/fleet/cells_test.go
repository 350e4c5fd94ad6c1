package fleet_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/dev/fleet"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// inCells returns a small scenario of two cells, with windows of 5 s and limits of all tenants that bind.
func inCells(faults ...fleet.Fault) *fleet.Scenario {
	return &fleet.Scenario{Name: "cells", Cells: 2, PinEvery: 3, Instances: 2, Tenants: 12, Requests: 600, Zipf: 0.3,
		WarmUp: 5 * time.Second, Measured: 10 * time.Second, Faults: faults,
		Limits: fleet.Limits{Period: 5 * time.Second, Ample: 0.7, Scarce: 0.7}}
}

// TestCells tests that the cells divide the limits of a tenant without exceeding them, that nearly all of a limit is
// granted, and that the same seed is the same run.
func TestCells(t *testing.T) {
	s := inCells()
	r := run(t, s, 1)
	if err := r.Check(); err != nil {
		t.Error(err)
	}
	if r.Over != 0 || r.Epochs != 0 || r.Withheld != 0 || r.NotLoaded != 0 || r.Instances != 4 || len(r.Shards) != 2 {
		t.Errorf("%+v", r)
	}
	if part := float64(r.Allowed) / float64(r.Decisions); part < 0.66 || part > 0.71 {
		t.Errorf("%.3f of the requests were allowed, and the limits allow 0.7", part)
	}
	for _, c := range r.Cells {
		if c.PartPct != 50 || c.Instances != 2 || c.Allowed < r.Allowed/3 || c.Denied == 0 || c.StoreOps == 0 {
			t.Errorf("%+v", c)
		}
	}
	var page bytes.Buffer
	if err := r.WriteHTML(&page); err != nil || !strings.Contains(page.String(), `<th scope="row">cell-2</th>`) {
		t.Errorf("the page does not name the cells (%v)", err)
	}
	first, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := json.Marshal(run(t, s, 1)); err != nil || string(again) != string(first) {
		t.Errorf("the same seed gave\n%s\nand then\n%s, %v", first, again, err)
	}
}

// TestCellLost tests what each step after the loss of a cell does: nobody takes the requests until they move; then the
// other cell has only its own part, and grants nothing to tenants that were pinned to the lost cell; once an operator
// has removed the cell and the shares have changed, it grants all.
func TestCellLost(t *testing.T) {
	soak.SkipUnderRace(t)
	lost := fleet.Fault{Kind: fleet.CellLost, Cell: 2, At: 5 * time.Second, TrafficAfter: 2 * time.Second}
	s := inCells(lost)
	s.Measured = 120 * time.Second
	kept := run(t, s, 1)
	s.Faults[0].RemovedAfter = 10 * time.Second
	removed := run(t, s, 1)
	for _, r := range []*fleet.Report{kept, removed} {
		if err := r.Check(); err != nil || r.Over > 0 {
			t.Errorf("%d units above a limit, %v", r.Over, err)
		}
		// Half of 600 requests a second have nowhere to go for 2 s.
		if r.Refused < 500 || r.Refused > 700 || r.Withheld == 0 || !r.Cells[1].Lost || r.Cells[1].Instances != 0 ||
			r.Instances != 2 {
			t.Errorf("%d refused, %d withheld, cells %+v", r.Refused, r.Withheld, r.Cells)
		}
	}
	if kept.Epochs != 0 || kept.Cells[0].PartPct != 50 || removed.Epochs == 0 || removed.Cells[0].PartPct != 100 {
		t.Errorf("cells %+v and %+v", kept.Cells, removed.Cells)
	}
	if last := kept.Timeline.Points[119]; last.Denied < last.Allowed {
		t.Errorf("nobody removed the lost cell, and in the last second %+v", last)
	}
	windowAt := func(r *fleet.Report, from int) (allowed, denied int64) {
		for _, p := range r.Timeline.Points[from : from+5] {
			allowed += p.Allowed
			denied += p.Denied
		}
		return allowed, denied
	}
	if allowed, denied := windowAt(removed, 115); allowed < 2*denied {
		t.Errorf("after the change %d were allowed and %d denied in a window, want 0.7 of all", allowed, denied)
	}
}

// TestCellJoins tests that a cell that joins gets its part from the others, and that no limit is exceeded meanwhile.
func TestCellJoins(t *testing.T) {
	soak.SkipUnderRace(t)
	s := inCells(fleet.Fault{Kind: fleet.CellJoins, Cell: 3, At: 6 * time.Second, TrafficAfter: 5 * time.Second})
	s.Measured = 100 * time.Second
	r := run(t, s, 1)
	if err := r.Check(); err != nil || r.Over > 0 || r.Epochs != 1 || r.Refused > 0 || len(r.Cells) != 3 {
		t.Fatalf("%+v, %v", r, err)
	}
	for _, c := range r.Cells {
		if c.PartPct < 33 || c.PartPct > 34 || c.Allowed == 0 {
			t.Errorf("%+v", c)
		}
	}
	// Requests came to it before it had its part.
	if r.Withheld == 0 {
		t.Error("the new cell granted units before it had a part")
	}
}

// TestPoisonedConfiguration tests that instances that run keep their limits while the plans cannot be read, that one
// that starts meanwhile cannot decide, and that it can as soon as the plans are mended.
func TestPoisonedConfiguration(t *testing.T) {
	soak.SkipUnderRace(t)
	poison := fleet.Fault{Kind: fleet.PoisonedConfiguration, At: 6 * time.Second, For: 4 * time.Second}
	sound, poisoned := run(t, inCells(), 1), run(t, inCells(poison), 1)
	if poisoned.Allowed != sound.Allowed || poisoned.Denied != sound.Denied || poisoned.NotLoaded != 0 {
		t.Errorf("%d allowed, %d denied, %d not loaded; without the fault %d and %d", poisoned.Allowed,
			poisoned.Denied, poisoned.NotLoaded, sound.Allowed, sound.Denied)
	}
	restarted := inCells(poison,
		fleet.Fault{Kind: fleet.InstancesDie, At: 7 * time.Second, Instances: []int{3}},
		fleet.Fault{Kind: fleet.InstancesJoin, At: 8 * time.Second, Instances: []int{3}})
	r := run(t, restarted, 1)
	// From the restart to the end of the fault, 2 s and up to 2 s more until the right plans arrive, one of four
	// instances cannot decide.
	if r.NotLoaded < 200 || r.NotLoaded > 700 || r.Over > 0 {
		t.Errorf("%d requests came to an instance that did not know the limits, %d over", r.NotLoaded, r.Over)
	}
	if last := r.Timeline.Points[9]; last.Unserved > 0 {
		t.Errorf("in the last second %d requests were not decided", last.Unserved)
	}
	one := inCells(fleet.Fault{Kind: fleet.PoisonedConfiguration, At: 6 * time.Second, For: time.Second, Tenant: 1})
	one.Cells, one.PinEvery = 1, 0
	if r := run(t, one, 1); r.NotLoaded > 0 || r.Over > 0 || len(r.Cells) != 1 {
		t.Errorf("one cell: %+v", r)
	}
}

// TestPlansInCells tests that the plans of a file are divided, and that a limit that is too small to be divided is
// granted in the home cell alone, as by instances of serve, which reach no other cell's counters.
func TestPlansInCells(t *testing.T) {
	source := configyaml.Source("plans.yaml", []byte(`
plans:
  - id: pro
    limits: [ { id: per-second, algorithm: token_bucket, rate: 40, period: 1s } ]
  - id: tiny
    limits: [ { id: few, algorithm: fixed_window, threshold: 1, period: 5s } ]
tenants:
  - { id: acme, plan: pro }
  - { id: globex, plan: pro, overrides: [ { id: per-second, rate: 20 } ] }
  - { id: initech, plan: tiny }
`))
	config, err := plan.Parse(source)
	if err != nil {
		t.Fatal(err)
	}
	documents, err := plan.Split(time.Unix(1_800_000_000, 0), source)
	if err != nil {
		t.Fatal(err)
	}
	s := &fleet.Scenario{Name: "plans", Cells: 2, Measured: 20 * time.Second, Instances: 2, Requests: 120}
	o := fleet.Options{Scenario: s, Config: config, Documents: documents, Path: "/", Seed: 1}
	r, err := fleet.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	// 40 requests a second of each tenant: all of acme's are within its limit, half of globex's, and 4 of initech's.
	if r.Over != 0 || r.Withheld < 300 || r.Allowed < 1000 || r.Allowed > 1300 || r.Limits[1].Early > r.Withheld {
		t.Errorf("%+v; limits %+v, %+v", r, r.Limits[0], r.Limits[1])
	}
	o.Documents = nil
	const want = "the document of tenant acme"
	if _, err := fleet.Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("without the documents: %v", err)
	}
}

// TestImpossibleCells tests that scripts whose cells cannot do what they say are refused with the line of the fault.
func TestImpossibleCells(t *testing.T) {
	const script = `
cells: 2
instances: 2
requestsPerSecond: 100
tenants: 5
measured: 20s
faults:
  - { kind: cellLost, at: 1s, cell: 2, trafficAfter: 1s, removedAfter: 2s }
  - { kind: cellJoins, at: 5s, cell: 3, trafficAfter: 1s }
`
	s, err := fleet.ReadScript("mine.yaml", []byte(script), false, false)
	if err != nil || s.Faults[0].RemovedAfter != 2*time.Second {
		t.Fatalf("%+v, %v", s, err)
	}
	const place = "mine.yaml:10:5: faults[2]: "
	for _, test := range []struct{ fault, want string }{
		{"kind: cellLost, at: 9s, cell: 2, trafficAfter: 1s", "cell 2 was lost before"},
		{"kind: cellLost, at: 9s, cell: 4, trafficAfter: 1s", "there is no cell 4"},
		{"kind: cellLost, at: 2s, cell: 3, trafficAfter: 1s", "there is no cell 3"}, // before it joins
		{"kind: cellLost, at: 2s, cell: 1, trafficAfter: 1s", "cell 1 is the last one"},
		{"kind: cellLost, at: 2s, trafficAfter: 1s", "cell is missing"},
		{"kind: cellLost, at: 9s, cell: 1", "trafficAfter is missing"},
		{"kind: cellLost, at: 9s, cell: 1, for: 1s, trafficAfter: 1s", "for has no effect on it; it has cell"},
		{"kind: cellJoins, at: 9s, cell: 2, trafficAfter: 1s", "want the next one, 4"},
		{"kind: cellJoins, at: 9s, cell: 4, trafficAfter: 1s, removedAfter: 1s", "removedAfter has no effect"},
		{"kind: storeAway, at: 9s, for: 1s, cell: 2", "cell 2 was lost before"},
		{"kind: storeAway, at: 9s, for: 1s, cell: 9", "there is no cell 9"},
		{"kind: retryStorm, at: 9s, for: 1s, factor: 2, cell: 1", "cell has no effect on it; it has for"},
		{"kind: instancesDie, at: 9s, instances: [2]", "instance 2 is of cell 2, which was lost before"},
		{"kind: instancesDie, at: 9s, instances: [6]", "there is no instance 6"},
		{"kind: configurationAway, at: 9s, for: 1s, cell: 2", "cell 2 was lost before"},
		{"kind: poisonedConfiguration, at: 9s", "for is missing"},
		{"kind: storeAway, at: 9s, for: 1s, trafficAfter: 1s", "trafficAfter has no effect on it; it has for, cell"},
		{"kind: poisonedConfiguration, at: 9s, for: 1s, tenant: 6", "there is no tenant 6"},
	} {
		_, err := fleet.ReadScript("mine.yaml", []byte(script+"  - { "+test.fault+" }\n"), false, false)
		if err == nil || !strings.HasPrefix(err.Error(), place) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %s…%s", test.fault, err, place, test.want)
		}
	}
}

// TestConfigurationAway tests that instances go on with the shares that they know while a cell's table is away, that a
// change of the shares waits for that cell, but not much longer than the table is away, and that an instance that
// starts meanwhile serves once the table is back.
func TestConfigurationAway(t *testing.T) {
	soak.SkipUnderRace(t)
	s := inCells(
		fleet.Fault{Kind: fleet.ConfigurationAway, Cell: 1, At: 5 * time.Second, For: 20 * time.Second},
		fleet.Fault{Kind: fleet.CellJoins, Cell: 3, At: 6 * time.Second, TrafficAfter: time.Second},
		fleet.Fault{Kind: fleet.InstancesDie, At: 7 * time.Second, Instances: []int{0, 1}},
		fleet.Fault{Kind: fleet.InstancesJoin, At: 10 * time.Second, Instances: []int{0, 1}})
	s.Measured, s.Requests = 100*time.Second, 200
	r := run(t, s, 1)
	if err := r.Check(); err != nil || r.Over > 0 || r.NotLoaded > 0 || r.Epochs != 1 {
		t.Errorf("%d over, %d not loaded, %d changes, %v", r.Over, r.NotLoaded, r.Epochs, err)
	}
	refused := func(from, to float64) (n int64) {
		for _, p := range r.Timeline.Points {
			if p.At >= from && p.At < to {
				n += p.Unserved
			}
		}
		return n
	}
	// A third to a half of 200 requests a second come to the first cell, whose instances cannot start for 18 s.
	if n := refused(8, 25); n < 800 || n > 1700 || refused(27, 105) > 0 {
		t.Errorf("%d requests came to no instance while the table was away, and %d later", n, refused(27, 105))
	}
	for _, c := range r.Cells {
		if c.PartPct < 33 || c.PartPct > 34 || c.Allowed == 0 {
			t.Errorf("%+v", c)
		}
	}
}
