package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/serve"
)

// Guarantees that the log names the settings of envoyproxy/ratelimit that are in the environment, since the service
// reads none of them, and that the page has each of them, with flags that exist.
func TestServeNamesVariablesOfThePeer(t *testing.T) {
	t.Setenv("SHADOW_MODE", "true")
	t.Setenv("REDIS_AUTH", "hunter2")
	t.Setenv("PORT", "8080")
	log := startServe(t, "--config", limitsFile(t, 1)).stderr.String()
	if !strings.Contains(log, `variables="[SHADOW_MODE REDIS_AUTH PORT]"`) || strings.Contains(log, "hunter2") {
		t.Errorf("the log is to name three variables, and no password:\n%s", log)
	}
	for _, name := range []string{"SHADOW_MODE", "REDIS_AUTH"} {
		t.Setenv(name, "")
	}
	if log := startServe(t, "--config", limitsFile(t, 1)).stderr.String(); strings.Contains(log, "variables=") {
		t.Errorf("PORT alone may be of any program:\n%s", log)
	}
	page, err := os.ReadFile("../../docs/envoy.md")
	if err != nil {
		t.Fatal(err)
	}
	flags := newServeCommand().Flags()
	for _, name := range serve.PeerVariables {
		row := regexp.MustCompile("(?m)^- [^:]*`" + name + "`[^:]*:((?:.|\n  )*)").FindSubmatch(page)
		if row == nil {
			t.Errorf("docs/envoy.md does not say what takes the place of %s", name)
			continue
		}
		for _, flag := range regexp.MustCompile(`--([a-z-]+)`).FindAllSubmatch(row[1], -1) {
			if flags.Lookup(string(flag[1])) == nil {
				t.Errorf("%s: there is no flag --%s", name, flag[1])
			}
		}
	}
}
