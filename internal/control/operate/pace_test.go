package operate_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/pacer"
)

// chain returns a plan and those before it, the newest first: total, and seconds after noon.
func (w *world) chain() string {
	w.Helper()
	p, err := w.PacePlan(w.Context(), ann, &operate.PaceNameRequest{Name: "provider"})
	if err != nil {
		w.Fatal(err)
	}
	var all []string
	for at := &p.PacePart; at != nil; at = at.Before {
		all = append(all, fmt.Sprintf("%d@%g", at.Total, at.From.Sub(noon).Seconds()))
	}
	return strings.Join(all, " ")
}

// Guarantees that the first plan of a name takes effect at once; that later plans take effect in a window before which
// all pacers can have read them; that a plan replaces those that would begin later; and that plans that are still in
// force are kept.
func TestPacePlan(t *testing.T) {
	w := newWorld(t)
	now := noon.Add(1300 * time.Millisecond)
	w.config.Now = func() time.Time { return now }
	w.remake()
	set := func(total int64, from float64) {
		t.Helper()
		r := &operate.PacePlanRequest{Name: "provider", Total: total, Period: "1000ms", Instances: 96, Reason: "x"}
		if from > 0 {
			at := noon.Add(time.Duration(from * float64(time.Second)))
			r.From = &at
		}
		if _, err := w.SetPacePlan(t.Context(), ann, r); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		passes time.Duration
		total  int64
		from   float64
		want   string
	}{
		{0, 1000, 0, "1000@1"},
		{0, 500, 0, "500@33 1000@1"},                        // 30 s, and the second window after 31.3 s
		{0, 700, 100.5, "700@101 500@33 1000@1"},            // rounded up to a window
		{0, 600, 101, "600@101 500@33 1000@1"},              // replaces the one from the same window on
		{0, 300, 50, "300@50 500@33 1000@1"},                // replaces a later one
		{40 * time.Second, 200, 90, "200@90 300@50 500@33"}, // the first holds no more
		{100 * time.Second, 900, 0, "900@173 200@90"},       // nor do the others
		{time.Hour, 100, 0, "100@3773 900@173"},
	} {
		now = now.Add(tt.passes)
		if set(tt.total, tt.from); w.chain() != tt.want {
			t.Errorf("after %d from %g on: got the plans %s, want %s", tt.total, tt.from, w.chain(), tt.want)
		}
	}
	const want = `{"before":{"from":"2026-11-21T12:02:53Z","instances":96,"total":900},` +
		`"from":"2026-11-21T13:02:53Z","id":"pace.provider","instances":96,"period":"1s","total":100,"version":1}`
	if got := w.body(control.Cells, "pace.provider"); got != want {
		t.Errorf("got the body %s, want %s", got, want)
	}
	for i := range 18 {
		set(int64(i+1), float64(5000+i))
	}
	w.tables.puts = 0
	at := noon.Add(9000 * time.Second)
	_, err := w.SetPacePlan(t.Context(), ann, &operate.PacePlanRequest{Name: "provider", Total: 1, Period: "1s",
		Instances: 1, Reason: "x", From: &at})
	w.refused(err, operate.Invalid, "19 plans begin before it")
	if cells, err := w.Cells(t.Context(), ann, &operate.CellsRequest{}); err != nil || len(cells.Cells) != 0 ||
		len(cells.Unreadable) != 0 {
		t.Errorf("the list of cells has %+v, %v; want nothing of a plan", cells, err)
	}
}

// Guarantees that a plan is removed only with a yes, and only once, and that a plan of the same name that is set later
// holds no earlier than pacers that still use the removed one can have read it. It may have another period.
func TestRemovePacePlan(t *testing.T) {
	w := newWorld(t)
	now := noon.Add(1300 * time.Millisecond)
	w.config.Now = func() time.Time { return now }
	w.remake()
	set := func(period string) {
		t.Helper()
		if _, err := w.SetPacePlan(t.Context(), ann, &operate.PacePlanRequest{Name: "provider", Total: 1000,
			Period: period, Instances: 96, Reason: "x"}); err != nil {
			t.Fatal(err)
		}
		w.tables.puts = 0
	}
	remove := func(yes bool) error {
		_, err := w.RemovePacePlan(t.Context(), ann, &operate.RemovePacePlanRequest{Name: "provider", Yes: yes,
			Reason: "the contract has ended"})
		if err == nil {
			w.tables.puts = 0
		}
		return err
	}
	w.refused(remove(true), operate.NotFound, `there is no pace plan "provider"`)
	set("1s")
	w.refused(remove(false), operate.Confirm, "nothing was written")
	if got := w.chain(); got != "1000@1" {
		t.Errorf("without a yes, the plans are %s, want 1000@1", got)
	}
	if err := remove(true); err != nil {
		t.Fatal(err)
	}
	_, err := w.PacePlan(t.Context(), ann, &operate.PaceNameRequest{Name: "provider"})
	w.refused(err, operate.NotFound, "at 2026-11-21T12:00:01Z: the contract has ended")
	w.refused(remove(true), operate.NotFound, "it was removed by")
	set("2s")
	if got := w.chain(); got != "1000@34" {
		t.Errorf("after a removal, the plans are %s, want 1000@34: 30 s, and two windows of 2 s", got)
	}
}

// Guarantees that a stored plan of another form is refused, and says what to do.
func TestReadPace(t *testing.T) {
	for says, body := range map[string]string{
		"of version 2, want 1":  `{"id":"pace.a","version":2,"total":1}`,
		"unknown field":         `{"id":"pace.a","version":1,"totals":1}`,
		"not a valid pace plan": `[]`,
	} {
		if _, err := operate.ReadPace([]byte(body)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v, want an error with %q", body, err, says)
		}
	}
}

// Guarantees that a plan is accepted here if and only if a pacer accepts it.
func TestPaceBounds(t *testing.T) {
	w := newWorld(t)
	for i, r := range []operate.PacePlanRequest{
		{Total: 1, Period: pacer.MinPeriod.String(), Instances: 1},
		{Total: pacer.MaxUnits, Period: pacer.MaxPeriod.String(), Instances: pacer.MaxInstances},
		{Total: pacer.MaxUnits + 1, Period: "1s", Instances: 1},
		{Total: 1, Period: "1s", Instances: pacer.MaxInstances + 1},
		{Total: 1, Period: (pacer.MaxPeriod + 1).String(), Instances: 1},
		{Total: 1, Period: (pacer.MinPeriod - 1).String(), Instances: 1},
	} {
		r.Name, r.Reason = fmt.Sprint("p", i), "x"
		_, here := w.SetPacePlan(t.Context(), ann, &r)
		period, err := time.ParseDuration(r.Period)
		if err != nil {
			t.Fatal(err)
		}
		p, there := pacer.New(pacer.Config{Limit: pacer.Limit{Units: 1, Period: period}, Part: &pacer.Part{}})
		if there == nil {
			there = p.SetPlan(pacer.Plan{Total: r.Total, Instances: r.Instances})
			p.Close()
		}
		if (here == nil) != (there == nil) {
			t.Errorf("%+v: got %v here, and %v from a pacer", r, here, there)
		}
	}
}
