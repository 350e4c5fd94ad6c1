package browser

import (
	"fmt"
	"net/http/httptest"
	"testing"

	"github.com/sluicelimits/sluice/internal/dev/livepage"
)

// The page shows each cell, which changes it has and what it may grant, and has no fault in any view. With only one
// cell it shows no cells. A name that looks like markup is shown as text.
func TestLivePageCells(t *testing.T) {
	s := newScene(t)
	s.runTraffic()
	cells := []livepage.CellStatus{
		{Name: "cell-1", URL: "http://127.0.0.1:8080", Here: true, State: "active", Weight: 2, Epoch: 3, Phase: "grow",
			Head: 9, Behind: 1,
			Limits: []livepage.CellLimit{{Tenant: "acme", ID: "burst", Tier: "1s", Capacity: 3, Share: 2},
				{Tenant: "acme", ID: "daily", Tier: "day", Capacity: 4000}}},
		{Name: "<b>cell</b>", State: "waiting", Await: true},
	}
	for _, several := range []bool{true, false} {
		server := httptest.NewServer(livepage.Handler(s.recorder, func() livepage.Status {
			now := s.status()
			if several {
				now.Cells = cells
			}
			return now
		}))
		p := openTab(t, server.URL+"/", views[0])
		p.until("document.documentElement.dataset.now !== undefined")
		for _, v := range views {
			p.setView(v)
			p.inspect(fmt.Sprint("cells ", several, " ", v))
		}
		rows, links := p.texts("#fleet:not([hidden]) tbody th a"),
			p.texts("#fleet a[href='http://127.0.0.1:8080/_sluice/']")
		if several {
			if got, want := fmt.Sprintf("%q", rows), `["cell-1" "<b>cell</b>"]`; got != want || len(links) != 1 {
				t.Errorf("cells are %s with %d links, want %s and one", got, len(links), want)
			}
			if got, want := fmt.Sprintf("%q", p.texts("#fleet td:last-child")),
				`["burst 1s: 2 of 3 · daily day: 0 of 4,000" "–"]`; got != want {
				t.Errorf("cells may grant %s, want %s", got, want)
			}
			if got, want := fmt.Sprintf("%q", p.texts("#fleet td:nth-child(2)")),
				`["active" "waiting, awaited"]`; got != want {
				t.Errorf("cells are %s, want %s", got, want)
			}
		} else if len(rows) > 0 {
			t.Errorf("one cell is shown as %q", rows)
		}
		p.wantNoComplaints()
		server.Close()
	}
}
