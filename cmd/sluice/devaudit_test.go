package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/control"
)

// While a dev has the tables open, what is archived can be shown. The trail is verified when the dev has ended, and an
// error says so before.
func TestDevAudit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := startDev(t, "--data", dir)
	operateOn(t, r.base, "tenant", "set", "globex", "--override", "{ id: burst, burst: 9 }", "--reason", "a test")
	waitUntil(t, "the change is archived", func() bool {
		_, err := os.Stat(filepath.Join(dir, dataArchive, filepath.FromSlash(control.ObjectName(control.Tenants,
			"globex", 2))))
		return err == nil
	})
	if v := sluice(t, "", "audit", "show", "tenants/globex", "--version", "2", "--data", dir); v.code != 0 ||
		!strings.Contains(v.stdout, "because: a test") {
		t.Errorf("audit show while the dev runs: exit status %d: %s%s", v.code, v.stdout, v.stderr)
	}
	if v := sluice(t, "", "audit", "verify", "--data", dir); v.code != exitFailed ||
		!strings.Contains(v.stderr, "end the 'sluice dev' that runs") {
		t.Errorf("audit verify while the dev runs: exit status %d: %s%s", v.code, v.stdout, v.stderr)
	}
	if err := r.finish(t); err != nil {
		t.Fatal(err)
	}
	if v := sluice(t, "", "audit", "verify", "--data", dir); v.code != 0 || !strings.HasSuffix(v.stdout,
		"\nOK: the audit trail has no breaks.\n") {
		t.Errorf("audit verify when the dev has ended: exit status %d: %s%s", v.code, v.stdout, v.stderr)
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
