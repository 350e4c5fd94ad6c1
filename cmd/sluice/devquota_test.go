package main

import (
	"encoding/json"
	"fmt"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/dev/livepage"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// Guarantees that every cell grants units of a quota that its home cell counts: all of it and never more, also while
// the home cell is drained and removed and another cell is added. Operators can read and change the count in any cell.
// Units that they give back can be granted by any cell.
func TestDevCellsQuota(t *testing.T) {
	soak.SkipInQuick(t)
	t.Parallel()
	const units = 240
	file := filepath.Join(t.TempDir(), "plans.yaml")
	text := fmt.Sprintf("plans: [ { id: p, limits: [ { id: y, quota: { units: %d, every: year } } ] } ]\ntenants: [ "+
		"{ id: acme, plan: p } ]\n"+"keys: [ { id: k, tenant: acme, hash: %s, pepper: dev } ]\n", units,
		identity.HashKey(identity.DevPepper(), identity.ExampleKey("acme")))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r := startDev(t, "--cells", "3", "--plans", file)
	var bases []string
	for _, u := range regexp.MustCompile(`cell +\S+ at (\S+)`).FindAllStringSubmatch(r.stdout.String(), -1) {
		bases = append(bases, u[1])
	}
	state := func(name string) (s livepage.CellStatus) {
		for _, c := range dataOf(t, r.base).Cells {
			if c.Name == name {
				return c
			}
		}
		return s
	}
	for i := range 3 {
		name := fmt.Sprintf("cell-%d", i+1)
		waitUntil(t, name+" serves", func() bool {
			return state(name).State == "active" &&
				state(name).Phase == "steady"
		})
	}
	admitted := map[string]int{}
	var mu sync.Mutex
	// ask sends up to the given number of requests to each cell, concurrently. It stops at a cell that denies.
	ask := func(most int) (all int) {
		t.Helper()
		var clients sync.WaitGroup
		for _, base := range bases {
			clients.Go(func() {
				for range most {
					code, _, body := get(t, base, identity.ExampleKey("acme"))
					// and not that another cell grants the quota
					if code == http.StatusTooManyRequests && strings.Contains(body, "Limit 'y'") {
						return
					}
					if code != http.StatusOK {
						t.Errorf("%s answers with status %d: %s", base, code, body)
						return
					}
					mu.Lock()
					admitted[base]++
					all++
					mu.Unlock()
				}
			})
		}
		clients.Wait()
		return all
	}
	peek := func(cell string) int64 {
		t.Helper()
		var out operate.CountersResponse
		if err := json.Unmarshal([]byte(operateOn(t, r.base, "counter", "peek", "acme", "--cell", cell, "--json")),
			&out); err != nil {
			t.Fatal(err)
		}
		if len(out.Counters) != 1 {
			t.Fatalf("%d counters in %s, want 1", len(out.Counters), cell)
		}
		return out.Counters[0].Used
	}
	sum := ask(20)
	if sum != 60 || len(admitted) != 3 {
		t.Fatalf("%d admitted of 60, in %d cells of 3: %v\n%s", sum, len(admitted), admitted, r.stderr)
	}
	// The test does not know which cell is the home cell. It drains and removes two of three, so that one of these, or
	// the last one, is the home cell.
	operateOn(t, r.base, "cell", "drain", "cell-3", "--reason", "a test")
	waitUntil(t, "cell-3 is drained", func() bool {
		return state("cell-3").State == "drained" &&
			state("cell-1").Phase == "steady"
	})
	sum += ask(20)
	operateOn(t, r.base, "cell", "remove", "cell-3", "--reason", "a test")
	waitUntil(t, "cell-3 is removed", func() bool {
		return state("cell-3").URL == "" &&
			state("cell-1").Phase == "steady"
	})
	bases = bases[:2]
	operateOn(t, r.base, "cell", "add", "cell-4", "--weight", "5", "--reason", "a test")
	waitUntil(t, "cell-4 serves", func() bool {
		c := state("cell-4")
		return c.State == "active" && c.URL != "" &&
			c.Phase == "steady"
	})
	bases = append(bases, state("cell-4").URL)

	// All units are granted in the end: what a cell leased and does not use is given back, and another cell leases it.
	waitUntil(t, "all units are granted", func() bool { sum += ask(units); return sum >= units })
	if sum != units {
		t.Fatalf("%d units granted of %d: %v", sum, units, admitted)
	}
	for _, cell := range []string{"cell-1", "cell-2", "cell-4"} {
		if used := peek(cell); used != units {
			t.Errorf("cell %s shows %d units as used, want %d", cell, used, units)
		}
	}
	operateOn(t, r.base, "counter", "refund", "acme", "y", "--units", "7", "--cell", "cell-4", "--reason", "a test")
	waitUntil(t, "what was given back is granted", func() bool { sum += ask(units); return sum >= units+7 })
	if sum += ask(units); sum != units+7 {
		t.Errorf("%d units granted, want %d and the 7 that were given back", sum, units)
	}
	if err := r.finish(t); err != nil {
		t.Error(err)
	}
}
