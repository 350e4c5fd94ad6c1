package repotest

import (
	"fmt"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// modulePath is the path of the main module. The other modules of the repository are folders of it by name, too.
const modulePath = "github.com/sluicelimits/sluice"

// Each package of the repository imports only what the list in importlist_test.go allows.
func TestImportRules(t *testing.T) {
	for _, err := range listed.check(readImports(t)) {
		t.Error(err)
	}
}

// readImports reads the imports of all Go files of the repository.
func readImports(t *testing.T) *importTree {
	t.Helper()
	tree := newImportTree()
	open(t).each(t, ".go", func(name string, content []byte) {
		if err := tree.add(name, content); err != nil {
			t.Error(err)
		}
	})
	return tree
}

// listed are the rules of importlist_test.go.
var listed = &importRules{groups: groups, only: only, bans: bans, everywhere: everywhere, mostLinked: mostLinked}

// importRules are rules of imports, as in importlist_test.go.
type importRules struct {
	groups           []group
	only             map[string][]string
	bans, everywhere []ban
	mostLinked       map[string]int
}

// importTree is what the packages of a repository import: import paths, or folders for packages of the repository.
type importTree struct {
	product map[string][]string // by folder, without what test files import
	all     map[string][]string // by folder
}

func newImportTree() *importTree {
	return &importTree{product: make(map[string][]string), all: make(map[string][]string)}
}

// add reads the imports of a Go file, whatever its build tags.
func (tree *importTree) add(name string, content []byte) error {
	if strings.Contains(name, "testdata/") {
		return nil
	}
	file, err := parser.ParseFile(token.NewFileSet(), name, content, parser.ImportsOnly)
	if err != nil {
		return err
	}
	folder, test := path.Dir(name), strings.HasSuffix(name, "_test.go")
	if !test {
		tree.product[folder] = slices.Clip(tree.product[folder]) // a package may import nothing
	}
	for _, spec := range file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return fmt.Errorf("import %s in %s: %w", spec.Path.Value, name, err)
		}
		switch below, ok := strings.CutPrefix(imported, modulePath+"/"); {
		case ok:
			imported = below
		case imported == modulePath:
			imported = "."
		}
		tree.plant(folder, imported, test)
	}
	return nil
}

// plant adds one import. Clones of the tree's maps do not see it.
func (tree *importTree) plant(folder, imported string, test bool) {
	tree.all[folder] = append(slices.Clip(tree.all[folder]), imported)
	if !test {
		tree.product[folder] = append(slices.Clip(tree.product[folder]), imported)
	}
}

// linked returns the folders of the packages of the repository that a program with this package contains.
func (tree *importTree) linked(folder string) []string {
	all := []string{folder}
	for i := 0; i < len(all); i++ {
		for _, imported := range tree.product[all[i]] {
			if _, ok := tree.product[imported]; ok && !slices.Contains(all, imported) {
				all = append(all, imported)
			}
		}
	}
	return all
}

// check returns an error for each import of the tree that breaks a rule, for each package that is in no group, and for
// each rule that names a package which the tree does not have.
func (rules *importRules) check(tree *importTree) []error {
	errs := rules.checkList(tree)
	for _, folder := range slices.Sorted(maps.Keys(tree.product)) {
		imports := slices.Compact(slices.Sorted(slices.Values(tree.product[folder])))
		errs = append(errs, rules.checkGroup(tree, folder, imports)...)
		if allowed, ok := rules.only[folder]; ok {
			errs = append(errs, checkOnly(tree, folder, imports, allowed)...)
		}
		if most, ok := rules.mostLinked[folder]; ok {
			if linked := tree.linked(folder); len(linked) > most {
				errs = append(errs, fmt.Errorf("%s links %d packages of the repository, want at most %d: %s", folder,
					len(linked), most, list(linked)))
			}
		}
		for _, b := range rules.bans {
			if matches(b.packages, folder) && !matches(b.except, folder) {
				errs = append(errs, b.check(tree, folder)...)
			}
		}
	}
	for _, folder := range slices.Sorted(maps.Keys(tree.all)) {
		for _, imported := range slices.Compact(slices.Sorted(slices.Values(tree.all[folder]))) {
			for _, b := range rules.everywhere {
				if matches(b.never, imported) && !matches(b.except, folder) {
					errs = append(errs, fmt.Errorf("%s imports %s, in a test file or another: %s", folder, imported,
						b.why))
				}
			}
		}
	}
	return errs
}

// checkGroup returns an error for each import of another group that the folder's group may not import.
func (rules *importRules) checkGroup(tree *importTree, folder string, imports []string) []error {
	from := rules.groupOf(folder)
	if from == nil {
		return []error{fmt.Errorf("%s is in no group: add its folder to a group of importlist_test.go", folder)}
	}
	var errs []error
	for _, imported := range imports {
		if _, ok := tree.product[imported]; !ok {
			continue // of another module
		}
		if to := rules.groupOf(imported); to != nil && to != from && !slices.Contains(from.may, to.name) {
			errs = append(errs, fmt.Errorf("%s imports %s, but group %s may not import group %s; it may import %s",
				folder, imported, from.name, to.name, list(from.may)))
		}
	}
	return errs
}

// groupOf returns the group of a folder of the repository; nil if it has none.
func (rules *importRules) groupOf(folder string) *group {
	for i := range rules.groups {
		if g := &rules.groups[i]; strings.HasSuffix(folder, "test") && g.name == "testkit" {
			return g
		}
	}
	for i := range rules.groups {
		if g := &rules.groups[i]; matches(g.folders, folder) {
			return g
		}
	}
	return nil
}

// checkOnly returns an error for each import that is not allowed.
func checkOnly(tree *importTree, folder string, imports, allowed []string) []error {
	var errs []error
	for _, imported := range imports {
		if !matches(allowed, imported) && !(slices.Contains(allowed, "std") && tree.isStd(imported)) {
			errs = append(errs, fmt.Errorf("%s imports %s, but is listed to import only %s", folder, imported,
				list(allowed)))
		}
	}
	return errs
}

// check walks the imports of the folder, breadth first, so that the chain in an error is a shortest one. It does not
// look into other modules.
func (b *ban) check(tree *importTree, folder string) []error {
	chains := map[string]string{folder: folder}
	var errs []error
	for queue := []string{folder}; len(queue) > 0; queue = queue[1:] {
		for _, imported := range slices.Sorted(slices.Values(tree.product[queue[0]])) {
			if chains[imported] != "" {
				continue
			}
			chains[imported] = chains[queue[0]] + " imports " + imported
			if matches(b.never, imported) {
				errs = append(errs, fmt.Errorf("%s, which %s must not link: %s", chains[imported], folder, b.why))
			} else if _, ok := tree.product[imported]; ok {
				queue = append(queue, imported)
			}
		}
	}
	return errs
}

// checkList returns an error for each rule that cannot have an effect: a group that is out of order, and a rule about a
// package that does not exist, perhaps because the package was moved.
func (rules *importRules) checkList(tree *importTree) []error {
	var errs []error
	place := make(map[string]int)
	for i, g := range rules.groups {
		place[g.name] = i
	}
	for i, g := range rules.groups {
		for _, name := range g.may {
			if to, ok := place[name]; !ok || to <= i {
				errs = append(errs, fmt.Errorf("group %s may import %s, which is no group that comes after it", g.name,
					name))
			}
		}
	}
	names := slices.AppendSeq(slices.Collect(maps.Keys(rules.only)), maps.Keys(rules.mostLinked))
	for _, allowed := range rules.only {
		names = append(names, allowed...)
	}
	for _, b := range slices.Concat(rules.bans, rules.everywhere) {
		names = slices.Concat(names, b.packages, b.except, b.never)
	}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		there := func(folder string) bool { return matches([]string{name}, folder) }
		top, _, _ := strings.Cut(name, "/")
		ours := slices.ContainsFunc(slices.Collect(maps.Keys(tree.product)), func(folder string) bool {
			first, _, _ := strings.Cut(folder, "/")
			return first == top
		})
		if (ours || top == "internal") && !slices.ContainsFunc(slices.Collect(maps.Keys(tree.product)), there) {
			errs = append(errs, fmt.Errorf("importlist_test.go names %s, which is no package", name))
		}
	}
	return errs
}

// matches reports whether one of the patterns is the package's path: "x" is x, "x/..." is x and everything below it.
func matches(patterns []string, pkg string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		below, tree := strings.CutSuffix(pattern, "/...")
		return pkg == below || tree && strings.HasPrefix(pkg, below+"/")
	})
}

// isStd reports whether a package is in the standard library. By the rule of the go command, only paths outside the
// standard library have a dot in their first element.
func (tree *importTree) isStd(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	_, ours := tree.product[imported]
	return !ours && !strings.Contains(first, ".")
}

// list joins names for an error.
func list(names []string) string {
	if len(names) == 0 {
		return "nothing"
	}
	return strings.Join(names, ", ")
}
