package main

import (
	"bytes"
	"testing"

	"github.com/sluicelimits/sluice/internal/dev/fleet"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// TestCalibrate tests that the simulation reads what is written.
func TestCalibrate(t *testing.T) {
	if _, err := redistest.Find(); err != nil {
		redistest.Missing(t, err)
	}
	var out, errs bytes.Buffer
	if code := run([]string{"-short"}, &out, &errs); code != 0 {
		t.Fatalf("exit %d: %s", code, errs.String())
	}
	costs, err := fleet.ReadCosts("costs.json", out.Bytes())
	if err != nil || costs.Local == 0 || costs.StoreService == 0 {
		t.Errorf("%s: %+v, %v", out.String(), costs, err)
	}
	if code := run([]string{"-no"}, &out, &errs); code != 2 {
		t.Errorf("exit %d for a wrong flag", code)
	}
}
