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

func TestParseXRay(t *testing.T) {
	for _, c := range []struct {
		name, header string
		want         telemetry.Trace // zero: an error
	}{
		{"whole", "Root=" + rootID + ";Parent=" + parentID + ";Sampled=1",
			telemetry.Trace{ID: traceID, Parent: parentID, Sampled: true}},
		{"of Lambda", "Root=" + rootID + ";Parent=" + parentID + ";Sampled=0;Lineage=a87bd80c:1|68fd508a:5|c512fbe3:2",
			telemetry.Trace{ID: traceID, Parent: parentID}},
		{"of a load balancer", "Self=1-67891234-12456789abcdef012345678f;Root=" + rootID, telemetry.Trace{ID: traceID}},
		{"spaces", "Sampled=1; Root=" + rootID + " ;", telemetry.Trace{ID: traceID, Sampled: true}},
		{"decision asked for", "Root=" + rootID + ";Sampled=?", telemetry.Trace{ID: traceID}},
		{"malformed parent", "Root=" + rootID + ";Parent=../../x", telemetry.Trace{ID: traceID}},
		{"parent of zeros", "Root=" + rootID + ";Parent=0000000000000000", telemetry.Trace{ID: traceID}},
		{"nothing", "", telemetry.Trace{}},
		{"no root", "Parent=" + parentID + ";Sampled=1", telemetry.Trace{}},
		{"two roots", "Root=" + rootID + ";Root=" + rootID, telemetry.Trace{}},
		{"another version", "Root=2" + rootID[1:], telemetry.Trace{}},
		{"upper case", "Root=" + strings.ToUpper(rootID), telemetry.Trace{}},
		{"short", "Root=" + rootID[:34], telemetry.Trace{}},
		{"dash moved", "Root=1-5759e98-8bd862e3fe1be46a994272793", telemetry.Trace{}},
		{"zeros", "Root=1-00000000-000000000000000000000000", telemetry.Trace{}},
		{"too long", "Root=" + rootID + ";" + strings.Repeat("x", 1024), telemetry.Trace{}},
	} {
		got, err := telemetry.ParseXRay(c.header)
		check(t, c.name, c.header, got, err, c.want)
	}
}

func TestParseTraceparent(t *testing.T) {
	const good = "00-" + traceID + "-" + parentID + "-01"
	whole := telemetry.Trace{ID: traceID, Parent: parentID, Sampled: true}
	for _, c := range []struct {
		name, header string
		want         telemetry.Trace
	}{
		{"whole", good, whole},
		{"not sampled", good[:53] + "02", telemetry.Trace{ID: traceID, Parent: parentID}},
		{"other flags", good[:53] + "ff", whole},
		{"a later version", "cc" + good[2:], whole},
		{"a later version with more", "cc" + good[2:] + "-what-ever", whole},
		{"a later version, longer", "cc" + good[2:] + "what", telemetry.Trace{}},
		{"version 00 with more", good + "-what", telemetry.Trace{}},
		{"version ff", "ff" + good[2:], telemetry.Trace{}},
		{"version in upper case", "AB" + good[2:], telemetry.Trace{}},
		{"nothing", "", telemetry.Trace{}},
		{"short", good[:54], telemetry.Trace{}},
		{"upper case", strings.ToUpper(good), telemetry.Trace{}},
		{"trace of zeros", "00-" + strings.Repeat("0", 32) + good[35:], telemetry.Trace{}},
		{"parent of zeros", good[:36] + strings.Repeat("0", 16) + "-01", telemetry.Trace{}},
		{"flags no digits", good[:53] + "0g", telemetry.Trace{}},
		{"trace no digits", strings.Replace(good, "5759", "57 9", 1), telemetry.Trace{}},
		{"dashes elsewhere", "00" + good[3:36] + "--" + good[37:], telemetry.Trace{}},
	} {
		got, err := telemetry.ParseTraceparent(c.header)
		check(t, c.name, c.header, got, err, c.want)
	}
}

func check(t *testing.T, name, header string, got telemetry.Trace, err error, want telemetry.Trace) {
	t.Helper()
	if got != want || (err == nil) != (want != telemetry.Trace{}) {
		t.Errorf("%s: %q is %+v, %v; want %+v", name, header, got, err, want)
	}
	if err != nil && len(header) > 20 && strings.Contains(err.Error(), header[5:20]) {
		t.Errorf("%s: the error repeats the header: %v", name, err)
	}
}

// Guarantees that a client's traceparent never replaces the gateway's trace, and that a malformed header has the same
// effect as none.
func TestFindTrace(t *testing.T) {
	const xray, w3c = "Root=" + rootID, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, c := range []struct{ xray, traceparent, id, root string }{
		{xray, w3c, traceID, rootID},
		{xray, "rubbish", traceID, rootID},
		{"rubbish", w3c, "0af7651916cd43dd8448eb211c80319c", "1-0af76519-16cd43dd8448eb211c80319c"},
		{"", "", "", ""},
		{"rubbish", "rubbish", "", ""},
	} {
		if got := telemetry.FindTrace(c.xray, c.traceparent); got.ID != c.id || got.XRay() != c.root {
			t.Errorf("FindTrace(%q, %q) = %+v, in X-Ray's form %q; want %q, %q", c.xray, c.traceparent, got, got.XRay(),
				c.id, c.root)
		}
	}
}

var (
	idForm     = regexp.MustCompile(`^[0-9a-f]{32}$`)
	parentForm = regexp.MustCompile(`^[0-9a-f]{16}$`)
)

// wellFormed checks what log lines rely on: an id consists only of hex digits, whatever a client sent.
func wellFormed(t *testing.T, header string, got telemetry.Trace, err error) bool {
	t.Helper()
	if err != nil {
		if got != (telemetry.Trace{}) {
			t.Fatalf("%q: %v, and yet %+v", header, err, got)
		}
		return false
	}
	if !idForm.MatchString(got.ID) || strings.Trim(got.ID, "0") == "" || got.Parent != "" &&
		!parentForm.MatchString(got.Parent) {
		t.Fatalf("%q is %+v", header, got)
	}
	return true
}

// FuzzXRay guarantees that any header gives an error, or a well-formed trace that stays the same when it is written and
// read again.
func FuzzXRay(f *testing.F) {
	f.Add("Root=" + rootID + ";Parent=" + parentID + ";Sampled=1")
	f.Add("Self=1-67891234-12456789abcdef012345678f; Root=" + rootID)
	f.Add("Root=;Root=1-;;Parent")
	f.Add("Root=1-00000000-000000000000000000000000")
	f.Fuzz(func(t *testing.T, header string) {
		got, err := telemetry.ParseXRay(header)
		if !wellFormed(t, header, got, err) {
			return
		}
		out := "Root=" + got.XRay() + ";Parent=" + got.Parent + ";Sampled=0"
		if got.Sampled {
			out = strings.TrimSuffix(out, "0") + "1"
		}
		if again, err := telemetry.ParseXRay(out); err != nil || again != got {
			t.Fatalf("%q is %+v, but written out as %q it is %+v, %v", header, got, out, again, err)
		}
	})
}

// FuzzTraceparent guarantees for the header traceparent what FuzzXRay does for the other one, and that its trace always
// has a parent.
func FuzzTraceparent(f *testing.F) {
	f.Add("00-" + traceID + "-" + parentID + "-01")
	f.Add("cc-" + traceID + "-" + parentID + "-01-what-ever")
	f.Add("ff-" + traceID + "-" + parentID + "-01")
	f.Add("00-" + strings.Repeat("0", 32) + "-" + parentID + "-00")
	f.Fuzz(func(t *testing.T, header string) {
		got, err := telemetry.ParseTraceparent(header)
		if !wellFormed(t, header, got, err) {
			return
		}
		out := "00-" + got.ID + "-" + got.Parent + "-00"
		if got.Sampled {
			out = strings.TrimSuffix(out, "0") + "1"
		}
		if again, err := telemetry.ParseTraceparent(out); err != nil || again != got {
			t.Fatalf("%q is %+v, but written out as %q it is %+v, %v", header, got, out, again, err)
		}
	})
}
