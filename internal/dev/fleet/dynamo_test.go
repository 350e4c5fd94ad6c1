package fleet_test

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/dev/fleet"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// table returns a small scenario whose counters are in a table of DynamoDB.
func table(faults ...fleet.Fault) *fleet.Scenario {
	return &fleet.Scenario{Name: "table", Store: fleet.DynamoDB, Measured: 8 * time.Second, Instances: 4, Tenants: 20,
		Requests: 500, Zipf: 0.6, Limits: fleet.Limits{Period: 2 * time.Second}, Faults: faults}
}

// Guarantees that the report says what the table took, and that its parts agree: the partitions add up to the table,
// the hot keys are part of it, and the money is that of the units. A run without a fault exceeds no limit.
func TestTableUse(t *testing.T) {
	soak.SkipUnderRace(t)
	r := run(t, table(), 1)
	if r.Table == nil {
		t.Fatal("the report says nothing about the table")
	}
	sum, reads := 0.0, r.Table.ReadUnits
	for _, s := range r.Shards {
		sum += s.WriteUnits
		if want := s.WriteUnits / 10; math.Abs(s.BusyPct-want) > 0.01 { // 1,000 units are 100 %
			t.Errorf("a partition with %g write units per second is %g %% busy, want %g", s.WriteUnits, s.BusyPct, want)
		}
	}
	// An item of these tenants is smaller than 1 KB, so a write costs one unit and a read one: every call is one unit.
	if calls := sum + reads; math.Abs(sum-r.Table.WriteUnits) > 0.01 || math.Abs(calls-r.StoreOps) > 0.01 || sum == 0 {
		t.Errorf("the partitions took %g write units per second and the table %g; with %g read units, of %g calls", sum,
			r.Table.WriteUnits, reads, r.StoreOps)
	}
	if len(r.Shards) != 4 || r.Over > 0 || r.Degraded > 0 || r.Failed > 0 || r.Denied == 0 || r.Table.Refused > 0 ||
		r.ShardsNeeded != 1 || r.HotKeys[0].WriteUnits == 0 || r.HotKeys[0].PeakUnits == 0 {
		t.Errorf("the report of a run without a fault is %+v, its table %+v", r, r.Table)
	}
	// 730 hours at 0.625 USD for a million write units and 0.125 USD for a million read units, in us-east-1.
	want := (r.Table.WriteUnits*0.625 + reads*0.125) * 730 * 3600
	if got := float64(r.Money.Monthly); len(r.Money.Lines) != 2 || math.Abs(got-want) > 2 {
		t.Errorf("a month costs %g micros of a dollar in %d lines, want %g in 2", got, len(r.Money.Lines), want)
	}
	var page, text bytes.Buffer
	if err := r.WriteHTML(&page); err != nil || !strings.Contains(page.String(), `<table id="partitions">`) {
		t.Errorf("the page has no partitions (%v)", err)
	}
	if err := r.WriteText(&text); err != nil || !strings.Contains(text.String(), "write units") {
		t.Errorf("the text has no write units (%v):\n%s", err, text.String())
	}
}

// Guarantees that what a table that is away, slow or throttled does to decisions stays within the bounds of
// Report.Check, also with Lambda environments and in several cells. A call that is slower than its deadline is carried
// out and not heard of, so its units are lost, and never granted twice.
func TestTableFaults(t *testing.T) {
	soak.SkipUnderRace(t)
	const second = time.Second
	away := fleet.Fault{Kind: fleet.StoreAway, At: 2 * second, For: 3 * second}
	slow := fleet.Fault{Kind: fleet.StoreSlow, At: 2 * second, For: 3 * second, Factor: 30}
	throttles := fleet.Fault{Kind: fleet.StoreThrottles, At: 2 * second, For: 3 * second, PerSecond: 1}
	lambda := table(throttles)
	lambda.Shape, lambda.Instances = fleet.Lambda, 50
	cells := table(throttles)
	cells.Cells = 2
	for name, test := range map[string]struct {
		s       *fleet.Scenario
		refused bool
	}{
		"away": {table(away), false}, "slow": {table(slow), false}, "throttled": {table(throttles), true},
		"Lambda": {lambda, true}, "cells": {cells, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := run(t, test.s, 1)
			if err := r.Check(); err != nil {
				t.Error(err)
			}
			if r.Degraded == 0 || (r.Table.Refused > 0) != test.refused ||
				(r.Table.PartitionsOver > 0) != test.refused {
				t.Errorf("the fallback limiter decided %d requests, want some; the table: %+v, want refused calls: %t",
					r.Degraded, r.Table, test.refused)
			}
			if late := 103.0; name == "slow" && (r.Maxms < 99 || r.Maxms > late) { // the deadline is 100 ms
				t.Errorf("the slowest decision took %g ms, want 99 to %g", r.Maxms, late)
			}
		})
	}
}

// Guarantees that what DynamoDB cannot have is refused with its place in the script: a failover of Redis, counters that
// are lost, and a limit that it cannot count.
func TestTableScript(t *testing.T) {
	const script = `store: dynamodb
instances: 2
requestsPerSecond: 10
tenants: 2
faults:
  - { kind: storeAway, at: 1s, for: 1s }
`
	for _, test := range []struct{ old, with, want string }{
		{"storeAway", "redisFailover", "mine.yaml:6:5: faults[0]: redisFailover at 1s: it is about nodes of Redis"},
		{"storeAway, at: 1s, for: 1s", "redisFailover, at: 1s, for: 1s, loses: true",
			"mine.yaml:6:5: faults[0]: redisFailover at 1s: it is about nodes of Redis"},
		{"dynamodb", "mongo", `mine.yaml:1:8: store: want one of redis, dynamodb, got "mongo"`},
		{"dynamodb", "1", "mine.yaml:1:8: store"},
	} {
		_, err := fleet.ReadScript("mine.yaml", []byte(strings.Replace(script, test.old, test.with, 1)), false, false)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %q", test.with, err, test.want)
		}
	}
	config, err := plan.Parse(configyaml.Source("plans.yaml", []byte(`
plans: [ { id: pro, limits: [ { id: exact, algorithm: sliding_log, threshold: 5, period: 1s } ] } ]
tenants: [ { id: acme, plan: pro } ]
`)))
	if err != nil {
		t.Fatal(err)
	}
	s := table()
	s.ReplaceTraffic(true, false)
	_, err = fleet.Run(t.Context(), fleet.Options{Scenario: s, Config: config, Path: "/"})
	const want = "tenant acme: limit exact: a sliding_log cannot be kept in DynamoDB"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a sliding_log on DynamoDB: error %v, want %q", err, want)
	}
}
