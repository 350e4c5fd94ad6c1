package audit

import (
	"context"
	"fmt"
	"time"

	"github.com/sluicelimits/sluice/internal/control"
)

// chain checks the versions of one item in the archive. [control.Chain] checks the hashes and their links. The archiver
// writes in any order and with a delay, so chain waits for a missing version that may still arrive.
type chain struct {
	v     *verifier
	of    *control.Chain
	table control.Table
	key   string
	at    int64 // the last version that exists
	seen  int64 // the last version that was checked, existing or hidden
	any   bool  // some version exists
	good  bool  // some version with a record exists

	// spoiled is the number of versions since the last good one that exist without a valid record. Nothing can be
	// compared with them.
	spoiled int64
}

func newChain(v *verifier, t control.Table, key string) *chain {
	return &chain{v: v, of: control.NewChain(t, key), table: t, key: key}
}

// next checks the next name of the item.
func (c *chain) next(ctx context.Context, n *content) error {
	if n.version > c.at+1 {
		written := time.Time{}
		if n.record != nil {
			written = n.record.Time
		}
		if err := c.fill(ctx, n.version-1, written); err != nil {
			return err
		}
	}
	if n.version > c.seen { // otherwise fill has checked it
		c.add(n)
	}
	return nil
}

func (c *chain) add(n *content) {
	c.seen = n.version
	if !c.v.checkObject(n) {
		return
	}
	if !c.any {
		c.any = true
		c.v.report.Items++
		c.v.met[c.v.hash(c.table, c.key)] = struct{}{}
	}
	if n.version > c.at+1 && (n.record == nil || c.spoiled > 0) {
		// c.of cannot distinguish missing versions from spoiled ones
		c.miss(control.MissingVersion, c.at+1, n.version-1)
	}
	if n.record != nil {
		c.tell(c.of.AddRecord(n.record))
		c.spoiled, c.good = 0, true
	} else {
		c.spoiled++
	}
	c.at = n.version
}

// tell adds findings. It leaves out findings about missing versions that add has reported, or that exist and are
// spoiled.
func (c *chain) tell(breaks []control.Break) {
	kept := breaks[:0]
	for _, b := range breaks {
		if missing := b.Kind == control.MissingVersion || b.Kind == control.MissingTail; missing && c.spoiled > 0 &&
			b.Version <= c.at {
			continue
		}
		kept = append(kept, b)
	}
	c.v.breaks(kept)
}

func (c *chain) broken(kind control.BreakKind, version int64, format string, args ...any) {
	c.v.breaks([]control.Break{{Kind: kind, Table: c.table, Key: c.key, Version: version,
		Detail: fmt.Sprintf(format, args...)}})
}

func (c *chain) miss(kind control.BreakKind, from, to int64) {
	c.broken(kind, from, "versions %d to %d are missing", from, to)
}

// end compares the item with its version in the table.
func (c *chain) end(ctx context.Context, h *head) error {
	if h.bad != nil {
		c.broken(BadHead, max(c.at, 1), "%v", h.bad)
		return nil //nolint:nilerr // the finding is recorded, and the check continues
	}
	if h.item != nil && h.item.Version > c.at {
		if err := c.fill(ctx, h.item.Version, h.item.ChangedAt); err != nil {
			return err
		}
	}
	c.close(h.item)
	return nil
}

func (c *chain) close(live *control.Item) {
	c.tell(c.of.End(live))
	if c.spoiled == 0 {
		return
	}
	switch { // c.of does not know the spoiled versions
	case live == nil && !c.good:
		c.broken(control.Unknown, c.at, "the table has no such item")
	case live != nil && live.Version > c.at:
		c.miss(control.MissingTail, c.at+1, live.Version)
	case live != nil && live.Version < c.at && live.Version >= c.at-c.spoiled:
		c.broken(control.Unknown, live.Version+1, "the table is at version %d", live.Version)
	}
}

// pause is the time between two checks for a version that has not arrived.
const pause = 200 * time.Millisecond

// fill checks the versions up to to that have arrived in the meantime. written is when version to was written: until
// the grace after that time is over, missing versions may still arrive.
func (c *chain) fill(ctx context.Context, to int64, written time.Time) error {
	until := written.Add(c.v.Grace)
	if latest := c.v.Now().Add(c.v.Grace); until.After(latest) { // the writer's clock is ahead
		until = latest
	}
	for {
		last := !c.v.Now().Before(until)
		if err := c.take(ctx, to, last); err != nil || last || c.at >= to {
			return err
		}
		if err := wait(ctx); err != nil {
			return err
		}
	}
}

// wait waits for one pause. It returns the error of ctx if ctx ends first.
func wait(ctx context.Context) error {
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// take checks the versions that follow without a gap; if last is set, all versions that exist.
func (c *chain) take(ctx context.Context, to int64, last bool) error {
	after := control.ObjectFolder(c.table, c.key)
	if c.at > 0 {
		after = control.ObjectName(c.table, c.key, c.at)
	}
	for n, err := range names(ctx, c.v.Archive, control.ObjectFolder(c.table, c.key), after) {
		switch {
		case err != nil:
			return err
		case n.table == "" || n.version <= c.seen: // the walk checks these
			continue
		case n.version > to || n.version > c.at+1 && !last:
			return nil
		}
		read, err := n.read(ctx, c.v.Archive)
		if err != nil || (read.entry == nil || read.gone) && !last {
			return err
		}
		c.add(read)
	}
	return nil
}
