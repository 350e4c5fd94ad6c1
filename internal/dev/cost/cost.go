// Package cost calculates what a deployment of Sluice costs in a month, line by line, from AWS's list prices and from
// measurements of Sluice.
//
// It does no I/O: it makes a [Bill] from a [Workload] and [Prices], which are in prices.json. Each line is rounded half
// up to a millionth of a dollar, and the total is the sum of these integers.
//
// Memory sizes, schedules and alarms come from package grants, with which functions are deployed; metrics come from
// package telemetry, with which functions write them. All other assumptions are in assumptions.go, each with its
// source, and are printed with the bill.
package cost

import (
	"fmt"
	"math"
)

// Micros is an amount of money in millionths of a US dollar.
type Micros int64

// String returns the amount in dollars with two digits after the point and commas between thousands, rounded half up.
// An amount above 0 that would be shown as 0.00 is shown as <0.01.
func (m Micros) String() string {
	if m > 0 && m < 5_000 {
		return "<0.01"
	}
	cents := (int64(m) + 5_000) / 10_000
	return fmt.Sprintf("%s.%02d", grouped(cents/100), cents%100)
}

// Dollars returns the exact amount in dollars, with six digits after the point and nothing between thousands.
func (m Micros) Dollars() string {
	return fmt.Sprintf("%d.%06d", int64(m)/1_000_000, int64(m)%1_000_000)
}

// MarshalText implements [encoding.TextMarshaler]. JSON then holds the text of Dollars, which no reader rounds.
func (m Micros) MarshalText() ([]byte, error) { return []byte(m.Dollars()), nil }

// grouped writes n, 0 or more, with commas between thousands.
func grouped(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

const clipped = 40 // most characters of the user's text in a message

func clip(s string) string {
	if r := []rune(s); len(r) > clipped {
		return string(r[:clipped]) + "…"
	}
	return s
}

// up rounds up to an integer. An error in the last digits does not count as a part of one more.
func up(a float64) int64 { return int64(math.Ceil(a - 1e-9)) }

// micros rounds dollars half up, also a half that rounding errors have made a little smaller.
func micros(dollars float64) Micros { return Micros(math.Round(dollars*1_000_000 + 1e-6)) }
