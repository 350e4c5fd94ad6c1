package cell

import (
	"time"

	"github.com/sluicelimits/sluice/internal/cell/config"
	"github.com/sluicelimits/sluice/internal/telemetry"
)

// lookEvery is how often the granted part is computed for the metrics. The part changes only if plans or shares do, and
// computing it is expensive.
const lookEvery = time.Minute

// gauges computes current values for the metrics. Only one goroutine at a time may call it.
type gauges struct {
	grants      func(now time.Time) []config.Grant // nil: the plans are in a file
	chargedBack func() int64
	looked      time.Time // when the granted part was last computed
}

func (g *gauges) at(now time.Time) telemetry.Gauges {
	out := telemetry.Gauges{LimitEffective: -1, FullestReplayed: g.chargedBack()}
	if g.grants == nil || now.Sub(g.looked).Abs() < lookEvery {
		return out
	}
	// Without a part no plan has been read yet, and the next call tries again.
	if part, ok := config.Part(g.grants(now)); ok {
		out.LimitEffective, g.looked = part, now
	}
	return out
}
