package dynamodb

import (
	"fmt"
	"maps"
	"math/big"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/limit"
)

// fields are a counter as it is stored: whole numbers by name. A fields that is in a view is never changed.
type fields map[string]*big.Int

// The names of a counter's fields, which are what the table stores. The package comment says what each means.
const (
	// fixed_window, sliding_window and quota
	fieldStart         = "w"
	fieldEnd           = "e"
	fieldCount         = "n"
	fieldPrevious      = "p"
	fieldPreviousStart = "o"

	// sliding_buckets
	fieldNewest      = "w"
	fieldSum         = "s"
	fieldLateCharges = "x"

	// token_bucket, and of these leaky_bucket has the rate
	fieldRate           = "r"
	fieldEmptyTime      = "e"
	fieldChargedAt      = "t"
	fieldRefunded       = "b"
	fieldRefundedAt     = "u"
	fieldSlotEnd        = "z"
	fieldTotalEmptyTime = "q"

	// leaky_bucket
	fieldSlot = "s"
)

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
		m[name] = numberAttribute(n)
	}
	return &types.AttributeValueMemberM{Value: m}
}

func numberAttribute(n *big.Int) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: n.String()}
}

func (f fields) equal(g fields) bool {
	return maps.EqualFunc(f, g, func(a, b *big.Int) bool { return a.Cmp(b) == 0 })
}

// int is a field as an int64, an error where it is missing or outside least..most.
func (f fields) intIn(name string, least, most int64) (int64, error) {
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
	maxTime       = 1 << 60 // µs, either way
	maxAmount     = 1 << 53
	maxDebtBursts = 64 // bursts; of a bucket whose burst was cut since
)

// stateOf is the counter as the core knows it. A nil f is a counter that was never used.
func stateOf(t *limit.Tier, p *limit.Params, f fields) (limit.State, error) {
	if f == nil {
		return limit.State{}, nil
	}
	return algorithmOf(t).decode(t, p, f)
}

// read reads a field as int does.
func (f fields) readInt(name string, least, most int64, to *int64) (err error) {
	*to, err = f.intIn(name, least, most)
	return err
}

// longest is as long as a number can be.
func longestNumber() *big.Int { return new(big.Int).Exp(big.NewInt(10), big.NewInt(maxDigits-1), nil) }

// scaled is at·by + add.
func multiplyAdd(at, by, add int64) *big.Int {
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
