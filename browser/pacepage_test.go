package browser

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/dev/pacepage"
	"github.com/sluicelimits/sluice/pacer"
)

// The page of a pacer shows how many tickets wait, in total and for each key, and it is readable in every view.
func TestPacePage(t *testing.T) {
	for _, state := range []string{"empty", "busy"} {
		t.Run(state, func(t *testing.T) {
			p, err := pacer.New(pacer.Config{Limit: pacer.Limit{Units: 40, Period: 100 * time.Millisecond}})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			about := pacepage.About{Command: "sluice pace", Store: "Redis at 127.0.0.1:6379, name provider"}
			w := pacepage.NewWatcher(p, about)
			go w.Run(t.Context())
			keys := map[string]int{hostile: 2000, "": 2000}
			for i := range pacepage.MaxKeys + 5 {
				keys[fmt.Sprint("key ", i)] = 3
			}
			if state == "busy" {
				for key, n := range keys {
					for range n {
						ignore := pacer.WakerFunc(func(pacer.Permit, error) {})
						if _, err := p.Enqueue(key, 1, pacer.Forever, ignore); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			mux := http.NewServeMux()
			mux.Handle("/", w.Handler())
			server := httptest.NewServer(mux)
			defer server.Close()
			tab := openTab(t, server.URL+"/", views[0])
			defer tab.wantNoComplaints()
			tab.until("document.documentElement.dataset.now !== undefined")
			if state == "busy" {
				rows := fmt.Sprintf("document.querySelectorAll('#key-rows tr').length === %d", pacepage.MaxKeys+1)
				tab.until(rows + " && document.getElementById('waiting').textContent !== '0'")
				// Keys take turns. So this key is one of the first two when all others have got their 3 units.
				tab.until(fmt.Sprintf("[...document.querySelectorAll('#key-rows th bdi')].slice(0, 2)"+
					".some(key => key.textContent === %q)", hostile))
				tab.until("document.getElementById('line').getAttribute('d').length > 10")
				// When no ticket waits any more, the rows show as many granted units as were requested.
				tab.until("document.getElementById('waiting').textContent === '0'")
				for key, n := range keys {
					if n > 3 {
						if got := tab.number(fmt.Sprintf("[data-key=%q] [data-column=granted]", key)); got != n &&
							got != n-40 { // the first 40 units may have been granted without waiting
							t.Errorf("key %q: page shows %d granted, want %d", key, got, n)
						}
					}
				}
			}
			for _, v := range views {
				tab.setView(v)
				tab.inspect(v.String())
				tab.picture("pace " + state + " " + v.String())
			}
		})
	}
}
