package sluice_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// flat returns Go code without indentation, so that code inside a function can be compared with code on a page.
func flat(code string) string {
	lines := strings.Split(strings.TrimSpace(code), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, "\n")
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Guarantees that the Go code in docs/library.md is copied from the examples, which compile and run, and that the page
// lists the same header mappings as the comment of middleware.MappedHeaders.
func TestLibraryPage(t *testing.T) {
	page := readFile(t, "docs/library.md")
	var examples strings.Builder
	for _, dir := range []string{"", "middleware/", "middleware/lambdaproxy/", "redisstore/", "dynamodbstore/"} {
		code := readFile(t, dir+"example_test.go")
		examples.WriteString(flat(string(code)) + "\n")
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(blocks) < 8 {
		t.Fatalf("docs/library.md has %d blocks of Go", len(blocks))
	}
	for _, b := range blocks {
		if !strings.Contains(examples.String(), flat(b[1])) {
			t.Errorf("docs/library.md has code that is in no example:\n%s", b[1])
		}
	}
	source := readFile(t, "middleware/behind.go")
	mapped := regexp.MustCompile(
		"\\| `(overwrite:header\\.[a-z-]+)` \\| `(\\$context\\.authorizer\\.[A-Za-z]+)` \\|").FindAllStringSubmatch(
		string(page), -1)
	if len(mapped) != 8 {
		t.Errorf("docs/library.md maps %d headers", len(mapped))
	}
	for _, m := range mapped {
		if !regexp.MustCompile(regexp.QuoteMeta(m[1]) + " +" + regexp.QuoteMeta(m[2]) + "\n").Match(source) {
			t.Errorf("%s = %s is not in the comment of MappedHeaders", m[1], m[2])
		}
	}
}

// Guarantees that the Go code in README.md is copied from examples/nethttp, whose tests run it, that README.md has at
// most 120 lines, and that it shows its pictures.
func TestReadme(t *testing.T) {
	page := readFile(t, "README.md")
	program := readFile(t, "examples/nethttp/main.go")
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(blocks) != 1 {
		t.Fatalf("README.md has %d blocks of Go, want 1", len(blocks))
	}
	for part := range strings.SplitSeq(blocks[0][1], "\n\n") {
		if !strings.Contains(flat(string(program))+"\n", flat(part)+"\n") {
			t.Errorf("not in examples/nethttp/main.go:\n%s", part)
		}
	}
	if lines := strings.Count(string(page), "\n"); lines > 120 {
		t.Errorf("README.md has %d lines, want at most 120", lines)
	}
	for _, picture := range []string{"docs/images/system.svg", "docs/images/live-page.png"} {
		if !regexp.MustCompile(`(?m)^!\[[^\]]{20,}\]\(` + regexp.QuoteMeta(picture) + `\)$`).Match(page) {
			t.Errorf("README.md does not show %s with a description", picture)
		}
	}
}

// Guarantees that docs/guarantees.md has each of the nine guarantees in its list and in a section of its own, that
// every row of a section names a test, and that the cases of the contract suite that it quotes exist.
// TestDocumentedTestsExist checks that the tests exist.
func TestGuaranteesNameTheirTests(t *testing.T) {
	text := readFile(t, "docs/guarantees.md")
	var suite strings.Builder
	files, err := filepath.Glob("internal/limiter/limit/limittest/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		code := readFile(t, file)
		suite.Write(code)
	}
	held := regexp.MustCompile("`(?:(?:Test|Fuzz)[A-Z]\\w*|controltest|make fuzz)`|`limittest` \"")
	sections := regexp.MustCompile(`(?m)^## (\d)\. `).Split(string(text), -1)[1:]
	if len(sections) != 9 || strings.Count(string(text), "\n| [") != 9 {
		t.Fatalf("docs/guarantees.md has %d sections, and lists %d; want 9", len(sections),
			strings.Count(string(text), "\n| ["))
	}
	for i, section := range sections {
		section, _, _ = strings.Cut(section, "\n## ")
		_, table, found := strings.Cut(section, "\n|---|---|\n")
		if !found {
			t.Errorf("guarantee %d has no table", i+1)
		}
		for row := range strings.Lines(table) {
			_, by, ok := strings.Cut(strings.TrimPrefix(row, "| "), " | ")
			if strings.HasPrefix(row, "| ") && (!ok || !held.MatchString(by)) {
				t.Errorf("guarantee %d: no test is named for: %s", i+1, row)
			}
		}
		for _, quoted := range regexp.MustCompile(`"([^"]+)"`).FindAllStringSubmatch(table, -1) {
			if !strings.Contains(suite.String(), quoted[0]) {
				t.Errorf("guarantee %d: limittest has no case %s", i+1, quoted[0])
			}
		}
	}
}

// Guarantees that the pages that list the algorithms list all of them.
func TestPagesListAlgorithms(t *testing.T) {
	for _, page := range []string{"docs/guarantees.md", "docs/plans.md", "docs/accuracy.md"} {
		text := readFile(t, page)
		for _, a := range limit.Algorithms() {
			name := "`" + a.String() + "`"
			// docs/plans.md describes limits with a calendar in words
			if !strings.Contains(string(text), "\n| "+name+" |") && !(page == "docs/plans.md" && a.HasCalendar()) {
				t.Errorf("the table of algorithms in %s has no row for %s", page, name)
			}
			for line := range strings.Lines(string(text)) {
				if strings.HasPrefix(line, "| store | `") && !strings.Contains(line, "| "+name+" |") {
					t.Errorf("a table in %s has no column for %s: %s", page, name, line)
				}
			}
		}
	}
}

// Guarantees that every page opens with what it is for and for whom, and that docs/README.md leads to it.
func TestPagesSayWhatTheyAreFor(t *testing.T) {
	index := readFile(t, "docs/README.md")
	pages, err := filepath.Glob("docs/*.md")
	if err != nil || len(pages) < 20 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	pages = append(pages, "docs/runbooks/README.md", "examples/README.md", "CONTRIBUTING.md", "SECURITY.md")
	opens := regexp.MustCompile(`^(?:<!-- .* -->\n\n)?# .*\n\n(This page (?:[^\n]+\n)+)`)
	for _, page := range pages {
		text := readFile(t, page)
		first := opens.FindSubmatch(text)
		if first == nil || !strings.Contains(strings.ReplaceAll(string(first[1]), "\n", " "), " It is for ") {
			t.Errorf("%s does not open with \"This page …\" and \"It is for …\"", page)
		}
		link, inDocs := strings.CutPrefix(page, "docs/")
		if !inDocs {
			link = "../" + strings.TrimSuffix(page, "/README.md")
		}
		known := page == "docs/README.md" || page == "SECURITY.md" || strings.Contains(string(index), "]("+link+")")
		if !known {
			t.Errorf("docs/README.md does not lead to %s", page)
		}
	}
}
