//go:build unix

package main

import (
	"testing"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/internal/testkit/functiontest"
)

// Guarantees that the deployed binary stores the placement of every tenant before a cell's first shares, with the
// permissions of its role: with shares alone, a cell whose table is new would grant units to a tenant that is pinned
// elsewhere.
func TestFirstShares(t *testing.T) {
	stores := functiontest.NewStores(t)
	f := functiontest.Start(t, functiontest.StartAWS(t).URL, envOf(stores))
	placement := shares.PlacementKey("acme")
	stores.Put(t, control.Cells, placement,
		`{"generations":[{"cells":["us-1"],"epoch":0,"from":1}],"tenant":"acme","version":1}`)
	state := stores.Put(t, control.Cells, events.SharesKey, `{"epoch":1,"generations":[{"cells":[{"cell":"eu-1",`+
		`"weight":1},{"cell":"us-1","weight":1}],"epoch":1,"from":1}],`+
		`"members":[{"cell":"eu-1","state":"active","weight":1},{"cell":"us-1","state":"active","weight":1}],`+
		`"phase":"steady","skew_us":0,"version":1}`)
	body, err := events.Encode(state.Event())
	if err != nil {
		t.Fatal(err)
	}
	if got := f.Call(batch(t, string(body))); got != `{"batchItemFailures":[]}` {
		t.Errorf("answered %s", got)
	}
	got, err := stores.Cell.Get(t.Context(), table.Ref{Kind: table.KindPlacement, ID: placement},
		table.Ref{Kind: table.KindShares, ID: table.SharesID})
	if err != nil || got[0].Version != 1 || got[1].Version != 1 || got[0].Seq >= got[1].Seq {
		t.Errorf("%+v, %v: want the placement, and then the shares", got, err)
	}
}
