//go:build unix

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// secretsManager is `aws` with one secret, in a file.
const secretsManager = `#!/usr/bin/env bash
set -euo pipefail
[[ "$1 $3 $4" == "secretsmanager --secret-id sluice-identity" ]]
case $2 in
get-secret-value) cat "$SECRET" ;;
put-secret-value) [[ "$5 $6" == "--secret-string file:///dev/stdin" ]] && cat >"$SECRET.new" && [[ -s "$SECRET.new" ]] && mv "$SECRET.new" "$SECRET" ;;
*) exit 2 ;;
esac
`

// Guarantees that the commands by which the page about deployment puts a pepper in do that, once, and that a second run changes nothing.
func TestPage(t *testing.T) {
	text, err := os.ReadFile("../../docs/deploy.md")
	if err != nil {
		t.Fatal(err)
	}
	var script string
	for i, block := range strings.Split(string(text), "```sh\n") {
		block, _, _ = strings.Cut(block, "```")
		if i > 0 && strings.Contains(block, "./pepper") {
			script += block
		}
	}
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	for name, text := range map[string]string{"aws": secretsManager, "secret": `{"addressKey":"` + addressKey + `"}`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	run := func() ([]byte, error) {
		cmd := exec.Command("bash", "-euo", "pipefail", "-c", script)
		cmd.Dir = "../.."
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "SECRET="+secret)
		return cmd.CombinedOutput()
	}
	if out, err := run(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	after, err := os.ReadFile(secret)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		AddressKey string
		Peppers    map[string][]byte
	}
	if err := json.Unmarshal(after, &got); err != nil || got.AddressKey != addressKey || len(got.Peppers["p1"]) != pepperBytes {
		t.Errorf("the secret has %d peppers, and the key for addresses: %v; %v", len(got.Peppers), got.AddressKey == addressKey, err)
	}
	if out, err := run(); err == nil || !strings.Contains(string(out), `the secret has a pepper "p1"`) || strings.Contains(string(out), addressKey) {
		t.Errorf("a second run: %v", err)
	}
	if again, err := os.ReadFile(secret); err != nil || string(again) != string(after) {
		t.Errorf("a second run changes the secret: %v", err)
	}
}
