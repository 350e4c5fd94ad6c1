package releasetest

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

const path = "github.com/sluicelimits/sluice"

// fresh is a program of somebody who uses the library.
const fresh = `package main

import (
	"context"
	"fmt"

	"github.com/sluicelimits/sluice"
)

func main() {
	limiter, err := sluice.New(sluice.Config{Plans: []string{"plans.yaml"}})
	if err != nil {
		panic(err)
	}
	for range 3 {
		who := sluice.Identity{Tenant: "acme"}
		fmt.Print(limiter.Decide(context.Background(), who, sluice.Request{Method: "GET", Path: "/"}).Allowed, " ")
	}
}
`

const plans = `plans:
  - id: free
    limits: [{ id: burst, algorithm: token_bucket, rate: 1, period: 1h, burst: 2 }]
tenants: [{ id: acme, plan: free }]
`

// testModules serves the modules of the commit as a proxy would, and uses them from outside the repository, where the
// directives replace of their go.mod files mean nothing.
func (r *release) testModules(t *testing.T) {
	proxy := r.proxy(t)
	cache := filepath.Join(t.TempDir(), "mod") // the usual one would keep these modules, which no other run may find
	environment := append(os.Environ(), "GOFLAGS=-mod=mod -modcacherw -trimpath", "GOWORK=off",
		"GOMODCACHE="+cache, "GONOSUMDB="+path, "GOPROXY=file://"+proxy+
			",file://"+run(t, root, "go", "env", "GOMODCACHE")+"/cache/download,"+run(t, root, "go", "env", "GOPROXY"))
	in := func(dir string, arguments ...string) string {
		t.Helper()
		c := exec.CommandContext(t.Context(), "go", arguments...)
		var said bytes.Buffer
		c.Dir, c.Env, c.Stderr = dir, environment, &said
		begun := time.Now()
		out, err := c.Output()
		if err != nil {
			t.Fatalf("%v: %v\n%s%s", c, err, out, &said)
		}
		t.Logf("%4.1f s: go %s", time.Since(begun).Seconds(), strings.Join(arguments, " "))
		return strings.TrimSpace(string(out))
	}
	newModule := func(name string) string {
		dir := filepath.Join(t.TempDir(), name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		in(dir, "mod", "init", "example.com/"+name)
		return dir
	}

	library := newModule("library")
	write(t, filepath.Join(library, "main.go"), fresh)
	write(t, filepath.Join(library, "plans.yaml"), plans)
	in(library, "get", path+"@"+r.version)
	if got := in(library, "run", "."); got != "true true false" {
		t.Errorf("the program of a fresh module prints %q", got)
	}

	environment = append(environment, "GOBIN="+t.TempDir())
	in("", "install", path+"/cmd/sluice@"+r.version)
	installed := filepath.Join(strings.TrimPrefix(environment[len(environment)-1], "GOBIN="), "sluice")
	if got := run(t, "", installed, "version"); !strings.HasPrefix(got, "sluice version "+r.version+", go1.") {
		t.Errorf("the installed program says %q", got)
	}

	nested := newModule("nested")
	for _, m := range []struct{ folder, imports string }{
		{"bench", path + "/pacer"},
		{"examples", path + "/middleware"},
		{"infra", "github.com/aws/aws-cdk-go/awscdk/v2"},
	} {
		in(nested, "get", path+"/"+m.folder+"@"+r.version)
		found := in(nested, "list", "-deps", path+"/"+m.folder+"/...") // each package must be in some module
		if !slices.Contains(strings.Fields(found), m.imports) {
			t.Errorf("the packages of %s do not import %s, but only:\n%s", m.folder, m.imports, found)
		}
	}
}

// proxy makes a folder that the go command can use as a module proxy with the released version of each module alone.
func (r *release) proxy(t *testing.T) string {
	t.Helper()
	proxy := t.TempDir()
	for _, folder := range []string{"", "bench", "examples", "infra"} {
		m := module.Version{Path: strings.TrimSuffix(path+"/"+folder, "/"), Version: r.version}
		dir := filepath.Join(proxy, m.Path, "@v")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		var packed bytes.Buffer
		if err := zip.CreateFromVCS(&packed, m, r.clone, "HEAD", folder); err != nil {
			t.Fatal(err)
		}
		info, err := json.Marshal(map[string]any{"Version": r.version, "Time": time.Unix(0, 0).UTC()})
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "list"), r.version+"\n")
		write(t, filepath.Join(dir, r.version+".info"), string(info))
		write(t, filepath.Join(dir, r.version+".mod"), string(read(t, filepath.Join(r.clone, folder, "go.mod"))))
		write(t, filepath.Join(dir, r.version+".zip"), packed.String())
	}
	return proxy
}

func write(t *testing.T, file, content string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
