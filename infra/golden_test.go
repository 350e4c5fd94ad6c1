package infra_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

var assets = regexp.MustCompile(`[0-9a-f]{64}`)

// Guarantees that every change of what is deployed shows as a diff of a golden file. The hashes of assets are masked,
// because they change with each build of the functions.
func TestTemplates(t *testing.T) {
	all := made()
	if all.err != nil {
		t.Fatal(all.err)
	}
	files := map[string]string{"sluice-control": "control.template.json",
		"sluice-cell-a-1": "cell-small.template.json", "sluice-cell-us-1": "cell-small-afar.template.json"}
	if want := slices.Sorted(maps.Keys(files)); !slices.Equal(slices.Sorted(maps.Keys(all.raw)), want) {
		t.Fatalf("there are templates of %v, want %v", slices.Sorted(maps.Keys(all.raw)), want)
	}
	for name, file := range files {
		golden(t, file, all.raw[name])
	}
}

func golden(t *testing.T, file string, raw []byte) {
	t.Helper()
	var b bytes.Buffer
	if err := json.Indent(&b, assets.ReplaceAll(raw, []byte("<asset>")), "", " "); err != nil {
		t.Fatal(err)
	}
	b.WriteByte('\n')
	path := filepath.Join("testdata", file)
	if *update {
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want, err := os.ReadFile(path); err != nil || !bytes.Equal(b.Bytes(), want) {
		t.Errorf("%s differs from the template that is made now (%v): run make golden, and read the diff", path, err)
	}
}
