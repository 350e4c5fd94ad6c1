package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")
	shellWord  = regexp.MustCompile(`'([^']*)'|[^\s']+`)
)

// commandsOf returns the commands of sluice in a page's shell blocks, split into words.
func commandsOf(page string) (all [][]string) {
	for _, block := range shellBlock.FindAllStringSubmatch(page, -1) {
		for line := range strings.SplitSeq(block[1], "\n") {
			rest, is := strings.CutPrefix(strings.TrimSpace(line), "sluice ")
			if !is {
				continue
			}
			var words []string
			for _, m := range shellWord.FindAllStringSubmatch(rest, -1) {
				if m[1] != "" {
					m[0] = m[1]
				}
				words = append(words, m[0])
			}
			all = append(all, words)
		}
	}
	return all
}

// problemOf says why a command is invalid, or "" if its words and flags exist.
func problemOf(words []string) string {
	c, rest, err := newRootCommand().Find(words)
	if err == nil && c.HasSubCommands() {
		return "it is the name of several commands"
	}
	if err == nil {
		err = c.ParseFlags(rest)
	}
	if err == nil {
		err = c.ValidateArgs(c.Flags().Args())
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// Each command in a runbook exists and succeeds: all except those on the archive in S3 run against a dev with the cells
// of the examples.
func TestRunbookCommands(t *testing.T) {
	plans := "example.yaml"
	dev := startDev(t, "--cells", "eu-1,us-1", "--plans", plans)
	t.Setenv("SLUICE_ENDPOINT", dev.base+"/_sluice/admin")
	waitUntil(t, "both cells serve, and have what they are to have", func() bool {
		cells := dataOf(t, dev.base).Cells
		return len(cells) == 2 && cells[0].State == "active" && cells[1].State == "active" &&
			cells[0].Phase == "steady" && sluice(t, "", "cell", "status").code == 0
	})
	pages, err := filepath.Glob(filepath.Join("..", "..", "docs", "runbooks", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	var looks, changes [][]string // commands that only read, and commands that change something, which run last
	seen := map[string]bool{}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, words := range commandsOf(string(text)) {
			line := strings.Join(words, " ")
			if why := problemOf(words); why != "" {
				t.Errorf("%s: sluice %s: %s", page, line, why)
			}
			// There is no S3 here, so these are not run. They must name the tables, because without them they would
			// fail.
			if words[0] == "audit" && words[1] == "verify" && !slices.Contains(words, "--tables") {
				t.Errorf("%s: sluice %s: the command does not name the tables", page, line)
			}
			switch {
			case words[0] == "audit" || seen[line]:
			case slices.Contains(words, "--reason"):
				changes = append(changes, words)
			default:
				looks = append(looks, words)
			}
			seen[line] = true
		}
	}
	for _, words := range slices.Concat(looks, changes) {
		for i := range words {
			if words[i] == "plans.yaml" {
				words[i] = plans
			}
		}
		if r := sluice(t, "", words...); r.code != 0 {
			t.Errorf("sluice %s: exit status %d: %s%s", strings.Join(words, " "), r.code, r.stdout, r.stderr)
		}
	}
	if len(looks) < 5 || len(changes) < 3 {
		t.Errorf("only %d commands that read and %d that change something were found", len(looks), len(changes))
	}
	if err := dev.finish(t); err != nil {
		t.Error(err)
	}

	for _, page := range []string{"```sh\nsluice cell lst\n```", "```sh\nsluice counter peek\n```",
		"```sh\nsluice cell\n```",
		"```sh\nsluice cell status --all 'a b'\n```"} {
		if all := commandsOf(page); len(all) != 1 || problemOf(all[0]) == "" {
			t.Errorf("understood does not detect that %q is invalid: %v", page, all)
		}
	}
}
