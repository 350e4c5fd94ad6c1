package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/embedded"
	"github.com/sluicelimits/sluice/internal/dev"
	"github.com/sluicelimits/sluice/internal/dev/devcells"
)

// The audit trail can be verified while the dev runs and operators change things. The verification reads the tables
// that the dev has open. It reports an altered or removed record with its place, also after the dev has ended.
func TestDevAuditWhileItRuns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := startDev(t, "--data", dir)
	if _, err := embedded.Open(filepath.Join(dir, dataTables)); !errors.Is(err, embedded.ErrInUse) {
		t.Fatalf("the tables can be opened a second time (%v), so this tests nothing", err)
	}
	verify := func(args ...string) ran {
		t.Helper()
		return sluice(t, "", append([]string{"audit", "verify", "--data", dir}, args...)...)
	}
	stop := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() {
		for n := 1; ; n++ {
			select {
			case <-stop:
				return
			default:
				operateOn(t, r.base, "tenant", "set", "globex", "--override",
					"{ id: burst, burst: "+strconv.Itoa(n)+" }", "--reason", "a test")
			}
		}
	})
	for range 3 {
		if v := verify(); v.code != 0 || !strings.Contains(v.stdout, "breaks   none") ||
			!strings.HasSuffix(v.stdout, "\nOK: the audit trail has no breaks.\n") {
			t.Errorf("audit verify while operators write: exit status %d: %s%s", v.code, v.stdout, v.stderr)
		}
	}
	close(stop)
	writing.Wait()

	record := func(version int64) string {
		return filepath.Join(dir, dataArchive, filepath.FromSlash(control.ObjectName(control.Tenants, "globex",
			version)))
	}
	waitUntil(t, "the first changes are archived", func() bool { _, err := os.Stat(record(2)); return err == nil })
	text, err := os.ReadFile(record(2))
	if err != nil {
		t.Fatal(err)
	}
	altered := bytes.Replace(text, []byte(`"burst":1`), []byte(`"burst":8`), 1)
	if bytes.Equal(text, altered) {
		t.Fatalf("nothing to alter in %s", text)
	}
	put := func(text []byte) {
		t.Helper()
		if err := errors.Join(os.Chmod(record(2), 0o600), os.WriteFile(record(2), text, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	put(altered)
	wantBreak := func(when, kind, place string, args ...string) {
		t.Helper()
		if v := verify(args...); v.code != exitFailed || !strings.Contains(v.stdout, kind) ||
			!strings.Contains(v.stdout, place) {
			t.Errorf("audit verify %s: exit status %d, want %q at %q: %s%s", when, v.code, kind, place, v.stdout,
				v.stderr)
		}
	}
	wantBreak("altered while it runs", "altered", "tenants/globex version 2")
	put(text)
	if v := verify(); v.code != 0 {
		t.Errorf("audit verify of the restored trail: exit status %d: %s%s", v.code, v.stdout, v.stderr)
	}
	// The newest record is removed, which only the live table can show.
	operateOn(t, r.base, "tenant", "set", "last", "--create", "--plan", "free", "--reason", "a test")
	last := filepath.Join(dir, dataArchive, filepath.FromSlash(control.ObjectName(control.Tenants, "last", 1)))
	waitUntil(t, "the last change is archived", func() bool { _, err := os.Stat(last); return err == nil })
	if err := os.Remove(last); err != nil {
		t.Fatal(err)
	}
	wantBreak("removed while it runs", "missing tail", "tenants/last version 1", "--grace", "0s")
	if v := sluice(t, "", "audit", "verify", "--archive", filepath.Join(dir, dataArchive), "--db",
		filepath.Join(dir, dataTables), "--grace", "0s"); v.code != exitFailed ||
		!strings.Contains(v.stdout, "tenants/last version 1") {
		t.Errorf("audit verify with --archive and --db: exit status %d: %s%s", v.code, v.stdout, v.stderr)
	}
	if v := sluice(t, "", "audit", "show", "tenants/globex", "--version", "2", "--data", dir); v.code != 0 ||
		!strings.Contains(v.stdout, "because: a test") {
		t.Errorf("audit show while the dev runs: exit status %d: %s%s", v.code, v.stdout, v.stderr)
	}
	if err := r.finish(t); err != nil {
		t.Fatal(err)
	}
	wantBreak("removed, and it has ended", "missing tail", "tenants/last version 1", "--grace", "0s")
	if _, err := devcells.FindEndpoint(dir); !errors.Is(err, devcells.ErrNoEndpoint) {
		t.Errorf("the endpoint of an ended dev is still found: %v", err)
	}
}

// If another process has the tables open, and no process answers at the address in the folder, the error says so.
func TestAuditOfTablesInUse(t *testing.T) {
	t.Parallel()
	dir := trail(t)
	tables, err := embedded.Open(filepath.Join(dir, dataTables))
	if err != nil {
		t.Fatal(err)
	}
	defer tables.Close()
	for file, want := range map[string]string{
		"": "the folder names no process that answers operators' calls",
		`{"url":"http://127.0.0.1:1/_sluice/admin","of":"x"}`: "refused",
	} {
		if file != "" {
			if err := os.WriteFile(filepath.Join(dir, "endpoint.json"), []byte(file), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if v := sluice(t, "", "audit", "verify", "--data", dir); v.code != exitFailed ||
			!strings.Contains(v.stderr, want) {
			t.Errorf("endpoint %q: exit status %d, %s; want an error with %q", file, v.code, v.stderr, want)
		}
		if err := os.RemoveAll(filepath.Join(dir, "endpoint.json")); err != nil {
			t.Fatal(err)
		}
	}
}

// The folder that is audited names the address of its process. If that address is not the user's dev, the token of the
// dev is not sent there, neither from a file that the folder names nor from the file that commands find.
func TestAuditSendsNoTokenElsewhere(t *testing.T) {
	folder := stateOfItsOwn(t)
	startDev(t)
	var mu sync.Mutex
	var received []string
	stranger := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		received = append(received, r.Header.Get("Authorization"))
	}))
	defer stranger.Close()
	var audits sync.WaitGroup // each one waits a second for tables that are in use
	for file, token := range tokensIn(t, folder) {
		for _, of := range []devcells.Endpoint{
			{URL: stranger.URL + dev.AdminPath, Of: "x", TokenFile: file}, {URL: stranger.URL + dev.AdminPath, Of: "x"},
			{URL: "http://192.0.2.1" + dev.AdminPath, Of: "x", TokenFile: file},
		} {
			dir := trail(t)
			// so that the command asks the folder's process
			tables, err := embedded.Open(filepath.Join(dir, dataTables))
			if err != nil {
				t.Fatal(err)
			}
			defer tables.Close()
			text, err := json.Marshal(of)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "endpoint.json"), text, 0o600); err != nil {
				t.Fatal(err)
			}
			audits.Go(func() {
				v := sluice(t, "", "audit", "verify", "--data", dir)
				if v.code != exitFailed || strings.Contains(v.stdout+v.stderr, token) {
					t.Errorf("%s: %d %s%s", text, v.code, v.stdout, v.stderr)
				}
				named := of.TokenFile != "" && strings.Contains(of.URL, "127.0.0.1")
				if named && !strings.Contains(v.stderr, "the token is not sent to ") {
					t.Errorf("%s: %s", text, v.stderr)
				}
			})
		}
	}
	audits.Wait()
	if text := strings.Join(received, " "); strings.Contains(text, "sldev") {
		t.Errorf("a process at another address received the token in %q", received)
	}
}

// Guarantees that with the live page off, operators on this machine are still answered, and nobody else is.
func TestDevWithoutLivePage(t *testing.T) {
	t.Parallel()
	r := startDev(t, "--live-page", "off", "--cells", "1")
	operateOn(t, r.base, "tenant", "set", "globex", "--override", "{ id: burst, burst: 9 }", "--reason", "a test")
	for _, page := range []string{"", "data.json", "page.js", "metrics"} {
		if code, _, body := get(t, r.base+"/_sluice/"+page, ""); code != http.StatusNotFound {
			t.Errorf("/_sluice/%s: status %d, body %s", page, code, body)
		}
	}
	if code, _, _ := get(t, r.base+"/_sluice/healthz", ""); code != http.StatusOK {
		t.Errorf("healthz: status %d", code)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.base+"/_sluice/admin/cells/list",
		strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Forwarded-For", "203.0.113.7") // set by a proxy on this machine, for a client elsewhere
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusForbidden {
		t.Errorf("an operators' call through a proxy, for a client elsewhere: status %d", res.StatusCode)
	}
	if strings.Contains(r.stdout.String(), "live page") {
		t.Errorf("the output names a live page although it is off:\n%s", r.stdout)
	}
	if err := r.finish(t); err != nil {
		t.Error(err)
	}
}
