// Package configfiletest writes the files of tests, which are in YAML to be readable, as the JSON that functions read.
package configfiletest

import (
	"strconv"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
)

// JSON returns the YAML text as JSON in which each value is on the line that it has in the text. It checks nothing
// else.
func JSON(t testing.TB, yaml string) []byte {
	t.Helper()
	n, problem := configyaml.Parse([]byte(yaml))
	if problem != nil {
		t.Fatalf("%s\n%v", yaml, problem)
	}
	w := &writer{line: 1}
	w.write(n)
	return []byte(w.text.String())
}

type writer struct {
	text strings.Builder
	line int // that the text is at
}

func (w *writer) write(n *configfile.Node) {
	for ; w.line < n.Line; w.line++ {
		w.text.WriteByte('\n')
	}
	switch n.Kind {
	case configfile.Mapping:
		w.text.WriteByte('{')
		for i, c := range n.Content {
			if i > 0 {
				w.text.WriteByte(",:"[i%2])
			}
			w.write(c)
		}
		w.text.WriteByte('}')
	case configfile.List:
		w.text.WriteByte('[')
		for i, c := range n.Content {
			if i > 0 {
				w.text.WriteByte(',')
			}
			w.write(c)
		}
		w.text.WriteByte(']')
	case configfile.Null:
		w.text.WriteString("null")
	case configfile.Integer, configfile.Float, configfile.Boolean:
		w.text.WriteString(n.Text)
	default:
		w.text.WriteString(strconv.Quote(n.Text))
	}
}
