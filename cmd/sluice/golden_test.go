package main

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"
)

// withAWS sets the credentials, the region and the endpoint of AWS for a test; "": the real endpoint.
func withAWS(t *testing.T, endpoint string) {
	t.Helper()
	none := filepath.Join(t.TempDir(), "none")
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
		"AWS_SECRET_ACCESS_KEY": "example-secret",
		"AWS_REGION":            "eu-west-1", "AWS_PROFILE": "", "AWS_SESSION_TOKEN": "", "AWS_CONFIG_FILE": none,
		"AWS_SHARED_CREDENTIALS_FILE": none, "AWS_ENDPOINT_URL": endpoint} {
		t.Setenv(name, value)
	}
}

// ran is the result of a command line.
type ran struct {
	code           int // the exit status of the process
	stdout, stderr string
}

// sluice runs a command line in the test's own process.
func sluice(t *testing.T, stdin string, args ...string) ran {
	t.Helper()
	return sluiceUntil(t.Context(), stdin, args...)
}

// sluiceUntil is sluice for a command that would run on: it ends with the context.
func sluiceUntil(ctx context.Context, stdin string, args ...string) ran {
	var out, errs bytes.Buffer
	root := newRootCommand()
	root.SetArgs(args)
	root.SetIn(strings.NewReader(stdin))
	root.SetOut(&out)
	root.SetErr(&errs)
	err := root.ExecuteContext(ctx)
	if err != nil {
		errs.WriteString(message(err))
	}
	return ran{exitCode(err), out.String(), errs.String()}
}
