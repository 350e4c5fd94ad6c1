package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/embedded"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/testkit/logtest"
	"github.com/sluicelimits/sluice/pacer"
)

// planned are instances that follow a plan of a control plane, in virtual time, and what all of them granted.
type planned struct {
	t       *testing.T
	control http.Handler
	away    atomic.Bool // the control plane does not answer
	said    logtest.Buffer

	mu      sync.Mutex
	granted map[int64]int64 // by second
}

// do calls an operation of the control plane as a client does over HTTP.
func (p *planned) do(path string, request, response any) error {
	if p.away.Load() {
		return io.ErrUnexpectedEOF
	}
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	r := httptest.NewRequest(http.MethodPost, path, bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.RemoteAddr, r.Host = "127.0.0.1:1", "127.0.0.1"
	answer := httptest.NewRecorder()
	if p.control.ServeHTTP(answer, r); answer.Code != http.StatusOK {
		var out struct{ Error *operate.Error }
		if err := json.Unmarshal(answer.Body.Bytes(), &out); err != nil || out.Error == nil {
			return fmt.Errorf("%s: %d %s", path, answer.Code, answer.Body)
		}
		return out.Error
	}
	return json.Unmarshal(answer.Body.Bytes(), response)
}

// set sets the plan as an operator does, and returns from when on it holds.
func (p *planned) set(total, instances int64, period string) time.Time {
	p.t.Helper()
	var item control.Item
	if err := p.do("/pace/set", operate.PacePlanRequest{Name: "provider", Total: total, Period: period,
		Instances: instances, Reason: "x"}, &item); err != nil {
		p.t.Fatal(err)
	}
	doc, err := operate.ReadPace(item.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return doc.From
}

// remove removes the plan as an operator does.
func (p *planned) remove() {
	p.t.Helper()
	if err := p.do("/pace/remove", operate.RemovePacePlanRequest{Name: "provider", Yes: true, Reason: "x"},
		new(control.Item)); err != nil {
		p.t.Fatal(err)
	}
}

// start starts an instance that always has requests to send. The function that it returns ends it.
func (p *planned) start(index int64) (stop func()) {
	plan := &pacePlan{"provider", index, func(context.Context) (*operate.PacePlanResponse, error) {
		out := new(operate.PacePlanResponse)
		return out, p.do("/pace/get", operate.PaceNameRequest{Name: "provider"}, out)
	}}
	ctx, cancel := context.WithCancel(p.t.Context())
	limit, err := plan.limit(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	one, err := pacer.New(pacer.Config{Limit: limit, Part: &pacer.Part{Index: index}})
	if err != nil {
		p.t.Fatal(err)
	}
	endPlan := plan.start(ctx, one, limit, &p.said)
	var sending sync.WaitGroup
	sending.Go(func() {
		for {
			if _, err := one.Acquire(ctx, "", 1); err != nil {
				return
			}
			p.mu.Lock()
			p.granted[time.Now().Unix()]++
			p.mu.Unlock()
		}
	})
	return func() { cancel(); endPlan(); sending.Wait(); one.Close() }
}

// pass lets time pass, and then checks every window since the last call against the totals in force.
func (p *planned) pass(d time.Duration, totalAt func(second int64) int64) (used []int64) {
	p.t.Helper()
	began := time.Now().Unix()
	time.Sleep(d) //nolint:forbidigo // virtual time
	p.mu.Lock()
	defer p.mu.Unlock()
	for second := began; second < time.Now().Unix(); second++ {
		used = append(used, p.granted[second])
		if n, most := p.granted[second], totalAt(second); n > most {
			p.t.Errorf("second %d: %d granted, more than the total of %d", second, n, most)
		}
	}
	return used
}

// Guarantees that instances that follow a plan of the control plane never use more together, in any window, than the
// total that is in force: while total and instances change, also for an instance that is started before a plan holds,
// and while the control plane is away. Where all instances of the plan run, they use all of it. Once they have read
// that the plan was removed, or that it has another period, they use nothing.
func TestPacePlanNeverOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tables, err := embedded.Open(filepath.Join(t.TempDir(), "control"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tables.Close() }()
		tables.Unsynced()
		s := operate.NewControl(operate.ControlConfig{Tables: tables, Log: slog.New(slog.DiscardHandler)})
		p := &planned{t: t, control: operate.Local(s.Mux(), "ann@local"), granted: map[int64]int64{}}
		totals := map[int64]int64{} // from a second on
		totalAt := func(second int64) (total int64) {
			for from := second; total == 0; from-- {
				total = totals[from]
			}
			return total
		}
		set := func(total, instances int64) {
			t.Helper()
			totals[p.set(total, instances, "1s").Unix()] = total
		}
		check := func(after string, used []int64, want int64) {
			t.Helper()
			if got := used[len(used)-1]; got != want {
				t.Errorf("%s: the last window has %d, want %d", after, got, want)
			}
		}
		set(100, 4)
		var stops []func()
		for i := range int64(4) {
			stops = append(stops, p.start(i))
		}
		check("the first plan", p.pass(10*time.Second, totalAt), 100)
		set(37, 4)
		used := p.pass(15*time.Second, totalAt)
		check("a total that is to fall", used, 100)
		stops[2]()
		p.pass(time.Second, totalAt) // an instance does not know what another one used of the same window
		stops[2] = p.start(2)
		check("an instance that was started again", p.pass(10*time.Second, totalAt), 100)
		check("a total that fell", p.pass(15*time.Second, totalAt), 37)
		set(60, 6)
		stops = append(stops, p.start(4), p.start(5)) // have no part until the plan holds
		p.pass(15*time.Second, totalAt)
		set(90, 6)
		check("more instances", p.pass(45*time.Second, totalAt), 90)
		p.away.Store(true)
		check("a control plane that is away", p.pass(25*time.Second, totalAt), 90)
		p.away.Store(false)
		set(5, 6)
		check("fewer units than instances", p.pass(45*time.Second, totalAt), 5)
		p.remove()
		check("a plan that was removed", p.pass(15*time.Second, totalAt), 0)
		set(80, 6)
		check("a new plan that is to begin", p.pass(25*time.Second, totalAt), 0)
		check("a new plan", p.pass(20*time.Second, totalAt), 80)
		p.remove()
		p.pass(time.Second, totalAt)
		set(12, 6) // before some instances have read that there was no plan
		p.pass(25*time.Second, totalAt)
		check("a plan after a short removal", p.pass(20*time.Second, totalAt), 12)
		if said := p.said.String(); strings.Contains(said, "its period is") ||
			!strings.Contains(said, `there is no pace plan "provider": it was removed by ann@local at `) ||
			!strings.Contains(said, ": x: this process waits until there is one\n") {
			t.Errorf("instances whose plan was removed say %q", said)
		}
		p.remove()
		p.set(12, 6, "2s")
		check("a plan with another period", p.pass(60*time.Second, totalAt), 0)
		const want = "its period is 2s, and was 1s when this process began: this process waits; start it again\n"
		if said := p.said.String(); !strings.Contains(said, want) {
			t.Errorf("instances whose plan has another period say %q, want %q", said, want)
		}
		for _, stop := range stops {
			stop()
		}
	})
}

// Guarantees that a process without a part of the plan says at once why it waits. It does not repeat
// itself, and says nothing while it has a part.
func TestPacePlanSaysWhyItWaits(t *testing.T) {
	now := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	at := func(instances int64, second int, before *operate.PacePart) *operate.PacePart {
		return &operate.PacePart{Total: 100, Instances: instances, From: now.Add(time.Duration(second) * time.Second),
			Before: before}
	}
	const waits = "--index 96 lies outside 0..95, because pace plan provider has 96 instances: this process waits " +
		"until the plan has more. Correct --index, or add instances with 'sluice pace-plan set provider'"
	for _, tt := range []struct {
		index int64
		plan  *operate.PacePart
		want  string
	}{
		{0, at(96, -5, nil), ""},
		{95, at(96, 0, nil), ""},
		{96, at(96, -5, nil), waits},
		{96, at(97, 30, at(96, -5, nil)), waits},
		{5, at(4, 30, at(6, -5, nil)), ""},
		{0, at(96, 30, nil), ""},
		{1, at(1, 30, nil), "--index 1 lies outside 0..0, because pace plan provider has 1 instance: this process " +
			"waits until the plan has more. Correct --index, or add instances with 'sluice pace-plan set provider'"},
	} {
		if got := (&pacePlan{name: "provider", index: tt.index}).noPart(tt.plan, now); got != tt.want {
			t.Errorf("index %d: got %q, want %q", tt.index, got, tt.want)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		answer := &operate.PacePlanResponse{Name: "provider", Period: "1s", PacePart: *at(96, 0, nil)}
		plan := &pacePlan{"provider", 96, func(context.Context) (*operate.PacePlanResponse, error) {
			return answer, nil
		}}
		p, err := pacer.New(pacer.Config{Limit: pacer.PerSecond(100), Part: &pacer.Part{Index: 96}})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		answer.From = time.Now()
		var said logtest.Buffer
		stop := plan.start(t.Context(), p, pacer.PerSecond(100), &said)
		synctest.Wait()
		want := "sluice: " + plan.noPart(&answer.PacePart, time.Now()) + "\n"
		if got := said.String(); got != want || !strings.Contains(got, "--index 96 lies outside 0..95") {
			t.Errorf("at once it says %q, want %q", got, want)
		}
		time.Sleep(time.Minute) //nolint:forbidigo // virtual time
		if got := said.String(); got != want {
			t.Errorf("after a minute it has said %q, want %q", got, want)
		}
		stop()
	})
}

// Guarantees that commands follow a plan of 'sluice dev'.
func TestPacePlanOfDev(t *testing.T) {
	dev := startDev(t)
	t.Setenv("SLUICE_ENDPOINT", dev.base+"/_sluice/admin")
	if r := sluice(t, "", "pace", "--pace-plan", "provider", "--index", "0"); r.code != exitFailed ||
		!strings.Contains(r.stderr, "read pace plan provider: there is no pace plan") {
		t.Errorf("without a plan: %+v", r)
	}
	if r := sluice(t, "", "pace-plan", "set", "provider", "--total", "10/100ms", "--instances", "2", "--reason",
		"x"); r.code != 0 {
		t.Fatal(r.stderr)
	}
	for _, index := range []string{"0", "1"} {
		if r := sluice(t, "a\nb\nc\nd\ne\nf\n", "pace", "--pace-plan", "provider", "--index", index); r.code != 0 ||
			r.stdout != "a\nb\nc\nd\ne\nf\n" || r.stderr != "" {
			t.Errorf("index %s: %+v", index, r)
		}
	}
	if r := sluice(t, "", "pace-plan", "remove", "provider", "--reason", "x"); r.code != exitConfirm ||
		!strings.Contains(r.stderr, "say yes (--yes)") {
		t.Errorf("remove without --yes: %+v", r)
	}
	r := sluice(t, "", "pace", "--pace-plan", "provider", "--index", "0", "--max-delay", "100ms")
	if r.code != exitUsage || !strings.Contains(r.stderr, "leave nothing of a window of 100ms") {
		t.Errorf("a guard as long as the window: %+v", r)
	}
	if r := sluice(t, "", "pace-plan", "remove", "provider", "--yes", "--reason", "over"); r.code != 0 {
		t.Errorf("remove: %+v", r)
	}
	r = sluice(t, "", "pace", "--pace-plan", "provider", "--index", "0")
	if r.code != exitFailed || !strings.Contains(r.stderr, `there is no pace plan "provider": it was removed by `) ||
		!strings.HasSuffix(r.stderr, ": over\n") {
		t.Errorf("a plan that was removed: %+v", r)
	}
}
