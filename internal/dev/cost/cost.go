// Package cost calculates what a deployment of Sluice costs in a month, line by line, from AWS's list prices and from
// measurements of Sluice.
//
// It does no I/O: it makes a [Bill] from a [Workload] and [Prices]. The prices are in prices.yaml, and a file can
// replace some of them; see [ReadPrices]. Amounts are exact: quantities are fractions, each line is rounded half up to
// a millionth of a dollar, and the total is a sum of integers.
//
// Memory sizes, schedules and alarms come from package grants, with which functions are deployed; metrics come from
// package telemetry, with which functions write them. All other assumptions are in assumptions.go, each with its
// source, and are printed with the bill.
package cost

import (
	"fmt"
	"math/big"
	"strings"
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

// maxDigits is the most digits of a number on each side of the point.
const maxDigits = 18

// ParseNumber reads a decimal number of 0 or more, such as 50, 0.25 or 1_000_000, exactly. The error shows what was
// read.
func ParseNumber(s string) (*big.Rat, error) {
	whole, part, point := strings.Cut(s, ".")
	plain := strings.ReplaceAll(whole, "_", "")
	digits := func(s string) bool {
		return s != "" && len(s) <= maxDigits &&
			strings.IndexFunc(s, func(c rune) bool { return c < '0' || c > '9' }) < 0
	}
	if !digits(plain) || whole[0] == '_' || (point && !digits(part)) {
		return nil, fmt.Errorf("%q is not a number of 0 or more: write one such as 50, 0.25 or 1_000_000", clip(s))
	}
	r, ok := new(big.Rat).SetString(plain + "." + part + "0")
	if !ok {
		return nil, fmt.Errorf("%q is not a number", clip(s))
	}
	return r, nil
}

const clipped = 40 // most characters of the user's text in a message

func clip(s string) string {
	if r := []rune(s); len(r) > clipped {
		return string(r[:clipped]) + "…"
	}
	return s
}

// Arithmetic with fractions, in functions that can be nested. They do not change their arguments.

func num(n int64) *big.Rat         { return new(big.Rat).SetInt64(n) }
func frac(a, b int64) *big.Rat     { return big.NewRat(a, b) }
func sum(a, b *big.Rat) *big.Rat   { return new(big.Rat).Add(a, b) }
func minus(a, b *big.Rat) *big.Rat { return new(big.Rat).Sub(a, b) }
func over(a, b *big.Rat) *big.Rat  { return new(big.Rat).Quo(a, b) }
func product(a *big.Rat, more ...*big.Rat) *big.Rat {
	p := new(big.Rat).Set(a)
	for _, m := range more {
		p.Mul(p, m)
	}
	return p
}

func least(a, b *big.Rat) *big.Rat {
	if a.Cmp(b) <= 0 {
		return a
	}
	return b
}

// up rounds a up to an integer.
func up(a *big.Rat) *big.Int {
	q, r := new(big.Int).QuoRem(a.Num(), a.Denom(), new(big.Int))
	if r.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	return q
}

// root returns the square root of a, rounded up to a thousandth.
func root(a *big.Rat) *big.Rat {
	scaled := up(product(a, num(1_000_000)))
	s := new(big.Int).Sqrt(scaled)
	if new(big.Int).Mul(s, s).Cmp(scaled) < 0 {
		s.Add(s, big.NewInt(1))
	}
	return new(big.Rat).SetFrac(s, big.NewInt(1000))
}

// micros rounds dollars half up.
func micros(dollars *big.Rat) Micros {
	doubled := product(dollars, num(2_000_000))
	doubled.Add(doubled, num(1))
	q := new(big.Int).Quo(doubled.Num(), new(big.Int).Mul(doubled.Denom(), big.NewInt(2)))
	return Micros(q.Int64())
}
