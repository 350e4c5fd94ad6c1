package configfile_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
)

// Guarantees that what is wrong with a JSON text is told with its place. The mark ▸ stands before it.
func TestParseJSONProblems(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"{\"é\": ▸}", "invalid character '}' looking for beginning of value"},
		{"{\n  ▸a: 1}", "invalid character 'a' looking for beginning of object key string"},
		{"{\"a\" ▸1}", "invalid character '1' after object key"},
		{"[1 ▸2]", "invalid character '2' after array element"},
		{"[1, ▸]", "invalid character ']' looking for beginning of value"},
		{"[1▸", "unexpected end of JSON input"},
		{"plans:▸", ""},
		{"{} ▸{}", "invalid character '{' after top-level value"},
		{"[-▸]", "invalid character ']' in numeric literal"},
		{"[0▸1]", "invalid character '1' after array element"},
		{"[1.▸e5]", "invalid character 'e' after decimal point"},
		{"[\"a▸\nb\"]", `invalid character '\n' in string literal`},
		{"[\"▸\xff\"]", "byte 0xff is not UTF-8 text"},
		{"[▸\xff]", "byte 0xff is not UTF-8 text"},
		{`["\▸x"]`, "invalid character 'x' in string escape code"},
		{`["\u12▸"]`, `invalid character '"' in \u hexadecimal character escape`},
		{`["▸\ud800"]`, "half of a surrogate pair is not a character"},
		{`["é\n▸\udc00\ud800"]`, "half of a surrogate pair is not a character"},
		{`["\ud83d\ude00▸\ud83d\\ude00"]`, "half of a surrogate pair is not a character"},
		{`["a▸`, "unexpected end of JSON input"},
		{strings.Repeat("[", 1001) + "▸" + "[" + strings.Repeat("]", 1002), "values nest deeper than 1000"},
	} {
		before, after, _ := strings.Cut(tt.text, "▸")
		if tt.want == "" { // the first character is the problem
			before, after, tt.want = "", before+after, "invalid character 'p' looking for beginning of value"
		}
		line := strings.Count(before, "\n") + 1
		column := utf8.RuneCountInString(before[strings.LastIndex(before, "\n")+1:]) + 1
		n, p := configfile.ParseJSON([]byte(before + after))
		if n != nil || p == nil || !strings.HasPrefix(p.Message, "not valid JSON: ") ||
			!strings.Contains(p.Message, tt.want) ||
			p.Line != line || p.Column != column {
			t.Errorf("%.60q: %v, %+v; want %d:%d %s", tt.text, n, p, line, column, tt.want)
		}
	}
	for _, text := range []string{"", " \n", "null", " null "} {
		if n, p := configfile.ParseJSON([]byte(text)); n != nil || p != nil {
			t.Errorf("%q: %v, %v; want no value and no problem", text, n, p)
		}
	}
}

// FuzzParseJSON guarantees that the reader takes what encoding/json takes, and reads the same from it; and that YAML,
// where it takes such a text, makes the same tree with the same places.
func FuzzParseJSON(f *testing.F) {
	f.Add([]byte(`{"a": [1, -2.50, 1e9, true, false, null, "x\n\u00e9\ud83d\ude00"], "é": {"a":"2026-01-01", "":{}}}`))
	f.Add([]byte("[\r\n\t0 , \"é\" ,[ ]]"))
	f.Add([]byte(`{"plans":[{"id":"p","limits":[{"id":"a","tiers":[{"period":"1s","threshold":5}]}]}]}`))
	f.Add([]byte(`"\ud800"`))
	f.Fuzz(func(t *testing.T, data []byte) {
		n, p := configfile.ParseJSON(data)
		if (p == nil) != shouldAccept(data) {
			t.Fatalf("%q: problem %v, and encoding/json says %t", data, p, json.Valid(data))
		}
		if n == nil {
			if p != nil && (p.Line < 1 || p.Column < 1 || p.Message == "") {
				t.Fatalf("%q: %+v has no place", data, p)
			}
			return
		}
		d := json.NewDecoder(bytes.NewReader(data))
		d.UseNumber()
		if err := compareTree(n, d); err != nil {
			t.Fatalf("%q: %v", data, err)
		}
		fromYAML, q := configyaml.Parse(data)
		if q == nil && fromYAML != nil && !otherInYAML.Match(data) {
			if got, want := show(fromYAML), show(n); got != want {
				t.Fatalf("%q\nYAML %s\nJSON %s", data, got, want)
			}
		}
	})
}

// shouldAccept reports whether the reader is to take a text: what encoding/json takes, but with whole characters alone.
func shouldAccept(data []byte) bool {
	if len(bytes.TrimLeft(data, " \t\r\n")) == 0 {
		return true
	}
	if !json.Valid(data) || !utf8.Valid(data) ||
		bytes.Count(data, []byte("[")) > 1000 || bytes.Count(data, []byte("{")) > 1000 {
		return false
	}
	// encoding/json makes U+FFFD of half a surrogate pair.
	plain := strings.NewReplacer(`\\`, "", `\ufffd`, "", `\uFFFD`, "", `\ufffD`, "", "\ufffd", "").Replace(string(data))
	d := json.NewDecoder(strings.NewReader(plain))
	d.UseNumber()
	for {
		tok, err := d.Token()
		if err != nil {
			break
		}
		if s, ok := tok.(string); ok && strings.Contains(s, "\ufffd") {
			return false
		}
	}
	return true
}

// compareTree compares a tree with the tokens of encoding/json.
func compareTree(n *configfile.Node, d *json.Decoder) error {
	tok, err := d.Token()
	if err != nil && err != io.EOF {
		return err
	}
	ok := false
	switch n.Kind {
	case configfile.Mapping, configfile.List:
		ok = tok == map[configfile.Kind]json.Delim{configfile.Mapping: '{', configfile.List: '['}[n.Kind]
		for _, c := range n.Content {
			if err := compareTree(c, d); err != nil {
				return err
			}
		}
		_, err = d.Token()
	case configfile.String:
		ok = tok == n.Text
	case configfile.Integer, configfile.Float:
		ok = tok == json.Number(n.Text)
	case configfile.Boolean:
		ok = tok == (n.Text == "true")
	case configfile.Null:
		ok = tok == nil
	}
	if !ok {
		return fmt.Errorf("%d:%d: %q, want %v", n.Line, n.Column, n.Text, tok)
	}
	return err
}

// otherInYAML matches what YAML reads in another way: line breaks that only YAML knows or folds, escapes, and numbers
// that are past what a float holds.
var otherInYAML = regexp.MustCompile("[\\\\\r\t\u0085\u2028\u2029\ufeff]|[0-9][eE]|[0-9]{300}")

// show writes a tree with its places.
func show(n *configfile.Node) string {
	s := fmt.Sprintf("%d@%d:%d %q", n.Kind, n.Line, n.Column, n.Text)
	for _, c := range n.Content {
		s += " (" + show(c) + ")"
	}
	return s
}
