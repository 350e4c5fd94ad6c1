package audit_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/audit"
)

// findingsText writes findings or notices in one line, except for the notice that there are no anchors.
func findingsText(all []audit.Finding) string {
	var lines []string
	for _, f := range all {
		if f.Kind == audit.NoAnchors {
			continue
		}
		lines = append(lines, fmt.Sprintf("%d %s at %s/%s/%d", f.Count, f.Kind, f.Table, f.Key, f.Version))
	}
	return strings.Join(lines, "; ")
}

// Guarantees that the time at which an object was put, by the archive's clock, is compared with the time of the
// change: a delay that an outage of the archiver explains is a notice, and anything else is a finding.
func TestPutTimes(t *testing.T) {
	const late, early, delayed = string(audit.Late), string(audit.Early), string(audit.Delayed)
	for _, tt := range []struct {
		after            time.Duration // between the change and the put
		finding, notices string
	}{
		{-2 * time.Hour, early, ""},
		{-audit.MostSkew - time.Second, early, ""},
		{-audit.MostSkew, "", ""},
		{0, "", ""},
		{time.Hour, "", ""},
		{time.Hour + time.Second, "", delayed},
		{20 * time.Hour, "", delayed},
		{24 * time.Hour, "", delayed},
		{24*time.Hour + time.Second, late, ""},
		{90 * 24 * time.Hour, late, ""},
	} {
		w := newWorld(t)
		w.archiveRecord(w.write(control.Tenants, "acme", `{"n":1}`, noon))
		w.archiveAt(w.write(control.Tenants, "acme", `{"n":2}`, noon.Add(time.Minute)), noon.Add(time.Minute+tt.after))
		r := w.verify()
		place := func(kind string) string {
			if kind == "" {
				return ""
			}
			return "1 " + kind + " at tenants/acme/2"
		}
		if got, want := findingsText(r.Findings), place(tt.finding); got != want {
			t.Errorf("put %v after its change: found %q, want %q", tt.after, got, want)
		}
		if got, want := findingsText(r.Notices), place(tt.notices); got != want {
			t.Errorf("put %v after its change: noticed %q, want %q", tt.after, got, want)
		}
	}
}

// Guarantees that a history that was written anew much later, with all hashes, is found by the times at which its
// objects were put.
func TestVerifyFindsAHistoryWrittenAnew(t *testing.T) {
	w := newWorld(t)
	for i, plan := range []string{"free", "basic", "pro"} {
		r := w.write(control.Tenants, "acme", `{"id":"acme","plan":"`+plan+`"}`, noon.Add(time.Duration(i)*time.Hour))
		w.archiveAt(r, noon.Add(90*24*time.Hour))
	}
	if got, want := findingsText(w.verify().Findings), "3 archived late at tenants/acme/1"; got != want {
		t.Errorf("found %q, want %q", got, want)
	}
}

// Guarantees that the caller can say how late an object may be, for an archive that an operator restored from a
// stream.
func TestPutTimesHaveATolerance(t *testing.T) {
	w := newWorld(t)
	w.archiveAt(w.write(control.Tenants, "acme", `{"n":1}`, noon), noon.Add(48*time.Hour))
	for late, want := range map[time.Duration]bool{48 * time.Hour: true, 47 * time.Hour: false} {
		c := audit.VerifyConfig{Archive: w.archive, Tables: w, Grace: -1, Late: late}
		r, err := audit.Verify(t.Context(), c)
		if err != nil || r.OK() != want {
			t.Errorf("with %v: %v, %v; want OK to be %t", late, r, err, want)
		}
	}
}

// Guarantees that the times of files are ignored, since anybody can set them, and that a notice says so.
func TestPutTimesOfFilesAreNotCompared(t *testing.T) {
	w := newWorld(t)
	archiveInFolder(t, w)
	w.archiveRecord(w.write(control.Tenants, "acme", `{"n":1}`, noon.Add(-365*24*time.Hour)))
	r := w.verify()
	if !r.OK() || findingsText(r.Notices) != "1 put times not known at //0" {
		t.Errorf("got the findings %q and the notices %q, want none, and one about times that are not known",
			findingsText(r.Findings), findingsText(r.Notices))
	}
}
