package events_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/events"
)

// Guarantees the form over which every hash of the audit chain is computed. A change of this form would break every
// existing chain.
func TestCanonical(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"sorted and compact", "{ \"b\" : 1 ,\n\t\"a\" : [ true , false , null ] }", `{"a":[true,false,null],"b":1}`},
		{"empty", " {} ", `{}`},
		{"sorted inside", `{"a":[{"z":1,"y":{"d":0,"c":0}}]}`, `{"a":[{"y":{"c":0,"d":0},"z":1}]}`},
		{"a name that begins another", `{"aa":1,"a":2,"":3}`, `{"":3,"a":2,"aa":1}`},
		{"integers and decimals as written", `{"a":9007199254740993,"b":-1.50,"c":0,"d":0.10}`,
			`{"a":9007199254740993,"b":-1.50,"c":0,"d":0.10}`},
		{"shortest escapes", `{"a":"\u0041\/\u00e9\u20ac\u000F\u0008\f\n\r\t\"\\\u2028<>&"}`,
			"{\"a\":\"A/é€\\u000f\\b\\f\\n\\r\\t\\\"\\\\\u2028<>&\"}"},
		{"a surrogate pair", `{"a":"\ud83d\ude00"}`, `{"a":"😀"}`},
		// The members of RFC 8785, 3.2.3, whose order is by UTF-16 code units: the emoji before U+FB33.
		{"order of RFC 8785",
			`{"\u20ac":1,"\r":2,"\ufb33":3,"1":4,"\ud83d\ude00":5,"\u0080":6,"\u00f6":7}`,
			"{\"\\r\":2,\"1\":4,\"\u0080\":6,\"\u00f6\":7,\"\u20ac\":1,\"\U0001f600\":5,\"\ufb33\":3}"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := events.Canonical([]byte(tt.in))
			if err != nil || string(got) != tt.want {
				t.Errorf("Canonical(%s) = %s, %v; want %s", tt.in, got, err, tt.want)
			}
			if err := events.CheckCanonical(got); err != nil {
				t.Errorf("CheckCanonical(%s) = %v", got, err)
			}
			if err := events.CheckCanonical([]byte(tt.in)); (err == nil) != (tt.in == tt.want) {
				t.Errorf("CheckCanonical(%s) = %v", tt.in, err)
			}
		})
	}
}

// Guarantees that JSON that could be read in two ways has no canonical form, and that the error says where it is.
func TestNotCanonical(t *testing.T) {
	deep := strings.Repeat(`{"a":`, events.MaxDepth+1) + "1" + strings.Repeat("}", events.MaxDepth+1)
	tests := []struct{ name, in, want string }{
		{"nothing", "", "byte 0: the object has no end"},
		{"a list", "[1]", "want an object"},
		{"a second value", "{} {}", "byte 4: something follows"},
		{"no end", `{"a":1`, "byte 6: the object has no end"},
		{"no end of a list", `{"a":[1`, "byte 7: the object has no end"},
		{"no end of a string", `{"a":"b`, "byte 5: unexpected EOF"},
		{"no end of an escape", `{"a":"b\`, "byte 5: unexpected EOF"},
		{"a comma too many", `{"a":1,}`, "byte 7: invalid character '}'"},
		{"a comma too many in a list", `{"a":[1,]}`, "byte 8: invalid character ']'"},
		{"no colon", `{"a" 1}`, "byte 5: invalid character '1' after object key"},
		{"no value", `{"a":}`, "byte 5: invalid character '}'"},
		{"a word", `{"a":nul}`, "byte 5: invalid character '}' in literal null"},
		{"two names that are one", `{"a":1,"b":2,"\u0061":3}`, `the name "a" twice`},
		{"not UTF-8", "{\"a\":\"\xff\"}", "UTF-8"},
		{"half a pair", `{"a":"\ud83d"}`, "half of a surrogate pair"},
		{"the other half", `{"a":"\ude00\ud83d"}`, "half of a surrogate pair"},
		{"not hex", `{"a":"\u00g0"}`, "byte 5: invalid character 'g' in \\u hexadecimal character escape"},
		{"an odd escape", `{"a":"\x"}`, "byte 5: invalid character 'x' in string escape code"},
		{"a control character", "{\"a\":\"\x01\"}", `byte 5: invalid character '\x01' in string literal`},
		{"an exponent", `{"a":1e3}`, "exponent"},
		{"a negative zero", `{"a":-0.0}`, "negative zero"},
		{"a leading zero", `{"a":01}`, "byte 6: invalid character '1'"},
		{"only a sign", `{"a":-}`, "byte 5: invalid character '}' in numeric literal"},
		{"no digit behind the point", `{"a":1.}`, "byte 5: invalid character '}' after decimal point"},
		{"a long number", `{"a":` + strings.Repeat("1", events.MaxNumberBytes+1) + `}`, "more than 32 characters"},
		{"too deep", deep, "64 levels"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := events.Canonical([]byte(tt.in))
			if !errors.Is(err, events.ErrNotCanonical) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Canonical(%.80s) = %s, %v; want an error with %q", tt.in, got, err, tt.want)
			}
		})
	}
}

func TestReadString(t *testing.T) {
	if s, err := events.ReadString([]byte(`"a\u00e9\"b"`)); err != nil || s != `aé"b` {
		t.Errorf("String = %q, %v", s, err)
	}
	for _, in := range []string{"", "1", `"a`, `"a" `, `"\ud800"`, "\"\xff\""} {
		if s, err := events.ReadString([]byte(in)); !errors.Is(err, events.ErrNotCanonical) {
			t.Errorf("ReadString(%q) = %q, %v; want an error", in, s, err)
		}
	}
}

func TestMarshalCanonical(t *testing.T) {
	got, err := events.MarshalCanonical(map[string]any{"b": "<&>", "a": 1})
	if err != nil || string(got) != `{"a":1,"b":"<&>"}` {
		t.Errorf("Marshal = %s, %v", got, err)
	}
	for _, v := range []any{[]int{1}, func() {}} {
		if got, err := events.MarshalCanonical(v); !errors.Is(err, events.ErrNotCanonical) {
			t.Errorf("MarshalCanonical(%T) = %s, %v; want an error", v, got, err)
		}
	}
}

// FuzzCanonical compares the canonical form with what encoding/json reads. The canonical form has the same meaning, and
// it is its own canonical form. The two packages accept the same texts, except for what the package comment says.
func FuzzCanonical(f *testing.F) {
	f.Add([]byte(`{"b":[1,-2.50,{"y":"\ud83d\ude00","x":null}],"a":"\u0041\n"}`))
	f.Add([]byte(`{"a":1,"a":2}`))
	f.Add([]byte("{\"\ufb33\":1,\"\U0001f600\":2}"))
	f.Add([]byte(`{"a":"\ud800"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := events.Canonical(data)
		if err != nil {
			if !errors.Is(err, events.ErrNotCanonical) {
				t.Fatalf("Canonical(%q) = %v, not ErrInvalid", data, err)
			}
			return
		}
		if err := events.CheckCanonical(got); err != nil {
			t.Fatalf("Canonical(%q) = %q, which is not canonical: %v", data, got, err)
		}
		before, after := read(t, data), read(t, got)
		if !reflect.DeepEqual(before, after) {
			t.Fatalf("Canonical(%q) = %q: another value", data, got)
		}
	})
}

func read(t *testing.T, data []byte) (v map[string]any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("encoding/json refuses %q: %v", data, err)
	}
	return v
}

// Guarantees that the order of members does not influence the result: a map in Go has no order.
func TestOrderOfMembersNeverShows(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	names := []string{"", "a", "aa", "b", "é", "\ufb33", "\U0001f600", "\U0001f601", "\uffff", "\r", "1", "10"}
	var want []byte
	for range 200 {
		r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		b := []byte{'{'}
		for i, n := range names {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(events.AppendString(b, n), ':', '1')
		}
		got, err := events.Canonical(append(b, '}'))
		if err != nil {
			t.Fatal(err)
		}
		if want == nil {
			want = got
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("%q is %s, and in another order %s", b, got, want)
		}
	}
}
