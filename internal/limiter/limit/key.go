package limit

import (
	"slices"
	"strconv"
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
	AnyKey    OwnerKind = 'k' // a key that a user of the library has chosen
)

// Owner says whom the counters of one decision belong to. A store keeps all its counters of an owner together, so a
// decision over them is one atomic step.
type Owner struct {
	Kind OwnerKind
	Name string // any bytes, at most MaxNameBytes
}

// ValueKind tells a value that the request has from a missing one, so that no text of a value looks like a missing
// value.
type ValueKind byte

// The kinds of values.
const (
	NoValue     ValueKind = 0   // the limit is per tenant
	ValueIs     ValueKind = '=' // Text holds the value
	ValueAbsent ValueKind = '~' // the request has no such value (a key without a subject, a claim that is missing)
	ValueOther  ValueKind = '*' // all values beyond the limit's MaxValues, which share a counter; set by stores
)

// Value tells apart the counters of a limit whose Per is not "tenant".
type Value struct {
	Kind ValueKind
	Text string // of ValueIs, the value; of ValueOther, "" or one of anonymousOthers, see Owner.OtherValue
}

// anonymousOthers are the texts of the values ValueOther of calls without a credential.
var anonymousOthers = func() (texts [64]string) {
	for i := range texts {
		texts[i] = strconv.Itoa(i)
	}
	return texts
}()

// OtherValue returns the value whose counter is used in place of the one of v, because v is beyond its limit's bound.
// All values of a tenant share one. Values of calls without a credential cost a caller nothing to make up, so they are
// spread over 64 counters by a hash: a caller that uses up one of these counters affects few other values. A source
// address cannot be chosen for its counter, since the value is a keyed hash of the address.
func (o Owner) OtherValue(v Value) Value {
	switch {
	case v.Kind == ValueOther:
		return v
	case o.Kind == Anonymous:
		return Value{Kind: ValueOther, Text: anonymousOthers[hashText(v.Text)%uint64(len(anonymousOthers))]}
	}
	return Value{Kind: ValueOther}
}

// sound reports whether a request may have the value v. Only ValueIs has a text, of at most maxValueBytes bytes, and
// ValueOther may have one of anonymousOthers.
func (v Value) sound() bool {
	switch v.Kind {
	case ValueIs:
		return len(v.Text) <= maxValueBytes
	case ValueOther:
		return v.Text == "" || slices.Contains(anonymousOthers[:], v.Text)
	case NoValue, ValueAbsent:
		return v.Text == ""
	}
	return false
}

// ValueOf returns the value of a Per with one component, whose text is given.
func ValueOf(text string) Value { return Value{Kind: ValueIs, Text: text} }

// JoinValues returns the value of a Per with several components. It is injective.
func JoinValues(parts ...Value) Value {
	var b []byte
	for _, p := range parts {
		if p.Kind == ValueIs {
			b = AppendNetstring(b, p.Text)
		} else {
			b = append(b, byte(ValueAbsent))
		}
	}
	return ValueOf(string(b))
}

// The functions below are the only ones that spell the keys of stored counters. Every store composes its keys from
// them, in the order owner, limit, value, counter. A reader can tell from each part alone where it ends, so the
// composition is injective (FuzzStorageKeys). The parts depend only on a counter's identity: a change of a limit's
// match, group, align, rate, threshold or burst leaves the counter where it is.

// AppendKey appends the part of a storage key that names an owner: its kind and its name as a netstring, as in
// "t4:acme,".
func (o Owner) AppendKey(b []byte) []byte { return AppendNetstring(append(b, byte(o.Kind)), o.Name) }

// AppendKey appends the part of a storage key that names a value: its kind and its text as a netstring, as in
// "=3:u-1,". A limit that is per tenant has no value, and for NoValue nothing is appended.
func (v Value) AppendKey(b []byte) []byte {
	if v.Kind == NoValue {
		return b
	}
	return AppendNetstring(append(b, byte(v.Kind)), v.Text)
}

// AppendKey appends the part of a storage key that names a limit among the limits of one owner: its ID and its Per as
// netstrings, and "shadow," if the limit is a shadow, as in "5:login,7:subject,".
func (l *Limit) AppendKey(b []byte) []byte {
	b = AppendNetstring(AppendNetstring(b, l.ID), l.Per)
	if l.Mode == Shadow {
		b = append(b, "shadow,"...)
	}
	return b
}

// AppendName appends the readable name of a counter among the counters of one owner, one Per and one value:
//
//	ID "/" letter milliseconds                  burst/t1000
//	ID "/" letter milliseconds "-" buckets      hourly/b3600000-24
//	ID "/" letter calendar                      monthly/q12:month@15 UTC,
//
// The letter is that of the algorithm, in upper case for a shadow. The milliseconds are those of the period. The
// calendar is a netstring. If the tier has an ordinal above 0, "#" and the ordinal follow. An ID holds no slash, so a
// reader can tell where the name ends, provided that no digit or "#" follows.
func (t *Tier) AppendName(b []byte) []byte {
	k := &kinds[t.Algorithm]
	letter := k.letter
	if t.limit.Mode == Shadow {
		letter -= 'a' - 'A'
	}
	b = append(append(append(b, t.limit.ID...), '/'), letter)
	switch {
	case k.hasCalendar:
		b = AppendNetstring(b, t.Calendar.String())
	case k.hasBuckets: // the width of a bucket is part of what the stored counts mean
		b = strconv.AppendInt(strconv.AppendInt(b, t.Period.Milliseconds(), 10), int64(-t.Buckets), 10)
	default:
		b = strconv.AppendInt(b, t.Period.Milliseconds(), 10)
	}
	if t.Ordinal > 0 {
		b = strconv.AppendInt(append(b, '#'), int64(t.Ordinal), 10)
	}
	return b
}

// AppendNetstring appends the length of s in decimal digits, a colon, s and a comma, as in "4:acme,".
func AppendNetstring(b []byte, s string) []byte {
	b = strconv.AppendInt(b, int64(len(s)), 10)
	b = append(append(b, ':'), s...)
	return append(b, ',')
}

// identityText returns the Identity of t, a tier of l, as a row of netstrings.
func (t *Tier) identityText(l *Limit) string {
	b := AppendNetstring(AppendNetstring(nil, l.ID), t.Algorithm.String())
	switch k := &kinds[t.Algorithm]; {
	case k.hasCalendar:
		b = AppendNetstring(b, t.Calendar.String())
	case k.hasBuckets: // the width of a bucket is part of what the stored counts mean
		b = AppendNetstring(b, strconv.FormatInt(t.Period.Microseconds(), 10)+"/"+strconv.Itoa(t.Buckets))
	default:
		b = AppendNetstring(b, strconv.FormatInt(t.Period.Microseconds(), 10))
	}
	b = AppendNetstring(b, l.Per)
	if t.Ordinal > 0 {
		b = AppendNetstring(b, strconv.Itoa(t.Ordinal))
	}
	if l.Mode == Shadow {
		b = append(b, "shadow"...)
	}
	return string(b)
}

// hashText returns the FNV-1a hash of s, mixed once more. It is the same in each process, and good enough to spread
// counters and offsets of windows.
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
