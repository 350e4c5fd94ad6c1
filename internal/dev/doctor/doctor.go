// Package doctor checks Sluice's assumptions about AWS that AWS's documentation does not settle.
//
// [Assumptions] is the list of them. docs/assumptions.md is generated from it. Each file that relies on an assumption
// names it in a comment, "Assumption: ID". A check only reads. It looks at a [Target]. If a part of the target that the
// check needs is missing, or a call is not permitted, the result of the check is [CouldNotTell].
package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Result is the result of a check.
type Result string

// The results.
const (
	Holds        Result = "holds"
	DoesNotHold  Result = "does not hold"
	CouldNotTell Result = "could not tell"
)

// Finding is the outcome of one check.
type Finding struct {
	Result Result `json:"result"`
	Saw    string `json:"saw"`          // what was seen, in one line
	Do     string `json:"do,omitempty"` // what to do, in one line; "" if there is nothing to do
}

// Assumption is a sentence about AWS that Sluice relies on.
type Assumption struct {
	ID    string
	Says  string   // the sentence
	Code  []string // the files that rely on it
	Worse string   // the worse case, for which the code is written
	How   string   // how the check looks
	Do    string   // what to do if the sentence is not true

	check func(context.Context, *Target) Finding
}

// Target is what checks look at. A part is nil if the user did not name it.
type Target struct {
	Calls     *Calls     // the answers of an API
	Operators *Operators // the operators' API
	Account   *Account   // the account, by the AWS SDK
	Now       time.Time
}

// Check checks the assumption against the target.
func (a *Assumption) Check(ctx context.Context, t *Target) Finding {
	f := a.check(ctx, t)
	if f.Result == DoesNotHold {
		f.Do = a.Do
	}
	return f
}

// Assumptions returns all assumptions, in the order of docs/assumptions.md.
func Assumptions() []Assumption {
	return append(ofTheAPI(), ofTheAccount()...)
}

func confirmed(format string, args ...any) Finding {
	return Finding{Result: Holds, Saw: fmt.Sprintf(format, args...)}
}

// violated returns a finding without Do, which [Assumption.Check] fills in.
func violated(format string, args ...any) Finding {
	return Finding{Result: DoesNotHold, Saw: fmt.Sprintf(format, args...)}
}

func unknown(do, format string, args ...any) Finding {
	return Finding{Result: CouldNotTell, Saw: fmt.Sprintf(format, args...), Do: do}
}

// The part of docs/assumptions.md that is made from the list lies between these lines.
const (
	pageBegins = "<!-- made from internal/dev/doctor: go test ./internal/dev/doctor -update -->\n"
	pageEnds   = "<!-- end -->\n"
)

// Page describes all assumptions in Markdown.
func Page() string {
	var b strings.Builder
	b.WriteString(pageBegins)
	for _, a := range Assumptions() {
		fmt.Fprintf(&b, "\n## `%s`\n\n%s\n\n| | |\n|---|---|\n", a.ID, wrapped(a.Says))
		for i, file := range a.Code {
			if i == 0 {
				b.WriteString("| relied on by | ")
			} else {
				b.WriteString(", ")
			}
			fmt.Fprintf(&b, "[%s](../%s)", file, file)
		}
		b.WriteString(" |\n")
		fmt.Fprintf(&b, "| the worse case, for which the code is made | %s |\n", a.Worse)
		fmt.Fprintf(&b, "| how `doctor` checks it | %s |\n| what to do if it does not hold | %s |\n", a.How, a.Do)
	}
	b.WriteString("\n" + pageEnds)
	return b.String()
}

// pageColumns is how long the lines of prose on the page are.
const pageColumns = 120

// wrapped returns the text in lines of at most pageColumns.
func wrapped(text string) string {
	var b strings.Builder
	column := 0
	for word := range strings.FieldsSeq(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case column == 0:
		case column+1+n > pageColumns:
			b.WriteByte('\n')
			column = 0
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += n
	}
	return b.String()
}
