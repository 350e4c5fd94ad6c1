// Package doctor checks what Sluice assumes about API Gateway and AWS's documentation does not settle.
//
// docs/assumptions.md lists all assumptions about AWS. [Assumptions] has those that can be checked by calling an API.
// Each file that relies on an assumption names it in a comment, "Assumption: ID". A check looks at the answers to the
// calls. If they do not tell, its result is [CouldNotTell].
package doctor

import (
	"fmt"
	"strings"
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

// Assumption is a sentence about API Gateway that Sluice relies on. docs/assumptions.md also has which files rely on
// it, the worse case, for which they are written, and how the check looks.
type Assumption struct {
	ID   string
	Says string // the sentence
	Do   string // what to do if the sentence is not true

	check func(*Calls) Finding
}

// Check checks the assumption with the answers of an API.
func (a *Assumption) Check(c *Calls) Finding {
	f := a.check(c)
	if f.Result == DoesNotHold {
		f.Do = a.Do
	}
	return f
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
