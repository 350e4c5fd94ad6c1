package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Guarantees that check reads files for sluice serve --config as that command does, with the same errors and warnings.
func TestCheckLimitsFiles(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := file("good.yaml", "domain: api\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]\n")
	if got := sluice(t, "", "check", good); got.code != 0 || !strings.Contains(got.stdout, "1 limit, domains api") {
		t.Errorf("exit %d, %s%s", got.code, got.stdout, got.stderr)
	}
	bad := file("bad.yaml", "domain: web\ndescriptors:\n- {key: a, value: 1.0}\n")
	if got := sluice(t, "", "check", bad); got.code != exitFailed ||
		!strings.Contains(got.stderr, "bad.yaml: error checking config, line 3: value is 1.0") {
		t.Errorf("exit %d, %s", got.code, got.stderr)
	}
	odd := file("odd.yaml", "domain: odd\n---\ndomain: web\n")
	for _, strict := range []bool{false, true} {
		args := []string{"check", odd}
		if strict {
			args = append(args, "--strict")
		}
		got := sluice(t, "", args...)
		if !strings.Contains(got.stderr, "odd.yaml:2: a second YAML document") || (got.code == exitFailed) != strict {
			t.Errorf("strict %t: exit %d, %s", strict, got.code, got.stderr)
		}
	}
}
