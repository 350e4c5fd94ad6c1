package pacer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
)

// clockDrift is the largest rate at which the provider's clock and this machine's are believed to drift apart: those of
// two quartz oscillators that are wrong by 50 parts per million each. So a measurement widens by 12 ms in a minute.
const clockDrift = 100e-6

const (
	mostProbes = 12                   // of a call of Probe; each halves the difference that is left of a second
	probeGoal  = 2 * time.Millisecond // beyond the shortest round trip: the measurement is as good as it gets
)

// measurement narrows the difference of the provider's clock and this machine's by the Date of replies. A Date D has
// whole seconds, so the provider's clock was in [D, D+1s) when it was written, which was after the request was sent and
// before the reply was received. By this machine's monotonic clock, the provider's time at monotonic time 0 is
// therefore above D - received and below D + 1s - sent. The intersection of these intervals over many replies is
// narrow: with requests at random times, 300 of them leave at most 30 ms (TestMeasuredClock).
//
// The zero measurement knows nothing.
type measurement struct {
	low, high bound // of the provider's time since 1970, less the monotonic time
	known     bool
}

// bound is one side of a difference. It recedes by clockDrift as time passes.
type bound struct {
	value time.Duration
	at    time.Duration // the monotonic time at which it was measured
}

// observe takes a Date into account. Its times are monotonic.
func (m *measurement) observe(date, sent, received time.Duration) {
	latest := measurement{bound{date - received, received}, bound{date + time.Second - sent, received}, true}
	old := *m
	*m = latest
	if !old.known || old.lowest(received) > latest.high.value || old.highest(received) < latest.low.value {
		return // the replies contradict each other, so one of the clocks was set: the latest reply is right
	}
	if old.lowest(received) > latest.low.value {
		m.low = old.low
	}
	if old.highest(received) < latest.high.value {
		m.high = old.high
	}
}

func drifted(b bound, now time.Duration, sign float64) time.Duration {
	return b.value + time.Duration(sign*clockDrift*float64(now-b.at))
}

func (m *measurement) lowest(now time.Duration) time.Duration  { return drifted(m.low, now, -1) }
func (m *measurement) highest(now time.Duration) time.Duration { return drifted(m.high, now, 1) }

// Probe measures the difference of the provider's clock and this machine's, to little more than the shortest round
// trip. It takes up to 12 seconds, and waits for no units. Send sends a request to the provider, and returns the header
// of the reply, which needs a Date. The provider must not count these requests, or Config.Limit must leave room for
// them.
//
// Without Probe, a measurement can hardly become better than Guard.ClockError, because no request is sent close to the
// beginning or the end of a window. A measurement widens by 12 ms in a minute, so call Probe every few minutes.
//
// The error wraps ErrConfig if Config.MeasureClock is false, and is otherwise that of send or of ctx.
func (p *Pacer) Probe(ctx context.Context, send func(context.Context) (http.Header, error)) error {
	measure := p.core.supply.measure
	if measure == nil {
		return fmt.Errorf("%w: Probe needs MeasureClock", ErrConfig)
	}
	shortest := never // round trip
	for range mostProbes {
		sent := time.Now()
		header, err := send(ctx)
		if err != nil {
			return fmt.Errorf("pacer: probe the provider's clock: %w", err)
		}
		received := time.Now()
		p.Observe(Reply{Status: http.StatusOK, Header: header, Sent: sent, Received: received})
		shortest = min(shortest, received.Sub(sent))
		p.mu.Lock()
		m, now := *measure, p.now()
		p.mu.Unlock()
		if !m.known {
			return errors.New("pacer: probe the provider's clock: the reply has no Date of its own")
		}
		low, high := m.lowest(now), m.highest(now)
		if high-low <= shortest+probeGoal {
			return nil
		}
		// The next probe arrives when a second of the provider begins, if its clock is in the middle.
		arrives := now + shortest/2 + low + (high-low)/2
		wait := (time.Second - arrives%time.Second) % time.Second
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
		}
	}
	return nil
}

// correct returns the middle of the provider's possible times, and by how much it may be wrong. Without a measurement
// these are the wall clock and most. A measurement narrows them. If it shows that the clocks differ by more than most,
// it moves them by as little as it must.
func (m *measurement) correct(now clock.Instant, most time.Duration) (wall, clockError time.Duration) {
	low, high := now.Wall-most, now.Wall+most
	if m.known {
		lowest, highest := now.Mono+m.lowest(now.Mono), now.Mono+m.highest(now.Mono)
		switch {
		case lowest > high:
			low, high = lowest, min(highest, lowest+2*most)
		case highest < low:
			low, high = max(lowest, highest-2*most), highest
		default:
			low, high = max(low, lowest), min(high, highest)
		}
	}
	return low + (high-low)/2, (high - low + 1) / 2
}

// dateOf returns the Date of a header as the time since 1970. It returns false if there is none, or if the reply came
// from a cache, because the Date is then that of an earlier reply.
func dateOf(h http.Header) (time.Duration, bool) {
	if h.Get("Age") != "" {
		return 0, false
	}
	date, err := http.ParseTime(h.Get("Date"))
	if err != nil || date.Unix() < 0 || date.Year() > 2200 {
		return 0, false
	}
	return time.Duration(date.UnixNano()), true
}
