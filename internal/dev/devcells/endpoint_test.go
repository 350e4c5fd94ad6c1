package devcells_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/dev/devcells"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// Guarantees that the endpoint of the process that has a folder open can be found from the time it is published until
// the process ends, under a new name for each process. The endpoint of an earlier process that was killed is not found.
// A file that is not an endpoint is an error that names the file.
func TestEndpoint(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "endpoint.json")
	if err := os.WriteFile(file, []byte(`{"url":"http://127.0.0.1:1","of":"one that was killed"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for range 2 {
		p, err := devcells.Open(devcells.Config{Folder: dir,
			Peppers: map[string][]byte{identity.DevPepperID: identity.DevPepper()}, NewKeys: identity.DevPepperID})
		if err != nil {
			t.Fatal(err)
		}
		if e, err := devcells.FindEndpoint(dir); !errors.Is(err, devcells.ErrNoEndpoint) {
			t.Errorf("before the endpoint is published: %+v, %v", e, err)
		}
		if err := p.AnswersAt("http://127.0.0.1:8080/x", "/run/token"); err != nil {
			t.Fatal(err)
		}
		e, err := devcells.FindEndpoint(dir)
		if err != nil || e.URL != "http://127.0.0.1:8080/x" || e.TokenFile != "/run/token" || e.Of == "" ||
			names[e.Of] {
			t.Errorf("the endpoint is %+v, %v; earlier names are %v", e, err, names)
		}
		names[e.Of] = true
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if e, err := devcells.FindEndpoint(dir); !errors.Is(err, devcells.ErrNoEndpoint) {
			t.Errorf("after the end of the process: %+v, %v", e, err)
		}
	}
	for _, text := range []string{"", "{}", `{"url":"x"}`, `{"url":1}`, "[]"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if e, err := devcells.FindEndpoint(dir); err == nil || errors.Is(err, devcells.ErrNoEndpoint) ||
			!strings.Contains(err.Error(), file) {
			t.Errorf("a file with %q is read as %+v, %v", text, e, err)
		}
	}
}
