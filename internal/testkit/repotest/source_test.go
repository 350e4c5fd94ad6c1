package repotest

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"image/png"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Bounds on the size of files that may be committed. A larger file is data, and belongs elsewhere.
const (
	maxFileBytes    = 500 << 10
	maxPictureBytes = 100 << 10
)

// pictures is the folder of the pictures of pages, which are the only files that are not text.
const pictures = "docs/images/"

// checkText returns an error if a file is too large, or if it is neither text nor a picture of a page.
func checkText(name string, content []byte) error {
	if strings.HasPrefix(name, pictures) && strings.HasSuffix(name, ".png") {
		if _, err := png.Decode(bytes.NewReader(content)); err != nil {
			return fmt.Errorf("%s is no picture: %w", name, err)
		}
		if len(content) > maxPictureBytes {
			return fmt.Errorf("%s has %d bytes, want at most %d", name, len(content), maxPictureBytes)
		}
		return nil
	}
	switch {
	case len(content) > maxFileBytes:
		return fmt.Errorf("%s has %d bytes, want at most %d", name, len(content), maxFileBytes)
	case slices.Contains(content, 0):
		return fmt.Errorf("%s holds a zero byte, so it is a binary", name)
	case !utf8.Valid(content):
		return fmt.Errorf("%s is not UTF-8 text", name)
	}
	return nil
}

// checkWords reports each forbidden word in the file, with its line.
func checkWords(name string, content []byte, forbidden map[string]string) []error {
	var errs []error
	line := 0
	for text := range strings.Lines(string(content)) {
		line++
		for word, reason := range forbidden {
			if strings.Contains(text, word) {
				errs = append(errs, fmt.Errorf("%s:%d: holds %q: %s", name, line, word, reason))
			}
		}
	}
	return errs
}

// packageDoc returns the package's name and its comment, from whichever of the files has one.
func packageDoc(files map[string][]byte) (name, doc string, err error) {
	for _, file := range slices.Sorted(maps.Keys(files)) {
		f, err := parser.ParseFile(token.NewFileSet(), file, files[file], parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			return "", "", err
		}
		name = f.Name.Name
		if text := f.Doc.Text(); text != "" {
			if doc != "" {
				return name, "", fmt.Errorf("%s: a second package comment", file)
			}
			doc = text
		}
	}
	return name, doc, nil
}

// checkDoc reports a package comment that is missing, does not begin as go doc expects, or does not begin with a
// sentence.
func checkDoc(dir, name, doc string) error {
	want := "Package " + name + " "
	if name == "main" {
		want = "Command "
	}
	first, _, _ := strings.Cut(doc, "\n\n")
	switch {
	case doc == "":
		return fmt.Errorf("%s: package %s has no package comment", dir, name)
	case !strings.HasPrefix(doc, want):
		return fmt.Errorf("%s: the package comment begins %.40q, want %q", dir, doc, want)
	case !strings.ContainsAny(strings.TrimSpace(first), ".:") || len(strings.Fields(first)) < 4:
		return fmt.Errorf("%s: the package comment begins with %q, which is no sentence", dir, first)
	}
	return nil
}

// checkSleep reports each time.Sleep in a test file. In a file that imports testing/synctest the clock is a fake one,
// and sleeping costs nothing.
func checkSleep(name string, content []byte) ([]error, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, content, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, i := range file.Imports {
		if i.Path.Value == `"testing/synctest"` {
			return nil, nil
		}
	}
	var errs []error
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "Sleep" {
			if pkg, ok := s.X.(*ast.Ident); ok && pkg.Name == "time" {
				errs = append(errs, fmt.Errorf("%s: sleeps; pass now, or use testing/synctest", fset.Position(n.Pos())))
			}
		}
		return true
	})
	return errs, nil
}

var (
	usesAction = regexp.MustCompile(`uses: *(\S+)`)
	pinned     = regexp.MustCompile(`^[\w-]+/[\w-]+@[0-9a-f]{40}$`)
)

// checkWorkflow returns an error for each thing that a workflow lacks to run .ci/run with this minor version of Go.
func checkWorkflow(text, minor string) []error {
	var errs []error
	for _, want := range []string{"run: .ci/run\n", `go-version: "` + minor + `"`, "permissions:\n  contents: read\n"} {
		if !strings.Contains(text, want) {
			errs = append(errs, fmt.Errorf("the workflow lacks %q", want))
		}
	}
	for _, m := range usesAction.FindAllStringSubmatch(text, -1) {
		if !pinned.MatchString(m[1]) {
			errs = append(errs, fmt.Errorf("the workflow uses %s, want a commit in place of a name that can be moved",
				m[1]))
		}
	}
	return errs
}
