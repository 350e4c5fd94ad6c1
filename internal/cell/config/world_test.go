package config_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/cell/config"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/cell/table/tabletest"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

var (
	noon    = time.Date(2026, 6, 15, 12, 0, 0, 0, time.UTC)
	errAway = errors.New("the table is away")
)

// world is a table that tests can tamper with, and a reader of it.
type world struct {
	t     testing.TB
	table *table.Memory
	r     *config.Reader
	log   bytes.Buffer
	logMu sync.Mutex

	heads, logs, gets atomic.Int64 // number of calls
	read              atomic.Int64 // number of documents

	// Each function may change what a call returns, or make the call wait; nil does nothing.
	mu     sync.Mutex
	rows   map[table.Ref]table.Document // rows written without a log entry; version 0: removed
	onHead func(ctx context.Context, h *table.Head) error
	onLog  func(ctx context.Context, e *[]table.Entry) error
	onGet  func(ctx context.Context, d []table.Document) error
}

func (w *world) Write(p []byte) (int, error) {
	w.logMu.Lock()
	defer w.logMu.Unlock()
	return w.log.Write(p)
}

func (w *world) logged() string {
	w.logMu.Lock()
	defer w.logMu.Unlock()
	return w.log.String()
}

func newWorld(t testing.TB, change ...func(*config.Config)) *world {
	t.Helper()
	memory := table.NewMemory(0)
	w := &world{t: t, table: memory}
	w.r = w.reader(change...)
	return w
}

// reader returns another reader of the same table.
func (w *world) reader(change ...func(*config.Config)) *config.Reader {
	w.t.Helper()
	c := config.Config{
		Table: w, Log: slog.New(slog.NewTextHandler(w, nil)), Hashes: hashes,
		Timeout: 10 * time.Second, FirstTimeout: 10 * time.Second, // for slow machines
	}
	for _, f := range change {
		f(&c)
	}
	r, err := config.New(c)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// hashes returns, for a presented key of one character, the hash that consists of 64 times this digit.
func hashes(_ context.Context, _ time.Time, presented string) ([]identity.KeyHash, error) {
	switch {
	case presented == "":
		return nil, identity.ErrMalformedKey
	case presented == "peppers away":
		return nil, errAway
	}
	h := identity.KeyHash{Pepper: "dev"}
	if len(presented) > 1 { // a key that does not exist
		copy(h.Hash[:], presented)
		return []identity.KeyHash{h}, nil
	}
	digit := strings.IndexByte("0123456789abcdef", presented[0])
	for i := range h.Hash {
		h.Hash[i] = byte(digit<<4 | digit)
	}
	old := identity.KeyHash{Pepper: "old", Hash: h.Hash} // keys stored under the pepper "dev" are not found by it
	return []identity.KeyHash{old, h}, nil
}

func (w *world) Head(ctx context.Context) (table.Head, error) {
	w.heads.Add(1)
	h, err := w.table.Head(ctx)
	w.mu.Lock()
	on := w.onHead
	w.mu.Unlock()
	if on != nil && err == nil {
		err = on(ctx, &h)
	}
	return h, err
}

func (w *world) Log(ctx context.Context, after, upTo int64) ([]table.Entry, error) {
	w.logs.Add(1)
	e, err := w.table.Log(ctx, after, upTo)
	w.mu.Lock()
	on := w.onLog
	w.mu.Unlock()
	if on != nil && err == nil {
		err = on(ctx, &e)
	}
	return e, err
}

func (w *world) Get(ctx context.Context, refs ...table.Ref) ([]table.Document, error) {
	w.gets.Add(1)
	w.read.Add(int64(len(refs)))
	d, err := w.table.Get(ctx, refs...)
	w.mu.Lock()
	on := w.onGet
	for i := range d {
		if row, ok := w.rows[d[i].Ref]; ok {
			d[i] = row
		}
	}
	w.mu.Unlock()
	if on != nil && err == nil {
		err = on(ctx, d)
	}
	return d, err
}

// away makes every call fail immediately, or answer again.
func (w *world) away(is bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.onHead, w.onLog, w.onGet = nil, nil, nil
	if is {
		w.onHead = func(context.Context, *table.Head) error { return errAway }
		w.onLog = func(context.Context, *[]table.Entry) error { return errAway }
		w.onGet = func(context.Context, []table.Document) error { return errAway }
	}
}

// blockCalls makes every call wait until it is cancelled.
func (w *world) blockCalls() {
	w.mu.Lock()
	defer w.mu.Unlock()
	wait := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	w.onHead = func(ctx context.Context, _ *table.Head) error { return wait(ctx) }
	w.onLog = func(ctx context.Context, _ *[]table.Entry) error { return wait(ctx) }
	w.onGet = func(ctx context.Context, _ []table.Document) error { return wait(ctx) }
}

func (w *world) apply(documents ...table.Document) {
	w.t.Helper()
	if n, err := w.table.Apply(context.Background(), documents); err != nil || n != len(documents) {
		w.t.Fatalf("Apply = %d, %v; want %d", n, err, len(documents))
	}
}

// rewrite writes rows without log entries, as somebody with access to the table could.
func (w *world) rewrite(rows ...table.Document) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.rows == nil {
		w.rows = map[table.Ref]table.Document{}
	}
	for _, d := range rows {
		w.rows[d.Ref] = d
	}
}

// rowsOf returns the rows as they are.
func (w *world) rowsOf(refs ...table.Ref) []table.Document {
	w.t.Helper()
	got, err := w.table.Get(context.Background(), refs...)
	if err != nil {
		w.t.Fatal(err)
	}
	return got
}

// commit writes documents unchanged, whatever their versions, with a log entry that names them unless hidden is set.
func (w *world) commit(hidden bool, documents ...table.Document) {
	w.t.Helper()
	h, err := w.table.Head(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	step := table.Step{Incarnation: h.Incarnation, Entry: table.Entry{Seq: h.Seq + 1, At: noon}}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range documents {
		delete(w.rows, d.Ref)
		d.Seq = step.Entry.Seq
		step.Documents = append(step.Documents, d)
		if !hidden {
			step.Entry.Changes = append(step.Entry.Changes, table.Change{Ref: d.Ref, Version: d.Version,
				Deleted: d.Deleted})
		}
	}
	if err := w.table.Commit(context.Background(), step); err != nil {
		w.t.Fatal(err)
	}
}

// seed writes a plan with a threshold of 5, its tenant t, and the tenant's key "a".
func (w *world) seed() {
	w.t.Helper()
	w.apply(tabletest.Plan("p", 5, 1), tabletest.Tenant("t", "p", 1), tabletest.Key("k", "t", 'a', 1))
}

func (w *world) begin(now time.Time) (authorizer.Configuration, func()) {
	c, join := w.r.Begin(context.Background(), now)
	if join == nil {
		join = func() {}
	}
	return c, join
}

// at describes the tenant's threshold in a complete request.
func (w *world) at(now time.Time, tenant string) string {
	c, join := w.begin(now)
	defer join()
	return threshold(c, tenant, now)
}

func threshold(c authorizer.Configuration, tenant string, now time.Time) string {
	got, err := c.Tenant(context.Background(), tenant)
	switch {
	case errors.Is(err, authorizer.ErrNotLoaded):
		return "not loaded"
	case err != nil:
		return err.Error()
	case got == nil:
		return "unknown"
	}
	limits := got.Limits(now).Limits
	if len(limits) == 0 {
		return "no limits"
	}
	return fmt.Sprint(limits[0].Limit.Tiers[0].Threshold)
}

func (w *world) want(now time.Time, tenant, want string) {
	w.t.Helper()
	if got := w.at(now, tenant); got != want {
		w.t.Fatalf("tenant %s at %s is %q, want %q\n%s", tenant, now.Format("15:04:05.000"), got, want, w.logged())
	}
}

// keyAt describes the result for the presented key in a request.
func (w *world) keyAt(now time.Time, presented string) string {
	c, join := w.begin(now)
	defer join()
	key, err := c.Key(context.Background(), presented, now)
	switch {
	case errors.Is(err, authorizer.ErrNotLoaded):
		return "not loaded"
	case err != nil:
		return err.Error()
	}
	return key.ID
}

func revoked(id, tenant string, digit byte, version int64) table.Document {
	d := tabletest.Key(id, tenant, digit, version)
	d.Body = bytes.Replace(d.Body, []byte("{"), []byte(`{"revoked":true,`), 1)
	return d
}

func body(kind table.Kind, id string, version int64, text string) table.Document {
	return table.Document{Ref: table.Ref{Kind: kind, ID: id}, Version: version, Body: []byte(text)}
}

func settings(version int64, text string) table.Document {
	return body(plan.KindSettings, plan.SettingsID, version, text)
}

func memtableOf(t testing.TB, documents ...table.Document) (*table.Memory, error) {
	t.Helper()
	memory := table.NewMemory(0)
	_, err := memory.Apply(context.Background(), documents)
	return memory, err
}
