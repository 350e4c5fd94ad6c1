package redis

import (
	"context"
	_ "embed"
	"encoding/json"
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

// ledgerDeadline is the time limit of a call to a ledger, unless Config.Deadline is longer or its context ends before.
// It is much longer than that of a decision: one call leases units for many requests, and the units of a call whose
// reply comes too late are lost.
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
	encoded, err := json.Marshal(&c) // by names: a number in the wrong place would be a silent over-grant
	if err != nil {
		return lease, fmt.Errorf("redis store: ledger %q: %w", key, err)
	}
	reply, err := l.call(ctx, key, "claim", encoded)
	if err == nil {
		d := json.NewDecoder(strings.NewReader(reply))
		d.DisallowUnknownFields()
		err = d.Decode(&lease)
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
func (l *Ledger) call(ctx context.Context, key, operation string, more ...any) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	name := append(limit.AppendNetstring(append(append([]byte("{rl:"), l.store.namespacePart...), 'l'), hashable(key)),
		'}')
	args := append([]any{nil, nil, 1, string(name), operation}, more...)
	within := withTimeout(ctx, max(l.store.deadline, ledgerDeadline))
	defer within.release()
	return l.store.runScript(within, ledgerScript(), args)
}
