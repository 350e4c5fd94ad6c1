package sluice_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// flat is Go code without indentation, so that what stands in a function is found where it stands in a page.
func flat(code string) string {
	lines := strings.Split(strings.TrimSpace(code), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, "\n")
}

// Guarantees that the code in docs/library.md is that of the examples, which compile and run, and that what it and
// Behind's comment tell to map is the same.
func TestLibraryPage(t *testing.T) {
	page, err := os.ReadFile("docs/library.md")
	if err != nil {
		t.Fatal(err)
	}
	var examples strings.Builder
	for _, dir := range []string{"", "middleware/", "middleware/lambdaproxy/", "redisstore/", "dynamodbstore/"} {
		code, err := os.ReadFile(dir + "example_test.go")
		if err != nil {
			t.Fatal(err)
		}
		examples.WriteString(flat(string(code)) + "\n")
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(blocks) < 8 {
		t.Fatalf("docs/library.md has %d blocks of Go", len(blocks))
	}
	for _, b := range blocks {
		if !strings.Contains(examples.String(), flat(b[1])) {
			t.Errorf("in no example:\n%s", b[1])
		}
	}
	source, err := os.ReadFile("middleware/behind.go")
	if err != nil {
		t.Fatal(err)
	}
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

// Guarantees that the pages which list the algorithms list all of them.
func TestPagesListAlgorithms(t *testing.T) {
	for _, page := range []string{"README.md", "docs/plans.md", "docs/accuracy.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
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
