package memory

import (
	"fmt"
	"math"
	"sync"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// refundsPart of MaxBytes is set aside for what the store remembers of refunds, so that refunds and counters never take
// each other's room.
const refundsPart = 8

// refunds remembers which receipts were refunded, one bit for each. The receipts that an owner gets one after the
// other share a word, see wordOf: a refund takes about a byte if most decisions of an owner are refunded, and about
// 40 bytes if few are.
//
// Receipts expire, so the bits lie in two generations. New bits go to the young one. Once every receipt in the old
// one has expired, it is dropped, and the young one becomes the old one. A receipt that may have been dropped is
// refused from then on: every receipt that expires no later than one that was dropped. So no receipt gives anything
// back twice, also if the clock steps back.
type refunds struct {
	maxBytes int64

	mu         sync.Mutex
	young, old generation
	forgotten  int64 // the latest time of expiry of the receipts that were dropped, µs since 1970
}

// generation is bits that are dropped together.
type generation struct {
	words map[word]uint64
	until int64 // the latest time of expiry of its receipts, µs since 1970
}

// word names 64 receipts: their IDs but for six bits.
type word struct{ hi, lo uint64 }

// wordOf returns where the bit of a receipt lies: the six lowest bits of its number are the number of the bit. The
// IDs of other stores are told apart in the same way: no two IDs share a bit.
func wordOf(id limit.ReceiptID) (w word, bit uint64) {
	return word{id.Hi, id.Lo &^ (receiptsAtOnce - 1)}, 1 << (id.Lo % receiptsAtOnce)
}

func newRefunds(maxBytes int64) refunds { return refunds{maxBytes: maxBytes, forgotten: math.MinInt64} }

// remember notes a receipt as settled. It reports false, and says in out why, if the receipt settles nothing. The
// error is [limit.ErrSettlementsFull] if there is no room.
func (m *refunds) remember(r *limit.Receipt, now int64, out *limit.Settlement) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.Until() <= max(now, m.forgotten) {
		out.Expired = now < r.Until() || r.Expired(now)
		return false, nil
	}
	w, bit := wordOf(r.ID())
	words := m.young.words[w]
	if out.Repeated = (words|m.old.words[w])&bit != 0; out.Repeated {
		return false, nil
	}
	m.expire(now)
	_, there := m.young.words[w]
	if bytes := m.bytes(); !there && bytes+wordBytes > m.maxBytes {
		return false, fmt.Errorf("memory store, %d of %d bytes of settlements; try again later: %w", bytes, m.maxBytes,
			limit.ErrSettlementsFull)
	}
	if m.young.words == nil {
		m.young = generation{make(map[word]uint64), math.MinInt64}
	}
	m.young.words[w] |= bit
	m.young.until = max(m.young.until, r.Until())
	return true, nil
}

// expire drops the generations all of whose receipts have expired.
func (m *refunds) expire(now int64) {
	for range 2 {
		if len(m.old.words) > 0 {
			if now < m.old.until {
				return
			}
			m.forgotten = max(m.forgotten, m.old.until)
		}
		m.old, m.young = m.young, generation{}
	}
}

func (m *refunds) bytes() int64 { return wordBytes * int64(len(m.young.words)+len(m.old.words)) }

func (m *refunds) memory() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bytes()
}
