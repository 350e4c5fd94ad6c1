package lease

import "time"

// tuning is the constants that [Adaptive] and the layer decide by and that no argument fixes.
type tuning struct {
	plentyTimes     float64
	ampleDeviations float64
	weighsFrom      float64
	scarceFor       time.Duration
	shareParts      float64
	leastParts      float64
	enoughPart      float64

	rampLeast  float64
	rampPart   float64
	rampMore   float64
	rampPlenty float64

	denyFor      time.Duration
	denyForEarly time.Duration
	denyForMost  time.Duration
	earlyTimes   float64
	earlyMargin  time.Duration
	earlyAverage float64

	keepFor     time.Duration
	returnParts int64
}

var defaultTuning = tuning{
	plentyTimes:     2,
	ampleDeviations: 3,
	weighsFrom:      0.5,
	scarceFor:       2 * time.Second,
	shareParts:      2.3,
	leastParts:      100,
	enoughPart:      0.5,

	rampLeast:  2,
	rampPart:   0.8,
	rampMore:   1.5,
	rampPlenty: 1.1,

	denyFor:      2 * time.Second,
	denyForEarly: 250 * time.Millisecond,
	denyForMost:  5 * time.Second,
	earlyTimes:   1.15,
	earlyMargin:  200 * time.Millisecond,
	earlyAverage: 3,

	keepFor:     1500 * time.Millisecond,
	returnParts: 50,
}
