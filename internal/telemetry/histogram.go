package telemetry

import (
	"math/bits"
	"strconv"
	"time"
)

// A latency is counted in one of 100 steps, each a fifth wider than the one before: as many values as one metric of an
// EMF document may have. They reach from 1 µs to 69 s. Each step is told by the value whose relative error is the least
// at both its ends, 1/11; written with four digits that is at most 9.2 %. What took less than 1 µs is told as 1 µs,
// what took longer than 69 s as 63.3 s.
const (
	steps      = 100
	stepGrowth = 1.2
)

// histogram counts latencies by step.
type histogram [steps]int64

var (
	stepEnds    [steps]time.Duration // the longest latency of each step
	stepValues  [steps]string        // what it is told as, µs
	stepSeconds [steps]string        // the same, s
	firstSteps  [65]uint8            // by the number of a latency's bits: where to begin to look
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

// fourDigits writes a positive number with four digits that count.
func fourDigits(v float64) string {
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'e', 3, 64), 64) // it was just written
	return strconv.FormatFloat(rounded, 'f', -1, 64)
}

// add counts a latency. A negative one, of a clock that was set back, is none at all and counts as the shortest.
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
