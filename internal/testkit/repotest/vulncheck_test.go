//go:build unix

package repotest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// fakeGovulncheck answers as govulncheck 1.9.0 does, by the case that FAKE names.
const fakeGovulncheck = `#!/usr/bin/env bash
if [[ $1 == -db ]]; then
  echo "by $2" >&2
  shift 2
fi
if [[ $1 == -version ]]; then
  [[ $FAKE != broken ]] || { echo 'govulncheck: creating client: stat /none: no such file or directory' >&2; exit 1; }
  [[ $FAKE != other ]] || { echo 'Usage: govulncheck'; exit 0; }
  printf 'Go: go1.26.8\nScanner: govulncheck@v1.9.0\nDB: https://example.com\n'
  [[ $FAKE == away ]] || echo 'DB updated: 2026-11-20 10:00:00 +0000 UTC'
  exit 0
fi
echo "looked at ${PWD##*/}"
[[ $FAKE != found || ${PWD##*/} != infra ]] || exit 3
`

// Guarantees what make vulncheck and the table of CI say in each case. A vulnerability is a failure. A database that
// cannot be reached is not, but both say that nothing was checked. No other error is taken for that.
func TestVulncheck(t *testing.T) {
	const notice = "NOT CHECKED: the vulnerability database cannot be reached"
	r := open(t)
	for _, tt := range []struct {
		fake, require string // require is REQUIRE_VULNDB
		database      string // GOVULNDB
		passes        bool
		says          string // by the script
		table         string // in the line of the stage, at the end of CI
	}{
		{"clean", "", "", true, "looked at infra", "passed"},
		{"clean", "1", "file:///db", true, "by file:///db\nlooked at infra", "passed"},
		{"found", "", "", false, "vulncheck: failed in infra\n", "FAILED"},
		{"away", "", "", true, notice, notice},
		{"away", "1", "", false, notice, "FAILED"},
		{"broken", "", "file:///none", false, "no such file", "FAILED"},
		{"other", "", "", false, "does not name a database", "FAILED"},
	} {
		root := t.TempDir()
		for name, text := range map[string]string{
			"scripts/vulncheck":         string(r.read(t, "scripts/vulncheck")),
			"scripts/modules":           string(r.read(t, "scripts/modules")),
			".ci/run":                   string(r.read(t, ".ci/run")),
			"bin/govulncheck":           fakeGovulncheck,
			"scripts/dynamodb-local.sh": "#!/usr/bin/env bash\nexit 1\n", // which says that none runs
			"localstack/down":           "#!/usr/bin/env bash\n",
			"Makefile":                  "vulncheck:\n\t@scripts/vulncheck\n",
			"go.mod":                    "module m\n",
			"infra/go.mod":              "module m/infra\n",
		} {
			file := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		run := func(name string, args ...string) (string, bool) {
			cmd := exec.CommandContext(t.Context(), filepath.Join(root, name), args...)
			cmd.Env = append(os.Environ(), "FAKE="+tt.fake, "REQUIRE_VULNDB="+tt.require, "GOVULNDB="+tt.database,
				"NOTICES=") // not that of the CI that runs this test
			out, err := cmd.CombinedOutput()
			return string(out), err == nil
		}
		if out, ok := run("scripts/vulncheck"); ok != tt.passes || !strings.Contains(out, tt.says) {
			t.Errorf("%s, REQUIRE_VULNDB=%s: passed: %v, want %v with %q\n%s",
				tt.fake, tt.require, ok, tt.passes, tt.says, out)
		}
		out, ok := run(".ci/run", "vulncheck")
		_, table, _ := strings.Cut(out, "\nvulncheck ")
		line, _, _ := strings.Cut(table, "\n")
		if ok != tt.passes || !strings.Contains(line, tt.table) {
			t.Errorf("CI: %s, REQUIRE_VULNDB=%s: passed: %v, want %v; the table says %q, want %q\n%s",
				tt.fake, tt.require, ok, tt.passes, line, tt.table, out)
		}
	}
}
