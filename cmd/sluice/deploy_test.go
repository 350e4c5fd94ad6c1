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

// asSluice is a script for PATH: the command `sluice` that runs this test binary.
const asSluice = `#!/usr/bin/env bash
args=$(printf '%s\n' "$@")
exec env ` + argsEnv + `="$args" "$TEST_BINARY"
`

// Guarantees that the operator's commands on the page about deployment work in their order. They run on a local control
// plane, since the page's own needs an AWS account. The commands of aws and cdk are left out, as the page says.
func TestDeployPage(t *testing.T) {
	t.Parallel()
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
	for _, want := range []string{"sluice cell add ", "sluice plan apply ", "sluice cell status",
		"sluice key create ", "sluice cell remove "} {
		if !strings.Contains(commands, want) {
			t.Errorf("the page does not contain %s", want)
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
	none := plansFile(t, "{}\n") // without the example plan, because the page's first plans would weaken it
	r := startDev(t, "--data", filepath.Join(dir, "data"), "--cells", "first,us-1", "--plans", none)
	here := regexp.MustCompile(`(?m)^(\s*export SLUICE_ENDPOINT)=.*$`)
	if n := len(here.FindAllString(commands, -1)); n != 1 {
		t.Fatalf("the page names the control plane %d times, want once", n)
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
		t.Fatalf("no key is printed\n%s", out)
	}
	waitUntil(t, "the new key has reached the cell", func() bool {
		status, _, _ := get(t, r.base+"/product/1", string(key))
		return status == 200
	})
	if status, _, _ := get(t, r.base+"/product/1", ""); status != 401 {
		t.Errorf("without a key the answer is %d, want 401", status)
	}
	if err := r.finish(t); err != nil {
		t.Error(err)
	}
}
