package killswitch_test

import (
	"encoding/json"
	"maps"
	"regexp"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/cell/killswitch"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Guarantees that only a correct document is accepted, and that the error names the place of the mistake without
// repeating the document: a mistake must not turn limits off, and text that was pasted by mistake must not appear in a
// log.
func TestParse(t *testing.T) {
	for _, tt := range []struct {
		document, wrong string
		want            limit.Mode
	}{
		{`{"mode":"enforce"}`, "", limit.Enforce},
		{`{"mode":"shadow"}`, "", limit.Shadow},
		{" {\n \"mode\" : \"off\"\n}\n", "", limit.Off},
		{`{"m\u006fde":"\u006fff"}`, "", limit.Off},
		{"", "the document is empty", limit.Enforce},
		{" \n", "the document is empty", limit.Enforce},
		{"{}", `the document has no "mode"`, limit.Enforce},
		{"off", "byte 0: the document is not JSON", limit.Enforce},
		{"mode: off", "byte 0: the document is not JSON", limit.Enforce},
		{`"off"`, "the document is not an object", limit.Enforce},
		{`["off"]`, "the document is not an object", limit.Enforce},
		{"null", "the document is not an object", limit.Enforce},
		{`{"mode":"off"`, "byte 13: the document is not JSON", limit.Enforce},
		{`{"mode":"off",}`, "byte 14: the document is not JSON", limit.Enforce},
		{`{"mode":"off"} x`, "byte 15: text follows the document", limit.Enforce},
		{`{"mode":"off"}{"mode":"off"}`, "byte 15: text follows the document", limit.Enforce},
		{`{"mode":"off","hunter2":1}`, `byte 23: a member that is not "mode"`, limit.Enforce},
		{`{"Mode":"off"}`, `byte 7: a member that is not "mode"`, limit.Enforce},
		{`{"mode":"off","mode":"enforce"}`, `byte 20: "mode" is there twice`, limit.Enforce},
		{`{"mode":"hunter2"}`, `byte 17: "mode" must be "enforce", "shadow" or "off"`, limit.Enforce},
		{`{"mode":"OFF"}`, `byte 13: "mode" must be "enforce", "shadow" or "off"`, limit.Enforce},
		{`{"mode":""}`, `byte 10: "mode" must be "enforce", "shadow" or "off"`, limit.Enforce},
		{`{"mode":2}`, `byte 9: "mode" must be "enforce", "shadow" or "off"`, limit.Enforce},
		{`{"mode":null}`, `byte 12: "mode" must be "enforce", "shadow" or "off"`, limit.Enforce},
		{`{"mode":{"mode":"off"}}`, `byte 9: "mode" must be "enforce", "shadow" or "off"`, limit.Enforce},
		{"\ufeff" + `{"mode":"off"}`, "byte 0: the document is not JSON", limit.Enforce},
		{strings.Repeat(" ", killswitch.MaxDocumentBytes) + `{}`, "the document has 4098 bytes, want at most 4096",
			limit.Enforce},
	} {
		got, err := killswitch.Parse([]byte(tt.document))
		wrong := ""
		if err != nil {
			wrong = err.Error()
		}
		if got != tt.want || wrong != tt.wrong {
			t.Errorf("%.40q: %s, %q; want %s, %q", tt.document, got, wrong, tt.want, tt.wrong)
		}
	}
}

// problems are all errors of Parse, without their numbers.
var problems = regexp.MustCompile(`^(byte \d+: )?(the document (has \d+ bytes, want at most 4096|is empty|has no ` +
	`"mode"|is not JSON|is not an object)|text follows the document|` +
	`a member that is not "mode"|"mode" is there twice|"mode" must be "enforce", "shadow" or "off")$`)

// FuzzParse guarantees that any document is either one of the three modes, however it is spelled, or an error that
// repeats nothing of it, with the mode enforce.
func FuzzParse(f *testing.F) {
	for _, s := range []string{`{"mode":"shadow"}`, `{"mode":"off"}`, `{"Mode":"off"}`, `{"mode":"off","mode":"off"}`,
		`{"mode":"x"}`, `[]`, `{"mode"`, `{"mode":"off"}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, document []byte) {
		mode, err := killswitch.Parse(document)
		if err != nil {
			if mode != limit.Enforce || !problems.MatchString(err.Error()) {
				t.Fatalf("the document %q: mode %s, error %q; want enforce, and an error that repeats nothing of "+
					"the document", document, mode, err)
			}
			return
		}
		var whole map[string]string
		if json.Unmarshal(document, &whole) != nil || !maps.Equal(whole, map[string]string{"mode": mode.String()}) ||
			mode > limit.Off {
			t.Fatalf("the document %q is accepted as the mode %s", document, mode)
		}
	})
}
