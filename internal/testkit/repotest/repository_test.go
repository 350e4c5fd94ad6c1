package repotest

import (
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// repository is the repository that the tests check.
type repository struct {
	root  string
	fs    fs.FS
	files []string // slash-separated, relative to root
}

func open(t *testing.T) *repository {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	root, err := findRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	files, err := listFiles(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 50 {
		t.Fatalf("%s has %d files: this is not the repository", root, len(files))
	}
	return &repository{root: root, fs: os.DirFS(root), files: files}
}

func (r *repository) read(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(r.root, filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// each calls f for every file whose name has the suffix. It fails if there is none, since the test would check nothing.
func (r *repository) each(t *testing.T, suffix string, f func(name string, content []byte)) {
	t.Helper()
	found := false
	for _, name := range r.files {
		if strings.HasSuffix(name, suffix) {
			found = true
			f(name, r.read(t, name))
		}
	}
	if !found {
		t.Errorf("no file ends in %q", suffix)
	}
}

// Every package has a comment that begins with a sentence, so that go doc gives an overview of the repository.
func TestEveryPackageHasAComment(t *testing.T) {
	r := open(t)
	packages := make(map[string]map[string][]byte)
	r.each(t, ".go", func(name string, content []byte) {
		if strings.HasSuffix(name, "_test.go") || strings.Contains(name, "testdata/") {
			return
		}
		dir := path.Dir(name)
		if packages[dir] == nil {
			packages[dir] = make(map[string][]byte)
		}
		packages[dir][name] = content
	})
	for dir, files := range packages {
		name, doc, err := packageDoc(files)
		if err == nil {
			err = checkDoc(dir, name, doc)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// A binary or a large file in git stays in every clone for ever, and nobody can review it.
func TestEveryFileIsSmallText(t *testing.T) {
	open(t).each(t, "", func(name string, content []byte) {
		if err := checkText(name, content); err != nil {
			t.Error(err)
		}
	})
}

// forbiddenWords returns words that no committed file may contain. Each is put together from parts, so that this file
// does not contain it.
func forbiddenWords() map[string]string {
	const registry = "a package registry's host: which one is used is the affair of each machine's settings"
	const place = "a path of one machine"
	words := map[string]string{
		"/work" + "/main":   place,
		"/work" + "/shared": place,
		"/ro" + "ot/":       place,
	}
	for _, host := range [][2]string{
		{"proxy.golang", "org"}, {"sum.golang", "org"}, {"goproxy", "io"}, {"goproxy", "cn"},
		{"registry.npmjs", "org"}, {"registry.yarnpkg", "com"}, {"npm.pkg.github", "com"},
		{"pypi", "org"}, {"pythonhosted", "org"}, {"static.crates", "io"}, {"index.crates", "io"},
		{"rubygems", "org"}, {"repo.maven.apache", "org"}, {"repo1.maven", "org"},
		{"deb.debian", "org"}, {"archive.ubuntu", "com"}, {"ports.ubuntu", "com"}, {"dl-cdn.alpinelinux", "org"},
	} {
		words[host[0]+"."+host[1]] = registry
	}
	return words
}

// A build that names a registry or a machine's path works on one machine only.
func TestNoFileNamesARegistryOrAMachine(t *testing.T) {
	words := forbiddenWords()
	open(t).each(t, "", func(name string, content []byte) {
		for _, err := range checkWords(name, content, words) {
			t.Error(err)
		}
	})
}

// A test that sleeps is slow on a good day and flaky on a bad one.
func TestNoTestSleeps(t *testing.T) {
	open(t).each(t, "_test.go", func(name string, content []byte) {
		errs, err := checkSleep(name, content)
		if err != nil {
			t.Error(err)
		}
		for _, err := range errs {
			t.Error(err)
		}
	})
}

// A link that leads nowhere costs a reader more than no link.
func TestMarkdownLinksResolve(t *testing.T) {
	r := open(t)
	r.each(t, ".md", func(name string, content []byte) {
		for _, err := range checkLinks(r.fs, name, string(content)) {
			t.Error(err)
		}
	})
}

// A newcomer types what the documents say: each make target that they name must be there.
func TestDocumentedMakeTargetsExist(t *testing.T) {
	r := open(t)
	makefile := string(r.read(t, "Makefile"))
	r.each(t, ".md", func(name string, content []byte) {
		for _, err := range checkMake(name, string(content), makefile) {
			t.Error(err)
		}
	})
}

// Readers look up the tests that pages name, so each of these tests must exist.
func TestDocumentedTestsExist(t *testing.T) {
	r := open(t)
	known := make(map[string]bool)
	r.each(t, ".go", func(_ string, content []byte) {
		for _, m := range testFunction.FindAllSubmatch(content, -1) {
			known[string(m[1])] = true
		}
	})
	r.each(t, ".md", func(name string, content []byte) {
		for _, err := range checkTests(name, string(content), known) {
			t.Error(err)
		}
	})
}

// All modules must name the same Go version. Otherwise go vet and CI would check another language version.
func TestModulesAgreeOnGo(t *testing.T) {
	r := open(t)
	want, from := "", ""
	r.each(t, "go.mod", func(name string, content []byte) {
		for line := range strings.Lines(string(content)) {
			version, ok := strings.CutPrefix(strings.TrimSpace(line), "go ")
			switch {
			case !ok:
			case want == "":
				want, from = version, name
			case version != want:
				t.Errorf("%s says go %s, %s says go %s", name, version, from, want)
			}
		}
	})
}

// If a script cannot be started, or goes on after a failed command, a run that passes proves nothing.
func TestScriptsStopAtAFailure(t *testing.T) {
	r := open(t)
	for _, name := range r.files {
		script := path.Dir(name) == "scripts" && (path.Ext(name) == "" || path.Ext(name) == ".sh")
		if !script && name != ".ci/run" {
			continue
		}
		info, err := fs.Stat(r.fs, name)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode()&0o111 == 0 {
			t.Errorf("%s cannot be executed", name)
		}
		text := string(r.read(t, name))
		if !strings.HasPrefix(text, "#!/usr/bin/env bash\n# ") {
			t.Errorf("%s begins %.40q, want bash and a line on what it does", name, text)
		}
		if !strings.Contains(text, "\nset -euo pipefail\n") && !strings.Contains(text, "\nset -uo pipefail\n") {
			t.Errorf("%s does not set -euo pipefail (or -uo, where it collects failures)", name)
		}
	}
}

// Lambda's environment and many containers have no files of time zones. There a program without zone data of its own
// rejects a plan with a quota in Europe/Paris, although the same plan works on a developer's machine. Therefore every
// function, the command and the library link time/tzdata.
func TestEveryProgramHasZoneData(t *testing.T) {
	r := open(t)
	want := map[string]bool{".": false, "cmd/sluice": false}
	for _, name := range r.files {
		if dir := path.Dir(name); path.Dir(dir) == "functions" {
			want[dir] = false
		}
	}
	if len(want) < 10 {
		t.Fatalf("only %d programs were found", len(want))
	}
	list := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}}{{range .Deps}} {{.}}{{end}}`,
		"./functions/...", "./cmd/sluice", ".")
	list.Dir = r.root
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		dir := path.Join(".", strings.TrimPrefix(fields[0], "github.com/sluicelimits/sluice"))
		want[dir] = slices.Contains(fields[1:], "time/tzdata")
	}
	for dir, has := range want {
		if !has {
			t.Errorf("%s does not link time/tzdata", dir)
		}
	}
}

// The workflow on GitHub must run .ci/run, as everybody does, with the Go of go.mod and with pinned actions.
func TestWorkflowRunsCI(t *testing.T) {
	r := open(t)
	minor := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(r.read(t, "go.mod"))
	if minor == nil {
		t.Fatal("go.mod names no version of Go")
	}
	for _, err := range checkWorkflow(string(r.read(t, ".github/workflows/ci.yml")), string(minor[1])) {
		t.Error(err)
	}
}
