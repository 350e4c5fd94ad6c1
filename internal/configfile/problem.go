package configfile

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// Problem is one thing that is wrong in a file.
type Problem struct {
	File    string `json:"file"`   // "" where there is none
	Line    int    `json:"line"`   // from 1; 0 where the file as a whole is meant
	Column  int    `json:"column"` // from 1, in characters; 0 where the file as a whole is meant
	Path    string `json:"path"`   // as in plans[0].limits[2].rate; "" where the file as a whole is meant
	Message string `json:"message"`
}

// String is "file:line:column: path: message". What is not known is left out.
func (p Problem) String() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File)
		if p.Line > 0 {
			b.WriteString(":" + strconv.Itoa(p.Line) + ":" + strconv.Itoa(p.Column))
		}
		b.WriteString(": ")
	}
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Message)
	return b.String()
}

// Error is every problem of one load, usually in file order.
type Error struct{ Problems []Problem }

// Error joins the problems, a line each.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// ordered is the problem with the number of its source, which is the first key of file order.
type ordered struct {
	Problem
	source int
}

// inOrder sorts by place and leaves out what is said twice of one place, as an alias that is used often would.
func inOrder(found []ordered) []Problem {
	slices.SortStableFunc(found, func(a, b ordered) int {
		return cmp.Or(cmp.Compare(a.source, b.source), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	type said struct {
		source, line, column int
		message              string
	}
	seen := make(map[said]bool, len(found))
	out := make([]Problem, 0, len(found))
	for _, o := range found {
		key := said{o.source, o.Line, o.Column, o.Message}
		if !seen[key] {
			seen[key] = true
			out = append(out, o.Problem)
		}
	}
	return out
}
