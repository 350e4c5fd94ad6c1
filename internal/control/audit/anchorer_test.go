package audit_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/audit"
	"github.com/sluicelimits/sluice/internal/control/audit/bucket"
	"github.com/sluicelimits/sluice/internal/testkit/s3test"
	"github.com/sluicelimits/sluice/streams/streamstest"
)

// world is a key, and tables with one tenant, or with one item that cannot be read.
type anchoredWorld struct {
	*ecdsa.PrivateKey
	away error // error of the key
	bad  bool
}

func (w *anchoredWorld) Sign(_ context.Context, digest [sha256.Size]byte) ([]byte, error) {
	if w.away != nil {
		return nil, w.away
	}
	return ecdsa.SignASN1(rand.Reader, w.PrivateKey, digest[:])
}

func (*anchoredWorld) Get(context.Context, control.Table, string) (control.Item, error) {
	return control.Item{}, control.ErrNotFound
}

func (w *anchoredWorld) List(_ context.Context, t control.Table, _ string, _ int) ([]control.Item, string, error) {
	switch {
	case t != control.Tenants:
		return nil, "", nil
	case w.bad:
		return nil, "", fmt.Errorf("acme: %w", control.ErrBadItem)
	}
	return []control.Item{{Table: t, Key: "acme", Version: 1, Hash: strings.Repeat("0", 64)}}, "", nil
}

// Guarantees that a run that fails reports the missing anchor, and that the next run makes it; that there is one anchor
// a day; and that an item that cannot be read is in the log.
func TestRun(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	w := &anchoredWorld{PrivateKey: key, away: errors.New("KMS is unavailable")}
	archive := audit.NewFolder(t.TempDir())
	meter, log := &streamstest.Meter{}, &bytes.Buffer{}
	now := time.Now().UTC().Truncate(24 * time.Hour).Add(-time.Hour) // files are of today, by this machine's clock
	yesterday, today := now.Format(time.DateOnly), now.AddDate(0, 0, 1).Format(time.DateOnly)
	a := audit.Anchorer{Meter: meter, Log: slog.New(slog.NewTextHandler(log, nil)), AnchorConfig: audit.AnchorConfig{
		Archive: archive, Tables: w, Signer: w, Now: func() time.Time { return now },
	}}
	if _, err := a.Run(t.Context()); !errors.Is(err, w.away) {
		t.Errorf("a run while the key does not answer: %v", err)
	}
	meter.Want(t, map[string]int64{"anchor_missing": 1})
	w.away = nil
	for n, want := range []audit.Anchored{
		{Day: yesterday, Made: true, Heads: 1}, {Day: yesterday}, {Day: today, Made: true, Unread: 1}, {Day: today},
	} {
		w.bad = n == 2
		if done, err := a.Run(t.Context()); err != nil || done != want {
			t.Errorf("run %d: %+v, %v; want %+v", n, done, err, want)
		}
		if logged := strings.Contains(log.String(), "cannot be read"); logged != (n >= 2) {
			t.Errorf("run %d: the log is %q", n, log)
		}
		now = now.Add(40 * time.Minute)
	}
	if _, err := archive.Put(t.Context(), "anchors/9999-12-31.json", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	now = now.AddDate(0, 0, 1)
	if done, err := a.Run(t.Context()); err != nil || !done.Made || !strings.Contains(log.String(), "9999-12-31.json") {
		t.Errorf("with an object of a later day: %+v, %v; the log is %q", done, err, log)
	}
}

// Guarantees that an object that has the name of today's anchor is logged as an error with its name, and that the day
// has its anchor nevertheless.
func TestRunSaysWhatTookAName(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	w := &anchoredWorld{PrivateKey: key}
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	b := s3test.New(t, s3test.Config{Lock: true, Mode: "GOVERNANCE", Days: 1, Now: func() time.Time { return now }})
	archive := bucket.New(b.Client(), s3test.Name)
	meter, log := &streamstest.Meter{}, &bytes.Buffer{}
	a := audit.Anchorer{Meter: meter, Log: slog.New(slog.NewTextHandler(log, nil)), AnchorConfig: audit.AnchorConfig{
		Archive: archive, Tables: w, Signer: w, Now: func() time.Time { return now },
	}}
	const name = "anchors/2026-11-22.json"
	b.Overwrite(name, []byte("{}"))
	if done, err := a.Run(t.Context()); err != nil || !done.Made || done.Bad != name {
		t.Errorf("the run is %+v, %v", done, err)
	}
	meter.Want(t, map[string]int64{"anchor_missing": 0, "anchor_taken": 1})
	if got := log.String(); !strings.Contains(got, "level=ERROR") || !strings.Contains(got, "object="+name) {
		t.Errorf("the log is %q, want an error that names the object", got)
	}
}
