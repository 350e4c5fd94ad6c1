package repotest

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"unicode"
)

var (
	inlineLink = regexp.MustCompile(`\]\(([^()\s]+(?:\([^()\s]*\))?)(?:\s+"[^"]*")?\)`)
	namedLink  = regexp.MustCompile(`(?m)^\[[^\]]+\]:\s+(\S+)`)
	heading    = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *#*$`)
	fenced     = regexp.MustCompile("(?ms)^ *(```|~~~).*?^ *(```|~~~)$")
	codeSpan   = regexp.MustCompile("`[^`\n]*`")
)

// links returns the targets of a Markdown text's links, those in code left out.
func links(text string) []string {
	text = codeSpan.ReplaceAllString(fenced.ReplaceAllString(text, ""), "")
	var targets []string
	for _, re := range []*regexp.Regexp{inlineLink, namedLink} {
		for _, m := range re.FindAllStringSubmatch(text, -1) {
			targets = append(targets, m[1])
		}
	}
	return targets
}

// anchors returns the fragment of each heading in a Markdown text, as GitHub makes them.
func anchors(text string) map[string]bool {
	found := make(map[string]bool)
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		var b strings.Builder
		for _, r := range strings.ToLower(m[1]) {
			switch {
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				b.WriteRune(r)
			case r == ' ':
				b.WriteByte('-')
			}
		}
		name := b.String()
		for n := 1; found[name]; n++ {
			name = fmt.Sprintf("%s-%d", b.String(), n)
		}
		found[name] = true
	}
	return found
}

// checkLinks reports each link of a Markdown file to a file, folder or heading of the repository that is not there.
func checkLinks(repo fs.FS, name, text string) []error {
	var errs []error
	for _, target := range links(text) {
		if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
			continue
		}
		file, fragment, _ := strings.Cut(target, "#")
		goal, content := name, text
		if file != "" {
			goal = path.Join(path.Dir(name), file)
			if _, err := fs.Stat(repo, goal); err != nil {
				errs = append(errs, fmt.Errorf("%s: link to %s: %w", name, target, err))
				continue
			}
			if fragment != "" && path.Ext(goal) == ".md" {
				b, err := fs.ReadFile(repo, goal)
				if err != nil {
					errs = append(errs, err)
					continue
				}
				content = string(b)
			}
		}
		if fragment != "" && path.Ext(goal) == ".md" && !anchors(content)[fragment] {
			errs = append(errs, fmt.Errorf("%s: link to %s: %s has no such heading", name, target, goal))
		}
	}
	return errs
}

var (
	makeTarget  = regexp.MustCompile(`(?m)^([a-z0-9-]+):`)
	makeCommand = regexp.MustCompile("(?m)^[ `]*(?:\\$ )?make ((?:[a-z0-9-]+ ?)+)")
)

// checkMake reports each "make target" command in the code of a Markdown text whose target the Makefile does not have.
func checkMake(name, text, makefile string) []error {
	targets := make(map[string]bool)
	for _, m := range makeTarget.FindAllStringSubmatch(makefile, -1) {
		targets[m[1]] = true
	}
	var errs []error
	code := append(fenced.FindAllString(text, -1), codeSpan.FindAllString(text, -1)...)
	for _, m := range makeCommand.FindAllStringSubmatch(strings.Join(code, "\n"), -1) {
		for target := range strings.FieldsSeq(m[1]) {
			if !targets[target] {
				errs = append(errs, fmt.Errorf("%s: make %s: the Makefile has no such target", name, target))
			}
		}
	}
	return errs
}

var (
	testFunction = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Z]\w*)\(`)
	testNamed    = regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)`")
)

// unfinished marks a line of a page that says what another branch is about to make true.
const unfinished = "<!-- check: "

// checkTests reports each name of a test in the code spans of a Markdown text that no test has. Lines that are marked
// as unfinished are left out.
func checkTests(name, text string, known map[string]bool) []error {
	var errs []error
	for line := range strings.Lines(text) {
		if strings.Contains(line, unfinished) {
			continue
		}
		for _, m := range testNamed.FindAllStringSubmatch(line, -1) {
			if !known[m[1]] {
				errs = append(errs, fmt.Errorf("%s: there is no test %s", name, m[1]))
			}
		}
	}
	return errs
}
