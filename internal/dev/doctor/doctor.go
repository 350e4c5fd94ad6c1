// Package doctor checks Sluice's assumptions about AWS that AWS's documentation does not settle.
//
// [Assumptions] is the list of them, which docs/assumptions.md describes. Each file that relies on an assumption names
// it in a comment, "Assumption: ID". A check only reads. It looks at a [Target]. If a part of the target that the
// check needs is missing, or a call is not permitted, the result of the check is [CouldNotTell].
package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"
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

// Assumption is a sentence about AWS that Sluice relies on. docs/assumptions.md also has which files rely on it, the
// worse case, for which they are written, and how the check looks.
type Assumption struct {
	ID   string
	Says string // the sentence
	Do   string // what to do if the sentence is not true

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

// clip shortens a text to at most so many characters: it ends after a whole word, and with "…" if something was left
// out. A text without blanks is cut anywhere.
func clip(text string, most int) string {
	all := []rune(text)
	if len(all) <= most {
		return text
	}
	cut := string(all[:most])
	if i := strings.LastIndexByte(cut, ' '); i > 0 && all[most] != ' ' {
		cut = cut[:i]
	}
	return strings.TrimRight(cut, " ") + " …"
}
