package limit

import (
	"fmt"
	"math"
)

// ReceiptID names a receipt. It is unique over all stores and processes that share counters.
type ReceiptID struct{ Hi, Lo uint64 }

// Receipt is the proof of what a decision charged. It is opaque: only a decision makes one.
type Receipt struct {
	id      ReceiptID
	owner   Owner
	entries []ReceiptEntry
}

// ReceiptEntry is one counter's part of a receipt.
type ReceiptEntry struct {
	Tier  *Tier
	Value Value
	Units int64 // charged

	stamp    int64 // the window, bucket or time that was charged, µs
	headroom int64 // token_bucket: what the bucket could still refill before the charge, in 1/den units
	slot     int64 // leaky_bucket: the slot that the charge set, µs and fraction
	frac     int64
	end      int64 // from here on nothing can be given back
}

// Refund says what was given back.
type Refund struct {
	Units    []int64 // for each entry of the receipt, in order
	Repeated bool    // the receipt was refunded before; nothing was given back
}

// Receipt returns the proof of what d charged, for [Store.Refund]. It is empty after a denial.
func (d *Decision) Receipt() *Receipt {
	rec := &Receipt{id: d.ID, owner: d.Owner}
	if !d.Allowed {
		return rec
	}
	for i := range d.Results {
		r := &d.Results[i]
		if r.Charged == 0 {
			continue
		}
		rec.entries = append(rec.entries, r.entry(d.Value(i)))
	}
	return rec
}

func (r *Result) entry(v Value) ReceiptEntry {
	t := r.Tier
	e := ReceiptEntry{Tier: t, Value: v, Units: r.Charged, stamp: r.at}
	switch t.Algorithm {
	case FixedWindow:
		e.end = r.at + t.period
	case SlidingWindow:
		e.end = r.at + 2*t.period
	case TokenBucket:
		e.headroom = t.full - r.n
		e.end = r.at + ceilDiv(e.headroom+r.Charged*t.den, t.num)
	case LeakyBucket:
		spent := r.Charged * t.den
		e.stamp, e.slot, e.frac = r.background, r.background+spent/t.num, spent%t.num
		e.end = e.slot + 1
	case Quota:
		e.end = r.m
	case SlidingLog:
		e.end = t.leaves(e.stamp)
	case SlidingBuckets:
		e.stamp = floorTo(r.at, t.width)
		e.end = t.leaves(e.stamp)
	}
	return e
}

// ID names the receipt.
func (r *Receipt) ID() ReceiptID { return r.id }

// Owner is whose counters were charged.
func (r *Receipt) Owner() Owner { return r.owner }

// Entries are the counters that were charged. The caller must not change them.
func (r *Receipt) Entries() []ReceiptEntry { return r.entries }

// Until is the time, µs since 1970, after which the receipt can give nothing back. A store remembers a refunded receipt
// until then.
func (r *Receipt) Until() int64 {
	last := int64(math.MinInt64)
	for i := range r.entries {
		last = max(last, r.entries[i].end)
	}
	return addSat(last, maxSkew)
}

// CheckRefund returns ErrInvalidRequest for units that a refund cannot have.
func CheckRefund(r *Receipt, units int64) error {
	if r == nil {
		return fmt.Errorf("%w: no receipt", ErrInvalidRequest)
	}
	if units < 0 || units > MaxUnits {
		return fmt.Errorf("%w: refund of %d units is outside 0..%d", ErrInvalidRequest, units, int64(MaxUnits))
	}
	return nil
}

// Apply gives back to s at most units (0 means all) of what the entry says was charged, as of now, and returns how much.
// It never gives back more than the state would have gained had the charge not been made.
func (e *ReceiptEntry) Apply(s *State, units, now int64) int64 {
	if units == 0 || units > e.Units {
		units = e.Units
	}
	if now >= e.end+maxSkew {
		return 0
	}
	t := e.Tier
	switch t.Algorithm {
	case FixedWindow, Quota:
		if s.At != e.stamp {
			return 0
		}
		return takeBack(&s.N, units)
	case SlidingWindow:
		switch s.At {
		case e.stamp:
			return takeBack(&s.N, units)
		case e.stamp + t.period:
			return takeBack(&s.M, units)
		}
		return 0
	case SlidingLog, SlidingBuckets:
		for i := range s.Stamps {
			if s.Stamps[i].At == e.stamp {
				back := takeBack(&s.Stamps[i].Units, units)
				s.N -= back
				return back
			}
		}
		return 0
	case LeakyBucket:
		return e.applyLeakyBucket(s, units)
	default:
		return e.applyTokenBucket(s, units, now)
	}
}

func takeBack(count *int64, units int64) int64 {
	back := min(units, max(*count, 0))
	*count -= back
	return back
}

// applyLeakyBucket moves the slot back, if it is still the one the charge set: once another charge has been admitted,
// the wait that the refund would shorten has been served.
func (e *ReceiptEntry) applyLeakyBucket(s *State, units int64) int64 {
	t := e.Tier
	if s.At != e.slot || s.N != e.frac || s.M != t.num {
		return 0
	}
	spent := (e.Units - units) * t.den
	s.At, s.N = e.stamp+spent/t.num, spent%t.num
	return units
}

// applyTokenBucket raises the level by what the bucket would hold more had the charge not been made. Without the charge
// it could have refilled by headroom before running over; whatever was refilled beyond that would have been lost, and is
// not given back. A bucket whose rate was changed since gives nothing back. The result is rounded down to whole units.
func (e *ReceiptEntry) applyTokenBucket(s *State, units, now int64) int64 {
	t := e.Tier
	if s.M != t.den {
		return 0
	}
	now = max(now, s.At)
	refilled := t.full
	if elapsed := now - e.stamp; elapsed < t.fullIn {
		refilled = elapsed * t.num
	}
	give := units*t.den - max(0, refilled-e.headroom)
	var r Result
	t.evaluateTokenBucket(s, now, &r)
	give = min(give, t.full-r.n)
	if give <= 0 {
		return 0
	}
	s.At, s.N, s.M = r.at, r.n+give, t.den
	return give / t.den
}
