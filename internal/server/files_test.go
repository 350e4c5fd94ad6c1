package server_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/server"
	"github.com/sluicelimits/sluice/internal/server/envoyconfig"
)

// watched is a folder of configuration files, with the configuration in force.
type watched struct {
	*server.Files
	dir     string
	log     bytes.Buffer
	current string // the dump of the configuration in force
	failed  int
}

func watch(t *testing.T, files map[string]string) (*watched, error) {
	t.Helper()
	w := &watched{dir: t.TempDir()}
	for name, text := range files {
		write(t, filepath.Join(w.dir, name), []byte(text))
	}
	var err error
	w.Files, err = server.OpenFiles(server.FilesConfig{
		Paths: []string{w.dir}, Log: slog.New(slog.NewTextHandler(&w.log, nil)),
		Apply: func(c *envoyconfig.Config) { w.current = c.Dump() }, Failed: func(error) { w.failed++ },
	})
	return w, err
}

func domain(name, n string) string {
	return "domain: " + name + "\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: " + n + "}}]\n"
}

func (w *watched) check(t *testing.T, want ...string) {
	t.Helper()
	for range 2 { // a change is read by the second check that finds it
		_ = w.Check() // errors are counted in w.failed
	}
	if got := strings.Count(w.current, "\n"); got != len(want) {
		t.Errorf("%d limits in force, want %d:\n%s", got, len(want), w.current)
	}
	for _, text := range want {
		if !strings.Contains(w.current, text) {
			t.Errorf("%q is not in force:\n%s", text, w.current)
		}
	}
}

// Guarantees that the files of a folder are read together, that changed, new and removed files are noticed, and that
// one invalid file leaves the whole previous configuration in force until it is corrected.
func TestFiles(t *testing.T) {
	w, err := watch(t, map[string]string{"a.yaml": domain("a", "1"), "b.yml": domain("b", "2"), ".hidden.yaml": "no",
		".hidden/c.yaml": "no"})
	if err != nil {
		t.Fatal(err)
	}
	w.check(t, "a.k: unit=DAY requests_per_unit=1,", "b.k: unit=DAY requests_per_unit=2,")
	write(t, filepath.Join(w.dir, "b.yml"), []byte(domain("b", "33")))
	w.check(t, "requests_per_unit=1,", "requests_per_unit=33,")
	write(t, filepath.Join(w.dir, "c.yaml"), []byte(domain("c", "4")))
	w.check(t, "requests_per_unit=1,", "requests_per_unit=33,", "requests_per_unit=4,")

	write(t, filepath.Join(w.dir, "a.yaml"), []byte(domain("a", "one")))
	write(t, filepath.Join(w.dir, "c.yaml"), []byte(domain("c", "55")))
	for range 3 { // the error is reported once
		w.check(t, "requests_per_unit=1,", "requests_per_unit=33,", "requests_per_unit=4,")
	}
	if w.failed != 1 || !strings.Contains(w.log.String(), "a.yaml: error loading config file") {
		t.Errorf("%d failures, log\n%s", w.failed, w.log.String())
	}
	write(t, filepath.Join(w.dir, "a.yaml"), []byte(domain("a", "10")))
	w.check(t, "requests_per_unit=10,", "requests_per_unit=33,", "requests_per_unit=55,")
	for _, name := range []string{"b.yml", "c.yaml"} {
		if err := os.Remove(filepath.Join(w.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	w.check(t, "requests_per_unit=10,")
	// Every file counts, whatever its extension and its folder, as in envoyproxy/ratelimit.
	others := []string{"d", "e.conf", "f.json", "below/g.yaml", "below/further/h.txt"}
	for i, name := range others {
		write(t, filepath.Join(w.dir, name), []byte(domain(fmt.Sprint("other", i), fmt.Sprint(100+i))))
	}
	w.check(t, "=10,", "other0.k: unit=DAY requests_per_unit=100,", "=101,", "=102,", "=103,", "=104,")
	for _, name := range others {
		if err := os.Remove(filepath.Join(w.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	w.check(t, "requests_per_unit=10,")
	if err := os.Remove(filepath.Join(w.dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	w.check(t, "requests_per_unit=10,")
	if w.failed != 2 {
		t.Errorf("an empty folder: %d failures", w.failed)
	}
}

// Guarantees that a file which is still being written is not read, although what stands in it so far is valid: the
// limits that are still to come would be missing until the next reading.
func TestFilesThatAreBeingWritten(t *testing.T) {
	w, err := watch(t, map[string]string{"a.yaml": domain("a", "1")})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(w.dir, "a.yaml"), []byte("domain: a\n"))
	_ = w.Check()
	if w.current == "" {
		t.Error("the first part of a file is in force")
	}
	write(t, filepath.Join(w.dir, "a.yaml"), []byte(domain("a", "2")))
	w.check(t, "requests_per_unit=2,")
}

// Guarantees that OpenFiles fails with an error that names the file if nothing can be read, or a file is invalid.
func TestFilesErrors(t *testing.T) {
	if _, err := watch(t, nil); err == nil || !strings.Contains(err.Error(), "no file in") {
		t.Errorf("an empty folder: %v", err)
	}
	if _, err := watch(t, map[string]string{"a.yaml": "domain: ''"}); err == nil || !strings.Contains(err.Error(),
		"a.yaml: config file cannot have empty domain") {
		t.Errorf("a bad file: %v", err)
	}
	if _, err := server.OpenFiles(server.FilesConfig{Paths: []string{"/nowhere/a.yaml"}}); err == nil ||
		!strings.Contains(err.Error(), "/nowhere/a.yaml") {
		t.Errorf("a missing file: %v", err)
	}
}

// Guarantees that Watch checks the files at every tick, and reloads at once after a signal.
func TestWatch(t *testing.T) {
	w, err := watch(t, map[string]string{"a.yaml": domain("a", "1")})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		now := make(chan os.Signal)
		go w.Watch(ctx, time.Second, now)
		write(t, filepath.Join(w.dir, "a.yaml"), []byte(domain("a", "22")))
		ticks, end := time.NewTicker(2500*time.Millisecond), time.NewTimer(time.Hour)
		<-ticks.C
		synctest.Wait()
		if !strings.Contains(w.current, "requests_per_unit=22,") {
			t.Errorf("after two ticks: %s", w.current)
		}
		write(t, filepath.Join(w.dir, "a.yaml"), []byte(domain("a", "333")))
		now <- os.Interrupt
		synctest.Wait()
		if !strings.Contains(w.current, "requests_per_unit=333,") {
			t.Errorf("after a signal: %s", w.current)
		}
		ticks.Stop()
		end.Stop()
		stop()
	})
}
