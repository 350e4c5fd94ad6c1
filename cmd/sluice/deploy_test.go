//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// asSluice is a command `sluice` that is this binary.
const asSluice = `#!/usr/bin/env bash
args=$(printf '%s\n' "$@")
exec env ` + argsEnv + `="$args" "$TEST_BINARY"
`

// Guarantees that the operator's commands on the page about deployment work, in their order: on a control plane that is
// here, since the page's own needs an account. Those of aws and cdk are left out, as the page says.
func TestDeployPage(t *testing.T) {
	text, err := os.ReadFile("../../docs/deploy.md")
	if err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	for i, block := range strings.Split(string(text), "```sh\n") {
		block, _, _ = strings.Cut(block, "```")
		if i > 0 && strings.Contains(block, "sluice ") && !strings.Contains(block, "aws ") {
			script.WriteString(block + "\n")
		}
	}
	commands := script.String()
	for _, want := range []string{"sluice cell add ", "sluice plan apply ", "sluice config status",
		"sluice key create "} {
		if !strings.Contains(commands, want) {
			t.Errorf("the page does not have %s", want)
		}
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"sluice": asSluice,
		"plans.yaml": "plans: [ { id: pro, limits: [ { id: burst, algorithm: token_bucket, rate: 5, period: 1s, " +
			"burst: 3 } ] } ]\ntenants: [ { id: acme, plan: pro } ]\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	none := plansFile(t, "{}\n") // without the example plan, which the page's first plans would weaken
	r := startDev(t, "--data", filepath.Join(dir, "data"), "--cells", "first", "--plans", none)
	here := regexp.MustCompile(`(?m)^(\s*export SLUICE_ENDPOINT)=.*$`)
	if n := len(here.FindAllString(commands, -1)); n != 1 {
		t.Fatalf("the page says %d times where the control plane is, want once", n)
	}
	run := exec.Command("bash", "-euo", "pipefail")
	run.Dir, run.Stdin = dir, strings.NewReader(here.ReplaceAllString(commands, "$1="+r.base+"/_sluice/admin"))
	run.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "TEST_BINARY="+os.Args[0])
	out, err := run.CombinedOutput()
	if err != nil {
		t.Fatalf("the page's commands: %v\n%s", err, out)
	}
	key := regexp.MustCompile(`(?m)^slk_\w+$`).Find(out)
	if key == nil {
		t.Fatalf("no key is told\n%s", out)
	}
	if status, _, body := get(t, r.base+"/product/1", string(key)); status != 200 {
		t.Errorf("with the key the answer is %d: %s", status, body)
	}
	if status, _, _ := get(t, r.base+"/product/1", ""); status != 401 {
		t.Errorf("without a key the answer is %d, want 401", status)
	}
	if err := r.finish(t); err != nil {
		t.Error(err)
	}
}
