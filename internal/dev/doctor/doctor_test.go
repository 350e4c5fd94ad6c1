package doctor_test

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/dev/doctor"
)

var update = flag.Bool("update", false, "rewrite docs/assumptions.md; then read the diff")

const root = "../../../"

// now is the time of all checks of these tests.
var now = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// standIns are the targets that an assumption is tested with: one for which it is true, some that violate it, and some
// for which nothing can be concluded.
type standIns struct {
	holds    func(*testing.T) *doctor.Target
	too      map[string]func(*testing.T) *doctor.Target // other targets for which it is true, by what is special
	violates map[string]func(*testing.T) *doctor.Target // targets that violate it, by what is wrong
	// targets for which nothing can be concluded, by what is missing
	untold map[string]func(*testing.T) *doctor.Target
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
		check := func(name string, target func(*testing.T) *doctor.Target, want doctor.Result) {
			t.Run(a.ID+"/"+name, func(t *testing.T) {
				got := a.Check(t.Context(), target(t))
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
		check("untold: nothing given", func(*testing.T) *doctor.Target { return &doctor.Target{Now: now} },
			doctor.CouldNotTell)
	}
	if len(all) != len(doctor.Assumptions()) {
		t.Errorf("there are stand-ins for %d assumptions, want %d", len(all), len(doctor.Assumptions()))
	}
}

// Guarantees that docs/assumptions.md describes each assumption as the code does.
func TestPage(t *testing.T) {
	file := filepath.Join(root, "docs/assumptions.md")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := doctor.Page()
	first, last, _ := strings.Cut(strings.TrimSuffix(want, "\n"), "\n")
	last = last[strings.LastIndex(last, "\n")+1:]
	begins, ends := strings.Index(string(text), first), strings.Index(string(text), last)
	if begins < 0 || ends < begins {
		t.Fatalf("%s has no lines %q and %q", file, first, last)
	}
	ends += len(last) + 1
	if *update {
		text = []byte(string(text[:begins]) + want + string(text[ends:]))
		if err := os.WriteFile(file, text, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got := string(text[begins:ends]); got != want {
		t.Errorf("%s is not what internal/dev/doctor says (-update rewrites it)\ngot\n%s\nwant\n%s", file, got, want)
	}
}

var (
	idForm  = regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`)
	comment = regexp.MustCompile(`Assumption: ([a-z-]*[a-z])`)
)

// Guarantees that each file that an assumption names has a comment that names the assumption, and that each such
// comment names an assumption that exists and that names the file.
func TestCodeNamesAssumptions(t *testing.T) {
	files := map[string][]string{} // by the id of the assumption that names them
	for _, a := range doctor.Assumptions() {
		if !idForm.MatchString(a.ID) || files[a.ID] != nil || len(a.Code) == 0 {
			t.Errorf("assumption %q has no valid id, the id of another one, or no files", a.ID)
		}
		for field, text := range map[string]string{"Says": a.Says, "Worse": a.Worse, "How": a.How, "Do": a.Do} {
			if text == "" || strings.ContainsAny(text, "\n|") {
				t.Errorf("%s: %s is empty, or breaks the page's table: %q", a.ID, field, text)
			}
		}
		files[a.ID] = a.Code
		for _, name := range a.Code {
			if text, err := os.ReadFile(filepath.Join(root, name)); err != nil ||
				!strings.Contains(string(text), "Assumption: "+a.ID) {
				t.Errorf("%s does not name the assumption %s (%v)", name, a.ID, err)
			}
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
