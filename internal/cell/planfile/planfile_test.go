package planfile_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/planfile"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/testkit/logtest"
)

const onePlan = "plans:\n  - id: free\n    limits:\n      - { id: burst, algorithm: token_bucket, rate: 1, period: " +
	"1s, burst: 5 }\n"

// watched are plans that watch a file, and the signal that reloads them.
type watched struct {
	*planfile.Plans
	file   string
	signal chan os.Signal
	logs   *logtest.Buffer
}

func watch(t *testing.T, file string) *watched {
	t.Helper()
	l := new(logtest.Buffer)
	p, err := planfile.Open(planfile.Config{Files: []string{file}, Log: slog.New(slog.NewTextHandler(l, nil)),
		Peppers: map[string][]byte{"dev": identity.DevPepper()}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w := &watched{p, file, make(chan os.Signal), l}
	done := make(chan struct{})
	go func() { defer close(done); p.Watch(ctx, w.signal) }()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return w
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func newFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "plans.yaml")
	write(t, file, onePlan)
	return file
}

// eventually polls until the condition holds, since nothing else signals that a change was seen.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(10 * time.Second); !holds(); {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

func (w *watched) plans() int { return len(w.Current().Config.Plans()) }

func twoPlans(id string) string {
	return onePlan + strings.Replace(onePlan[len("plans:\n"):], "free", id, 1)
}

// Guarantees that an edit takes effect at run time, that a file with errors changes nothing and is reported with the
// place, and that a later valid file is loaded.
func TestHotReload(t *testing.T) {
	w := watch(t, newFile(t))
	write(t, w.file, twoPlans("pro"))
	eventually(t, "two plans in force", func() bool { return w.plans() == 2 })

	write(t, w.file, twoPlans("pro")+"      - { id: burst, rat: 1 }\n")
	eventually(t, "the bad file reported", func() bool { _, err := w.Status(); return err != nil })
	if w.plans() != 2 {
		t.Errorf("%d plans after a bad file, want the 2 of the last good one", w.plans())
	}
	if _, err := w.Status(); !strings.Contains(err.Error(), "plans.yaml:8:") {
		t.Errorf("status = %v, want the file and line 8", err)
	}
	if text := w.logs.String(); !strings.Contains(text, "plans.yaml:8:") || !strings.Contains(text, "last valid") {
		t.Errorf("the log does not name the file and line, or that the last valid plans stay in use: %s", text)
	}

	write(t, w.file, onePlan)
	eventually(t, "the good file in force", func() bool { _, err := w.Status(); return err == nil && w.plans() == 1 })
}

// Guarantees that a key with an unknown pepper is an error of the file, and not a key that never works.
func TestReloadRefusesUnknownPepper(t *testing.T) {
	w := watch(t, newFile(t))
	write(t, w.file, onePlan+"tenants: [ { id: acme, plan: free } ]\nkeys: [ { id: k, tenant: acme, hash: "+
		identity.HashKey(identity.DevPepper(), "k")+", pepper: prod } ]\n")
	eventually(t, "the unknown pepper reported", func() bool {
		_, err := w.Status()
		return err != nil && strings.Contains(err.Error(), `pepper "prod" is unknown`)
	})
}

// Guarantees that files that are replaced by renaming, as editors do, and by changing a link, as mounted volumes do,
// are noticed.
func TestReloadSeesRenamesAndLinks(t *testing.T) {
	dir := t.TempDir()
	for _, v := range []string{"v1", "v2"} {
		if err := os.Mkdir(filepath.Join(dir, v), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(dir, "v1", "plans.yaml"), onePlan)
	write(t, filepath.Join(dir, "v2", "plans.yaml"), twoPlans("pro"))
	link := filepath.Join(dir, "plans.yaml")
	if err := os.Symlink(filepath.Join("v1", "plans.yaml"), link); err != nil {
		t.Skip(err)
	}
	w := watch(t, link)
	if err := os.Symlink(filepath.Join("v2", "plans.yaml"), link+".new"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(link+".new", link); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the link's new target in force", func() bool { return w.plans() == 2 })
	write(t, filepath.Join(dir, "v2", "other"), onePlan)
	if err := os.Rename(filepath.Join(dir, "v2", "other"), filepath.Join(dir, "v2", "plans.yaml")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the renamed file in force", func() bool { return w.plans() == 1 })
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the missing file reported", func() bool { _, err := w.Status(); return err != nil })
	if w.plans() != 1 {
		t.Errorf("%d plans without a file, want the last good 1", w.plans())
	}
}

// Guarantees that a file which changes right after it was read through a turned link is read again.
func TestChangeRightAfterReloadIsSeen(t *testing.T) {
	dir := t.TempDir()
	for _, v := range []string{"v1", "v2"} {
		if err := os.Mkdir(filepath.Join(dir, v), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(dir, "v1", "plans.yaml"), onePlan)
	write(t, filepath.Join(dir, "v2", "plans.yaml"), twoPlans("pro"))
	write(t, filepath.Join(dir, "v2", "other"), onePlan)
	link := filepath.Join(dir, "plans.yaml")
	if err := os.Symlink(filepath.Join("v1", "plans.yaml"), link); err != nil {
		t.Skip(err)
	}
	applied := 0 // read only after Watch has ended, or by Apply itself
	p, err := planfile.Open(planfile.Config{Files: []string{link}, Log: slog.New(slog.DiscardHandler),
		Apply: func([]plan.Source) error {
			if applied++; applied == 2 {
				return os.Rename(filepath.Join(dir, "v2", "other"), filepath.Join(dir, "v2", "plans.yaml"))
			}
			return nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	first, _ := p.Status()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); p.Watch(ctx, nil) }()
	if err := os.Symlink(filepath.Join("v2", "plans.yaml"), link+".new"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(link+".new", link); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the renamed file in force", func() bool {
		at, err := p.Status()
		return err == nil && at != first && len(p.Current().Config.Plans()) == 1
	})
	cancel()
	if <-done; applied != 3 {
		t.Errorf("%d configurations were applied, want 3", applied)
	}
}

func TestReloadOnSignal(t *testing.T) {
	w := watch(t, newFile(t))
	before, _ := w.Status()
	w.signal <- syscall.SIGHUP
	eventually(t, "a reload", func() bool { at, _ := w.Status(); return at.After(before) })
}

// Guarantees that a configuration that Apply refuses does not replace the one in force, and is reported; and that
// Apply gets the sources that were read.
func TestApplyMayRefuse(t *testing.T) {
	file := newFile(t)
	var applied [][]plan.Source
	refuse := error(nil)
	p, err := planfile.Open(planfile.Config{Files: []string{file}, Log: slog.New(slog.DiscardHandler),
		Apply: func(sources []plan.Source) error {
			applied = append(applied, sources)
			return refuse
		}})
	if err != nil || len(applied) != 1 || len(applied[0]) != 1 || applied[0][0].Name != file ||
		string(applied[0][0].Data) != onePlan {
		t.Fatalf("applied %v, error %v; want the sources of the file, and no error", applied, err)
	}
	refuse = errors.New("not today")
	write(t, file, twoPlans("pro"))
	if err := p.Reload(); !errors.Is(err, refuse) || len(p.Current().Config.Plans()) != 1 {
		t.Errorf("a refused file gives %v, and %d plans are in force, want 1", err, len(p.Current().Config.Plans()))
	}
	if _, err := p.Status(); !errors.Is(err, refuse) {
		t.Errorf("status = %v, want why it was refused", err)
	}
	write(t, file, "plans: 3\n")
	if err := p.Reload(); err == nil || len(applied) != 2 {
		t.Errorf("a bad file: %v, and %d were to be applied, want 2", err, len(applied))
	}
}
