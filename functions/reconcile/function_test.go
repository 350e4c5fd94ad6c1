//go:build unix

package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/cellconfig"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/function/functiontest"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/streams/reconcile"
)

// Guarantees that the deployed binary repairs a cell in DynamoDB, counts the drift, and finds none the next time.
func TestFunction(t *testing.T) {
	stores := functiontest.NewStores(t)
	f := functiontest.Start(t, stores.URL, map[string]string{
		"SLUICE_CELL": "eu-1", "SLUICE_CONFIG_TABLE": stores.Config, "SLUICE_GRACE": "0s",
		"SLUICE_PLANS_TABLE": stores.Names[control.Plans], "SLUICE_TENANTS_TABLE": stores.Names[control.Tenants],
		"SLUICE_KEYS_TABLE": stores.Names[control.Keys], "SLUICE_CELLS_TABLE": stores.Names[control.Cells],
	})
	stores.Put(t, control.Plans, "pro", `{"id":"pro"}`)
	stores.Put(t, control.Tenants, "acme", `{"id":"acme","plan":"pro"}`)
	for _, want := range []int64{2, 0} {
		var got reconcile.Result
		if err := json.Unmarshal([]byte(f.Call(`{"source":"aws.events"}`)), &got); err != nil || !got.Finished || got.Repaired != want || got.Drift[reconcile.Missing] != want {
			t.Errorf("%+v, %v; want %d repaired", got, err, want)
		}
	}
	d, err := stores.Cell.Get(t.Context(), cellconfig.Ref{Kind: plan.KindTenant, ID: "acme"})
	if err != nil || d[0].Version != 1 {
		t.Errorf("%+v, %v", d, err)
	}
	if got := f.Metric("drift"); got != 2 {
		t.Errorf("drift is %v, want 2", got)
	}
}

// Guarantees that wrong settings stop the function, all of them named.
func TestBadEnvironment(t *testing.T) {
	told := functiontest.Start(t, "http://127.0.0.1:9", map[string]string{"SLUICE_CELL": "eu-1", "SLUICE_GRACE": "2h"}).Refusal()
	for _, want := range []string{"SLUICE_CONFIG_TABLE", "SLUICE_PLANS_TABLE", "SLUICE_TENANTS_TABLE", "SLUICE_KEYS_TABLE", "SLUICE_CELLS_TABLE", "SLUICE_GRACE is to be"} {
		if !strings.Contains(told, want) {
			t.Errorf("Lambda is not told of %s: %s", want, told)
		}
	}
}
