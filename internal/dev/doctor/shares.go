package doctor

import (
	"context"
	"time"
)

// settled is how long a change of the shares may take. A change usually takes up to a minute and a half. The check
// reports a change that takes longer than settled.
const settled = 2 * time.Minute

func sharesAcknowledged(ctx context.Context, t *Target) Finding {
	if t.Operators == nil || t.Operators.Cells == nil {
		return unknown("give --endpoint", "no operators' API was given")
	}
	out, err := t.Operators.Cells(ctx)
	switch {
	case err != nil:
		return unknown("see that --endpoint is right and that you may call `cell list`",
			"the operators' API did not answer: %s", clip(err.Error(), 200))
	case len(out.Unreadable) > 0:
		return violated("an item of the cells table cannot be read: %s %s", out.Unreadable[0].Key,
			clip(out.Unreadable[0].Error, 200))
	case out.Alone != "":
		return unknown("", "the cell %s runs alone, and has no shares to acknowledge", out.Alone)
	}
	serving := 0
	for _, c := range out.Cells {
		late := t.Now.Sub(c.ChangedAt) > settled
		switch {
		case (c.Awaited || c.State == "waiting") && late:
			return violated("the cell %s was asked for %s ago and has not acknowledged its shares", c.Cell,
				t.Now.Sub(c.ChangedAt).Round(time.Second))
		case c.Awaited || c.State == "waiting":
			return unknown("run it again in two minutes", "the shares of the cell %s are changing", c.Cell)
		case c.State == "active":
			serving++
		}
	}
	if serving == 0 {
		return unknown("`sluice cell add`", "no cell serves")
	}
	return confirmed("%d cells serve, and none is awaited (epoch %d)", serving, out.Epoch)
}
