package dynamodb

import (
	"cmp"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/limit"
)

// fields are a counter as it is stored: whole numbers by name. A fields that is in a view is never changed.
type fields map[string]*big.Int

const (
	maxDigits = 38      // of a number in DynamoDB
	maxFields = 1 << 12 // of a counter; far above the buckets that one can have
)

// parseFields reads one counter's attribute.
func parseFields(v types.AttributeValue) (fields, error) {
	m, ok := v.(*types.AttributeValueMemberM)
	if !ok {
		return nil, fmt.Errorf("is %T, want a map", v)
	}
	if len(m.Value) > maxFields {
		return nil, fmt.Errorf("has %d fields, want at most %d", len(m.Value), maxFields)
	}
	f := make(fields, len(m.Value))
	for name, v := range m.Value {
		n, err := parseNumber(v)
		if err != nil {
			return nil, fmt.Errorf("field %.40q: %w", name, err)
		}
		f[name] = n
	}
	return f, nil
}

// parseNumber reads a whole number, in plain digits or with an exponent, as DynamoDB may write one that ends in
// zeros.
func parseNumber(v types.AttributeValue) (*big.Int, error) {
	n, ok := v.(*types.AttributeValueMemberN)
	if !ok {
		return nil, fmt.Errorf("is %T, want a number", v)
	}
	digits, exponent, scientific := strings.Cut(strings.ToUpper(n.Value), "E")
	zeros := 0
	if scientific {
		e, err := strconv.Atoi(exponent)
		if err != nil || e < 0 || e > maxDigits {
			return nil, fmt.Errorf("%.60q is not a whole number", n.Value)
		}
		zeros = e
		if whole, fraction, ok := strings.Cut(digits, "."); ok && len(fraction) <= e {
			digits, zeros = whole+fraction, e-len(fraction)
		}
	}
	i, ok := new(big.Int), len(digits) <= maxDigits+1
	if ok {
		i, ok = i.SetString(digits+strings.Repeat("0", zeros), 10)
	}
	if !ok {
		return nil, fmt.Errorf("%.60q is not a whole number", n.Value)
	}
	return i, nil
}

func (f fields) attribute() types.AttributeValue {
	m := make(map[string]types.AttributeValue, len(f))
	for name, n := range f {
		m[name] = number(n)
	}
	return &types.AttributeValueMemberM{Value: m}
}

func number(n *big.Int) types.AttributeValue { return &types.AttributeValueMemberN{Value: n.String()} }

func (f fields) equal(g fields) bool {
	return maps.EqualFunc(f, g, func(a, b *big.Int) bool { return a.Cmp(b) == 0 })
}

// int is a field as an int64, an error where it is missing or outside least..most.
func (f fields) int(name string, least, most int64) (int64, error) {
	n, ok := f[name]
	switch {
	case !ok:
		return 0, fmt.Errorf("field %q is missing", name)
	case !n.IsInt64() || n.Int64() < least || n.Int64() > most:
		return 0, fmt.Errorf("field %q is %s, want %d..%d", name, n, least, most)
	}
	return n.Int64(), nil
}

// What a counter of ours can hold.
const (
	maxTime   = 1 << 60 // µs, either way
	maxAmount = 1 << 53
	mostDebt  = 64 // bursts; of a bucket whose burst was cut since
)

// stateOf is the counter as the core knows it. A nil f is a counter that was never used.
func stateOf(t *limit.Tier, p *limit.Params, f fields) (st limit.State, err error) {
	if f == nil {
		return st, nil
	}
	read := func(to *int64, name string, least, most int64) {
		if err == nil {
			*to, err = f.int(name, least, most)
		}
	}
	switch t.Algorithm {
	case limit.FixedWindow:
		read(&st.At, "w", -maxTime, maxTime)
		read(&st.N, "n", 0, maxAmount)
		if err == nil && f["o"] != nil {
			st.M, err = lastCount(p, f, st.At)
		}
	case limit.SlidingWindow:
		read(&st.At, "w", -maxTime, maxTime)
		read(&st.N, "n", 0, maxAmount)
		read(&st.M, "p", 0, maxAmount)
	case limit.Quota:
		read(&st.At, "w", -maxTime, maxTime)
		read(&st.M, "e", -maxTime, maxTime)
		read(&st.N, "n", 0, maxAmount)
	case limit.SlidingBuckets:
		return bucketsState(p, f)
	case limit.TokenBucket:
		return tokenState(p, f)
	case limit.LeakyBucket:
		return leakyState(f)
	default:
		err = fmt.Errorf("no form for %s", t.Algorithm)
	}
	return st, err
}

// lastCount is the count of the window before the one that starts at start: that of the window charged before it, unless
// that one is too old for the core to remember. See [limit.State].
func lastCount(p *limit.Params, f fields, start int64) (int64, error) {
	before, err := f.int("o", -2*maxTime, start-p.Period)
	if err != nil {
		return 0, err
	}
	last, err := f.int("p", 0, maxAmount)
	if before <= start-2*p.Period {
		last = 0
	}
	return last, err
}

// tokenState turns the empty time e into a level at a time: that of the last charge, as far as it is known. A level that
// is further below zero than anything of ours takes it is one at the time at which it is zero, for the core to repair.
func tokenState(p *limit.Params, f fields) (st limit.State, err error) {
	if st.M, err = f.int("r", 1, maxAmount); err != nil {
		return st, err
	}
	if st.At, err = f.int("t", -maxTime, maxTime); err != nil {
		return st, err
	}
	e, ok := f["e"]
	if !ok {
		return st, fmt.Errorf("field %q is missing", "e")
	}
	num := perMicrosecond(st.M, p)
	level := scaled(st.At, num, 0)
	level.Sub(level, e)
	if debt := new(big.Int).Mul(big.NewInt(-mostDebt*p.Capacity), big.NewInt(perUnit(st.M, p))); level.Cmp(debt) < 0 {
		empty := ceilQuotient(e, big.NewInt(num))
		if !empty.IsInt64() || empty.Int64() > maxTime {
			return st, fmt.Errorf("field %q is %s, which is no time", "e", e)
		}
		st.At = empty.Int64()
		level = scaled(st.At, num, 0)
		level.Sub(level, e)
	}
	if !level.IsInt64() || level.Int64() > maxAmount || level.Int64() < -maxAmount {
		return st, fmt.Errorf("fields %q and %q make a level of %s", "e", "t", level)
	}
	st.N = level.Int64()
	if f["b"] != nil {
		var back limit.Entry
		if back.Units, err = f.int("b", 0, 1<<62); err != nil {
			return st, err
		}
		if back.At, err = f.int("u", -maxTime, maxTime); err != nil {
			return st, err
		}
		if back != (limit.Entry{}) {
			st.Stamps = []limit.Entry{back}
		}
	}
	return st, heldOf(p, f, &st)
}

// heldOf adds to a bucket's state what of it is leased.
func heldOf(p *limit.Params, f fields, st *limit.State) error {
	if f["z"] == nil && f["q"] == nil {
		return nil
	}
	until, err := f.int("z", -maxTime, maxTime)
	if err != nil {
		return err
	}
	q, ok := f["q"]
	if !ok {
		return fmt.Errorf("field %q is missing", "q")
	}
	held, rest := new(big.Int).Sub(f["e"], q), new(big.Int)
	held.QuoRem(held, big.NewInt(perUnit(st.M, p)), rest)
	if rest.Sign() != 0 || held.Sign() < 0 || !held.IsInt64() || held.Int64() > maxAmount {
		return fmt.Errorf("fields %q and %q hold %s units, and a rest of %s", "e", "q", held, rest)
	}
	if held.Sign() == 0 {
		return nil
	}
	if len(st.Stamps) == 0 {
		st.Stamps = []limit.Entry{{}}
	}
	st.Stamps = append(st.Stamps, limit.Entry{At: until, Units: held.Int64()})
	return nil
}

// perMicrosecond is the numerator of a rate in units per µs, in lowest terms.
func perMicrosecond(rate int64, p *limit.Params) int64 {
	a, b := rate, p.Period
	for b != 0 {
		a, b = b, a%b
	}
	return rate / a
}

// perUnit is the denominator of a rate in units per µs, in lowest terms: what a unit is, in a bucket's level.
func perUnit(rate int64, p *limit.Params) int64 { return p.Period / (rate / perMicrosecond(rate, p)) }

func leakyState(f fields) (st limit.State, err error) {
	if st.M, err = f.int("r", 1, maxAmount); err != nil {
		return st, err
	}
	s, ok := f["s"]
	if !ok {
		return st, fmt.Errorf("field %q is missing", "s")
	}
	at, frac := new(big.Int).DivMod(s, big.NewInt(st.M), new(big.Int))
	if !at.IsInt64() || at.Int64() < -maxTime || at.Int64() > maxTime {
		return st, fmt.Errorf("field %q is %s, which is no time", "s", s)
	}
	st.At, st.N = at.Int64(), frac.Int64()
	return st, nil
}

// reservedField are the fields of a sliding_buckets counter that are no buckets.
var reservedField = map[string]bool{"w": true, "s": true, "x": true}

// bucketName is a field that needs no alias in an expression: letters and digits, and no reserved word has a digit.
func bucketName(index int64) string {
	if index < 0 {
		return "b1" + strconv.FormatInt(-index, 36)
	}
	return "b0" + strconv.FormatInt(index, 36)
}

func bucketIndex(name string) (int64, bool) {
	if len(name) < 3 {
		return 0, false
	}
	index, err := strconv.ParseInt(name[2:], 36, 64)
	if err != nil {
		return 0, false
	}
	if name[1] == '1' {
		index = -index
	}
	return index, bucketName(index) == name
}

func bucketsState(p *limit.Params, f fields) (st limit.State, err error) {
	if _, err := f.int("w", -maxTime, maxTime); err != nil {
		return st, err
	}
	if _, err := f.int("x", 0, maxAmount); err != nil {
		return st, err
	}
	if st.N, err = f.int("s", 0, maxAmount); err != nil {
		return st, err
	}
	sum := int64(0)
	for name := range f {
		if reservedField[name] {
			continue
		}
		index, ok := bucketIndex(name)
		if !ok || index > maxTime/p.Width || index < -maxTime/p.Width {
			return st, fmt.Errorf("field %.40q is no bucket", name)
		}
		units, err := f.int(name, 0, maxAmount)
		if err != nil {
			return st, err
		}
		if sum += units; sum > maxAmount {
			return st, fmt.Errorf("the buckets hold more than %d", int64(maxAmount))
		}
		st.Stamps = append(st.Stamps, limit.Entry{At: index * p.Width, Units: units})
	}
	if sum != st.N {
		return st, fmt.Errorf("field %q is %d, but the buckets hold %d", "s", st.N, sum)
	}
	slices.SortFunc(st.Stamps, func(a, b limit.Entry) int { return cmp.Compare(a.At, b.At) })
	return st, nil
}

// fieldsOf is the form of a state, as of now.
func fieldsOf(t *limit.Tier, p *limit.Params, st *limit.State, now int64) fields {
	switch t.Algorithm {
	case limit.FixedWindow:
		f := fields{"w": big.NewInt(st.At), "n": big.NewInt(st.N)}
		if st.M != 0 {
			f["p"], f["o"] = big.NewInt(st.M), big.NewInt(st.At-p.Period)
		}
		return f
	case limit.SlidingWindow:
		return fields{"w": big.NewInt(st.At), "n": big.NewInt(st.N), "p": big.NewInt(st.M)}
	case limit.Quota:
		return fields{"w": big.NewInt(st.At), "e": big.NewInt(st.M), "n": big.NewInt(st.N)}
	case limit.TokenBucket:
		f := fields{"e": emptyTime(p, st), "t": big.NewInt(st.At), "r": big.NewInt(st.M)}
		if len(st.Stamps) > 0 && st.Stamps[0] != (limit.Entry{}) {
			f["b"], f["u"] = big.NewInt(st.Stamps[0].Units), big.NewInt(st.Stamps[0].At)
		}
		if len(st.Stamps) > 1 {
			f["q"] = scaled(st.Stamps[1].Units, -perUnit(st.M, p), 0)
			f["q"].Add(f["q"], f["e"])
			f["z"] = big.NewInt(st.Stamps[1].At)
		}
		return f
	case limit.LeakyBucket:
		return fields{"s": scaled(st.At, st.M, st.N), "r": big.NewInt(st.M)}
	default:
		f := fields{"w": big.NewInt(newestBucket(p, st, now)), "s": big.NewInt(st.N), "x": new(big.Int)}
		for _, stamp := range st.Stamps {
			f[bucketName(floorQuotient(stamp.At, p.Width))] = big.NewInt(stamp.Units)
		}
		return f
	}
}

// newestBucket is the latest bucket for which every stored one still counts.
func newestBucket(p *limit.Params, st *limit.State, now int64) int64 {
	newest := floorQuotient(now, p.Width)
	if len(st.Stamps) > 0 {
		newest = min(newest, floorQuotient(st.Stamps[0].At, p.Width)+p.Buckets)
	}
	return newest
}

func emptyTime(p *limit.Params, st *limit.State) *big.Int {
	return scaled(st.At, perMicrosecond(st.M, p), -st.N)
}

// scaled is at·by + add.
func scaled(at, by, add int64) *big.Int {
	n := new(big.Int).Mul(big.NewInt(at), big.NewInt(by))
	return n.Add(n, big.NewInt(add))
}

func ceilQuotient(a, b *big.Int) *big.Int {
	q, m := new(big.Int).DivMod(a, b, new(big.Int))
	if m.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	return q
}

// floorMod is a less the largest multiple of b that is not above it.
func floorMod(a, b int64) int64 { return a - floorQuotient(a, b)*b }

func floorQuotient(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
