package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Guarantees that each setting of envoyproxy/ratelimit that is in the environment, and that the service does not read,
// is a line of the log with the flag to give in its place; that the flags are there, and the page has the names.
func TestServeNamesVariablesOfThePeer(t *testing.T) {
	t.Setenv("SHADOW_MODE", "true")
	t.Setenv("REDIS_AUTH", "hunter2")
	t.Setenv("PORT", "8080")
	s := startServe(t, "--config", limitsFile(t, 1))
	log := s.stderr.String()
	for _, want := range []string{"variable=SHADOW_MODE instead=--shadow-mode", "variable=REDIS_AUTH",
		"variable=PORT"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %q:\n%s", want, log)
		}
	}
	if strings.Contains(log, "hunter2") {
		t.Errorf("the log shows a password:\n%s", log)
	}
	for _, name := range []string{"SHADOW_MODE", "REDIS_AUTH"} {
		t.Setenv(name, "")
	}
	if log := startServe(t, "--config", limitsFile(t, 1)).stderr.String(); strings.Contains(log, "variable=") {
		t.Errorf("PORT alone may be of any program:\n%s", log)
	}
	flags := newServeCommand().Flags()
	page, err := os.ReadFile("../../docs/envoy.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, instead := range peerVariables {
		for _, flag := range regexp.MustCompile(`--([a-z-]+)`).FindAllStringSubmatch(instead, -1) {
			if flags.Lookup(flag[1]) == nil {
				t.Errorf("%s: there is no flag --%s", name, flag[1])
			}
		}
	}
	if !strings.Contains(string(page), "sluice.TestServeNamesVariablesOfThePeer") {
		t.Error("docs/envoy.md does not say that variables are named")
	}
}
