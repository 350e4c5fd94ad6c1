package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// execute runs a command and returns what it wrote.
func execute(t *testing.T, stdin string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	root := newRootCommand()
	root.SetArgs(args)
	root.SetIn(strings.NewReader(stdin))
	root.SetOut(&out)
	root.SetErr(&errs)
	err = root.ExecuteContext(t.Context())
	return out.String(), errs.String(), err
}

// Guarantees that what `key create` prints can be pasted below any plans, and that the printed key is then accepted,
// also for tenants whose names YAML would read as something else.
func TestKeyCreate(t *testing.T) {
	pepper := filepath.Join(t.TempDir(), "pepper")
	if err := os.WriteFile(pepper, []byte("a pepper of our own\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tenant := range []string{"acme", "null", "3", "a: b # c", `"quoted" 'too'`, "é\u2028😀", "- x", "<b>&"} {
		out, warning, err := execute(t, "", "key", "create", "--offline", "--tenant", tenant, "--subject", "yes",
			"--pepper", "prod="+pepper, "--expires", "2027-01-01T00:00:00Z")
		if err != nil || warning != "" {
			t.Fatalf("key create --tenant %q: %v %s", tenant, err, warning)
		}
		key, entry, _ := strings.Cut(out, "\n")
		text := "plans: [ { id: p, limits: [ { id: l, tiers: [ { period: 1s, threshold: 1 } ] } ] } ]\ntenants: [ { " +
			"id: " + quoted(tenant) + ", plan: p } ]\n" + entry
		cfg, err := plan.Parse(configyaml.Source("x.yaml", []byte(text)))
		if err != nil {
			t.Fatalf("the entry for %q is not valid: %v\n%s", tenant, err, entry)
		}
		k := cfg.Keys()[0]
		if k.Tenant != tenant || k.Subject != "yes" || k.Pepper != "prod" || k.ExpiresAt.Year() != 2027 ||
			k.Hash != identity.HashKey([]byte("a pepper of our own"), key) || identity.CheckKey(key) != nil {
			t.Errorf("key %s of %q: %+v", key, tenant, k)
		}
		if strings.Contains(entry, key) {
			t.Errorf("the entry contains the key: %s", entry)
		}
	}
}

// Guarantees the hash of a key, and that input without a key is an error.
func TestKeyHash(t *testing.T) {
	out, warning, err := execute(t, identity.ExampleKey("acme")+"\n", "key", "hash")
	if err != nil || strings.TrimSpace(out) != identity.HashKey(identity.DevPepper(), identity.ExampleKey("acme")) {
		t.Errorf("key hash = %q, %v", out, err)
	}
	if !strings.Contains(warning, "public") {
		t.Errorf("there is no warning that the built-in pepper is public: %q", warning)
	}
	for stdin, want := range map[string]string{"": "standard input is empty", "slk_typo": "malformed",
		strings.Repeat("k", 10_000): "malformed"} {
		if out, _, err := execute(t, stdin, "key", "hash"); err == nil || !strings.Contains(err.Error(), want) ||
			out != "" {
			t.Errorf("key hash of %.20q = %q, %v; want an error with %q", stdin, out, err, want)
		}
	}
}

// Guarantees that wrong flags are usage errors.
func TestKeyUsage(t *testing.T) {
	if got := sluice(t, "", "key", "create"); got.stderr != "sluice: --tenant is missing: give one such as --tenant "+
		"acme\n" {
		t.Errorf("key create: %+v", got)
	}
	for _, args := range [][]string{
		{"key", "create"},
		{"key", "create", "--tenant", strings.Repeat("t", 129)},
		{"key", "create", "--tenant", "a\nb"},
		{"key", "create", "--tenant", "\xff"},
		{"key", "create", "--tenant", "t", "--id", "not an id"},
		{"key", "create", "--tenant", "t", "--expires", "tomorrow"},
		{"key", "create", "--offline", "--tenant", "t", "--pepper", "nofile"},
		{"key", "nonsense"},
	} {
		captureStderr(t, func() {
			if got := run(args); got != exitUsage {
				t.Errorf("sluice %q exits %d, want %d", args, got, exitUsage)
			}
		})
	}
}

// Guarantees that `key create` without --offline never prints a key that no server knows, and that --offline goes with
// no flag about a server.
func TestKeyCreateNeedsReason(t *testing.T) {
	for _, endpoint := range []string{"", "https://abc.execute-api.eu-west-1.amazonaws.com/v1"} {
		t.Setenv("SLUICE_ENDPOINT", endpoint)
		for want, flags := range map[string][][]string{
			"--reason is missing": {nil, {"--json"}, {"--endpoint", "http://127.0.0.1:1"}, {"--pepper", "p=none"},
				{"--reason", ""}},
			"--offline": {{"--offline", "--reason", "x"}, {"--offline", "--json"}, {"--offline", "--sign"},
				{"--offline", "--endpoint", "http://127.0.0.1:1"},
				{"--offline", "--region", "eu-west-1"}},
		} {
			for _, f := range flags {
				got := sluice(t, "", append([]string{"key", "create", "--tenant", "acme"}, f...)...)
				if got.code != exitUsage || strings.Contains(got.stdout, "slk_") ||
					!strings.Contains(got.stderr, want) {
					t.Errorf("SLUICE_ENDPOINT=%q, %q: exit %d, stdout %q, stderr %q; want 2 and %q", endpoint, f,
						got.code, got.stdout, got.stderr, want)
				}
			}
		}
	}
}
