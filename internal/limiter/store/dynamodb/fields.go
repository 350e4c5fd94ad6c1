package dynamodb

import (
	"fmt"
	"maps"
	"math/big"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// fields is one counter as the table stores it: whole numbers by the name of the field. The fields of an [itemCopy] are
// never changed.
type fields map[string]*big.Int

// The names of a counter's fields in the table. The package comment says what they mean.
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

	// token_bucket; leaky_bucket has fieldRate as well
	fieldRate          = "r"
	fieldFullTime      = "f"
	fieldChargedAt     = "t"
	fieldRefunded      = "b"
	fieldRefundedAt    = "u"
	fieldSlotEnd       = "z"
	fieldTotalFullTime = "q"
	fieldLateFullTime  = "l"
	fieldLateSlotEnd   = "y"

	// leaky_bucket
	fieldSlot = "s"
)

const (
	maxDigits = 38      // digits of a number in DynamoDB
	maxFields = 1 << 12 // fields of one counter; sliding_buckets has the most, and far fewer
)

// parseFields reads the attribute of one counter.
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

// parseNumber reads a whole number. DynamoDB may return a number that ends in zeros with an exponent.
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

// attribute returns the fields as an attribute of an item.
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

// intIn returns a field as an int64. It returns an error if the field is missing or outside least..most.
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

// The largest numbers that this package writes to a counter.
const (
	maxTime   = 1 << 60 // µs before or after 1970
	maxAmount = 1 << 53 // units, or grains of a bucket
)

// stateOf decodes a counter into the state that the core evaluates. If f is nil, the counter was never used.
func stateOf(t *limit.Tier, p *limit.Params, f fields) (limit.State, error) {
	if f == nil {
		return limit.State{}, nil
	}
	return algorithmOf(t).decode(t, p, f)
}

// readInt sets *to to a field, and returns the errors of intIn.
func (f fields) readInt(name string, least, most int64, to *int64) (err error) {
	*to, err = f.intIn(name, least, most)
	return err
}

// longestNumber returns a number with as many digits as DynamoDB stores.
func longestNumber() *big.Int { return new(big.Int).Exp(big.NewInt(10), big.NewInt(maxDigits-1), nil) }

// multiplyAdd returns at·by + add.
func multiplyAdd(at, by, add int64) *big.Int {
	n := new(big.Int).Mul(big.NewInt(at), big.NewInt(by))
	return n.Add(n, big.NewInt(add))
}

// ceilQuotient returns a/b, rounded up.
func ceilQuotient(a, b *big.Int) *big.Int {
	q, m := new(big.Int).DivMod(a, b, new(big.Int))
	if m.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	return q
}

// floorMod returns the remainder of a/b that is at least 0. b must be above 0.
func floorMod(a, b int64) int64 { return a - floorQuotient(a, b)*b }

// floorQuotient returns a/b, rounded down. b must be above 0.
func floorQuotient(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
