package cell

import (
	"time"

	"github.com/sluicelimits/sluice/internal/cell/cellconfig"
	"github.com/sluicelimits/sluice/internal/telemetry"
)

// lookEvery is how often it is told what the cell grants: it changes with the plans and the shares, and takes a while
// to add up.
const lookEvery = time.Minute

// gauges tells how things stand. One goroutine at a time may ask.
type gauges struct {
	grants      func(now time.Time) []cellconfig.Grant // nil: the plans are a file's
	chargedBack func() int64
	looked      time.Time
}

func (g *gauges) at(now time.Time) telemetry.Gauges {
	out := telemetry.Gauges{LimitEffective: -1, FullestReplayed: g.chargedBack()}
	if g.grants == nil || now.Sub(g.looked).Abs() < lookEvery {
		return out
	}
	if part, ok := cellconfig.Part(g.grants(now)); ok { // else no plan was read yet: look again
		out.LimitEffective, g.looked = part, now
	}
	return out
}
