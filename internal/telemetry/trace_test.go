package telemetry_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/telemetry"
)

const (
	traceID  = "5759e988bd862e3fe1be46a994272793"
	rootID   = "1-5759e988-bd862e3fe1be46a994272793"
	parentID = "53995c3f42cd8ad8"
)

func TestXRayTrace(t *testing.T) {
	for header, want := range map[string]string{
		"Root=" + rootID + ";Parent=" + parentID + ";Sampled=1":                                          traceID,
		"Root=" + rootID + ";Parent=" + parentID + ";Sampled=0;Lineage=a87bd80c:1|68fd508a:5|c512fbe3:2": traceID,
		"Self=1-67891234-12456789abcdef012345678f;Root=" + rootID:                                        traceID,
		"Sampled=1; Root=" + rootID + " ;":                                                               traceID,
		"Root=" + rootID + ";Parent=../../x":                                                             traceID,
		"":                                                                                               "",
		"Parent=" + parentID + ";Sampled=1":                                                              "",
		"Root=" + rootID + ";Root=" + rootID:                                                             "",
		"Root=2" + rootID[1:]:                                                                            "",
		"Root=" + strings.ToUpper(rootID):                                                                "",
		"Root=" + rootID[:34]:                                                                            "",
		"Root=1-5759e98-8bd862e3fe1be46a994272793":                                                       "",
		"Root=1-00000000-000000000000000000000000":                                                       "",
		"Root=" + rootID + "-":                                                                           "",
		"Root=" + rootID + ";" + strings.Repeat("x", 1024):                                               "",
	} {
		if got := telemetry.XRayTrace(header); got != want {
			t.Errorf("XRayTrace(%q) = %q, want %q", header, got, want)
		}
	}
}

func TestTraceparentTrace(t *testing.T) {
	const good = "00-" + traceID + "-" + parentID + "-01"
	for header, want := range map[string]string{
		good: traceID, good[:53] + "02": traceID, "cc" + good[2:]: traceID, "cc" + good[2:] + "-what-ever": traceID,
		"cc" + good[2:] + "what": "", good + "-what": "", "ff" + good[2:]: "", "AB" + good[2:]: "", "": "",
		good[:54]: "", strings.ToUpper(good): "", "00-" + strings.Repeat("0", 32) + good[35:]: "",
		good[:36] + strings.Repeat("0", 16) + "-01": "", good[:53] + "0g": "",
		strings.Replace(good, "5759", "57 9", 1): "", "00" + good[3:36] + "--" + good[37:]: "",
	} {
		if got := telemetry.TraceparentTrace(header); got != want {
			t.Errorf("TraceparentTrace(%q) = %q, want %q", header, got, want)
		}
	}
}

// FuzzTrace guarantees what log lines rely on: an id consists only of hex digits, whatever a client sent.
func FuzzTrace(f *testing.F) {
	f.Add("Root=" + rootID + ";Parent=" + parentID + ";Sampled=1")
	f.Add("Root=;Root=1-;;Parent")
	f.Add("cc-" + traceID + "-" + parentID + "-01-what-ever")
	form := regexp.MustCompile(`^([0-9a-f]{32})?$`)
	f.Fuzz(func(t *testing.T, header string) {
		for _, got := range []string{telemetry.XRayTrace(header), telemetry.TraceparentTrace(header)} {
			if !form.MatchString(got) || got != "" && strings.Trim(got, "0") == "" {
				t.Fatalf("%q has the trace %q", header, got)
			}
		}
	})
}
