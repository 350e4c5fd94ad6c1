package redis

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sluicelimits/sluice/internal/limit"
)

// Refunds are rare, so they are computed by the core on what a first script read, and written by a second one iff nothing
// has changed since.
var (
	// KEYS: the receipt, then each entry's pack, then each entry's log. ARGV: the time of each entry's log entry.
	readRefund = goredis.NewScript(`#!lua
local t = redis.call('TIME')
local out = {string.format('%.0f', t[1] * 1000000 + t[2]), tostring(redis.call('EXISTS', KEYS[1]))}
local n = (#KEYS - 1) / 2
for i = 1, n do out[#out + 1] = redis.call('GET', KEYS[1 + i]) or '' end
for i = 1, n do
  local m = ''
  if ARGV[i] ~= '' then m = redis.call('ZRANGEBYSCORE', KEYS[1 + n + i], ARGV[i], ARGV[i])[1] or '' end
  out[#out + 1] = m
end
return out`)

	// KEYS as above. ARGV: ms to remember the receipt for, then for each entry: pack before, pack after, log member before,
	// member after ("" for none).
	writeRefund = goredis.NewScript(`#!lua
if redis.call('EXISTS', KEYS[1]) == 1 then return 2 end
local n = (#KEYS - 1) / 2
local function each(f) for i = 1, n do f(KEYS[1 + i], KEYS[1 + n + i], ARGV[4 * i - 2], ARGV[4 * i - 1], ARGV[4 * i], ARGV[4 * i + 1]) end end
local same = true
each(function(pack, log, before, after, was, is)
  if before ~= '' and redis.call('GET', pack) ~= before then same = false end
  if was ~= '' and not redis.call('ZSCORE', log, was) then same = false end
end)
if not same then return 0 end
each(function(pack, log, before, after, was, is)
  if before ~= after then redis.call('SET', pack, after, 'KEEPTTL') end
  if was ~= is then
    redis.call('ZREM', log, was)
    if is ~= '' then redis.call('ZADD', log, string.match(is, '^%d+'), is) end
  end
end)
redis.call('SET', KEYS[1], '1', 'PX', ARGV[1])
return 1`)
)

// refundPatience is for how many deadlines a refund tries, while others charge the counters in between.
const refundPatience = 8

// errBusy is a refund whose counters changed each time it was about to write.
var errBusy = errors.New("the counters kept changing")

// Refund gives back what a receipt names. See [limit.Store]. A refund whose reply is lost may have been made; asking
// again is safe, since the server remembers it.
func (s *Store) Refund(ctx context.Context, r *limit.Receipt, units int64, now time.Time) (limit.Refund, error) {
	if err := ctx.Err(); err != nil {
		return limit.Refund{}, err
	}
	if err := limit.CheckRefund(r, units); err != nil {
		return limit.Refund{}, err
	}
	entries := r.Entries()
	out := limit.Refund{Units: make([]int64, len(entries))}
	if len(entries) == 0 {
		return out, nil
	}
	keys, stamps := s.refundKeys(r)
	ctx, cancel := context.WithTimeout(ctx, refundPatience*s.deadline)
	defer cancel()
	for ctx.Err() == nil {
		done, err := s.tryRefund(ctx, r, units, now, keys, stamps, &out)
		if err != nil {
			return limit.Refund{}, fmt.Errorf("redis store: refund to %s: %w", ownerText(r.Owner()), err)
		}
		if done {
			return out, nil
		}
	}
	return limit.Refund{}, fmt.Errorf("redis store: refund to %s: %w", ownerText(r.Owner()), errBusy)
}

// refundKeys names the receipt, and each entry's pack and log.
func (s *Store) refundKeys(r *limit.Receipt) (keys []string, stamps []any) {
	entries := r.Entries()
	id := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, r.ID().Hi), r.ID().Lo)
	prefix := s.appendPrefix(nil, r.Owner())
	keys = append(keys, fmt.Sprintf("%srefunded:%x", prefix, id))
	logs := make([]string, len(entries))
	for i := range entries {
		e := &entries[i]
		keys = append(keys, string(appendPackKey(nil, prefix, e.Tier.Limit(), e.Value)))
		stamp := ""
		if hasStamps(e.Tier) {
			stamp = strconv.FormatInt(e.Stamp(), 10)
		}
		stamps = append(stamps, stamp)
		logs[i] = string(appendStampsKey(nil, prefix, e.Tier.Limit(), e.Value, e.Tier.Digest()))
	}
	return append(keys, logs...), stamps
}

func (s *Store) tryRefund(ctx context.Context, r *limit.Receipt, units int64, now time.Time, keys []string, stamps []any, out *limit.Refund) (bool, error) {
	entries := r.Entries()
	read, err := readRefund.Run(ctx, s.client, keys, stamps...).StringSlice()
	if err != nil {
		return false, err
	}
	if len(read) != 2+2*len(entries) {
		return false, fmt.Errorf("%w: %d parts, want %d", errReply, len(read), 2+2*len(entries))
	}
	us, err := strconv.ParseInt(read[0], 10, 64)
	if err != nil {
		return false, fmt.Errorf("%w: time %q", errReply, read[0])
	}
	if s.callerClock {
		us = now.UnixMicro()
	}
	if us >= r.Until() {
		out.Expired = r.Expired(us)
		return true, nil
	}
	if out.Repeated = read[1] == "1"; out.Repeated {
		return true, nil
	}
	args := []any{(r.Until()-us)/1000 + 1}
	after := make(map[string]string) // entries of one pack build on each other
	for i := range entries {
		before, member := read[2+i], read[2+len(entries)+i]
		pack, seen := after[keys[1+i]]
		if !seen {
			pack = before
		}
		if pack, member, err = applyTo(pack, member, &entries[i], units, us, &out.Units[i]); err != nil {
			return false, fmt.Errorf("%s: %w", keys[1+i], err)
		}
		after[keys[1+i]] = pack
		args = append(args, before, pack, read[2+len(entries)+i], member)
	}
	done, err := writeRefund.Run(ctx, s.client, keys, args...).Int()
	if done == 2 { // another caller was faster with the same receipt
		clear(out.Units)
		out.Repeated = true
	}
	return done > 0, err
}

// applyTo returns the pack and the log's member after the refund of one entry.
func applyTo(pack, member string, e *limit.ReceiptEntry, units, now int64, back *int64) (string, string, error) {
	if pack == "" {
		return pack, member, nil
	}
	at, rate, behind, err := findRecord(pack, e.Tier)
	if err != nil || at < 0 {
		return pack, member, err
	}
	width := stateWidth(e.Tier.Algorithm)
	body := answer{rest: pack[at : at+8*width]}
	st := body.state(e.Tier)
	if width == 2 && st.M != 0 { // counted in the rate that the head says
		st.M = rate
	}
	refunded, heldAt := int64(0), -1
	switch {
	case hasStamps(e.Tier): // the state is the sum and the time of expiry; the entry lies in the sorted set
		_, text, ok := strings.Cut(member, ":")
		n, err := strconv.ParseInt(text, 10, 64)
		if !ok || err != nil {
			return pack, member, nil //nolint:nilerr // what is no number has left the set, and nothing is given back
		}
		st.Stamps = []limit.Stamp{{At: e.Stamp(), Units: n}}
	case e.Tier.Algorithm == limit.TokenBucket:
		var held limit.Stamp
		refunded, held, heldAt = body.behind(pack, behind, e.Tier)
		st.Stamps = bucketStamps(refunded, held, limit.Stamp{}) // what may come back late is seen by the next charge
	}
	if body.bad {
		return pack, member, fmt.Errorf("%w: a number of the pack is none", limit.ErrUnreadable)
	}
	if *back = e.Apply(&st, units, now); *back == 0 && e.Tier.Algorithm != limit.TokenBucket { // a bucket may gain less than a unit
		return pack, member, nil
	}
	state := appendDouble(nil, st.At)
	state = appendDouble(state, st.N)
	if width == 3 {
		state = appendDouble(state, st.M)
	}
	pack = pack[:at] + string(state) + pack[at+8*width:]
	if hasStamps(e.Tier) {
		if member = ""; len(st.Stamps) > 0 && st.Stamps[0].Units > 0 {
			member = fmt.Sprintf("%d:%d", e.Stamp(), st.Stamps[0].Units)
		}
		return pack, member, nil
	}
	return withStamps(pack, behind, heldAt, e.Tier, refunded, st.Stamps), member, nil
}

// withStamps writes what a refund changed in the records behind the state of a token bucket.
func withStamps(pack string, behind, heldAt int, t *limit.Tier, refunded int64, stamps []limit.Stamp) string {
	if heldAt >= 0 { // what is zero the next charge drops
		left := pack[heldAt:heldAt+8] + string(appendDouble(nil, 0))
		if len(stamps) > 1 {
			left = string(appendDouble(appendDouble(nil, stamps[1].At), stamps[1].Units))
		}
		pack = pack[:heldAt] + left + pack[heldAt+16:]
	}
	if len(stamps) > 0 && stamps[0].Units != refunded {
		pack = withRefunded(pack, behind, t, stamps[0].Units)
	}
	return pack
}

// behind reads what the records behind the state of a token bucket say: the units refunded to it, those held by leases, and
// where these lie, -1 if nowhere.
func (a *answer) behind(pack string, at int, t *limit.Tier) (refunded int64, held limit.Stamp, heldAt int) {
	if r := findBehind(pack[at:], markedID(refundRecord, t)); r >= 0 {
		was := answer{rest: pack[at+r:]}
		refunded = was.refunded()
		a.bad = a.bad || was.bad
	}
	h := findBehind(pack[at:], markedID(heldRecord, t))
	if h < 0 {
		return refunded, held, -1
	}
	was := answer{rest: pack[at+h:]}
	held = was.held()
	a.bad = a.bad || was.bad
	return refunded, held, at + h
}

// withRefunded writes the record of what was refunded to a token bucket, behind all others if it is new.
func withRefunded(pack string, behind int, t *limit.Tier, units int64) string {
	id := markedID(refundRecord, t)
	numbers := string(appendDouble(appendDouble(nil, units%era), units/era))
	if r := findBehind(pack[behind:], id); r >= 0 {
		at := behind + r
		return pack[:at] + numbers + pack[at+16:]
	}
	armed := pack[6+idBytes*int(binary.LittleEndian.Uint16([]byte(pack[4:6]))):][:8] // no record matters for longer
	return pack + id + string(appendDouble(nil, rateOf(t))) + armed + numbers
}

func hasStamps(t *limit.Tier) bool {
	return t.Algorithm == limit.SlidingLog || t.Algorithm == limit.SlidingBuckets
}

// findRecord is where the tier's state lies in a pack, -1 where it has none; the rate it is counted in; and where the
// records begin that are not of the last request.
func findRecord(pack string, t *limit.Tier) (at int, rate int64, behind int, err error) {
	if len(pack) < 6 || (pack[:4] != version && pack[:4] != versionLeased) {
		return 0, 0, 0, fmt.Errorf("%w: %.4q is not a version of a pack that this release reads", limit.ErrUnreadable, pack)
	}
	n := int(binary.LittleEndian.Uint16([]byte(pack[4:6])))
	id := recordID(t)
	behind, at = 6+idBytes*n+8, -1
	for i := 0; i < n && 6+idBytes*(i+1) <= len(pack); i++ {
		head := pack[6+idBytes*i : 6+idBytes*(i+1)]
		if head[:17] == id {
			r := answer{rest: head[17:]}
			at, rate = behind, r.integer()
		}
		behind += 8 * stateWidth(limit.Algorithm(head[0]))
	}
	if behind > len(pack) {
		return 0, 0, 0, fmt.Errorf("%w: a pack that is cut short", limit.ErrUnreadable)
	}
	if at >= 0 {
		return at, rate, behind, nil
	}
	if r := findBehind(pack[behind:], id); r >= 0 && behind+r+8*stateWidth(t.Algorithm) <= len(pack) {
		was := answer{rest: pack[behind+r-16:]}
		return behind + r, was.integer(), behind, nil
	}
	return -1, 0, behind, nil
}

// recordID is the first 17 bytes of the head of the tier's record.
func recordID(t *limit.Tier) string {
	digest := t.Digest()
	return string(append([]byte{byte(t.Algorithm)}, digest[:]...))
}
