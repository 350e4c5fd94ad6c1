// Package anchor signs, once a day, the newest version of every item of the control tables, and puts the signed anchor
// into the archive of the audit trail. Package audit says what an anchor is and what it proves.
//
// The function runs every hour, and makes the anchor in the first run of a day, in UTC. If a run fails, the next run
// makes the anchor.
//
// Metrics: anchor_missing (1 if the day has no anchor after a run, otherwise 0; written by each run, so missing data
// means that no run took place), anchor_taken (1 if an object has the name of an anchor, of today or of the last day
// with an anchor, and is not one).
package anchor

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/sluicelimits/sluice/internal/control/audit"
)

// Meter counts. *telemetry.Meter implements it.
type Meter interface {
	Count(name string, n int64)
}

// Config sets up an Anchorer. All fields but the last two are required.
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

// Run makes the anchor of today, if there is none. After an error, the next run tries again.
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
			"items of the control tables cannot be read and are not in the anchor: sluice audit verify names them",
			"day", done.Day, "pages", done.Unread)
	}
	if done.Bad != "" {
		a.c.Meter.Count("anchor_taken", 1)
		a.c.Log.ErrorContext(ctx, "an object has the name of an anchor and is not one; it was ignored: "+
			"sluice audit verify names each such object, and CloudTrail says who put it there", "day", done.Day,
			"object", done.Bad)
	}
	if done.Future != "" {
		a.c.Log.WarnContext(ctx, "an object claims to be the anchor of a day in the future; it was ignored: "+
			"sluice audit verify names each such object, and CloudTrail says who put it there", "day", done.Day,
			"object", done.Future)
	}
	return done, nil
}
