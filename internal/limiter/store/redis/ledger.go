package redis

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/ledger"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

//go:embed ledger.lua
var ledgerSource string

var ledgerScript = sync.OnceValue(func() *script { return newScript(ledgerSource) })

// ledgerDeadline is the time limit of a call to a ledger, unless its context ends before. It is much longer than that
// of a decision: one call leases units for many requests, and the units of a call whose reply comes too late are lost.
const ledgerDeadline = 250 * time.Millisecond

// Ledger is a [ledger.Ledger] on the server or cluster of a store. Each call is one round trip, in which the script
// ledger.lua applies the rules of package ledger. An entry is one key, {rl:NAMESPACEl, the netstring of the ledger's
// key, and "}". An entry to which a limit was set never expires. Others expire a day after their last call.
type Ledger struct{ store *Store }

var _ ledger.Ledger = (*Ledger)(nil)

// Ledger returns the ledger of the store. It is closed with the store.
func (s *Store) Ledger() *Ledger { return &Ledger{s} }

// Claim implements [ledger.Ledger].
func (l *Ledger) Claim(ctx context.Context, key string, c ledger.Claim) (lease ledger.Lease, err error) {
	if err := c.Check(); err != nil {
		return lease, err
	}
	contends := int64(0)
	if c.Contends {
		contends = 1
	}
	reply, err := l.call(ctx, key, "claim", c.Window, c.Limit, int64(c.Stage), c.Need, c.Told, c.Held, c.Want,
		c.Return, c.Unit, c.Owed, contends, c.Pause, c.Stated, c.Learn, c.Interval, c.Replies[0].Accepted,
		c.Replies[0].Refused, c.Replies[1].Accepted, c.Replies[1].Refused, c.Expect, c.Learned.Rate, c.Learned.Judged,
		c.Learned.From, c.Learned.Target, c.Learned.Probe, c.Learned.Held, c.Known.Changed.Units, c.Known.Changed.From,
		c.Known.Stated, c.Known.Learned.Rate, c.Known.Learned.Judged, c.Known.Learned.From, c.Known.Learned.Target,
		c.Known.Learned.Probe, c.Known.Learned.Held)
	if err == nil {
		_, err = fmt.Sscan(reply, &lease.Units, &lease.Limit, &lease.NextLimit, &lease.Left, &lease.Need, &lease.Equal,
			&lease.Changed.Units, &lease.Changed.From, &lease.Pause, &lease.Stated, &lease.Learned.Rate,
			&lease.Learned.Judged, &lease.Learned.From, &lease.Learned.Target, &lease.Learned.Probe,
			&lease.Learned.Held, &lease.Replies[0].Accepted, &lease.Replies[0].Refused, &lease.Replies[1].Accepted,
			&lease.Replies[1].Refused, &lease.Replies[2].Accepted, &lease.Replies[2].Refused)
	}
	if err != nil {
		return ledger.Lease{}, fmt.Errorf("redis store: ledger %q: %w", key, err)
	}
	return lease, nil
}

// SetLimit implements [ledger.Ledger].
func (l *Ledger) SetLimit(ctx context.Context, key string, units, from int64) error {
	if err := ledger.CheckLimit(units, from); err != nil {
		return err
	}
	reply, err := l.call(ctx, key, "limit", units, from)
	if err != nil {
		return fmt.Errorf("redis store: ledger %q: %w", key, err)
	}
	if earliest, soon := strings.CutPrefix(reply, "soon "); soon {
		return fmt.Errorf("%w: from window %d on, and the earliest possible one is %s", ledger.ErrTooSoon, from,
			earliest)
	}
	if first, planned := strings.CutPrefix(reply, "planned "); planned {
		from, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			return fmt.Errorf("redis store: ledger %q: the script returned %q", key, reply)
		}
		return ledger.PlannedError(from)
	}
	return nil
}

// call runs the script.
func (l *Ledger) call(ctx context.Context, key, operation string, numbers ...int64) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	name := append(limit.AppendNetstring(append(append([]byte("{rl:"), l.store.namespacePart...), 'l'), hashable(key)),
		'}')
	args := []any{nil, nil, 1, string(name), operation}
	for _, n := range numbers {
		args = append(args, n)
	}
	within := withTimeout(ctx, ledgerDeadline)
	defer within.release()
	return l.store.runScript(within, ledgerScript(), args)
}
