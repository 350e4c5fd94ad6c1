package dynamodb

import (
	"fmt"
	"math/big"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// leakyBucket implements the algorithm leaky_bucket. Its fields are s (the slot: the time of the next request, in 1/r
// µs) and r (the numerator of the rate).
type leakyBucket struct{ relevantUntilFresh }

func (leakyBucket) decode(_ *limit.Tier, _ *limit.Params, f fields) (limit.State, error) {
	var st limit.LeakyBucketState
	if err := f.readInt(fieldRate, 1, maxAmount, &st.Num); err != nil {
		return limit.State{}, err
	}
	s, ok := f[fieldSlot]
	if !ok {
		return limit.State{}, fmt.Errorf("field %q is missing", fieldSlot)
	}
	slot, fraction := new(big.Int).DivMod(s, big.NewInt(st.Num), new(big.Int))
	if !slot.IsInt64() || slot.Int64() < -maxTime || slot.Int64() > maxTime {
		return limit.State{}, fmt.Errorf("field %q is %s, which is no time", fieldSlot, s)
	}
	st.NextFree, st.Fraction = slot.Int64(), fraction.Int64()
	return st.State(), nil
}

// encode writes a slot that is free now if units came back to a bucket that was never used.
func (leakyBucket) encode(p *limit.Params, state *limit.State, now int64) fields {
	st := state.LeakyBucket()
	if st.Num == 0 {
		st = limit.LeakyBucketState{NextFree: now, Num: p.Num}
	}
	return fields{fieldSlot: multiplyAdd(st.NextFree, st.Num, st.Fraction), fieldRate: big.NewInt(st.Num)}
}

// charge requires that the slot has come, however long ago.
func (leakyBucket) charge(c *counterCharge, u counterUpdate) {
	if c.stored != nil && c.before.LeakyBucket().Num != c.params.Num || c.correction() != 0 {
		c.compareWhole(u)
		return
	}
	u.require("(" + u.isAbsent() + " OR (" + u.compare(fieldRate, "=", big.NewInt(c.params.Num)) +
		" AND " + u.compare(fieldSlot, "<=", multiplyAdd(c.now, c.params.Num, 0)) + "))")
	u.replace(c.newFields())
}

// refund compares the whole counter: only the slot that the receipt's own charge has set is given back.
func (leakyBucket) refund(c *counterRefund, u counterUpdate) { c.compareWhole(u) }

func (leakyBucket) largestFields(*limit.Tier) fields {
	return fields{fieldSlot: longestNumber(), fieldRate: big.NewInt(maxAmount)}
}

func (leakyBucket) newCounterBytes(*limit.Tier) int { return 34 }
