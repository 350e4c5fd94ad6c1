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

//go:embed refund.lua
var refundSource string

var refundScript = sync.OnceValue(func() *script { return newScript(sharedSource + refundSource) })

// refundEra is added to the total of a bucket's refunds if the bucket's rate changes after a refund, so that receipts
// from before the change give nothing back. The core adds the same. The units of a mark stay below refundEra.
const refundEra = 1 << 52

// The results that refund.lua reports.
const (
	refundMade = iota
	refundRepeated
	refundLate
)

// Refund gives back what a receipt names, in one round trip. See [limit.Store]. refundArgs encodes the receipt for
// refund.lua, and decodeRefund reads its reply. A refund whose reply is lost may have been made. Asking again is safe,
// because the server remembers the receipt for as long as it could give anything back.
func (s *Store) Refund(ctx context.Context, r *limit.Receipt, units int64, now time.Time) (limit.Refund, error) {
	if err := ctx.Err(); err != nil {
		return limit.Refund{}, err
	}
	if err := limit.CheckRefund(r, units); err != nil {
		return limit.Refund{}, err
	}
	if len(r.Entries()) == 0 {
		return limit.Refund{Units: []int64{}}, nil
	}
	within := withTimeout(ctx, s.deadline)
	defer within.release()
	reply, err := s.runScript(within, refundScript(), s.refundArgs(r, units, now))
	var out limit.Refund
	if err == nil {
		out, err = decodeRefund(reply, r)
	}
	if err != nil {
		return limit.Refund{}, fmt.Errorf("redis store: refund to %s: %w", ownerText(r.Owner()), err)
	}
	return out, nil
}

// refundArgs returns the arguments for refund.lua. The first two places are for the command and the script.
func (s *Store) refundArgs(r *limit.Receipt, units int64, now time.Time) []any {
	prefix := s.appendPrefix(nil, r.Owner())
	id := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, r.ID().Hi), r.ID().Lo)
	keys := []any{fmt.Sprintf("%srefunded:%x", prefix, id)}
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
		give := e.Units
		if units > 0 {
			give = min(give, units)
		}
		p := e.Params()
		numbers = appendDoubles(numbers, pack, stamps, give, p.End, p.At, rateOf(e.Tier))
		numbers = appendDoubles(numbers, refundNumbers(e, p)...)
		ids = appendHead(ids, e.Tier)
	}
	args := append([]any{nil, nil, len(keys)}, keys...)
	return append(args, string(numbers), string(ids))
}

// refundNumbers returns the numbers that refund.lua gets for an entry and that depend on its algorithm. They and the
// products that refund.lua forms of them are below 2^53.
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

// decodeRefund reads the reply of refund.lua.
func decodeRefund(reply string, receipt *limit.Receipt) (limit.Refund, error) {
	r := replyReader{unread: reply}
	now, result := r.readInteger(), r.readInteger()
	out := limit.Refund{Units: make([]int64, len(receipt.Entries()))}
	switch result {
	case refundMade:
		for i := range out.Units {
			out.Units[i] = r.readInteger()
		}
	case refundRepeated:
		out.Repeated = true
	case refundLate:
		out.Expired = receipt.Expired(now)
	default:
		r.isMalformed = true
	}
	if r.isMalformed || len(r.unread) > 0 {
		return limit.Refund{}, fmt.Errorf("%w: %d bytes for a refund of %d entries",
			errMalformedReply, len(reply), len(out.Units))
	}
	return out, nil
}
