package limit_test

import (
	"testing"
	_ "time/tzdata" // so that every machine has the zones of the calendars

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
)

var mustNew = limittest.MustNew

func oneTier(tb testing.TB, id string, t limit.Tier) *limit.Limit {
	tb.Helper()
	return mustNew(tb, limit.Limit{ID: id, MaxCost: max(t.Threshold, t.Burst, 1), Tiers: []limit.Tier{t}})
}
