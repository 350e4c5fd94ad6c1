package audit

import (
	"context"
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
	seen  int64 // the last version that was checked, existing or hidden
}

func newChain(v *verifier, t control.Table, key string) *chain {
	return &chain{v: v, of: control.NewChain(t, key), table: t, key: key}
}

// next checks the next name of the item.
func (c *chain) next(ctx context.Context, n *content) error {
	if n.version > c.of.At()+1 {
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
	if c.of.At() == 0 {
		c.v.report.Items++
		c.v.met[c.v.hash(c.table, c.key)] = struct{}{}
	}
	if n.record != nil {
		c.v.breaks(c.of.AddRecord(n.record))
	} else {
		c.v.breaks(c.of.Skip(n.version))
	}
}

// end compares the item with its version in the table.
func (c *chain) end(ctx context.Context, h *head) error {
	if h.bad != nil {
		c.v.breaks([]control.Break{{Kind: BadHead, Table: c.table, Key: c.key, Version: max(c.of.At(), 1),
			Detail: h.bad.Error()}})
		return nil //nolint:nilerr // the finding is recorded, and the check continues
	}
	if h.item != nil && h.item.Version > c.of.At() {
		if err := c.fill(ctx, h.item.Version, h.item.ChangedAt); err != nil {
			return err
		}
	}
	c.v.breaks(c.of.End(h.item))
	return nil
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
		if err := c.take(ctx, to, last); err != nil || last || c.of.At() >= to {
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
	if at := c.of.At(); at > 0 {
		after = control.ObjectName(c.table, c.key, at)
	}
	for n, err := range names(ctx, c.v.Archive, control.ObjectFolder(c.table, c.key), after) {
		switch {
		case err != nil:
			return err
		case n.table == "" || n.version <= c.seen: // the walk checks these
			continue
		case n.version > to || n.version > c.of.At()+1 && !last:
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
