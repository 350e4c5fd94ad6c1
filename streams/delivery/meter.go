package delivery

import "time"

// Meter counts. *telemetry.Meter implements it.
type Meter interface {
	Count(name string, n int64)
	Took(name string, d time.Duration)
}

// NoMeter is a Meter that counts nothing.
type NoMeter struct{}

// Count implements [Meter].
func (NoMeter) Count(string, int64) {}

// Took implements [Meter].
func (NoMeter) Took(string, time.Duration) {}
