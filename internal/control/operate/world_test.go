package operate_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/embedded"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

const (
	ann = "arn:aws:iam::123456789012:user/ann"
	bob = "arn:aws:sts::123456789012:assumed-role/operators/bob"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// counting are tables that count writes and can fail.
type counting struct {
	control.Tables
	mu      sync.Mutex
	puts    int
	failAt  int                  // number of the put at which the tables stop answering; 0: never
	before  func(control.Change) // is called before each put
	changes []control.Change
	damaged string // key of an item of the plans that cannot be read, as if its row had another layout
}

func (c *counting) List(ctx context.Context, t control.Table, after string, most int) ([]control.Item, string, error) {
	items, next, err := c.Tables.List(ctx, t, after, most)
	if t == control.Plans && c.damaged != "" {
		items = slices.DeleteFunc(items, func(i control.Item) bool { return i.Key == c.damaged })
		err = errors.Join(err, &control.BadItemError{Table: t, Key: c.damaged, Err: errors.New("layout is 2")})
	}
	return items, next, err
}

var errAway = errors.New("the table is away")

func (c *counting) Put(ctx context.Context, change control.Change) (control.Item, error) {
	c.mu.Lock()
	if c.failAt > 0 && c.puts >= c.failAt {
		c.mu.Unlock()
		return control.Item{}, errAway
	}
	c.puts++
	c.changes = append(c.changes, change)
	before := c.before
	c.mu.Unlock()
	if before != nil {
		before(change)
	}
	return c.Tables.Put(ctx, change)
}

// world is control tables and their operators.
type world struct {
	*testing.T
	tables *counting
	config operate.ControlConfig
	*operate.Control
}

func newWorld(t *testing.T) *world {
	t.Helper()
	tables, err := embedded.Open(filepath.Join(t.TempDir(), "control"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tables.Close() })
	return newWorldOn(t, tables)
}

func newWorldOn(t *testing.T, tables control.Tables) *world {
	t.Helper()
	w := &world{T: t, tables: &counting{Tables: tables}}
	w.config = operate.ControlConfig{Tables: w.tables, Log: discard, Now: func() time.Time { return noon },
		Hash: func(_ context.Context, key string) (string, string, error) {
			return "p1", identity.HashKey([]byte("a pepper of 16 bytes"), key), nil
		},
		Accepts: func(l *limit.Limit) error {
			if l.ID == "unkept" {
				return errors.New("no store keeps it")
			}
			return nil
		},
		AcceptsPlan: func(all []*limit.Limit, _ ...[]*limit.Limit) error {
			if slices.ContainsFunc(all, func(l *limit.Limit) bool { return l.ID == "undecidable" }) {
				return errors.New("no store decides it")
			}
			return nil
		}}
	w.remake()
	return w
}

func (w *world) remake() {
	w.Helper()
	s := operate.NewControl(w.config)
	w.Control = s
}

const plans = `
plans:
  - id: free
    limits: [ { id: burst, algorithm: token_bucket, rate: 10, period: 1s, burst: 20 } ]
  - id: pro
    limits:
      - { id: burst, algorithm: token_bucket, rate: 100, period: 1s, burst: 200 }
      - { id: writes, match: { methods: [PUT] }, tiers: [ { period: 1m, threshold: 60 } ], mode: shadow }
tenants:
  - { id: acme, plan: pro, overrides: [ { id: burst, rate: 500 } ] }
  - { id: "b & <c>", plan: free }
`

// documents returns the documents of a plans file.
func (w *world) documents(text string) []plan.Document {
	w.Helper()
	documents, err := plan.Split(noon, configyaml.Source("plans.yaml", []byte(text)))
	if err != nil {
		w.Fatal(err)
	}
	return documents
}

// seed applies a plans file whose documents do not exist yet.
func (w *world) seed(text string) {
	w.Helper()
	r := &operate.ApplyRequest{Reason: "seed", AcceptLosses: true}
	for _, d := range w.documents(text) {
		t, key := operate.Place(d)
		r.Changes = append(r.Changes, operate.Change{Table: t, Key: key, Body: d.Body})
	}
	if _, err := w.Apply(w.Context(), ann, r); err != nil {
		w.Fatal(err)
	}
	w.tables.puts, w.tables.changes = 0, nil
}

// apply changes one document, and accepts what is lost by the change.
func (w *world) apply(t control.Table, key string, expect int64, body string) error {
	w.Helper()
	_, err := w.Apply(w.Context(), ann, &operate.ApplyRequest{Reason: "why", AcceptLosses: true,
		Changes: []operate.Change{{Table: t, Key: key, Expect: expect, Body: json.RawMessage(body)}}})
	return err
}

// body returns the stored body.
func (w *world) body(t control.Table, key string) string {
	w.Helper()
	item, err := w.Get(w.Context(), ann, &operate.GetRequest{Table: t, Key: key})
	if err != nil {
		w.Fatal(err)
	}
	return string(item.Body)
}

func codeOf(err error) operate.Code {
	var e *operate.Error
	if !errors.As(err, &e) {
		return ""
	}
	return e.Code
}

// refused fails the test unless err has the code and contains says, and nothing was written since the last check.
func (w *world) refused(err error, code operate.Code, says string) {
	w.Helper()
	if codeOf(err) != code || !strings.Contains(err.Error(), says) {
		w.Errorf("got %q: %v; want %s with %q", codeOf(err), err, code, says)
	}
	if w.tables.puts != 0 {
		w.Errorf("it wrote %d items: %+v", w.tables.puts, w.tables.changes)
		w.tables.puts = 0
	}
}

// inMemory are control tables in memory, for fuzzing.
type inMemory map[string]control.Item

func (m inMemory) Get(_ context.Context, t control.Table, key string) (control.Item, error) {
	if err := control.CheckGet(t, key); err != nil {
		return control.Item{}, err
	}
	item, ok := m[string(t)+"/"+key]
	if !ok {
		return control.Item{}, control.ErrNotFound
	}
	return item, nil
}

func (m inMemory) List(
	_ context.Context, t control.Table, after string, most int,
) (items []control.Item, next string, err error) {
	if err := control.CheckList(t, most); err != nil {
		return nil, "", err
	}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		switch item := m[name]; {
		case item.Table != t || item.Key <= after:
		case len(items) == most:
			return items, items[most-1].Key, nil
		default:
			items = append(items, item)
		}
	}
	return items, "", nil
}

func (m inMemory) Put(_ context.Context, c control.Change) (control.Item, error) {
	c, err := c.Check()
	if err != nil {
		return control.Item{}, err
	}
	var current *control.Item
	if item, ok := m[string(c.Table)+"/"+c.Key]; ok {
		current = &item
	}
	next, _, err := control.Next(current, c)
	if err == nil {
		m[string(c.Table)+"/"+c.Key] = next
	}
	return next, err
}

// serial allows one call at a time.
type serial struct {
	mu sync.Mutex
	control.Tables
}

func (s *serial) Get(ctx context.Context, t control.Table, key string) (control.Item, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Tables.Get(ctx, t, key)
}

func (s *serial) List(ctx context.Context, t control.Table, after string, most int) ([]control.Item, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Tables.List(ctx, t, after, most)
}

func (s *serial) Put(ctx context.Context, c control.Change) (control.Item, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Tables.Put(ctx, c)
}
