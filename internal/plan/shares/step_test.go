package shares

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"

	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// desk runs the balancer step by step.
type desk struct {
	t     testing.TB
	state State
	now   time.Time
	out   Output
	n     int
}

func (d *desk) step(in Input) {
	d.t.Helper()
	for i := range in.Requests {
		if in.Requests[i].ID == "" {
			d.n++
			in.Requests[i].ID = fmt.Sprint("q", d.n)
		}
	}
	if in.Placements == nil {
		in.Placements = map[string]*Placement{"acme": nil, "globex": nil}
	}
	before := string(mustJSON(d.t, d.state))
	next, out := d.state.Step(Settings{}, in, d.now)
	if after := string(mustJSON(d.t, d.state)); after != before {
		d.t.Fatalf("the step changed the state that it was given: %s, was %s", after, before)
	}
	d.state, d.out = next, out
}

func (d *desk) acknowledge(phase Phase, epoch int64, cells ...string) {
	d.t.Helper()
	var in Input
	for _, c := range cells {
		in.Acks = append(in.Acks, Ack{Cell: c, Epoch: epoch, Phase: phase})
	}
	d.step(in)
}

func (d *desk) want(phase Phase, epoch int64, awaited ...string) {
	d.t.Helper()
	if d.state.Phase != phase || d.state.Epoch != epoch || !slices.Equal(d.state.Awaited(), awaited) {
		d.t.Fatalf("phase %s of epoch %d awaits %v, want %s of %d and %v", d.state.Phase, d.state.Epoch,
			d.state.Awaited(), phase, epoch, awaited)
	}
}

// finishTransition completes the transition that is in progress.
func (d *desk) finishTransition() {
	d.t.Helper()
	for _, phase := range []Phase{Shrink, Grow} {
		d.want(phase, d.state.Epoch, d.state.Awaited()...)
		d.acknowledge(phase, d.state.Epoch, d.state.Awaited()...)
		if phase == Shrink {
			d.now = d.out.Wake
			d.step(Input{})
		}
	}
}

func newDeskOfTwo(t *testing.T) *desk {
	t.Helper()
	d := &desk{t: t, now: noon}
	d.step(Input{Requests: []Request{{Kind: Join, Cell: "a", Weight: 1}, {Kind: Join, Cell: "b", Weight: 1}}})
	d.want(Steady, 1)
	if d.out.Publish == nil || d.out.Publish.Generations[0].From != always {
		t.Fatalf("adding the first cells gives %+v, want a document that is in force at once", d.out)
	}
	return d
}

// Guarantees the two phases: growth waits for each cell's acknowledgement of this shrink, and for the grace after the
// last acknowledgement. Acknowledgements of another epoch or phase, or of an unknown cell, are ignored, and repeated
// ones count once.
func TestTwoPhases(t *testing.T) {
	d := newDeskOfTwo(t)
	d.step(Input{Requests: []Request{{Kind: Join, Cell: "c", Weight: 2}}})
	d.want(Shrink, 2, "a", "b", "c")
	if p := d.out.Publish; p == nil || p.Generations[1].From != 0 {
		t.Fatalf("a shrink publishes %+v, want a second generation without a time", p)
	}
	d.acknowledge(Shrink, 2, "a", "c", "a", "stranger")
	d.acknowledge(Shrink, 1, "b")
	d.acknowledge(Steady, 1, "b")
	d.acknowledge(Grow, 2, "b")
	d.acknowledge(Shrink, 3, "b")
	d.now = d.now.Add(time.Hour)
	d.step(Input{})
	d.want(Shrink, 2, "b")
	d.acknowledge(Shrink, 2, "b")
	d.want(Shrink, 2)
	if want := d.now.Add(18 * time.Second); !d.out.Wake.Equal(want) {
		t.Fatalf("growth is due at %s, want %s", d.out.Wake, want)
	}
	d.now = d.out.Wake.Add(-time.Microsecond)
	d.step(Input{})
	d.want(Shrink, 2)
	d.now = d.now.Add(time.Microsecond)
	d.step(Input{})
	d.want(Grow, 2, "a", "b", "c")
	if got := d.out.Publish.Generations[1].From; got != d.now.UnixMicro() {
		t.Fatalf("growth counts from %d, want %d", got, d.now.UnixMicro())
	}
	d.acknowledge(Shrink, 2, "a", "b", "c")
	d.want(Grow, 2, "a", "b", "c")
	d.acknowledge(Grow, 2, "a", "b", "c")
	d.want(Steady, 2)
	d.acknowledge(Grow, 2, "a")
	if d.out.Publish != nil {
		t.Error("a late acknowledgement publishes a document, want none")
	}
}

// Guarantees that a balancer whose clock is slow does not shorten the grace, since the cells' clocks count too, and
// that a cell whose clock is years ahead does not delay the change for years.
func TestClocks(t *testing.T) {
	d := newDeskOfTwo(t)
	d.step(Input{Requests: []Request{{Kind: Weigh, Cell: "a", Weight: 3}}})
	d.step(Input{Acks: []Ack{{Cell: "a", Epoch: 2, Phase: Shrink, AtUS: d.now.Add(time.Minute).UnixMicro()},
		{Cell: "b", Epoch: 2, Phase: Shrink}}})
	if want := d.now.Add(time.Minute + 18*time.Second); !d.out.Wake.Equal(want) {
		t.Errorf("growth is due at %s, want %s", d.out.Wake, want)
	}
	d = newDeskOfTwo(t)
	d.step(Input{Requests: []Request{{Kind: Weigh, Cell: "a", Weight: 3}}})
	d.step(Input{Acks: []Ack{{Cell: "a", Epoch: 2, Phase: Shrink, AtUS: d.now.AddDate(9, 0, 0).UnixMicro()},
		{Cell: "b", Epoch: 2, Phase: Shrink}}})
	if want := d.now.Add(time.Hour + 18*time.Second); !d.out.Wake.Equal(want) {
		t.Errorf("growth is due at %s, want %s", d.out.Wake, want)
	}
	// A clock has leapt back: the time of a growth must still be after the previous one.
	d.finishTransition()
	from := d.state.Generations[1].From
	d.now = noon.Add(-24 * time.Hour)
	d.step(Input{Requests: []Request{{Kind: Weigh, Cell: "a", Weight: 5}}})
	d.finishTransition()
	if got := d.state.Generations[2].From; got <= from {
		t.Errorf("the growth begins at %d, want it after the one before, at %d", got, from)
	}
}

// Guarantees that requests that come during a transition wait in order, and are carried out once and together.
func TestRequestsWait(t *testing.T) {
	d := newDeskOfTwo(t)
	d.step(Input{Requests: []Request{{ID: "join", Kind: Join, Cell: "c", Weight: 1}}})
	for range 2 { // the second time the request is known already
		d.step(Input{Requests: []Request{
			{ID: "join", Kind: Join, Cell: "c", Weight: 1},
			{ID: "w1", Kind: Weigh, Cell: "c", Weight: 2},
			{ID: "w2", Kind: Weigh, Cell: "c", Weight: 7},
			{ID: "drain", Kind: Drain, Cell: "a"},
			{ID: "remove", Kind: Remove, Cell: "b"},
			{ID: "none", Kind: Weigh, Cell: "z", Weight: 1},
		}})
	}
	d.want(Shrink, 2, "a", "b", "c")
	if len(d.state.Queue) != 5 {
		t.Fatalf("%d requests wait, want 5", len(d.state.Queue))
	}
	d.finishTransition()
	d.want(Shrink, 3, "a", "b", "c")
	if got, want := fmt.Sprint(d.out.Refused),
		"[{remove cell b is active: drain it first} {none there is no cell z}]"; got != want {
		t.Errorf("refused %s, want %s", got, want)
	}
	if got, want := d.out.Publish.Generations[2].Cells, []Weight{{"b", 1}, {"c", 7}}; !slices.Equal(got, want) {
		t.Errorf("shares of %v, want %v", got, want)
	}
	d.finishTransition()
	d.want(Steady, 3)
	if got, want := fmt.Sprint(d.state.Members),
		"[{a drained 0 false} {b active 1 false} {c active 7 false}]"; got != want {
		t.Errorf("members %s, want %s", got, want)
	}
	// A drained cell is a member until it is removed, in a transition of its own, since it may be the home of a quota.
	d.step(Input{Requests: []Request{{Kind: Remove, Cell: "a"}, {ID: "w1", Kind: Weigh, Cell: "c", Weight: 2}}})
	d.want(Shrink, 4, "b", "c")
	if got := d.out.Publish; len(got.Generations) != 3 || !slices.Equal(got.Members, []string{"b", "c"}) {
		t.Errorf("a removal publishes %+v, want three generations, and the members b and c", got)
	}
}

// Guarantees that no request leaves a tenant without a cell, and that two concurrent requests cannot drain the last
// cell.
func TestLastCellStays(t *testing.T) {
	d := newDeskOfTwo(t)
	d.step(Input{Requests: []Request{{Kind: Drain, Cell: "a"}, {Kind: Drain, Cell: "b"}, {Kind: Force, Cell: "b"}}})
	if len(d.out.Refused) != 1 || !strings.Contains(d.out.Refused[0].Reason, "last one") {
		t.Errorf("refused %v", d.out.Refused)
	}
	d.want(Shrink, 2, "a")
	d.step(Input{Requests: []Request{{Kind: Force, Cell: "a"}}})
	d.want(Shrink, 2, "a")
}

// Guarantees that a dead cell cannot stop transitions for ever: a cell that is removed by force is not waited for,
// even in the present transition, and the next transition gives its share away after the grace. Its later
// acknowledgements are ignored.
func TestForce(t *testing.T) {
	d := newDeskOfTwo(t)
	d.step(Input{Requests: []Request{{Kind: Join, Cell: "c", Weight: 1}}})
	d.acknowledge(Shrink, 2, "a", "c")
	d.want(Shrink, 2, "b")
	d.now = d.now.Add(time.Hour)
	d.step(Input{Requests: []Request{{Kind: Force, Cell: "b"}}})
	d.want(Shrink, 2)
	if want := d.now.Add(18 * time.Second); !d.out.Wake.Equal(want) {
		t.Fatalf("growth is due at %s, want %s", d.out.Wake, want)
	}
	d.now = d.out.Wake
	d.step(Input{})
	d.want(Grow, 2, "a", "c")
	d.acknowledge(Grow, 2, "a", "b", "c")
	d.want(Shrink, 3, "a", "c")
	d.acknowledge(Shrink, 3, "b", "a")
	d.want(Shrink, 3, "c")
	d.acknowledge(Shrink, 3, "c")
	d.now = d.out.Wake
	d.step(Input{})
	if got, want := d.out.Publish.Generations[2].Cells, []Weight{{"a", 1}, {"c", 1}}; !slices.Equal(got, want) {
		t.Errorf("shares of %v, want %v", got, want)
	}
	if got := d.out.Publish.Members; !slices.Equal(got, []string{"a", "c"}) {
		t.Errorf("the members are %v, want a and c", got)
	}
}

// Guarantees that a tenant's placement goes through the two phases and is stored when its time is set, and that the
// balancer asks for the stored placement.
func TestPlacements(t *testing.T) {
	d := newDeskOfTwo(t)
	pin := Request{ID: "pin", Kind: Place, Tenant: "acme", Cells: []string{"b"}}
	d.step(Input{Requests: []Request{pin}, Placements: map[string]*Placement{}})
	d.want(Steady, 1)
	if !slices.Equal(d.out.Load, []string{"acme"}) {
		t.Fatalf("the step asks to load %v, want acme", d.out.Load)
	}
	d.step(Input{})
	d.want(Shrink, 2, "a", "b")
	if p := d.out.Publish; len(p.Generations) != 1 || len(p.Placements) != 1 ||
		p.Placements[0].Generations[1].From != 0 || len(d.out.Store) > 0 {
		t.Fatalf("the document is %+v, the placements to store are %+v; want a placement without a time, and none "+
			"to store", p, d.out.Store)
	}
	d.acknowledge(Shrink, 2, "a", "b")
	d.now = d.out.Wake
	d.step(Input{})
	if len(d.out.Store) != 1 || d.out.Store[0].Generations[1].From != d.now.UnixMicro() {
		t.Fatalf("the placements to store are %+v, want one with its time", d.out.Store)
	}
	stored := d.out.Store[0]
	d.acknowledge(Grow, 2, "a", "b")
	d.want(Steady, 2)
	if len(d.out.Publish.Placements) > 0 {
		t.Error("the document still has placements after they were stored, want none")
	}
	// An equal request changes nothing; a different one extends the stored placement; one with a cell that does not
	// serve is refused.
	with := map[string]*Placement{"acme": &stored}
	d.step(Input{Requests: []Request{{Kind: Place, Tenant: "acme", Cells: []string{"b"}}}, Placements: with})
	d.want(Steady, 2)
	d.step(Input{Requests: []Request{{Kind: Place, Tenant: "acme", Cells: []string{"z"}}}, Placements: with})
	if d.want(Steady, 2); len(d.out.Refused) != 1 {
		t.Errorf("refused %v", d.out.Refused)
	}
	d.step(Input{Requests: []Request{{Kind: Place, Tenant: "acme", Homed: []string{"x"}}}, Placements: with})
	d.want(Shrink, 3, "a", "b")
	if got := len(d.out.Publish.Placements[0].Generations); got != 3 {
		t.Errorf("%d generations of the placement, want 3", got)
	}
	if len(stored.Generations) != 2 {
		t.Error("the step has changed the stored placement in place, want it unchanged")
	}
}

// Guarantees that 10,000 tenants are pinned in batches that fit one event, each exactly once.
func TestManyPlacements(t *testing.T) {
	soak.SkipUnderRace(t)
	d := newDeskOfTwo(t)
	const tenants = 10_000
	var waiting []Request
	for i := range tenants {
		id := fmt.Sprintf("tenant %d %s", i, strings.Repeat("é", 40))
		waiting = append(waiting, Request{ID: id, Kind: Place, Tenant: id, Cells: []string{"b", "a"}})
	}
	stored := map[string]*Placement{}
	for rounds := 0; len(stored) < tenants; rounds++ {
		if rounds > 200 {
			t.Fatalf("only %d tenants are placed after %d transitions", len(stored), rounds)
		}
		in := Input{Requests: waiting[:min(len(waiting), 200)], Placements: map[string]*Placement{}}
		d.step(in)
		later := map[string]bool{}
		for _, id := range d.out.Later {
			later[id] = true
		}
		waiting = slices.Concat(slices.DeleteFunc(slices.Clone(in.Requests),
			func(r Request) bool { return !later[r.ID] }), waiting[len(in.Requests):])
		in = Input{Placements: map[string]*Placement{}}
		for _, tenant := range d.out.Load {
			in.Placements[tenant] = stored[tenant]
		}
		d.step(in)
		if size := len(mustJSON(t, d.state)); size > 400_000 {
			t.Fatalf("the state has %d bytes, want at most 400,000", size)
		}
		d.acknowledge(Shrink, d.state.Epoch, "a", "b")
		d.now = d.out.Wake
		d.step(Input{Placements: map[string]*Placement{}})
		if size := len(mustJSON(t, d.out.Publish)); size > MaxDocumentBytes {
			t.Fatalf("the document has %d bytes, want at most MaxDocumentBytes", size)
		}
		for i := range d.out.Store {
			p := &d.out.Store[i]
			if stored[p.Tenant] != nil {
				t.Fatalf("the placement of %s is stored twice, want once", p.Tenant)
			}
			stored[p.Tenant] = p
		}
		d.step(Input{Acks: []Ack{{Cell: "a", Epoch: d.state.Epoch, Phase: Grow}, {Cell: "b", Epoch: d.state.Epoch,
			Phase: Grow}},
			Placements: map[string]*Placement{}})
	}
	if n := len(d.state.Generations); n != 1 {
		t.Errorf("the state has %d generations, want one: no cell's weight has changed", n)
	}
}

// Guarantees that limits are homed by the transition that makes their shares too small, and divided again when that is
// possible.
func TestHomedByTransition(t *testing.T) {
	l, err := limit.New(limit.Limit{ID: "exports", MaxCost: 5,
		Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Period: time.Minute, Threshold: 10}}})
	if err != nil {
		t.Fatal(err)
	}
	limits := []Limited{{"pro", l}}
	d := newDeskOfTwo(t)
	d.step(Input{Limits: limits, Requests: []Request{{Kind: Join, Cell: "c", Weight: 1}}})
	if got, want := d.out.Publish.Generations[1].Homed, []PlanLimit{{"pro", "exports"}}; !slices.Equal(got, want) {
		t.Fatalf("homed %v, want %v", got, want)
	}
	d.finishTransition()
	d.step(Input{Requests: []Request{{Kind: Drain, Cell: "c"}}}) // the limits are unknown in this step
	if got := d.out.Publish.Generations[2].Homed; len(got) != 1 {
		t.Fatalf("the homed limits are %v, want one", got)
	}
	d.finishTransition()
	d.want(Steady, 3)
	d.step(Input{Limits: limits})
	d.want(Shrink, 4, "a", "b")
	if got := d.out.Publish.Generations[3].Homed; len(got) != 0 {
		t.Errorf("homed %v, want none", got)
	}
}

// Guarantees that the history is bounded, whatever is requested, and that dropping parts of it closes windows rather
// than opens them.
func TestHistoryIsBounded(t *testing.T) {
	d := newDeskOfTwo(t)
	for i := range int64(MaxGenerations + 10) {
		d.step(Input{Requests: []Request{{Kind: Weigh, Cell: "a", Weight: 2 + i}}})
		d.finishTransition()
	}
	if n := len(d.state.Generations); n != MaxGenerations {
		t.Fatalf("%d generations, want %d", n, MaxGenerations)
	}
	if _, err := DecodeState(mustJSON(t, d.state)); err != nil {
		t.Fatal(err)
	}
	year, err := limit.New(limit.Limit{ID: "year",
		Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Period: 360 * 24 * time.Hour, Threshold: 1000}}})
	if err != nil {
		t.Fatal(err)
	}
	spans := d.state.Document().View("a", "acme", nil).Limit("pro", year, "acme")
	if in, until := At(spans, d.now.UnixMicro()); in.Limit != nil {
		t.Errorf("a window that began before the oldest known generation is granted %d units until %d, want none",
			in.Limit.Tiers[0].Threshold, until)
	} else if next, _ := At(spans, until); next.Limit == nil {
		t.Error("nothing is granted in the next window, want some units")
	}
}

// Guarantees that a bad request is refused with the place of the mistake, and changes nothing.
func TestBadRequests(t *testing.T) {
	for name, r := range map[string]Request{
		"kind":      {Kind: "grow"},
		"cell":      {Kind: Drain, Cell: "a b"},
		"weight: 0": {Kind: Join, Cell: "c"},
		"weight: 1": {Kind: Drain, Cell: "a", Weight: 1},
		"tenant":    {Kind: Place, Cells: []string{"a"}},
		"cells":     {Kind: Place, Tenant: "acme", Cells: []string{"a", "a"}},
		"homed":     {Kind: Place, Tenant: "acme", Homed: []string{"y", "x"}},
		"place":     {Kind: Drain, Cell: "a", Tenant: "acme"},
		"id":        {ID: strings.Repeat("x", 129), Kind: Drain, Cell: "a"},
	} {
		d := newDeskOfTwo(t)
		d.step(Input{Requests: []Request{r}})
		if d.want(Steady, 1); len(d.out.Refused) != 1 || !strings.Contains(d.out.Refused[0].Reason, name) {
			t.Errorf("%s: refused %v", name, d.out.Refused)
		}
	}
}

// Guarantees that a state and a placement are written and read unchanged, in every phase.
func TestRoundTrip(t *testing.T) {
	d := newDeskOfTwo(t)
	check := func() {
		t.Helper()
		state, err := DecodeState(mustJSON(t, d.state))
		if err != nil || string(mustJSON(t, state)) != string(mustJSON(t, d.state)) {
			t.Fatalf("state %s: %v", mustJSON(t, d.state), err)
		}
		for i := range d.out.Store {
			if _, err := DecodePlacement(mustJSON(t, d.out.Store[i])); err != nil {
				t.Fatal(err)
			}
		}
	}
	check()
	d.step(Input{Requests: []Request{{Kind: Join, Cell: "c", Weight: 1},
		{Kind: Place, Tenant: "acme", Cells: []string{"c", "a"}, Homed: []string{"x"}}}})
	check()
	d.acknowledge(Shrink, 2, d.state.Awaited()...)
	check()
	d.now = d.out.Wake
	d.step(Input{})
	check()
	d.acknowledge(Grow, 2, d.state.Awaited()...)
	check()
}

// Guarantees that a malformed state is refused with the place of the mistake, and never read partially.
func TestStrict(t *testing.T) {
	d := newDeskOfTwo(t)
	d.step(Input{Requests: []Request{{Kind: Weigh, Cell: "a", Weight: 3},
		{Kind: Place, Tenant: "acme", Cells: []string{"a"}}}})
	good := string(mustJSON(t, d.state))
	for _, tc := range []struct{ old, by, want string }{
		{`"version":2,"epoch"`, `"version":3,"epoch"`, "unknown layout 3"},
		{`"epoch":2,"phase"`, `"epoch":1,"phase"`, "from: 0"},
		{`"phase":"shrink"`, `"phase":"steady"`, "from: 0"},
		{`"phase":"shrink"`, `"phase":"odd"`, "phase"},
		{`"members":[{"cell":"a"`, `"members":[{"cell":"c"`, "members"},
		{`"weight":3`, `"weight":0`, "weight of cell"},
		{`"weight":3`, `"weight":3,"x":1`, `unknown field "x"`},
		{`"tenant":"acme"`, `"tenant":""`, "tenant"},
		{`"from":1,"cells"`, `"from":0,"cells"`, "from: 0"},
		{`"skew_us":5000000`, `"skew_us":-1`, "skew_us"},
		{`"cells":[{`, `"cells":[],"y":[{`, "unknown field"},
	} {
		bad := strings.Replace(good, tc.old, tc.by, 1)
		if bad == good {
			t.Fatalf("the text %s, which the case replaces, is not in %s", tc.old, good)
		}
		if _, err := DecodeState([]byte(bad)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s for %s: %v, want %q", tc.by, tc.old, err, tc.want)
		}
	}
	for _, text := range []string{"", "null", "{}", good + "x", good + good, "[" + good + "]",
		strings.Repeat(" ", MaxStateBytes+1)} {
		if _, err := DecodeState([]byte(text)); err == nil {
			t.Errorf("the text %.40q is accepted as a state, want an error", text)
		}
	}
	if !json.Valid([]byte(good)) {
		t.Error("the unchanged state is not JSON")
	}
}

// Guarantees which limits cells ask their home for: homed limits, except for a sliding_log, which DynamoDB cannot
// keep, a quota, which has spans of its own, and limits of a tenant that one cell serves alone.
func TestKeptIn(t *testing.T) {
	doc := &Document{Version: Layout, Epoch: 1, Phase: Steady, Members: []string{"a", "b"}, Generations: []Generation{{
		Epoch: 1, From: always, Cells: []Weight{{"a", 1}, {"b", 1}}, Homed: []PlanLimit{{"pro", "x"}}}}}
	pinned := &Placement{Version: Layout, Tenant: "acme", Generations: []Placed{{From: always, Cells: []string{"b"}}}}
	home := doc.View("a", "acme", nil).Home()
	for _, a := range limit.Algorithms() {
		tier := limit.Tier{Algorithm: a, Period: time.Second, Threshold: 1}
		if a == limit.Quota {
			tier.Period, tier.Calendar = 0, &limit.Calendar{Every: limit.Day, Location: time.UTC}
		}
		l := mustLimit(t, limit.Limit{ID: "x", Tiers: []limit.Tier{tier}})
		want := home
		if a == limit.SlidingLog || a == limit.Quota {
			want = ""
		}
		for _, cell := range []string{"a", "b"} {
			v := doc.View(cell, "acme", nil)
			if got := v.KeptIn("pro", l); got != want {
				t.Errorf("%s in cell %s: kept in %q, want %q", a, cell, got, want)
			}
			if got := doc.View(cell, "acme", pinned).KeptIn("pro", l); got != "" {
				t.Errorf("%s of a tenant that is pinned to one cell has the home %q, want none", a, got)
			}
		}
		if got := doc.View("a", "acme", nil).KeptIn("free", l); a != limit.LeakyBucket && got != "" {
			t.Errorf("%s of another plan has the home %q, want none", a, got)
		}
		if a == limit.SlidingLog {
			for _, cell := range []string{"a", "b"} {
				if in, _ := At(doc.View(cell, "acme", nil).Limit("pro", l, "acme"),
					worldStart); (in.Limit != nil) != (cell == home) {
					t.Errorf("a sliding_log is granted in cell %s, want it granted only in its home %s", cell, home)
				}
			}
		}
	}
	var alone *View
	if got := alone.KeptIn("pro", mustLimit(t,
		limit.Limit{ID: "x", Tiers: []limit.Tier{{Algorithm: limit.LeakyBucket, Period: time.Second,
			Threshold: 1}}})); got != "" {
		t.Errorf("in a cell without shares, a limit has the home %q, want none", got)
	}
}
