package audit

import (
	"context"
	"log/slog"
)

// Meter counts. *telemetry.Meter implements it.
type Meter interface {
	Count(name string, n int64)
}

// Anchorer makes the anchors, and reports what is wrong with them. All fields are required, except those that
// [AnchorConfig] says may be left out. It is safe for concurrent use.
//
// The function calls Run every hour, and makes the anchor in the first run of a day, in UTC.
//
// Metrics: anchor_missing (1 if the day has no anchor after a run, otherwise 0; written by each run, so missing data
// means that no run took place), anchor_taken (1 if an object has the name of an anchor, of today or of the last day
// with an anchor, and is not one).
type Anchorer struct {
	AnchorConfig
	Meter Meter
	Log   *slog.Logger
}

// Run makes the anchor of today unless it exists already. If Run fails, the next run tries again.
func (a *Anchorer) Run(ctx context.Context) (Anchored, error) {
	done, err := WriteAnchor(ctx, a.AnchorConfig)
	if err != nil {
		a.Meter.Count("anchor_missing", 1)
		return done, err
	}
	a.Meter.Count("anchor_missing", 0)
	if done.Unread > 0 {
		a.Log.WarnContext(ctx,
			"items of the control tables cannot be read and are not in the anchor: sluice audit verify names them",
			"day", done.Day, "pages", done.Unread)
	}
	if done.Bad != "" {
		a.Meter.Count("anchor_taken", 1)
		a.Log.ErrorContext(ctx, "an object has the name of an anchor and is not one; it was ignored: "+
			"sluice audit verify names each such object, and CloudTrail says who put it there", "day", done.Day,
			"object", done.Bad)
	}
	if done.Future != "" {
		a.Log.WarnContext(ctx, "an object claims to be the anchor of a day in the future; it was ignored: "+
			"sluice audit verify names each such object, and CloudTrail says who put it there", "day", done.Day,
			"object", done.Future)
	}
	return done, nil
}
