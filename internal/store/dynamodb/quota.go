package dynamodb

import (
	"math/big"

	"github.com/sluicelimits/sluice/internal/limit"
)

// quota has the fields w and e (the start and the end of the calendar period) and n (its count).
type quota struct{ lastsFresh }

func (quota) state(_ *limit.Tier, _ *limit.Params, f fields) (limit.State, error) {
	var st limit.QuotaState
	err := f.read("w", -maxTime, maxTime, &st.Start)
	if err == nil {
		err = f.read("e", -maxTime, maxTime, &st.End)
	}
	if err == nil {
		err = f.read("n", 0, maxAmount, &st.Count)
	}
	return st.State(), err
}

func (quota) fields(_ *limit.Params, state *limit.State, _ int64) fields {
	st := state.Quota()
	return fields{"w": big.NewInt(st.Start), "e": big.NewInt(st.End), "n": big.NewInt(st.Count)}
}

func (quota) charge(g *charge, c counter) {
	pre, post := g.pre.Quota(), g.post.Quota()
	if g.old == nil || post.Start != pre.Start || post.End != pre.End {
		g.doubtful = true
		c.require("(" + c.absent() + " OR " + c.compare("e", "<=", big.NewInt(g.now)) + ")")
		c.replace(g.fresh())
		return
	}
	adjusted := post.Count - pre.Count - g.taken()
	if g.isCut(adjusted) {
		g.exact(c)
		return
	}
	c.mustBe("w", g.old["w"])
	c.mustBe("e", g.old["e"])
	g.addCount(c, adjusted)
}

func (quota) giveBack(g *giving, c counter) {
	g.count(c, "n", g.pre.Quota().Count-g.post.Quota().Count)
}

func (quota) widest(*limit.Tier) fields { return widestWindow() }

func (quota) bytes(*limit.Tier) int { return 34 }
