package doctor_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/dev/doctor"
)

const root = "../../../"

// standIns are the targets that an assumption is tested with: one for which it is true, some that violate it, and some
// for which nothing can be concluded.
type standIns struct {
	holds    func(*testing.T) *doctor.Calls
	too      map[string]func(*testing.T) *doctor.Calls // other targets for which it is true, by what is special
	violates map[string]func(*testing.T) *doctor.Calls // targets that violate it, by what is wrong
	// targets for which nothing can be concluded, by what is missing
	untold map[string]func(*testing.T) *doctor.Calls
}

// Guarantees that the check of each assumption gives the correct result: "holds" for a target for which it is true;
// "does not hold", and what to do, for a target that violates it; "could not tell" if a part of the target is missing
// or a call is not permitted.
func TestAssumptions(t *testing.T) {
	for _, a := range doctor.Assumptions() {
		s, ok := all[a.ID]
		if !ok || len(s.violates) == 0 || len(s.untold) == 0 {
			t.Errorf("%s has no stand-ins", a.ID)
			continue
		}
		check := func(name string, target func(*testing.T) *doctor.Calls, want doctor.Result) {
			t.Run(a.ID+"/"+name, func(t *testing.T) {
				got := a.Check(target(t))
				if got.Result != want || got.Saw == "" || want == doctor.DoesNotHold && got.Do != a.Do {
					t.Errorf("got %+v, want %q", got, want)
				}
				if strings.ContainsAny(got.Saw+got.Do, "\n\r") {
					t.Errorf("the finding has more than one line: %q", got)
				}
			})
		}
		check("holds", s.holds, doctor.Holds)
		for name, target := range s.too {
			check("holds: "+name, target, doctor.Holds)
		}
		for name, target := range s.violates {
			check("violated: "+name, target, doctor.DoesNotHold)
		}
		for name, target := range s.untold {
			check("untold: "+name, target, doctor.CouldNotTell)
		}
		check("untold: nothing was answered", func(*testing.T) *doctor.Calls { return &doctor.Calls{} },
			doctor.CouldNotTell)
	}
	if len(all) != len(doctor.Assumptions()) {
		t.Errorf("there are stand-ins for %d assumptions, want %d", len(all), len(doctor.Assumptions()))
	}
}

// Guarantees that what was seen is never cut within a word, unless it has no blank, and that it shows that it was cut.
func TestClip(t *testing.T) {
	for _, c := range [][2]string{
		{"short", "short"}, {"twelve chars", "twelve chars"}, {"twelve chars and more", "twelve chars …"},
		{"a word too long", "a word too …"}, {"ä ö ü ä ö ü ä", "ä ö ü ä ö ü …"}, {"without-a-blank", "without-a-bl …"},
	} {
		if got := doctor.Clip(c[0], 12); got != c[1] {
			t.Errorf("%q becomes %q, want %q", c[0], got, c[1])
		}
	}
}

// section is what docs/assumptions.md says of an assumption.
type section struct {
	id, says string
	rows     map[string]string // by what stands before them
}

// sections reads the sections of docs/assumptions.md that are about an assumption.
func sections(t *testing.T) (all []section) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs/assumptions.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range strings.Split(string(text), "\n## `")[1:] {
		part, _, _ = strings.Cut(part, "\n## ")
		id, rest, _ := strings.Cut(part, "`\n")
		says, table, _ := strings.Cut(rest, "\n| | |\n|---|---|\n")
		s := section{id: id, says: strings.Join(strings.Fields(says), " "), rows: map[string]string{}}
		for line := range strings.Lines(table) {
			if cells := strings.SplitN(strings.Trim(line, "| \n"), " | ", 2); len(cells) == 2 {
				s.rows[cells[0]] = cells[1]
			}
		}
		all = append(all, s)
	}
	return all
}

// Guarantees that docs/assumptions.md begins with the assumptions that doctor checks, in their order, with what doctor
// prints of each, and that it says of each other one what shows whether it holds.
func TestPage(t *testing.T) {
	page, list := sections(t), doctor.Assumptions()
	if len(page) < len(list) {
		t.Fatalf("the page has %d assumptions, and doctor checks %d", len(page), len(list))
	}
	for i, s := range page {
		shown := "what shows whether it holds"
		if i < len(list) {
			a := list[i]
			shown = "how `doctor` checks it"
			if s.id != a.ID || s.says != a.Says || s.rows["what to do if it does not hold"] != a.Do {
				t.Errorf("assumption %d: the page has\n%+v\nand doctor says\n%+v", i, s, a)
			}
		}
		for _, row := range []string{"relied on by", "the worse case, for which the code is made", shown,
			"what to do if it does not hold"} {
			if s.rows[row] == "" {
				t.Errorf("%s: the page does not say: %s", s.id, row)
			}
		}
	}
}

var (
	idForm  = regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`)
	comment = regexp.MustCompile(`Assumption: ([a-z-]*[a-z])`)
	link    = regexp.MustCompile(`\]\(\.\./([^)]+)\)`)
)

// Guarantees that each file that relies on an assumption, by docs/assumptions.md, has a comment that names the
// assumption, and that each such comment names an assumption that exists and whose section names the file.
func TestCodeNamesAssumptions(t *testing.T) {
	files := map[string][]string{} // by the id of the assumption that names them
	for _, s := range sections(t) {
		if !idForm.MatchString(s.id) || files[s.id] != nil {
			t.Errorf("assumption %q has no valid id, or the id of another one", s.id)
		}
		for _, m := range link.FindAllStringSubmatch(s.rows["relied on by"], -1) {
			files[s.id] = append(files[s.id], m[1])
			if text, err := os.ReadFile(filepath.Join(root, m[1])); err != nil ||
				!strings.Contains(string(text), "Assumption: "+s.id) {
				t.Errorf("%s does not name the assumption %s (%v)", m[1], s.id, err)
			}
		}
		if len(files[s.id]) == 0 {
			t.Errorf("assumption %q has no files", s.id)
		}
	}
	named := 0
	err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		name, _ := filepath.Rel(root, path)
		name = filepath.ToSlash(name)
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (name == "internal/dev/doctor" ||
			slices.Contains([]string{".git", "node_modules", "cdk.out", "testdata"}, entry.Name())):
			return filepath.SkipDir
		case entry.IsDir() || filepath.Ext(name) != ".go" && filepath.Ext(name) != ".yaml":
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range comment.FindAllStringSubmatch(string(text), -1) {
			named++
			if !slices.Contains(files[m[1]], name) {
				t.Errorf("%s names the assumption %q, which does not exist or does not name this file", name, m[1])
			}
		}
		return err
	})
	if err != nil || named < len(files) {
		t.Errorf("%d comments name an assumption, want at least one for each of the %d assumptions: %v", named,
			len(files), err)
	}
}
