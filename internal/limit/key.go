package limit

import (
	"fmt"
	"strconv"
	"strings"
)

// PerTenant is the Per of a limit with one counter per owner.
const PerTenant = "tenant"

// OwnerKind keeps the names of different sorts of owners apart.
type OwnerKind byte

// The kinds of owners.
const (
	Tenant    OwnerKind = 't' // a tenant of a plan
	Address   OwnerKind = 'a' // a source address (its keyed hash), for ipLimits
	Anonymous OwnerKind = 'n' // calls without a credential under the anonymous plan
	AnyKey    OwnerKind = 'k' // whatever a user of the library limits
)

// Owner is who the counters of one decision belong to. All counters of an owner live together in a store, so one
// decision over them is one atomic step.
type Owner struct {
	Kind OwnerKind
	Name string // any bytes, at most MaxNameBytes
}

// ValueKind tells a value that is there from one that is not, so that no text can pass for either.
type ValueKind byte

// The kinds of values.
const (
	NoValue     ValueKind = 0   // the limit is per tenant
	ValueIs     ValueKind = '=' // Text holds the value
	ValueAbsent ValueKind = '~' // the request has no such value (a key without a subject, a claim that is missing)
	ValueOther  ValueKind = '*' // the shared counter of all values beyond the bound; set by stores
)

// Value is what tells apart the counters of a limit whose Per is not "tenant".
type Value struct {
	Kind ValueKind
	Text string // with ValueIs only
}

// sound reports whether v is a value that a request may have: no text but that of a value that is there, and not too much.
func (v Value) sound() bool {
	switch v.Kind {
	case ValueIs:
		return len(v.Text) <= maxValueBytes
	case NoValue, ValueAbsent, ValueOther:
		return v.Text == ""
	}
	return false
}

// ValueOf is the value for one component's text.
func ValueOf(text string) Value { return Value{Kind: ValueIs, Text: text} }

// JoinValues combines the components of a Per that is a list. It is injective.
func JoinValues(parts ...Value) Value {
	var b strings.Builder
	for _, p := range parts {
		if p.Kind == ValueIs {
			writeNetstring(&b, p.Text)
		} else {
			b.WriteByte(byte(ValueAbsent))
		}
	}
	return ValueOf(b.String())
}

// Key is the full name of one counter.
type Key struct {
	Owner    Owner
	Identity string // see [Tier.Identity]
	Value    Value
}

// String is the storage form: the kinds and three netstrings, as in "t4:acme,8:burst.v1,=3:u-1,". The length prefixes
// make it injective: no two keys share a counter, whatever bytes their names hold.
func (k Key) String() string {
	var b strings.Builder
	b.Grow(len(k.Owner.Name) + len(k.Identity) + len(k.Value.Text) + 16)
	b.WriteByte(byte(k.Owner.Kind))
	writeNetstring(&b, k.Owner.Name)
	writeNetstring(&b, k.Identity)
	if k.Value.Kind != NoValue {
		b.WriteByte(byte(k.Value.Kind))
		writeNetstring(&b, k.Value.Text)
	}
	return b.String()
}

// ParseKey is the inverse of [Key.String]. It accepts exactly what String writes.
func ParseKey(s string) (Key, error) {
	var k Key
	bad := func(why string) (Key, error) { return Key{}, fmt.Errorf("counter key %.200q: %s", s, why) }
	if s == "" {
		return bad("empty")
	}
	switch k.Owner.Kind = OwnerKind(s[0]); k.Owner.Kind {
	case Tenant, Address, Anonymous, AnyKey:
	default:
		return bad("unknown kind of owner")
	}
	rest, ok := s[1:], false
	if k.Owner.Name, rest, ok = readNetstring(rest); !ok {
		return bad("owner is not a netstring")
	}
	if k.Identity, rest, ok = readNetstring(rest); !ok {
		return bad("identity is not a netstring")
	}
	if rest == "" {
		return k, nil
	}
	switch k.Value.Kind = ValueKind(rest[0]); k.Value.Kind {
	case ValueIs, ValueAbsent, ValueOther:
	default:
		return bad("unknown kind of value")
	}
	if k.Value.Text, rest, ok = readNetstring(rest[1:]); !ok || rest != "" {
		return bad("value is not a netstring that ends the key")
	}
	if k.Value.Kind != ValueIs && k.Value.Text != "" {
		return bad("a value that is not there has a text")
	}
	return k, nil
}

func (t *Tier) identityText(l *Limit) string {
	var b strings.Builder
	writeNetstring(&b, l.ID)
	writeNetstring(&b, t.Algorithm.String())
	switch t.Algorithm {
	case Quota:
		writeNetstring(&b, t.Calendar.String())
	case SlidingBuckets: // the width is part of what the stored counts mean
		writeNetstring(&b, strconv.FormatInt(t.period, 10)+"/"+strconv.Itoa(t.Buckets))
	default:
		writeNetstring(&b, strconv.FormatInt(t.period, 10))
	}
	writeNetstring(&b, l.Per)
	if l.Mode == Shadow {
		b.WriteString("shadow")
	}
	return b.String()
}

func writeNetstring(b *strings.Builder, s string) {
	b.WriteString(strconv.Itoa(len(s)))
	b.WriteByte(':')
	b.WriteString(s)
	b.WriteByte(',')
}

// readNetstring takes one netstring off s. Only the shortest spelling of a length is accepted ("4:", never "04:").
func readNetstring(s string) (text, rest string, ok bool) {
	digits, after, found := strings.Cut(s, ":")
	if !found || digits == "" || (len(digits) > 1 && digits[0] == '0') || digits[0] == '+' || digits[0] == '-' {
		return "", s, false
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n < 0 || n >= len(after) || after[n] != ',' {
		return "", s, false
	}
	return after[:n], after[n+1:], true
}

// hashText is FNV-1a with a final mix: stable over processes, good enough to spread counters and window offsets.
func hashText(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	h ^= h >> 32
	h *= 0xd6e8feb86659fd93
	h ^= h >> 32
	return h
}
