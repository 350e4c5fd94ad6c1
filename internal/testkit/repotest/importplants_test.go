package repotest

import (
	"fmt"
	"maps"
	"strings"
	"testing"
)

// A rule that cannot fail protects nothing. Each case adds one import to those of the repository, and has parts of the
// errors that TestImportRules must report.
func TestImportRulesCanFail(t *testing.T) {
	const sdk = "github.com/aws/aws-sdk-go-v2/"
	tests := []struct {
		name, folder, imported string
		test                   bool // the import is in a test file
		want                   []string
	}{
		{name: "another group", folder: "internal/limiter/store/router", imported: "internal/plan/route",
			want: []string{"router imports internal/plan/route", "group limiter may not import group plan",
				"may import nothing"}},
		{name: "a group above", folder: "internal/cell", imported: "internal/control/client",
			want: []string{"internal/cell imports internal/control/client", "group cell may not import group control"}},
		{name: "the same level", folder: "functions/ops", imported: "internal/dev/devtoken",
			want: []string{"group functions may not import group dev"}},
		{name: "what only tests use", folder: "internal/cell", imported: "internal/testkit/soak",
			want: []string{"group cell may not import group testkit"}},
		{name: "a contract, wherever it is", folder: "internal/control/operate",
			imported: "internal/control/controltest",
			want:     []string{"group control may not import group testkit"}},
		{name: "a leaf", folder: "events", imported: "internal/limiter/limit",
			want: []string{"group events may not import group limiter"}},
		{name: "no group", folder: "internal/other", imported: "fmt",
			want: []string{"internal/other is in no group", "importlist_test.go"}},
		{name: "a package that is not listed", folder: "internal/limiter/lease",
			imported: "internal/limiter/store/memory",
			want: []string{"lease imports internal/limiter/store/memory",
				"listed to import only std, internal/limiter/clock"}},
		{name: "a module that is not listed", folder: "internal/plan", imported: "gopkg.in/yaml.v3",
			want: []string{"internal/plan imports gopkg.in/yaml.v3", "listed to import only"}},
		{name: "below one that is listed alone", folder: "internal/aws/awsenv", imported: sdk +
			"service/dynamodb/types",
			want: []string{"awsenv imports " + sdk + "service/dynamodb/types", "listed to import only"}},
		{name: "nothing is listed", folder: "internal/testkit/endtoend", imported: "fmt",
			want: []string{"endtoend imports fmt", "listed to import only nothing"}},
		{name: "the standard library, too", folder: "internal/limiter/limit", imported: "unsafe",
			want: []string{"limit imports unsafe", "the language holds the bounds"}},
		{name: "chance", folder: "internal/limiter/limit", imported: "math/rand/v2",
			want: []string{"limit imports math/rand/v2", "can be replayed"}},
		{name: "AWS, three steps away", folder: "internal/request/answer", imported: sdk + "aws",
			want: []string{"authorizer imports internal/request/answer imports " + sdk +
				"aws, which authorizer must not link",
				"which middleware must not link"}},
		{name: "Redis, several steps away", folder: "internal/limiter/limit", imported: "github.com/redis/go-redis/v9",
			want: []string{". imports internal/limiter/limit imports github.com/redis/go-redis/v9, which . must not " +
				"link"}},
		{name: "one that is not below an exception", folder: "functions/anchor", imported: "internal/cell",
			want: []string{"functions/anchor imports internal/cell, which functions/anchor must not link"}},
		{name: "more packages than a function may link", folder: "streams/applier",
			imported: "internal/plan/route",
			want: []string{"functions/applier links 16 packages of the repository, want at most 15",
				"internal/plan/route"}},
		{name: "the lease layer, several steps away", folder: "internal/cell/table", imported: "internal/limiter/lease",
			want: []string{"which functions/applier must not link: it copies documents"}},
		{name: "CDK, in a test", folder: "bench", imported: "github.com/aws/constructs-go/constructs/v10", test: true,
			want: []string{"bench imports github.com/aws/constructs-go/constructs/v10", "it belongs to infra"}},
		{name: "a module that nobody needs", folder: "events", imported: "github.com/stretchr/testify/assert",
			test: true,
			want: []string{"events imports github.com/stretchr/testify/assert", "print input, got and want"}},
	}
	repository := readImports(t)
	if errs := listed.check(repository); len(errs) > 0 {
		t.Fatalf("rules are broken before any import is planted: %v", errs)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tree := &importTree{product: maps.Clone(repository.product), all: maps.Clone(repository.all)}
			tree.plant(tt.folder, tt.imported, tt.test)
			got := fmt.Sprint(listed.check(tree))
			for _, want := range tt.want {
				if !strings.Contains(got, want) {
					t.Errorf("%s imports %s: got %s, want it to contain %q", tt.folder, tt.imported, got, want)
				}
			}
		})
	}
}

// The rules accept what they should in a small repository, and mistakes in the rules themselves are errors.
func TestImportRulesOfASmallTree(t *testing.T) {
	tree := newImportTree()
	for name, text := range map[string]string{
		"core/core.go":            "package core\n\nimport (\n\t\"time\"\n\n\t\"" + modulePath + "/store\"\n)\n",
		"core/core_test.go":       "package core\n\nimport _ \"" + modulePath + "/cmd\"\n",
		"core/testdata/broken.go": "pakkage broken\n",
		"store/disk/disk.go":      "//go:build windows\n\npackage disk\n\nimport _ \"cloud.test/sdk/table\"\n",
		"store/store.go":          "package store\n\nimport _ \"" + modulePath + "/store/disk\"\n",
		"storefront/front.go":     "package storefront\n\nimport _ \"" + modulePath + "/core\"\n",
		"cmd/main.go":             "package main\n",
	} {
		if err := tree.add(name, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := tree.add("core/broken.go", []byte("pakkage core\n")); err == nil {
		t.Error("a file that cannot be read passes")
	}
	groups := func(may ...string) []group {
		return []group{{"cmd", []string{"cmd"}, nil}, {"front", []string{"storefront"}, []string{"core"}},
			{"core", []string{"core"}, may}, {"store", []string{"store/..."}, nil}}
	}
	tests := []struct {
		name  string
		rules importRules
		want  string // part of the one error; "": no error
	}{
		{"all may", importRules{groups: groups("store")}, ""},
		{"an import of a test does not count", importRules{groups: groups("store"),
			bans: []ban{{packages: []string{"core"}, never: []string{"cmd"}}}}, ""},
		{"a folder with a longer name is another", importRules{groups: groups("store"),
			bans: []ban{{packages: []string{"storefront"}, never: []string{"cor/...", "stor/..."}}}}, ""},
		{"a folder is not what is below it", importRules{groups: groups("store"),
			only: map[string][]string{"store": {"std", "store"}}}, "store imports store/disk"},
		{"two steps away, behind a build tag", importRules{groups: groups("store"),
			bans: []ban{{packages: []string{"core"}, never: []string{"cloud.test/..."}, why: "no cloud"}}},
			"core imports store imports store/disk imports cloud.test/sdk/table, which core must not link: no cloud"},
		{"an exception", importRules{groups: groups("store"),
			bans: []ban{{packages: []string{"core", "store/..."}, except: []string{"store/...", "core"},
				never: []string{"cloud.test/..."}}}}, ""},
		{"may not", importRules{groups: groups()}, "group core may not import group store"},
		{"a group that comes before", importRules{groups: groups("store", "front")},
			"core may import front, which is no group"},
		{"a rule about a package that moved", importRules{groups: groups("store"),
			only: map[string][]string{"store/memory": {"std"}}}, "names store/memory, which is no package"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			errs := tt.rules.check(tree)
			switch {
			case tt.want == "" && len(errs) > 0:
				t.Errorf("got %v, want no error", errs)
			case tt.want != "" && (len(errs) != 1 || !strings.Contains(errs[0].Error(), tt.want)):
				t.Errorf("got %v, want one error with %q", errs, tt.want)
			}
		})
	}
}
