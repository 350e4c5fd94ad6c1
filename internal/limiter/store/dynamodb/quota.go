package dynamodb

import (
	"math/big"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// quota implements the algorithm quota. Its fields are w and e (start and end of the calendar period) and n (its
// count).
type quota struct{ relevantUntilFresh }

func (quota) decode(_ *limit.Tier, _ *limit.Params, f fields) (limit.State, error) {
	var st limit.QuotaState
	err := f.readInt(fieldStart, -maxTime, maxTime, &st.Start)
	if err == nil {
		err = f.readInt(fieldEnd, -maxTime, maxTime, &st.End)
	}
	if err == nil {
		err = f.readInt(fieldCount, 0, maxAmount, &st.Count)
	}
	return st.State(), err
}

func (quota) encode(_ *limit.Params, state *limit.State, _ int64) fields {
	st := state.Quota()
	return fields{fieldStart: big.NewInt(st.Start), fieldEnd: big.NewInt(st.End), fieldCount: big.NewInt(st.Count)}
}

// charge compares the period and the count. If the period has ended, the condition allows any counter whose end has
// passed.
func (quota) charge(c *counterCharge, u counterUpdate) {
	before, after := c.before.Quota(), c.after.Quota()
	if c.stored == nil || after.Start != before.Start || after.End != before.End {
		c.likelyStale = true
		u.require("(" + u.isAbsent() + " OR " + u.compare(fieldEnd, "<=", big.NewInt(c.now)) + ")")
		u.replace(c.newFields())
		return
	}
	correction := after.Count - before.Count - c.chargedUnits()
	if c.isCutShort(correction) {
		c.compareWhole(u)
		return
	}
	u.requireEqual(fieldStart, c.stored[fieldStart])
	u.requireEqual(fieldEnd, c.stored[fieldEnd])
	c.addToCount(u, correction)
}

func (quota) refund(c *counterRefund, u counterUpdate) {
	c.subtractCount(u, fieldCount, c.before.Quota().Count-c.after.Quota().Count)
}

func (quota) largestFields(*limit.Tier) fields { return largestWindowFields() }

func (quota) newCounterBytes(*limit.Tier) int { return 34 }
