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
	"github.com/sluicelimits/sluice/internal/dev/devcells"
)

// Guarantees that the audit trail is verified while the dev runs and operators change things, against the tables that
// it has open; that one who alters or removes a record is found out then, with the place; and that it stays so once the
// dev has ended.
func TestDevAuditWhileItRuns(t *testing.T) {
	dir := t.TempDir()
	r := startDev(t, "--data", dir)
	if _, err := embedded.Open(filepath.Join(dir, dataTables)); !errors.Is(err, embedded.ErrInUse) {
		t.Fatalf("the tables can be opened (%v): nothing is tested", err)
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
		if v := verify(); v.code != 0 || !strings.Contains(v.stdout, "breaks   none") {
			t.Errorf("while operators write: %d %s%s", v.code, v.stdout, v.stderr)
		}
	}
	close(stop)
	writing.Wait()

	record := func(version int64) string {
		return filepath.Join(dir, dataArchive, filepath.FromSlash(control.ObjectName(control.Tenants, "globex",
			version)))
	}
	until(t, "the first changes are archived", func() bool { _, err := os.Stat(record(2)); return err == nil })
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
	red := func(when, kind, place string, args ...string) {
		t.Helper()
		if v := verify(args...); v.code != exitFailed || !strings.Contains(v.stdout, kind) ||
			!strings.Contains(v.stdout, place) {
			t.Errorf("%s: %d, want %q at %q: %s%s", when, v.code, kind, place, v.stdout, v.stderr)
		}
	}
	red("altered while it runs", "altered", "tenants/globex version 2")
	put(text)
	if v := verify(); v.code != 0 {
		t.Errorf("as it was: %d %s%s", v.code, v.stdout, v.stderr)
	}
	// The newest record goes, which only the live table can tell.
	operateOn(t, r.base, "tenant", "set", "last", "--create", "--plan", "free", "--reason", "a test")
	last := filepath.Join(dir, dataArchive, filepath.FromSlash(control.ObjectName(control.Tenants, "last", 1)))
	until(t, "the last change is archived", func() bool { _, err := os.Stat(last); return err == nil })
	if err := os.Remove(last); err != nil {
		t.Fatal(err)
	}
	red("removed while it runs", "missing tail", "tenants/last version 1", "--grace", "0s")
	if v := sluice(t, "", "audit", "verify", "--archive", filepath.Join(dir, dataArchive), "--db",
		filepath.Join(dir, dataTables), "--grace", "0s"); v.code != exitFailed ||
		!strings.Contains(v.stdout, "tenants/last version 1") {
		t.Errorf("by the names of archive and tables: %d %s%s", v.code, v.stdout, v.stderr)
	}
	if v := sluice(t, "", "audit", "show", "tenants/globex", "--version", "2", "--data", dir); v.code != 0 ||
		!strings.Contains(v.stdout, "because: a test") {
		t.Errorf("audit show while it runs: %d %s%s", v.code, v.stdout, v.stderr)
	}
	if err := r.finish(t); err != nil {
		t.Fatal(err)
	}
	red("removed, and it has ended", "missing tail", "tenants/last version 1", "--grace", "0s")
	if _, err := devcells.FindEndpoint(dir); !errors.Is(err, devcells.ErrNoEndpoint) {
		t.Errorf("a dev that has ended says that it answers: %v", err)
	}
}

// Guarantees that tables which are in use, by one who answers nobody or by one who is not there any more, are an error
// that says so.
func TestAuditOfTablesInUse(t *testing.T) {
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
			t.Errorf("endpoint %q: %d %s, want an error with %q", file, v.code, v.stderr, want)
		}
		if err := os.RemoveAll(filepath.Join(dir, "endpoint.json")); err != nil {
			t.Fatal(err)
		}
	}
}

// Guarantees that the folder which is audited cannot have the token of the user's dev sent to an address of its choice:
// neither by naming the file of the token, nor by leaving the token to be found.
func TestAuditSendsNoTokenElsewhere(t *testing.T) {
	folder, dir := stateOfItsOwn(t), trail(t)
	startDev(t)
	// in use, so that the folder's own process is to be asked
	tables, err := embedded.Open(filepath.Join(dir, dataTables))
	if err != nil {
		t.Fatal(err)
	}
	defer tables.Close()
	var mu sync.Mutex
	var heard []string
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		heard = append(heard, r.Header.Get("Authorization"))
	}))
	defer thief.Close()
	for file, token := range tokensIn(t, folder) {
		for _, of := range []devcells.Endpoint{
			{URL: thief.URL + adminPath, Of: "x", TokenFile: file}, {URL: thief.URL + adminPath, Of: "x"},
			{URL: "http://192.0.2.1" + adminPath, Of: "x", TokenFile: file},
		} {
			text, err := json.Marshal(of)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "endpoint.json"), text, 0o600); err != nil {
				t.Fatal(err)
			}
			v := sluice(t, "", "audit", "verify", "--data", dir)
			if v.code != exitFailed || strings.Contains(v.stdout+v.stderr, token) {
				t.Errorf("%s: %d %s%s", text, v.code, v.stdout, v.stderr)
			}
			named := of.TokenFile != "" && strings.Contains(of.URL, "127.0.0.1")
			if named && !strings.Contains(v.stderr, "the token is not sent to ") {
				t.Errorf("%s: %s", text, v.stderr)
			}
		}
	}
	if text := strings.Join(heard, " "); strings.Contains(text, "sldev") {
		t.Errorf("somebody else heard %q", heard)
	}
}

// Guarantees that without the live page operators are answered on this machine as with it, and nobody else is.
func TestDevWithoutLivePage(t *testing.T) {
	r := startDev(t, "--live-page", "off", "--cells", "1")
	operateOn(t, r.base, "tenant", "set", "globex", "--override", "{ id: burst, burst: 9 }", "--reason", "a test")
	for _, page := range []string{"", "data.json", "page.js", "metrics"} {
		if code, _, body := get(t, r.base+"/_sluice/"+page, ""); code != http.StatusNotFound {
			t.Errorf("/_sluice/%s: %d %s", page, code, body)
		}
	}
	if code, _, _ := get(t, r.base+"/_sluice/healthz", ""); code != http.StatusOK {
		t.Errorf("healthz: %d", code)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.base+"/_sluice/admin/cells/list",
		strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Forwarded-For", "203.0.113.7") // by a proxy on this machine, for somebody else
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusForbidden {
		t.Errorf("an operator's call for somebody else: %d", res.StatusCode)
	}
	if strings.Contains(r.stdout.String(), "live page") {
		t.Errorf("a page is told of that there is not:\n%s", r.stdout)
	}
	if err := r.finish(t); err != nil {
		t.Error(err)
	}
}
