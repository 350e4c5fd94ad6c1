package archiver

import (
	"context"
	"time"

	"github.com/sluicelimits/sluice/internal/control"
)

// Consumer is the archiver's name at a feed.
const Consumer = "archiver"

// perRead is how many records are read from a feed at once. firstWait and lastWait are the first and the longest wait
// before a failed record is tried again.
const (
	perRead   = 100
	firstWait = 100 * time.Millisecond
	lastWait  = 10 * time.Second
)

// Follow archives the records of a feed, from where the last run stopped, until ctx ends or the feed fails. It returns
// the error of ctx or of the feed. If the archive does not accept a record, Follow tries again, with growing waits.
func (a *Archiver) Follow(ctx context.Context, feed control.Feed) error {
	at, err := feed.Cursor(ctx, Consumer)
	if err != nil {
		return err
	}
	wait := firstWait
	for {
		batch, err := feed.Read(ctx, at, perRead)
		if err != nil {
			return err
		}
		if len(batch) == 0 {
			if err := feed.Wait(ctx, at); err != nil {
				return err
			}
			continue
		}
		done, failed := a.Handle(ctx, batch)
		if done > 0 {
			at = batch[done-1].Sequence
			if err := feed.Commit(ctx, Consumer, at); err != nil {
				return err
			}
			wait = firstWait
		}
		if failed == nil {
			continue
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		case <-t.C:
		}
		wait = min(2*wait, lastWait)
	}
}
