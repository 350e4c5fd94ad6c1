package balancer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/embedded"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/streams/balancer"
	"github.com/sluicelimits/sluice/streams/delivery"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// tables is control tables that may fail, and that can run a function before and after each call.
type tables struct {
	*embedded.Tables
	before func(call string, key string) error // called before each call; nil: nothing
	after  func(call string, key string) error // called after each successful call
	puts   int

	// the key of an item of the cells, or of the canary, that cannot be read, like a row of another layout
	bad     string
	altered string // the key of an item whose hash is not that of its fields
}

// makeUnreadable returns the error of an item that cannot be read, or alters the item.
func (t *tables) makeUnreadable(i *control.Item) error {
	if i.Key == t.altered {
		i.Reason += " by hand"
	}
	if i.Table == t.unreadableTable() && i.Key == t.bad {
		return &control.BadItemError{Table: i.Table, Key: i.Key, Err: errors.New("attribute layout is 2")}
	}
	return nil
}

// unreadableTable returns the table of the item that cannot be read.
func (t *tables) unreadableTable() control.Table {
	if t.bad == events.CanaryKey {
		return control.Plans
	}
	return control.Cells
}

func (t *tables) do(call, key string, f func() error) error {
	if t.before != nil {
		if err := t.before(call, key); err != nil {
			return err
		}
	}
	if err := f(); err != nil {
		return err
	}
	if t.after != nil {
		return t.after(call, key)
	}
	return nil
}

func (t *tables) Get(ctx context.Context, table control.Table, key string) (i control.Item, err error) {
	if table == t.unreadableTable() && key == t.bad {
		return i, t.makeUnreadable(&control.Item{Table: table, Key: key})
	}
	err = t.do("get", key, func() (err error) { i, err = t.Tables.Get(ctx, table, key); return err })
	_ = t.makeUnreadable(&i)
	return i, err
}

func (t *tables) List(ctx context.Context, table control.Table, after string, most int) (items []control.Item,
	next string, err error) {
	err = t.do("list "+string(table), after,
		func() (err error) { items, next, err = t.Tables.List(ctx, table, after, most); return err })
	var bad error
	items = slices.DeleteFunc(items, func(i control.Item) bool {
		return i.Table == t.unreadableTable() &&
			i.Key == t.bad
	})
	if after == "" && table == t.unreadableTable() && t.bad != "" {
		bad = t.makeUnreadable(&control.Item{Table: table, Key: t.bad})
	}
	for i := range items {
		_ = t.makeUnreadable(&items[i])
	}
	return items, next, errors.Join(err, bad)
}

func (t *tables) Put(ctx context.Context, c control.Change) (i control.Item, err error) {
	if c.Table == control.Cells && c.Key == t.bad {
		return i, t.makeUnreadable(&control.Item{Table: c.Table, Key: c.Key})
	}
	err = t.do("put", c.Key, func() (err error) { t.puts++; i, err = t.Tables.Put(ctx, c); return err })
	return i, err
}

type bench struct {
	t      *testing.T
	tables *tables
	b      *balancer.Balancer
	now    time.Time
	log    strings.Builder
}

func newBench(t *testing.T) *bench {
	t.Helper()
	file, err := embedded.Open(filepath.Join(t.TempDir(), "control.db"))
	if err != nil {
		t.Fatal(err)
	}
	file.Unsynced() // no test here cuts the power
	t.Cleanup(func() {
		if err := file.Close(); err != nil {
			t.Error(err)
		}
	})
	w := &bench{t: t, tables: &tables{Tables: file}, now: noon}
	w.b = w.balancer(func() time.Time { return w.now })
	return w
}

func (w *bench) balancer(now func() time.Time) *balancer.Balancer {
	w.t.Helper()
	b := balancer.New(balancer.Config{Tables: w.tables, Meter: delivery.NoMeter{}, Now: now,
		Log: slog.New(slog.NewTextHandler(&w.log, nil))})
	return b
}

func (w *bench) put(table control.Table, key, body string) {
	w.t.Helper()
	item, err := w.tables.Tables.Get(w.t.Context(), table, key)
	if err != nil && !errors.Is(err, control.ErrNotFound) {
		w.t.Fatal(err)
	}
	if _, err := w.tables.Tables.Put(w.t.Context(),
		control.Change{Table: table, Key: key, Expect: item.Version, Body: []byte(body),
			Actor: "an operator", Reason: "a test", Now: noon}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *bench) putRequest(r shares.Request) {
	w.t.Helper()
	key := r.Cell
	if r.Kind == shares.Place {
		key = operate.PinKey(r.Tenant)
	}
	r.ID = "any"
	body, err := json.Marshal(operate.CellDocument{ID: key, Request: r})
	if err != nil {
		w.t.Fatal(err)
	}
	w.put(control.Cells, key, string(body))
}

func (w *bench) run() balancer.Result {
	w.t.Helper()
	r, err := w.b.Run(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

func (w *bench) state() *shares.State {
	w.t.Helper()
	item, err := w.tables.Tables.Get(w.t.Context(), control.Cells, events.SharesKey)
	if errors.Is(err, control.ErrNotFound) {
		return &shares.State{}
	}
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := events.Encode(item.Event()); err != nil {
		w.t.Fatalf("the state does not fit an event: %v", err)
	}
	s, err := shares.DecodeState(item.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// acknowledge writes acknowledgements of the present transition by the cells.
func (w *bench) acknowledge(cells ...string) {
	w.t.Helper()
	s := w.state()
	for _, cell := range cells {
		body, err := json.Marshal(shares.Ack{Cell: cell, Epoch: s.Epoch, Phase: s.Phase, AtUS: w.now.UnixMicro()})
		if err != nil {
			w.t.Fatal(err)
		}
		w.put(control.Cells, shares.AckKey(cell), string(body))
	}
}

// settle runs transitions to their end. All of their cells acknowledge immediately.
func (w *bench) settle() balancer.Result {
	w.t.Helper()
	for range 400 {
		r := w.run()
		if s := w.state(); s.Transition == nil && !r.Changed {
			return r
		}
		w.acknowledge(r.Awaited...)
		w.now = w.now.Add(10 * time.Second)
	}
	w.t.Fatalf("the transitions do not end: %+v", w.state())
	return balancer.Result{}
}

// weights returns the present weights of the cells.
func (w *bench) weights() string {
	var out []string
	for _, m := range w.state().Members {
		out = append(out, fmt.Sprintf("%s %s %d", m.Cell, m.State, m.Weight))
	}
	return strings.Join(out, ", ")
}

func (w *bench) wantCells(want string) {
	w.t.Helper()
	if got := w.weights(); got != want {
		w.t.Fatalf("cells are %q, want %q\n%s", got, want, w.log.String())
	}
}

// Guarantees that cells become what operators ask for, in the form in which admin writes it, through both phases and in
// as many transitions as necessary, and that nothing is written after that.
func TestWishes(t *testing.T) {
	w := newBench(t)
	if r := w.run(); r.Changed || r.Epoch != 0 {
		t.Fatalf("the first run, without a cell: %+v", r)
	}
	w.putRequest(shares.Request{Kind: shares.Join, Cell: "eu-1", Weight: 2})
	if r := w.run(); r.Phase != shares.Steady || r.Cells != 1 {
		t.Fatalf("the first cell: %+v", r)
	}
	// replaces the wish to join before the balancer has seen it
	w.putRequest(shares.Request{Kind: shares.Weigh, Cell: "us-1", Weight: 1})
	r := w.run()
	if r.Phase != shares.Shrink || !slices.Equal(r.Awaited, []string{"eu-1", "us-1"}) {
		t.Fatalf("a second cell: %+v", r)
	}
	w.acknowledge("eu-1", "us-1")
	if r = w.run(); !r.Wake.Equal(w.now.Add(shares.Settings{}.Grace())) || r.Phase != shares.Shrink {
		t.Fatalf("all have heard: %+v", r)
	}
	w.now = r.Wake.Add(-time.Microsecond)
	if r = w.run(); r.Phase != shares.Shrink {
		t.Fatal("the grace was cut short")
	}
	w.now = r.Wake
	if r = w.run(); r.Phase != shares.Grow {
		t.Fatalf("after the grace: %+v", r)
	}
	w.settle()
	w.wantCells("eu-1 active 2, us-1 active 1")
	w.putRequest(shares.Request{Kind: shares.Remove, Cell: "us-1"}) // it was not drained
	w.settle()
	w.wantCells("eu-1 active 2")
	w.putRequest(shares.Request{Kind: shares.Drain, Cell: "eu-1"}) // the last cell
	w.settle()
	w.wantCells("eu-1 active 2")
	w.putRequest(shares.Request{Kind: shares.Join, Cell: "us-1", Weight: 5}) // now it is not the last one
	w.settle()
	w.wantCells("eu-1 drained 0, us-1 active 5")
	w.putRequest(shares.Request{Kind: shares.Join, Cell: "eu-1", Weight: 3})
	w.settle()
	w.wantCells("eu-1 active 3, us-1 active 5")
	w.putRequest(shares.Request{Kind: shares.Force, Cell: "us-1"})
	if r = w.run(); slices.Contains(r.Awaited, "us-1") {
		t.Errorf("a cell that was removed by force is awaited: %+v", r)
	}
	w.settle()
	w.wantCells("eu-1 active 3")
	before := w.tables.puts
	for range 5 {
		w.now = w.now.Add(time.Minute)
		w.run()
	}
	if w.tables.puts != before {
		t.Errorf("%d writes although nothing had to change", w.tables.puts-before)
	}
}

// Guarantees that a late acknowledgement of an older epoch, or of an earlier phase, does not count: the cell may not
// know the present transition, and would still grant units that others grow by.
func TestLateAcknowledgement(t *testing.T) {
	w := newBench(t)
	w.putRequest(shares.Request{Kind: shares.Join, Cell: "a", Weight: 1})
	w.putRequest(shares.Request{Kind: shares.Join, Cell: "b", Weight: 1})
	w.settle()
	w.putRequest(shares.Request{Kind: shares.Weigh, Cell: "a", Weight: 3})
	w.run()
	w.acknowledge("a", "b") // of epoch 2, shrink
	w.now = w.now.Add(time.Hour)
	w.run()
	w.now = w.now.Add(time.Hour)
	if r := w.run(); r.Phase != shares.Grow {
		t.Fatalf("%+v, want that it grows", r)
	}
	for range 3 { // the growth was not acknowledged, only the shrink
		w.now = w.now.Add(time.Hour)
		if r := w.run(); r.Phase != shares.Grow || len(r.Awaited) != 2 {
			t.Fatalf("%+v: an acknowledgement of the shrink counts for the growth", r)
		}
	}
	w.acknowledge("a", "b")
	w.putRequest(shares.Request{Kind: shares.Weigh, Cell: "a", Weight: 5})
	w.run()
	if r := w.run(); r.Epoch != 3 || r.Phase != shares.Shrink || len(r.Awaited) != 2 {
		t.Fatalf("%+v: what was acknowledged in epoch 2 counts in epoch 3", r)
	}
	for _, late := range []shares.Ack{{Cell: "a", Epoch: 2, Phase: shares.Shrink}, {Cell: "a", Epoch: 2,
		Phase: shares.Grow}, {Cell: "a", Epoch: 3, Phase: shares.Grow}, {Cell: "a", Epoch: 4, Phase: shares.Shrink}} {
		late.AtUS = w.now.UnixMicro()
		body, err := json.Marshal(late)
		if err != nil {
			t.Fatal(err)
		}
		w.put(control.Cells, shares.AckKey("a"), string(body))
		w.now = w.now.Add(time.Hour)
		if r := w.run(); r.Phase != shares.Shrink || len(r.Awaited) != 2 {
			t.Errorf("%+v, after %+v", r, late)
		}
	}
	w.acknowledge("a")
	if r := w.run(); len(r.Awaited) != 1 {
		t.Errorf("%+v: the right one does not count", r)
	}
}

// Guarantees that a pin is a transition of its own, whose placement is stored before the transition can end; that it
// waits until the cells that it names serve; and that more pins than a transition can have are all carried out.
func TestPins(t *testing.T) {
	w := newBench(t)
	w.putRequest(shares.Request{Kind: shares.Join, Cell: "eu-1", Weight: 1})
	w.putRequest(shares.Request{Kind: shares.Join, Cell: "us-1", Weight: 1})
	w.putRequest(shares.Request{Kind: shares.Place, Tenant: "acme", Cells: []string{"ap-1"}})
	w.settle()
	if s := w.state(); len(s.Queue) > 0 || s.Epoch != 1 {
		t.Fatalf("a pin to a cell that does not serve: %+v", s)
	}
	for i := range 100 {
		w.putRequest(shares.Request{Kind: shares.Place, Tenant: fmt.Sprint("tenant ", i), Cells: []string{"us-1"}})
	}
	w.settle()
	placed := 0
	for item, err := range control.All(t.Context(), w.tables.Tables, control.Cells) {
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(item.Key, shares.PlacementPrefix) {
			p, err := shares.DecodePlacement(item.Body)
			if err != nil || !slices.Equal(p.Generations[len(p.Generations)-1].Cells, []string{"us-1"}) ||
				item.Event() == nil {
				t.Fatalf("%+v, %v: want a placement that cells are told of", p, err)
			}
			placed++
		}
	}
	if placed != 100 {
		t.Fatalf("%d of 100 tenants are placed", placed)
	}
	w.putRequest(shares.Request{Kind: shares.Join, Cell: "ap-1", Weight: 1})
	w.settle()
	item, err := w.tables.Get(t.Context(), control.Cells, shares.PlacementKey("acme"))
	if err != nil || !strings.Contains(string(item.Body), `"ap-1"`) {
		t.Errorf("the pin that waited: %s, %v", item.Body, err)
	}
}

// Guarantees that a balancer that dies at any call, before or after the call had its effect, leaves a state that the
// next one continues from: in the end cells and placements are as requested, and no phase was skipped.
func TestDiesAnywhere(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	w := newBench(t)
	var seen []string
	fault := func(string, string) error {
		if r.IntN(3) == 0 {
			return errors.New("throttled")
		}
		return nil
	}
	w.putRequest(shares.Request{Kind: shares.Join, Cell: "eu-1", Weight: 1})
	w.run()
	w.tables.before, w.tables.after = fault, fault
	w.putRequest(shares.Request{Kind: shares.Join, Cell: "us-1", Weight: 1})
	w.putRequest(shares.Request{Kind: shares.Place, Tenant: "acme", Cells: []string{"eu-1"}})
	died := 0
	for range 400 {
		if _, err := w.b.Run(t.Context()); err != nil {
			died++
		}
		s := w.state()
		if now := fmt.Sprint(s.Epoch, s.Phase); len(seen) == 0 || seen[len(seen)-1] != now {
			seen = append(seen, now)
		}
		if s.Phase == shares.Steady {
			for i := range s.Done {
				if strings.HasPrefix(s.Done[i], shares.PinPrefix) {
					if _, err := w.tables.Tables.Get(t.Context(), control.Cells,
						shares.PlacementKey("acme")); err != nil {
						t.Fatalf("the transition ended before the placement was stored: %v", err)
					}
				}
			}
		}
		w.acknowledge(s.Awaited()...)
		w.now = w.now.Add(10 * time.Second)
	}
	w.wantCells("eu-1 active 1, us-1 active 1")
	if want := "[1steady 2shrink 2grow 2steady]"; fmt.Sprint(seen) != want || died < 50 {
		t.Errorf("phases %v, want %s; it died %d times", seen, want, died)
	}
}

// Guarantees that of two concurrent balancers one finds that the other has written, starts again, and no change of
// either is lost.
func TestTwoAtOnce(t *testing.T) {
	w := newBench(t)
	w.putRequest(shares.Request{Kind: shares.Join, Cell: "eu-1", Weight: 1})
	w.settle()
	other, twice := w.balancer(func() time.Time { return w.now }), 0
	w.putRequest(shares.Request{Kind: shares.Join, Cell: "us-1", Weight: 1})
	w.tables.before = func(call, _ string) error {
		if call != "put" || twice > 0 {
			return nil
		}
		twice++
		w.putRequest(shares.Request{Kind: shares.Join, Cell: "ap-1", Weight: 1})
		_, err := other.Run(t.Context()) // with one more cell
		return err
	}
	if r := w.run(); r.Changed || !slices.Equal(r.Awaited, []string{"ap-1", "eu-1", "us-1"}) {
		t.Fatalf("%+v; want what the other has written", r)
	}
	if s := w.state(); twice != 1 || s.Epoch != 2 {
		t.Errorf("epoch %d after %d times at once, want one transition", s.Epoch, twice)
	}
	w.settle()
	w.wantCells("ap-1 active 1, eu-1 active 1, us-1 active 1")
}

// Guarantees that growth never counts before the grace is over if a clock is an hour off: with a clock that is ahead it
// counts later, with one that is behind it waits.
func TestClockAnHourOff(t *testing.T) {
	for _, off := range []time.Duration{time.Hour, -time.Hour} {
		w := newBench(t)
		skewed := w.balancer(func() time.Time { return w.now.Add(off) })
		w.putRequest(shares.Request{Kind: shares.Join, Cell: "eu-1", Weight: 1})
		w.settle()
		w.putRequest(shares.Request{Kind: shares.Join, Cell: "us-1", Weight: 1})
		w.run()
		heard := w.now
		w.acknowledge("eu-1", "us-1")
		for i := 0; w.state().Phase == shares.Shrink; i++ {
			b := w.b
			if i%2 == 0 {
				b = skewed
			}
			if _, err := b.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.now = w.now.Add(time.Second)
		}
		gens := w.state().Generations
		from := time.UnixMicro(gens[len(gens)-1].From)
		if from.Before(heard.Add(shares.Settings{}.Grace())) {
			t.Errorf("%s off: the growth counts from %s after the last was heard, before the grace is over", off,
				from.Sub(heard))
		}
	}
}

// Guarantees that invalid items stop nothing, that a state that cannot be read or was deleted is never overwritten, and
// that acknowledgements that are old, from the future or of unknown cells change nothing.
func TestBadItems(t *testing.T) {
	w := newBench(t)
	w.putRequest(shares.Request{Kind: shares.Join, Cell: "eu-1", Weight: 1})
	w.settle()
	w.put(control.Cells, "odd", `{"request":{"kind":"join","cell":"other","weight":1}}`)
	w.put(control.Cells, "odder", `{"request":7}`)
	w.put(control.Cells, shares.PinPrefix+"x", `{"request":{"kind":"drain","cell":"eu-1"}}`)
	w.put(control.Cells, shares.PlacementPrefix+"x", `{}`)
	w.put(control.Cells, shares.AckPrefix+"x", `{"cell":"eu-1"}`)
	w.put(control.Cells, shares.PacePrefix+"x", `{"total":1}`) // is for pacers, and not counted
	w.put(control.Cells, "huge", `{"request":{"kind":"join","cell":"huge","weight":99999999}}`)
	w.putRequest(shares.Request{Kind: shares.Join, Cell: "us-1", Weight: 1})
	r := w.run()
	if r.Unread != 5 || !slices.Equal(r.Awaited, []string{"eu-1", "us-1"}) {
		t.Fatalf("%+v\n%s", r, w.log.String())
	}
	for _, a := range []shares.Ack{{Cell: "eu-1", Epoch: 1, Phase: shares.Shrink},
		{Cell: "eu-1", Epoch: 2, Phase: shares.Grow}, {Cell: "eu-1", Epoch: 3, Phase: shares.Shrink},
		{Cell: "nobody", Epoch: 2, Phase: shares.Shrink}} {
		body, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		w.put(control.Cells, shares.AckKey(a.Cell), string(body))
		if r := w.run(); len(r.Awaited) != 2 {
			t.Fatalf("an invalid acknowledgement counts: %+v", a)
		}
	}
	w.put(control.Cells, events.SharesKey, `{"version":99}`)
	if _, err := w.b.Run(t.Context()); !errors.Is(err, shares.ErrLayout) {
		t.Errorf("a state of another layout: %v", err)
	}
	item, err := w.tables.Get(t.Context(), control.Cells, events.SharesKey)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.tables.Put(t.Context(), control.Change{Table: control.Cells, Key: events.SharesKey,
		Expect: item.Version, Delete: true, Actor: "a", Reason: "b", Now: noon}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.b.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "deleted") {
		t.Errorf("a state that was deleted: %v", err)
	}
}

// Guarantees that the largest possible state fits its item and its event.
func TestLargestState(t *testing.T) {
	w := newBench(t)
	var limits []string
	for i := range shares.MaxHomed + 20 {
		limits = append(limits, fmt.Sprintf(`{"id":"%s%03d","algorithm":"fixed_window","threshold":1,"period":"1s"}`,
			strings.Repeat("l", 61), i))
	}
	for i := range 4 {
		id := strings.Repeat("p", 63) + fmt.Sprint(i)
		w.put(control.Plans, id, `{"id":"`+id+`","limits":[`+strings.Join(limits[i*53:(i+1)*53], ",")+`]}`)
	}
	var cells []string
	for i := range shares.MaxCells {
		cells = append(cells, fmt.Sprintf("%s%02d", strings.Repeat("c", 62), i))
		w.putRequest(shares.Request{Kind: shares.Join, Cell: cells[i], Weight: shares.MaxWeight})
	}
	w.settle()
	rounds := 2
	if testing.Short() {
		rounds = 1
	}
	for round := range rounds {
		for i := range 70 {
			w.putRequest(shares.Request{Kind: shares.Place, Tenant: fmt.Sprintf("%s%02d", strings.Repeat("<", 126), i),
				Cells: append(slices.Clone(cells[round:]), cells[:round]...)})
		}
		for i := range cells {
			w.putRequest(shares.Request{Kind: shares.Weigh, Cell: cells[i],
				Weight: shares.MaxWeight - int64(round) - 1})
		}
		for range 3 {
			r := w.run()
			w.state() // checks that it fits
			w.acknowledge(r.Awaited...)
			w.now = w.now.Add(time.Minute)
		}
	}
	if s := w.state(); len(s.Generations[len(s.Generations)-1].Homed) != shares.MaxHomed {
		t.Errorf("%d limits are homed, want %d", len(s.Generations[len(s.Generations)-1].Homed), shares.MaxHomed)
	}
}

// Guarantees that every event makes the balancer run, that the records of a stream are published first and the answer
// is returned, that Lambda calls again if either fails, and that the scheduled call waits for the end of a grace if it
// has the time.
func TestInvoke(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newBench(t)
		published := 0
		b := balancer.New(balancer.Config{Tables: w.tables, Meter: delivery.NoMeter{},
			Log: slog.New(slog.DiscardHandler),
			Publish: func(context.Context, []byte) ([]byte, error) {
				if published++; published == 2 {
					return nil, errors.New("the topic is away")
				}
				return []byte(`{"batchItemFailures":[{"itemIdentifier":"7"}]}`), nil
			}})
		w.putRequest(shares.Request{Kind: shares.Join, Cell: "eu-1", Weight: 1})
		answer, err := b.Invoke(t.Context(), []byte(`{"Records":[{"poison":true}]}`))
		if err != nil || string(answer) != `{"batchItemFailures":[{"itemIdentifier":"7"}]}` || w.state().Epoch != 1 {
			t.Fatalf("a batch: %s, %v", answer, err)
		}
		if _, err := b.Invoke(t.Context(), []byte(`{"Records":[{}]}`)); err == nil {
			t.Error("what could not be published is not asked for again")
		}
		w.putRequest(shares.Request{Kind: shares.Join, Cell: "us-1", Weight: 1})
		if _, err = b.Invoke(t.Context(), []byte(`what a schedule sends`)); err != nil {
			t.Fatal(err)
		}
		w.now = time.Now()
		w.acknowledge("eu-1", "us-1")
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		_, err = b.Invoke(ctx, nil)
		cancel()
		if err != nil || w.state().Phase != shares.Shrink || time.Since(w.now) > time.Second {
			t.Fatalf("without the time to wait: %v, %s after %s", err, w.state().Phase, time.Since(w.now))
		}
		if _, err = b.Invoke(t.Context(), nil); err != nil || w.state().Phase != shares.Grow {
			t.Fatalf("with the time: %v, %s", err, w.state().Phase)
		}
	})
}
