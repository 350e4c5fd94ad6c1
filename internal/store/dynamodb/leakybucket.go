package dynamodb

import (
	"fmt"
	"math/big"

	"github.com/sluicelimits/sluice/internal/limit"
)

// leakyBucket has the fields s (the slot, in 1/r µs) and r (the numerator of the rate).
type leakyBucket struct{ lastsFresh }

func (leakyBucket) state(_ *limit.Tier, _ *limit.Params, f fields) (limit.State, error) {
	var st limit.LeakyBucketState
	if err := f.read("r", 1, maxAmount, &st.Num); err != nil {
		return limit.State{}, err
	}
	s, ok := f["s"]
	if !ok {
		return limit.State{}, fmt.Errorf("field %q is missing", "s")
	}
	slot, fraction := new(big.Int).DivMod(s, big.NewInt(st.Num), new(big.Int))
	if !slot.IsInt64() || slot.Int64() < -maxTime || slot.Int64() > maxTime {
		return limit.State{}, fmt.Errorf("field %q is %s, which is no time", "s", s)
	}
	st.NextFree, st.Fraction = slot.Int64(), fraction.Int64()
	return st.State(), nil
}

// fields: where units came back to a bucket that nobody used, its slot is free now.
func (leakyBucket) fields(p *limit.Params, state *limit.State, now int64) fields {
	st := state.LeakyBucket()
	if st.Num == 0 {
		st = limit.LeakyBucketState{NextFree: now, Num: p.Num}
	}
	return fields{"s": scaled(st.NextFree, st.Num, st.Fraction), "r": big.NewInt(st.Num)}
}

// charge has one class: the slot has come, however long ago.
func (leakyBucket) charge(g *charge, c counter) {
	if g.old != nil && g.pre.LeakyBucket().Num != g.params.Num || g.adjust() != 0 {
		g.exact(c)
		return
	}
	c.require("(" + c.absent() + " OR (" + c.compare("r", "=", big.NewInt(g.params.Num)) +
		" AND " + c.compare("s", "<=", scaled(g.now, g.params.Num, 0)) + "))")
	c.replace(g.fresh())
}

// giveBack: the receipt's own slot, or nothing.
func (leakyBucket) giveBack(g *giving, c counter) { g.whole(c) }

func (leakyBucket) widest(*limit.Tier) fields {
	return fields{"s": longest(), "r": big.NewInt(maxAmount)}
}

func (leakyBucket) bytes(*limit.Tier) int { return 34 }
