package fleet_test

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/dev/fleet"
)

func TestQuick(t *testing.T) {
	s := fleet.Named()[0]
	if os.Getenv("FULL") == "" {
		s.Tenants, s.Requests, s.Instances = 100, 10_000, 5
		s.Measured = 20 * time.Second
	} else {
		s.WarmUp, s.Measured = 5*time.Second, 5*time.Second
	}
	var first bytes.Buffer
	for i := range 2 {
		began := time.Now()
		var out bytes.Buffer
		scenario := s
		r, err := fleet.Run(t.Context(), fleet.Options{Scenario: &scenario, Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		r.WriteText(&out)
		t.Log(time.Since(began), float64(r.Decisions)/r.Seconds*10/time.Since(began).Seconds())
		if i == 0 {
			t.Log(out.String())
			first = out
		} else if out.String() != first.String() {
			t.Error("differs", out.String())
		}
		if os.Getenv("FULL") != "" {
			break
		}
	}
}
