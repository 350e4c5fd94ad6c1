package apigw

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

var jsonSeeds = []string{"", " ", "{}", " { } ", "[]", "[ ]", "[1,]", "[,1]", "{,}", `{"a":1,}`,
	`{"a" : [ 1 , -2.5e+7 , true , false , null , "x" ] }`, `{"a"}`, `{"a":}`, `{a:1}`, `{"a":1 "b":2}`,
	"0", "-0", "01", "1.", ".1", "1e", "1e+", "-", "--1", "+1", "1 2", "nul", "nullx", "tru", "True", `"`, `"\`,
	`"\u12`, `"\u12G4"`, `"\x41"`, "\"\n\"", "\"\x00\"", "\"\x1f\"", "\"\x7f\"", "\"\xff\"",
	`"\ud83d\ude00"`, `"\ud83d"`, `"\ud83dx"`, `"\ud83d\u0041"`, `"\ude00\ud83d"`, `"\ud83d\ud83d\ude00"`,
	`"\"\\\/\b\f\n\r\t\u0000\u00e9"`, "\ufeff{}", "{}\x00", "\v{}",
	strings.Repeat("[", 33) + strings.Repeat("]", 33), strings.Repeat("[", 32) + strings.Repeat("]", 32),
	strings.Repeat(`{"a":`, 40), `"12345678901234567890\"1234567"`, `{"\u0061":1,"a":2}`}

// FuzzReader guarantees that the reader agrees with encoding/json: both accept the same texts, except for those that
// are nested too deeply, and both read the same strings. Otherwise we could read another event than API Gateway has
// sent.
func FuzzReader(f *testing.F) {
	for _, s := range jsonSeeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r := reader{s: s, maxDepth: maxDepth}
		r.space()
		ok := r.skip()
		ok = ok && r.i == len(s)
		if r.deep {
			return
		}
		if want := json.Valid([]byte(s)); ok != want {
			t.Fatalf("%q is JSON: %v, encoding/json says %v", s, ok, want)
		}
		if !ok || !utf8.ValidString(s) { // encoding/json replaces what is no UTF-8, here it stays as it came
			return
		}
		d := json.NewDecoder(strings.NewReader(s))
		var want []string
		for {
			token, err := d.Token()
			if err != nil {
				break
			}
			if text, is := token.(string); is {
				want = append(want, text)
			}
		}
		var got []string
		r = reader{s: s, maxDepth: maxDepth}
		r.space()
		r.strings(func(text string) { got = append(got, text) })
		if len(got) != len(want) {
			t.Fatalf("%q has the strings %q, encoding/json reads %q", s, got, want)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("%q: string %d is %q, encoding/json reads %q", s, i, got[i], want[i])
			}
		}
	})
}

// strings calls f for each string of a value, including names, in their order.
func (r *reader) strings(f func(string)) bool {
	switch r.next() {
	case '{':
		return r.object(func(name string, escaped bool) bool {
			f(text(name, escaped))
			return r.strings(f)
		})
	case '[':
		return r.array(func() bool { return r.strings(f) })
	case '"':
		raw, escaped, ok := r.quoted()
		f(text(raw, escaped))
		return ok
	}
	return r.skip()
}

// Guarantees that too deep a nesting has an error of its own, and at which depth. Without a bound, the recursion of a
// reader could end the process.
func TestReaderDepth(t *testing.T) {
	for n, deep := range map[int]bool{maxDepth: false, maxDepth + 1: true, 1 << 20: true} {
		for _, open := range []string{"[", `{"a":`} {
			r := reader{s: strings.Repeat(open, n), maxDepth: maxDepth}
			if ok := r.skip(); ok || r.deep != deep {
				t.Errorf("%d times %s: JSON %v, too deep %v; want %v", n, open, ok, r.deep, deep)
			}
		}
	}
}

// Guarantees that the first byte of a string that needs special treatment is found at any position among eight bytes,
// and that no other byte is taken for one. The reader tests eight bytes at a time.
func TestPlainUntil(t *testing.T) {
	for length := range 20 {
		for c := range 256 {
			for at := range length {
				b := []byte(strings.Repeat("\x80", length))
				b[at] = byte(c)
				want := length
				if c == '"' || c == '\\' || c < ' ' {
					want = at
				}
				if got := plainUntil(string(b), 0); got != want {
					t.Fatalf("byte %#x at %d of %d: %d, want %d", c, at, length, got, want)
				}
			}
		}
	}
}
