//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// secretsManager is a stand-in for the command `aws`, with one secret in a file.
const secretsManager = `#!/usr/bin/env bash
set -euo pipefail
[[ "$1 $3 $4" == "secretsmanager --secret-id sluice-identity" ]]
case $2 in
get-secret-value) cat "$SECRET" ;;
put-secret-value) [[ "$5 $6" == "--secret-string file:///dev/stdin" ]] && cat >"$SECRET.new" &&
  [[ -s "$SECRET.new" ]] && mv "$SECRET.new" "$SECRET" ;;
*) exit 2 ;;
esac
`

// Guarantees that the commands on the page about deployment add a pepper, once, and that a second run changes nothing.
func TestPage(t *testing.T) {
	scripts := scriptsOf(t, "../../docs/deploy.md")
	if len(scripts) != 1 {
		t.Fatalf("the page has %d commands that add a pepper, want 1", len(scripts))
	}
	run, read := deployed(t, `{"addressKey":"`+addressKey+`"}`)
	if out, err := run(scripts[0]); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	after := read()
	var got stored
	err := json.Unmarshal(after, &got)
	if same := got.AddressKey == addressKey; err != nil || !same || len(got.Peppers["p1"]) != randomBytes {
		t.Errorf("the secret has %d peppers, and the key for addresses: %v; %v", len(got.Peppers), same, err)
	}
	out, err := run(scripts[0])
	if told := string(out); err == nil || !strings.Contains(told, `has a pepper "p1"`) ||
		strings.Contains(told, addressKey) {
		t.Errorf("a second run gives %v", err)
	}
	if again := read(); string(again) != string(after) {
		t.Error("a second run changes the secret")
	}
}

// Guarantees that the commands of the runbook about a leaked pepper, in the order of the page, add another pepper and
// another key for addresses, and remove the leaked pepper.
func TestRunbook(t *testing.T) {
	scripts := scriptsOf(t, "../../docs/runbooks/leaked_pepper.md")
	run, read := deployed(t, `{"addressKey":"`+addressKey+`","peppers":{"p1":"QUFBQUFBQUFBQUFBQUFBQQ=="}}`)
	var states []string
	for _, script := range scripts {
		if out, err := run(script); err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
		var got stored
		if err := json.Unmarshal(read(), &got); err != nil {
			t.Fatal(err)
		}
		states = append(states, fmt.Sprint(slices.Sorted(maps.Keys(got.Peppers)), got.AddressKey == addressKey))
	}
	if got, want := strings.Join(states, ", "), "[p1 p2] true, [p1 p2] false, [p2] false"; got != want {
		t.Errorf("peppers, and whether the key for addresses is the old one: %s; want %s", got, want)
	}
}

// stored is the content of a secret.
type stored struct {
	AddressKey string
	Peppers    map[string][]byte
}

// scriptsOf returns the shell blocks of a page that change the secret.
func scriptsOf(t *testing.T, page string) (scripts []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for i, block := range strings.Split(string(text), "```sh\n") {
		block, _, _ = strings.Cut(block, "```")
		if i > 0 && strings.Contains(block, "./pepper") {
			scripts = append(scripts, block)
		}
	}
	return scripts
}

// deployed makes an account with a secret. run runs a script there, and read returns the secret.
func deployed(t *testing.T, text string) (run func(script string) ([]byte, error), read func() []byte) {
	t.Helper()
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	for name, text := range map[string]string{"aws": secretsManager, "secret": text} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	run = func(script string) ([]byte, error) {
		cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script)
		cmd.Dir = "../.."
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "SECRET="+secret)
		return cmd.CombinedOutput()
	}
	return run, func() []byte {
		t.Helper()
		after, err := os.ReadFile(secret)
		if err != nil {
			t.Fatal(err)
		}
		return after
	}
}
