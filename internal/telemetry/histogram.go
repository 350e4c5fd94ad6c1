package telemetry

import (
	"encoding/json"
	"math/bits"
	"strconv"
	"time"
)

// A latency is counted in one of 100 steps, each a fifth wider than the one before, because a metric of an EMF document
// may have 100 values. The steps cover 1 µs to 69 s. Each step is reported as the value with the least relative error
// at both of its ends, which is 1/11, and 9.2 % after rounding to four digits. Latencies below 1 µs are reported as 1
// µs, and latencies above 69 s as 63.3 s.
const (
	steps      = 100
	stepGrowth = 1.2
)

// histogram counts latencies by step.
type histogram [steps]int64

var (
	stepEnds    [steps]time.Duration // the longest latency of each step
	stepValues  [steps]json.Number   // the value that is reported for it, µs
	stepSeconds [steps]json.Number   // the same, s
	firstSteps  [65]uint8            // index: bits of a latency in ns; value: the first step to look at
)

func init() {
	end := 1.0 // µs
	stepEnds[0], stepValues[0], stepSeconds[0] = time.Microsecond, "1", "0.000001"
	for i := 1; i < steps; i++ {
		value := end * 2 * stepGrowth / (1 + stepGrowth)
		end *= stepGrowth
		stepEnds[i] = time.Duration(end * float64(time.Microsecond))
		stepValues[i], stepSeconds[i] = fourDigits(value), fourDigits(value/1e6)
	}
	for n := range firstSteps {
		shortest := uint64(1) << n >> 1
		i := 0
		for i < steps-1 && uint64(stepEnds[i]) < shortest {
			i++
		}
		firstSteps[n] = uint8(i)
	}
}

// fourDigits writes a positive number with four significant digits.
func fourDigits(v float64) json.Number {
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'e', 3, 64), 64) // FormatFloat writes valid numbers
	return json.Number(strconv.FormatFloat(rounded, 'f', -1, 64))
}

// add counts a latency. A negative latency, which occurs after a clock was set back, counts as the shortest.
func (h *histogram) add(took time.Duration) { h[stepOf(took)]++ }

func stepOf(took time.Duration) int {
	if took <= 0 {
		return 0
	}
	i := int(firstSteps[bits.Len64(uint64(took))])
	for i < steps-1 && took > stepEnds[i] {
		i++
	}
	return i
}
