//go:build unix

package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/testkit/functiontest"
	"github.com/sluicelimits/sluice/streams/canary"
)

// Guarantees that the deployed binary writes its change, and finds it in a cell's table in DynamoDB.
func TestFunction(t *testing.T) {
	stores := functiontest.NewStores(t)
	f := functiontest.Start(t, "http://127.0.0.1:9", map[string]string{
		"AWS_ENDPOINT_URL_DYNAMODB": stores.URL,
		"SLUICE_PLANS_TABLE":        stores.Names[control.Plans], "SLUICE_CANARY_CELLS": "eu-1=" + stores.Config,
	})
	if _, err := stores.Cell.Apply(t.Context(),
		[]table.Document{{Ref: table.Ref{Kind: plan.KindPlan, ID: "pro"}, Version: 1,
			Body: []byte(`{"id":"pro"}`)}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { // brings changes to the cell
		for ctx.Err() == nil {
			if i, err := stores.Control.Get(ctx, control.Plans, events.CanaryKey); err == nil {
				changed := []table.Document{table.DocumentOf(i.Event())}
				_, _ = stores.Cell.Apply(ctx, changed) // it is tried again
			}
			<-time.After(20 * time.Millisecond)
		}
	}()
	var seen []canary.Seen
	if err := json.Unmarshal([]byte(f.Call(`{}`)), &seen); err != nil || len(seen) != 1 || seen[0].Missed ||
		seen[0].Enforced <= 0 || seen[0].Applied <= 0 {
		t.Errorf("%+v, %v", seen, err)
	}
	if i, err := stores.Control.Get(ctx, control.Plans, events.CanaryKey); err != nil ||
		i.Actor != "function:sluice-test" {
		t.Errorf("%+v, %v", i, err)
	}
	if got := f.Metric("canary_missed"); got != 0 {
		t.Errorf("canary_missed is %v, want 0", got)
	}
	if unused := f.Unused(); len(unused) > 0 {
		t.Errorf("granted, but not needed: %q", unused)
	}
}

// Guarantees that invalid settings stop the function, with an error that names all of them.
func TestBadEnvironment(t *testing.T) {
	told := functiontest.Start(t, "http://127.0.0.1:9",
		map[string]string{"SLUICE_CANARY_CELLS": "eu-1=a,eu-1=b"}).Refusal()
	if !strings.Contains(told, "SLUICE_PLANS_TABLE is missing") ||
		!strings.Contains(told, "SLUICE_CANARY_CELLS must be") {
		t.Errorf("told %s", told)
	}
}
