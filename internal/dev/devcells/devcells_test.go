package devcells_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/audit"
	"github.com/sluicelimits/sluice/internal/control/embedded"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/dev/devcells"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// anyStore returns a store of the cells, which accepts every limit of these tests.
func anyStore(t *testing.T) limit.Store {
	t.Helper()
	store := memorytest.New(t)
	return store
}

// opened returns a plane with one cell, or with several cells that share limits.
func opened(t *testing.T, dir string, cells ...string) *devcells.Plane {
	t.Helper()
	p, err := devcells.Open(devcells.Config{Store: anyStore(t), Folder: dir,
		Peppers: map[string][]byte{identity.DevPepperID: identity.DevPepper()},
		NewKeys: identity.DevPepperID, Several: len(cells) > 0, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if len(cells) > 0 {
		if cells, err = p.Join(t.Context(), cells); err != nil {
			t.Fatal(err)
		}
		if err := p.Divide(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range cells {
		if _, err := p.AddCell(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func closed(t *testing.T, p *devcells.Plane) {
	t.Helper()
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
}

func file(text string) []plan.Source {
	return []plan.Source{configyaml.Source("plans.yaml", []byte(text))}
}

func apply(t *testing.T, p *devcells.Plane, text string, want int) {
	t.Helper()
	n, err := p.ApplyFiles(t.Context(), "plans.yaml", file(text))
	if err != nil || n != want {
		t.Fatalf("apply: %d written, %v; want %d", n, err, want)
	}
}

func item(t *testing.T, p *devcells.Plane, table control.Table, key string) control.Item {
	t.Helper()
	i, err := p.Tables().Get(t.Context(), table, key)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// edit changes a tenant as an operator does.
func edit(t *testing.T, p *devcells.Plane, tenant, body string) {
	t.Helper()
	have := item(t, p, control.Tenants, tenant)
	_, err := p.Tables().Put(t.Context(), control.Change{Table: control.Tenants, Key: tenant, Expect: have.Version,
		Body:  []byte(body),
		Actor: "ann", Reason: "test", Now: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
}

const base = "plans: [ { id: p, limits: [ { id: l, tiers: [ { period: 1s, threshold: 5 } ] } ] }, { id: q, limits: " +
	"[ { id: l, tiers: [ { period: 1s, threshold: 6 } ] } ] } ]\n"

// Guarantees which change counts if a plans file and an operator change the same item: the later one. A file that is
// unchanged does not undo an operator's change, even after a restart.
func TestWhoWins(t *testing.T) {
	dir := t.TempDir()
	p := opened(t, dir)
	first := base + "tenants: [ { id: a, plan: p }, { id: b, plan: p } ]\n"
	apply(t, p, first, 5) // two plans, the settings and two tenants
	apply(t, p, first, 0)
	edit(t, p, "a", `{"id":"a","plan":"q"}`)
	apply(t, p, first, 0)
	closed(t, p)

	p = opened(t, dir)
	apply(t, p, first, 0)
	if got := item(t, p, control.Tenants, "a"); got.Actor != "ann" {
		t.Errorf("an unchanged file has overwritten an operator's change: version %d by %s", got.Version, got.Actor)
	}
	apply(t, p, base+"tenants: [ { id: a, plan: p, suspended: true }, { id: b, plan: p } ]\n", 1)
	if got := item(t, p, control.Tenants, "a"); got.Actor != devcells.FileActor || got.Version != 3 ||
		!strings.Contains(got.Reason, "plans.yaml") {
		t.Errorf("after a change in the file the item is version %d by %s for %q", got.Version, got.Actor, got.Reason)
	}
	edit(t, p, "b", `{"id":"b","plan":"q"}`)
	apply(t, p, base+"tenants: [ { id: a, plan: p, suspended: true } ]\n", 1)
	if got := item(t, p, control.Tenants, "b"); !got.Deleted {
		t.Errorf("a tenant that the file no longer has still exists, at version %d", got.Version)
	}
	closed(t, p)
	p = opened(t, dir)
	apply(t, p, base+"tenants: [ { id: a, plan: p, suspended: true } ]\n", 0)
	apply(t, p, first, 2)
	closed(t, p)
}

// Guarantees that a file with an error in it changes nothing, and that the error is a *plan.Error.
func TestBadFiles(t *testing.T) {
	p := opened(t, "")
	defer closed(t, p)
	apply(t, p, base+"tenants: [ { id: a, plan: p } ]\n", 4)
	edit(t, p, "a", `{"id":"a","plan":"p","overrides":[{"id":"l","mode":"off"}]}`)
	key := fmt.Sprintf("keys: [ { id: k, tenant: a, hash: \"%s\", pepper: prod } ]\n", strings.Repeat("ab", 32))
	for name, tt := range map[string]struct{ text, want string }{
		"not a plans file": {"plans: 3\n", "plans.yaml:1:8"},
		"unknown pepper":   {base + "tenants: [ { id: a, plan: p } ]\n" + key, `pepper "prod" is not known`},
		"an operator's override does not fit": {
			strings.ReplaceAll(base, "{ id: l, tiers: [ { period: 1s, threshold: 5 } ] }",
				"{ id: m, tiers: [ { period: 1s, threshold: 5 } ] }") +
				"tenants: [ { id: a, plan: p } ]\n", `tenant "a"`},
	} {
		n, err := p.ApplyFiles(t.Context(), "plans.yaml", file(tt.text))
		var bad *plan.Error
		if n != 0 || !errors.As(err, &bad) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %d written, %v; want a *plan.Error with %q", name, n, err, tt.want)
		}
	}
	if got := item(t, p, control.Plans, "p"); got.Version != 1 {
		t.Errorf("the plan is at version %d, want 1", got.Version)
	}
}

// Guarantees that a file with more tenants than one call can write is written in full, reaches the cell, and is in the
// archive when the plane has been closed.
func TestManyTenants(t *testing.T) {
	dir := t.TempDir()
	p := opened(t, dir)
	c, err := p.AddCell(t.Context(), "local")
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	text.WriteString(base + "tenants:\n")
	const tenants = operate.MaxChanges + 100
	for i := range tenants {
		fmt.Fprintf(&text, "  - { id: t%04d, plan: p }\n", i)
	}
	apply(t, p, text.String(), tenants+3)
	if err := p.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	o := c.Overview(t.Context(), time.Now(), 10)
	if o.Total != tenants || len(o.Tenants) != 10 || o.Tenants[9].ID != "t0009" || o.Head != o.InForce ||
		o.ChangedAt.IsZero() {
		t.Errorf("the cell has %d tenants, lists %d, and enforces change %d of %d", o.Total, len(o.Tenants), o.InForce,
			o.Head)
	}
	closed(t, p)

	tables, err := embedded.Open(filepath.Join(dir, "control.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer tables.Close()
	archive := audit.NewFolder(filepath.Join(dir, "audit"))
	report, err := audit.Verify(t.Context(), audit.VerifyConfig{Archive: archive, Tables: tables})
	if err != nil || len(report.Findings) > 0 {
		t.Errorf("after Close the archive is verified with %v, %v", report, err)
	}
}

// Guarantees that only one process at a time can open a folder, and that a temporary folder is removed when its plane
// is closed.
func TestFolders(t *testing.T) {
	dir := t.TempDir()
	p := opened(t, dir)
	_, err := devcells.Open(devcells.Config{Store: anyStore(t), Folder: dir,
		Peppers: map[string][]byte{"dev": identity.DevPepper()}, NewKeys: "dev"})
	if !errors.Is(err, devcells.ErrInUse) {
		t.Errorf("a second plane on a folder: %v, want %v", err, devcells.ErrInUse)
	}
	closed(t, p)
	p = opened(t, "")
	temporary := p.Folder()
	closed(t, p)
	if left, _ := filepath.Glob(temporary); len(left) > 0 {
		t.Errorf("the temporary folder %s still exists after Close", temporary)
	}
	if _, err := devcells.Open(devcells.Config{Store: anyStore(t),
		Peppers: map[string][]byte{"dev": identity.DevPepper()}, NewKeys: "prod"}); err == nil {
		t.Error("a new key with a pepper that does not exist gives no error")
	}
}

// Guarantees that a data folder is refused if another user may have written the tables, the archive or the endpoint, or
// can read the tables or the archive; and that nothing is written to such a folder.
func TestFoldersOfOthers(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("permissions are in access control lists there")
	}
	own := func(name string) error { // only root can give a file away
		if os.Geteuid() != 0 {
			return os.Chmod(name, 0o777)
		}
		return os.Chown(name, 12345, -1)
	}
	mode := func(m fs.FileMode) func(string) error { return func(name string) error { return os.Chmod(name, m) } }
	for name, c := range map[string]struct {
		of     string
		change func(string) error
	}{
		"a folder of another user":        {".", own},
		"a folder that a group may write": {".", mode(0o770)},
		"a folder that all may write":     {".", mode(0o777)},
		"tables of another user":          {"control.db", own},
		"tables that others may write":    {"control.db", mode(0o602)},
		"tables that others may read":     {"control.db", mode(0o640)},
		"an archive of another user":      {"audit", own},
		"an archive that others may read": {"audit", mode(0o755)},
	} {
		dir := t.TempDir()
		closed(t, opened(t, dir))
		if err := os.MkdirAll(filepath.Join(dir, "audit"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := c.change(filepath.Join(dir, c.of)); err != nil {
			t.Fatal(err)
		}
		p, err := devcells.Open(devcells.Config{Store: anyStore(t), Folder: dir, NewKeys: identity.DevPepperID,
			Peppers: map[string][]byte{identity.DevPepperID: identity.DevPepper()}})
		if err == nil {
			closed(t, p)
			t.Errorf("%s is used, want it refused", name)
		} else if !strings.Contains(err.Error(), filepath.Join(dir, c.of)+": ") {
			t.Errorf("%s: the error does not name it: %v", name, err)
		}
	}
}

// Guarantees that no cell of several ever grants the whole of a limit: a cell gets a limit after its share
// of it, and a cell that joins has no share until the balancer gives it one. After a restart the cells are the same.
func TestSharesComeFirst(t *testing.T) {
	dir := t.TempDir()
	p := opened(t, dir, "b", "a")
	apply(t, p, strings.ReplaceAll(base, "threshold: 5", "threshold: 50")+"tenants: [ { id: t, plan: p } ]\n", 4)
	if err := p.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	late, err := p.AddCell(t.Context(), "late")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	got, err := late.Tenant(t.Context(), "t", now)
	if err != nil || got == nil {
		t.Fatal(got, err)
	}
	for _, e := range got.Limits(now).Limits {
		if s := e.Share(); s == nil || s.Limit != nil {
			t.Errorf("a cell that nobody added may grant %+v of %s, want nothing", s, e.Limit.ID)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	seen := make(chan []string, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Balance(ctx, func(names []string) {
			select {
			case seen <- names:
			default:
			}
		})
	}()
	if names := <-seen; len(names) != 2 || names[0] != "a" {
		t.Errorf("the configured cells are %q, want a and b", names)
	}
	cancel()
	<-done
	closed(t, p)
	p = opened(t, dir, "x", "y", "z")
	defer closed(t, p)
	if names, err := p.Join(t.Context(), nil); err != nil || len(names) != 2 || names[1] != "b" {
		t.Errorf("after a restart the cells are %q, %v; want a and b", names, err)
	}
}
