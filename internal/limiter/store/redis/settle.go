package redis

import (
	"context"
	_ "embed"
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

//go:embed settle.lua
var settleSource string

// refundScript settles if nothing was used beyond the receipt, and settleScript also charges what was. They are two
// scripts because Redis runs a script from its first line, and would make all that decide.lua defines for each refund.
var (
	refundScript = sync.OnceValue(func() *script { return newScript(sharedSource + settleSource) })
	settleScript = sync.OnceValue(func() *script {
		return newScript(sharedSource + replyTime + decideSource + settleSource)
	})
)

// refundEra is added to the total of a bucket's refunds if the bucket's rate changes after a refund, so that receipts
// from before the change give nothing back. The core adds the same. The units of a mark stay below refundEra.
const refundEra = 1 << 52

// The results that settle.lua reports.
const (
	settled = iota
	settledBefore
	settledLate
)

// Settle corrects what a decision charged, in one round trip. See [limit.Store]. settleArgs encodes the receipt for
// settle.lua, and decodeSettlement reads its reply. A settlement whose reply is lost may have been made. Asking again
// is safe, because the server remembers the receipt until it expires.
func (s *Store) Settle(ctx context.Context, r *limit.Receipt, used []int64, now time.Time) (limit.Settlement, error) {
	if err := ctx.Err(); err != nil {
		return limit.Settlement{}, err
	}
	out, err := r.BeginSettle(used)
	if err != nil || len(r.Entries()) == 0 {
		return out, err
	}
	q := queries.Get().(*query)
	defer q.release()
	over, sc := r.Overage(used), refundScript
	if over != nil {
		sc = settleScript
		q.begin(s, &over.Request, now.UnixMicro(), true)
		q.encode()
	}
	within := withTimeout(ctx, s.deadline)
	defer within.release()
	reply, err := s.runScript(within, sc(), s.settleArgs(r, used, now, q, over))
	if err == nil {
		err = decodeSettlement(reply, r, q, over, &out)
	}
	if err != nil {
		return limit.Settlement{}, fmt.Errorf("redis store: settle for %s: %w", ownerText(r.Owner()), err)
	}
	return out, nil
}

// settleArgs returns the arguments for settle.lua. The first two places are for the command and the script. q holds the
// request of over, if that is not nil.
func (s *Store) settleArgs(r *limit.Receipt, used []int64, now time.Time, q *query, over *limit.Overage) []any {
	prefix := s.appendPrefix(nil, r.Owner())
	id := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, r.ID().Hi), r.ID().Lo)
	keys := []any{fmt.Sprintf("%ssettled:%x", prefix, id)}
	numbered := map[string]int64{}
	key := func(b []byte) int64 {
		n, seen := numbered[string(b)]
		if !seen {
			keys = append(keys, string(b))
			n = int64(len(keys))
			numbered[string(b)] = n
		}
		return n
	}
	clock := int64(-1)
	if s.callerClock {
		clock = now.UnixMicro()
	}
	entries := r.Entries()
	var ids []byte
	numbers := appendDoubles(nil, clock, r.Until(), int64(len(entries)))
	for i := range entries {
		e := &entries[i]
		l := e.Tier.Limit()
		pack, stamps := key(appendPackKey(nil, prefix, l, e.Value)), int64(0)
		if algorithmOf(e.Tier).inSet {
			stamps = key(appendSetKey(nil, prefix, l, e.Value, e.Tier.Digest()))
		}
		p := e.Params()
		numbers = appendDoubles(numbers, pack, stamps, r.Unused(i, used), p.End, p.At, rateOf(e.Tier))
		numbers = appendDoubles(numbers, refundNumbers(e, p)...)
		ids = appendHead(ids, e.Tier)
	}
	overage := ""
	numbers = appendDoubles(numbers, int64(len(keys)))
	if over != nil {
		overage = string(q.text)
		for _, key := range q.splitKeys() {
			keys = append(keys, key)
		}
	}
	args := append([]any{nil, nil, len(keys)}, keys...)
	return append(args, string(numbers), string(ids), overage)
}

// refundNumbers returns the numbers that settle.lua gets for an entry and that depend on its algorithm. They and the
// products that settle.lua forms of them are below 2^53.
func refundNumbers(e *limit.ReceiptEntry, p limit.EntryParams) []int64 {
	t := e.Tier.Params(limit.Owner{})
	n := [8]int64{t.Period}
	if refund := algorithmOf(e.Tier).refundNumbers; refund != nil {
		n = refund(t, e, p)
	}
	return n[:]
}

func appendDoubles(b []byte, numbers ...int64) []byte {
	for _, v := range numbers {
		b = appendDouble(b, v)
	}
	return b
}

// decodeSettlement reads the reply of settle.lua into out.
func decodeSettlement(
	reply string, receipt *limit.Receipt, q *query, over *limit.Overage, out *limit.Settlement,
) error {
	r := replyReader{unread: reply}
	now, result := r.readInteger(), r.readInteger()
	switch result {
	case settled:
		for i := range out.Returned {
			out.Returned[i] = r.readInteger()
		}
		if over != nil && !r.isMalformed {
			var d limit.Decision
			if err := q.decode(r.unread, &d); err != nil {
				return err
			}
			over.Report(&d, out)
			r.unread = ""
		}
	case settledBefore:
		out.Repeated = true
	case settledLate:
		out.Expired = receipt.Expired(now)
	default:
		r.isMalformed = true
	}
	if r.isMalformed || len(r.unread) > 0 {
		return fmt.Errorf("%w: %d bytes for a settlement of %d entries", errMalformedReply, len(reply),
			len(out.Returned))
	}
	return nil
}
