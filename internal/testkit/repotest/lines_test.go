package repotest

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
)

// explainedLines is how many lines of product code a package may have before docs/architecture.md has to explain it.
const explainedLines = 3000

var (
	packageLines = regexp.MustCompile(`(?m)^ *(\d+) +\d+  (\S+)$`)
	largeSection = regexp.MustCompile(`(?s)\n## Large packages\n(.*?)(\n## |\z)`)
	packageRow   = regexp.MustCompile("(?m)^\\| `([^`]+)` \\|")
)

// largePackages returns the packages with more than explainedLines lines of product code, from the output of
// scripts/lines.
func largePackages(count string) (large []string) {
	for _, m := range packageLines.FindAllStringSubmatch(count, -1) {
		if product, err := strconv.Atoi(m[1]); err == nil && product > explainedLines {
			large = append(large, m[2])
		}
	}
	slices.Sort(large)
	return large
}

// explainedPackages returns the packages that the section about large packages of docs/architecture.md explains.
func explainedPackages(page string) (explained []string) {
	section := largeSection.FindStringSubmatch(page)
	if section == nil {
		return nil
	}
	for _, m := range packageRow.FindAllStringSubmatch(section[1], -1) {
		explained = append(explained, m[1])
	}
	slices.Sort(explained)
	return explained
}

// Guarantees that docs/architecture.md explains exactly the packages of more than 3,000 lines, as `make lines` counts
// them.
func TestLargePackagesAreExplained(t *testing.T) {
	r := open(t)
	count, err := exec.CommandContext(t.Context(), filepath.Join(r.root, "scripts", "lines")).Output()
	if err != nil {
		t.Fatalf("run scripts/lines: %v", err)
	}
	large, explained := largePackages(string(count)), explainedPackages(string(r.read(t, "docs/architecture.md")))
	if len(large) == 0 || !slices.Equal(large, explained) {
		t.Errorf("packages of more than %d lines: %q\nexplained in docs/architecture.md, Large packages: %q\n"+
			"Add a row for each that is missing, and remove the others", explainedLines, large, explained)
	}
}

func TestLargePackages(t *testing.T) {
	const count = " product    tests  package\n    9001     8998  a/b\n    3000        0  c\n    3001        1  .\n" +
		"   12345        1  all; 3 packages have product code\n"
	if got, want := largePackages(count), []string{".", "a/b"}; !slices.Equal(got, want) {
		t.Errorf("large packages are %q, want %q", got, want)
	}
	const page = "# A\n\n| `x` | y |\n\n## Large packages\n\n| package | why |\n|---|---|\n| `b` | text |\n" +
		"| `a/c` | `d` |\n\n## Next\n\n| `e` | f |\n"
	if got, want := explainedPackages(page), []string{"a/c", "b"}; !slices.Equal(got, want) {
		t.Errorf("explained are %q, want %q", got, want)
	}
}
