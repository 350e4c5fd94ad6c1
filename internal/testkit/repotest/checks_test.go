package repotest

import (
	"bytes"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// The tests in this file show what each check of the repository rejects and what it accepts.

func TestCheckText(t *testing.T) {
	tests := []struct {
		name    string
		content string
		want    string // part of the error; none: passes
	}{
		{"text", "plain, and not ASCII: é\n", ""},
		{"empty", "", ""},
		{"largest", strings.Repeat("a", maxFileBytes), ""},
		{"too large", strings.Repeat("a", maxFileBytes+1), "want at most"},
		{"zero byte", "ELF\x00", "binary"},
		{"gzip", "\x1f\x8b\x08", "not UTF-8"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { wantError(t, checkText("f", []byte(tt.content)), tt.want) })
	}

	var picture bytes.Buffer
	if err := png.Encode(&picture, image.NewGray(image.Rect(0, 0, 8, 8))); err != nil {
		t.Fatal(err)
	}
	small := picture.String()
	for _, tt := range []struct{ name, content, want string }{
		{"docs/images/page.png", small, ""},
		{"docs/images/page.png", "ELF\x00", "no picture"},
		{"docs/images/page.png", small[:len(small)-16], "no picture"},
		{"docs/images/page.png", small + strings.Repeat("a", maxPictureBytes), "want at most"},
		{"docs/images/tool", small, "binary"},
		{"docs/page.png", small, "binary"},
	} {
		wantError(t, checkText(tt.name, []byte(tt.content)), tt.want)
	}
}

func TestCheckWords(t *testing.T) {
	words := forbiddenWords()
	for word := range words {
		text := "first line\nsee " + word + "x\n"
		errs := checkWords("f", []byte(text), words)
		if len(errs) == 0 || !strings.HasPrefix(errs[0].Error(), "f:2: ") {
			t.Errorf("checkWords(%q) = %v, want an error at f:2", text, errs)
		}
	}
	fine := "github.com/sethvargo/go-limiter golang.org/x/time/rate https://go.dev/doc proxy golang org"
	if errs := checkWords("f", []byte(fine), words); len(errs) > 0 {
		t.Errorf("checkWords(%q) = %v, want none", fine, errs)
	}
}

func TestCheckDoc(t *testing.T) {
	tests := []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"good", map[string]string{"a.go": "// Package p does one thing well.\npackage p\n", "b.go": "package p\n"},
			""},
		{"good command", map[string]string{"a.go": "// Command c does one thing well.\npackage main\n"}, ""},
		{"missing", map[string]string{"a.go": "package p\n"}, "no package comment"},
		{"a blank line between", map[string]string{"a.go": "// Package p is far off.\n\npackage p\n"},
			"no package comment"},
		{"another's name", map[string]string{"a.go": "// Package q does one thing well.\npackage p\n"},
			`want "Package p "`},
		{"no sentence", map[string]string{"a.go": "// Package p things\npackage p\n"}, "no sentence"},
		{"two of them", map[string]string{
			"a.go": "// Package p does one thing well.\npackage p\n", "b.go": "// Package p is more.\npackage p\n",
		}, "second package comment"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			files := make(map[string][]byte)
			for name, text := range tt.files {
				files[name] = []byte(text)
			}
			name, doc, err := packageDoc(files)
			if err == nil {
				err = checkDoc("dir", name, doc)
			}
			wantError(t, err, tt.want)
		})
	}
}

func TestCheckSleep(t *testing.T) {
	const sleeps = "func f() { time.Sleep(time.Second) }\n"
	tests := []struct {
		name string
		text string
		want int
	}{
		{"sleeps", "package p\n\nimport \"time\"\n\n" + sleeps, 1},
		{"fake clock", "package p\n\nimport (\n\t\"testing/synctest\"\n\t\"time\"\n)\n\nvar _ = synctest.Wait\n\n" +
			sleeps, 0},
		{"only in words", "package p\n\n// time.Sleep is not called here.\nconst s = \"time.Sleep(1)\"\n", 0},
		{"another's Sleep", "package p\n\nfunc f(c clock) { c.Sleep(1) }\n", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			errs, err := checkSleep("x_test.go", []byte(tt.text))
			if err != nil || len(errs) != tt.want {
				t.Errorf("checkSleep(%q) = %v, %v; want %d errors", tt.text, errs, err, tt.want)
			}
		})
	}
}

func TestCheckLinks(t *testing.T) {
	const page = "# One: the `first`\n\n## Two\n\n## Two\n\n```\n# not a heading [x](nowhere.md)\n```\n"
	repo := fstest.MapFS{
		"docs/page.md":   {Data: []byte(page)},
		"docs/page.go":   {Data: []byte("package docs\n")},
		"docs/a(b).txt":  {Data: []byte("x")},
		"internal/x/x.s": {Data: []byte("x")},
	}
	tests := []struct {
		link string
		want string
	}{
		{"[a](page.md)", ""},
		{"[a](../internal/x)", ""},
		{"[a](../internal/x/)", ""},
		{"[a](page.md#one-the-first)", ""},
		{"[a](page.md#two-1)", ""},
		{"[a](page.go#L1)", ""},
		{"[a](a(b).txt)", ""},
		{"[a](page.md \"with a title\")", ""},
		{"[a][n]\n\n[n]: page.md\n", ""},
		{"[a](https://example.com/nowhere)", ""},
		{"`[a](nowhere.md)`", ""},
		{"[a](#two)", "no such heading"}, // the linking page itself has none
		{"# Two\n[a](#two)", ""},
		{"[a](nowhere.md)", "link to nowhere.md"},
		{"![a](picture.svg)", "link to picture.svg"},
		{"[a](../internal/y)", "link to ../internal/y"},
		{"[a](page.md#three)", "no such heading"},
		{"[a](page.md#not-a-heading-xnowheremd)", "no such heading"},
		{"[a][n]\n\n[n]: nowhere.md\n", "link to nowhere.md"},
	}
	for _, tt := range tests {
		t.Run(tt.link, func(t *testing.T) {
			var err error
			if errs := checkLinks(repo, "docs/from.md", tt.link); len(errs) > 0 {
				err = errs[0]
			}
			wantError(t, err, tt.want)
		})
	}
}

func TestCheckMake(t *testing.T) {
	const makefile = "help: ## x\ntest: a b\n\tgo test\nbench-smoke:\n"
	tests := []struct {
		text string
		want string
	}{
		{"`make test`", ""},
		{"```\nmake test bench-smoke   # everything\n$ make help\n```", ""},
		{"`make test ONLY=x`", ""},
		{"make sure that it works", ""},
		{"`make deploy`", "make deploy"},
		{"```sh\nmake test tset\n```", "make tset"},
	}
	for _, tt := range tests {
		t.Run(tt.text, func(t *testing.T) {
			var err error
			if errs := checkMake("f.md", tt.text, makefile); len(errs) > 0 {
				err = errs[0]
			}
			wantError(t, err, tt.want)
		})
	}
}

func TestCheckTests(t *testing.T) {
	known := map[string]bool{"TestOne": true, "FuzzTwo": true}
	for text, want := range map[string]string{
		"held by `TestOne`, `FuzzTwo`": "", "`TestTwo`": "no test TestTwo", "a\n`TestOne` `FuzzOne`": "no test FuzzOne",
		"TestTwo, `Testing`, `TestOne/case`": "", "`TestTwo` <!-- check: branch -->": "",
		"<!-- check: branch -->\n`TestTwo`": "no test TestTwo",
	} {
		var err error
		if errs := checkTests("f.md", text, known); len(errs) > 0 {
			err = errs[0]
		}
		wantError(t, err, want)
	}
}

func TestCheckWorkflow(t *testing.T) {
	const good = "permissions:\n  contents: read\n- uses: a/b@0123456789abcdef0123456789abcdef01234567 # v1\n" +
		"with: { go-version: \"1.26\" }\n- run: .ci/run\n"
	for _, tt := range []struct{ old, with, want string }{
		{"", "", ""},
		{".ci/run", "make test", `lacks "run: .ci/run`},
		{"1.26", "1.25", `lacks "go-version`},
		{"read", "write", `lacks "permissions`},
		{"0123456789abcdef0123456789abcdef01234567", "v1", "uses a/b@v1"},
	} {
		var err error
		if errs := checkWorkflow(strings.Replace(good, tt.old, tt.with, 1), "1.26"); len(errs) > 0 {
			err = errs[0]
		}
		wantError(t, err, tt.want)
	}
}

func TestListFilesLeavesOutWhatGitIgnores(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		".gitignore": "# built\n/bin/\n*.out\n/bench.txt\n", ".git/config": "x", "bin/tool": "x", "a/bin/tool": "x",
		"x.out": "x", "a/y.out": "x", "bench.txt": "x", "a/bench.txt": "x", "kept": "x",
	} {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := listFiles(root)
	want := []string{".gitignore", "a/bench.txt", "a/bin/tool", "kept"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("listFiles = %v, %v; want %v", got, err, want)
	}
	for _, line := range []string{"!kept", "a/b", "a/**/b"} {
		if err := os.WriteFile(filepath.Join(root, ".gitignore"), []byte(line), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := listFiles(root); err == nil {
			t.Errorf("listFiles with %q in .gitignore = %v, want an error: it is not understood", line, got)
		}
	}
}

// wantError checks that err is nil if want is empty, and otherwise that err contains want.
func wantError(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("got %v, want no error", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("got %v, want an error with %q", err, want)
	}
}
