// Package anchor signs, once a day, what the newest version of every item of the control tables is, and puts that
// into the audit trail's archive; package audit says what an anchor is and what it proves.
//
// It runs every hour, and does something in the first run of a day, in UTC: so a run that fails is made up for by the
// next one.
//
// Metrics: anchor_missing (1 where the day has no anchor after a run, else 0; told in each run, so its silence means
// that none runs), anchor_taken (1 where an object has the name of an anchor, of today or the last one, and is none).
package anchor

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/sluicelimits/sluice/internal/control/audit"
)

// Meter counts; a *telemetry.Meter is one.
type Meter interface {
	Count(name string, n int64)
}

// Config sets up an Anchorer. All but the last two are required.
type Config struct {
	Archive audit.Archive
	Tables  audit.Tables
	Signer  audit.Signer
	Meter   Meter

	Log *slog.Logger     // default slog.Default()
	Now func() time.Time // default time.Now
}

// Anchorer makes anchors. It is safe for concurrent use. Make it with [New].
type Anchorer struct{ c Config }

// New makes an anchorer. The error names what is missing.
func New(c Config) (*Anchorer, error) {
	if c.Archive == nil || c.Tables == nil || c.Signer == nil || c.Meter == nil {
		return nil, errors.New("anchor: Archive, Tables, Signer or Meter is missing")
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Anchorer{c}, nil
}

// Run makes the anchor of today, if there is none. After an error the next run tries again.
func (a *Anchorer) Run(ctx context.Context) (audit.Anchored, error) {
	done, err := audit.WriteAnchor(ctx, audit.AnchorConfig{
		Archive: a.c.Archive, Tables: a.c.Tables, Signer: a.c.Signer, Now: a.c.Now,
	})
	if err != nil {
		a.c.Meter.Count("anchor_missing", 1)
		return done, err
	}
	a.c.Meter.Count("anchor_missing", 0)
	if done.Unread > 0 {
		a.c.Log.WarnContext(ctx,
			"items of the tables cannot be read and are not anchored: sluice audit verify names them",
			"day", done.Day, "pages", done.Unread)
	}
	if done.Bad != "" {
		a.c.Meter.Count("anchor_taken", 1)
		a.c.Log.ErrorContext(ctx, "an object has the name of an anchor and is none, so it was passed over: "+
			"sluice audit verify names each, and CloudTrail who put it", "day", done.Day, "object", done.Bad)
	}
	if done.Future != "" {
		a.c.Log.WarnContext(ctx, "an object claims to be the anchor of a later day than today, and was left out: "+
			"sluice audit verify names each, and CloudTrail who put it", "day", done.Day, "object", done.Future)
	}
	return done, nil
}
