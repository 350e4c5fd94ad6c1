// Package doctor checks what Sluice assumes about AWS where AWS's documentation does not settle it.
//
// [Assumptions] is the list. docs/assumptions.md is made from it, and each file that relies on an assumption names
// it in a comment, "Assumption: ID". A check reads only. It looks at a [Target], of which any part may be missing:
// what was not given, or is not permitted, makes the check say that it could not tell.
package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Result is what a check found out.
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
	Worse string   // the worse case, which the code is made for
	How   string   // how the check looks
	Do    string   // what to do if the sentence is not true

	check func(context.Context, *Target) Finding
}

// Target is what is looked at. A part that is nil was not given.
type Target struct {
	Calls     *Calls     // what an API answered
	Operators *Operators // the operators' API
	Account   *Account   // the account, by the AWS SDK
	Now       time.Time
}

// Check looks at the target.
func (a *Assumption) Check(ctx context.Context, t *Target) Finding {
	f := a.check(ctx, t)
	if f.Result == DoesNotHold {
		f.Do = a.Do
	}
	return f
}

// Assumptions are all of them, in the order of the page.
func Assumptions() []Assumption {
	return append(ofTheAPI(), ofTheAccount()...)
}

func holds(format string, args ...any) Finding {
	return Finding{Result: Holds, Saw: fmt.Sprintf(format, args...)}
}

// violated is filled in with what to do by [Assumption.Check].
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
		fmt.Fprintf(&b, "\n## `%s`\n\n%s\n\n| | |\n|---|---|\n", a.ID, a.Says)
		for i, file := range a.Code {
			if i == 0 {
				b.WriteString("| relied on by | ")
			} else {
				b.WriteString(", ")
			}
			fmt.Fprintf(&b, "[%s](../%s)", file, file)
		}
		b.WriteString(" |\n")
		fmt.Fprintf(&b, "| the worse case, which is assumed | %s |\n", a.Worse)
		fmt.Fprintf(&b, "| how `doctor` looks | %s |\n| if it does not hold | %s |\n", a.How, a.Do)
	}
	b.WriteString("\n" + pageEnds)
	return b.String()
}
