package delivery_test

import (
	"bytes"
	"crypto/rand"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/sluicelimits/sluice/streams/delivery"
)

// FuzzEncode guarantees that every dead letter can be read unchanged, or is marked as too large, and always fits into a
// message.
func FuzzEncode(f *testing.F) {
	f.Add("publisher", "123", "tenants", "acme", "wrong hash", []byte(`{"a":1}`))
	f.Add("", "", "", "a\x00\xff", strings.Repeat("é", 3000), []byte("\x00\xff"))
	f.Fuzz(func(t *testing.T, by, id, table, key, reason string, data []byte) {
		for _, s := range []string{by, id, table, key, reason} {
			if !utf8.ValidString(s) || len(s) > 200 {
				return
			}
		}
		i := delivery.DeadLetter{By: by, Cell: "eu-1", ID: id, Table: table, Key: key, Reason: reason,
			At:   time.Unix(1, 0).UTC(),
			Data: data}
		out, err := i.Encode()
		if err != nil || len(out) > delivery.MaxDeadLetterBytes {
			t.Fatalf("%d bytes, %v", len(out), err)
		}
		got, omitted, err := delivery.DecodeDeadLetter(out)
		if err != nil || omitted {
			t.Fatalf("%v, omitted %t", err, omitted)
		}
		if !bytes.Equal(got.Data, data) {
			t.Fatalf("data %q, want %q", got.Data, data)
		}
		got.Data = i.Data
		if !reflect.DeepEqual(got, i) {
			t.Fatalf("got  %+v\nwant %+v", got, i)
		}
	})
}

// FuzzDecode guarantees that invalid data makes the reader neither panic nor use more memory than the data claims.
func FuzzDecode(f *testing.F) {
	i := delivery.DeadLetter{By: "applier", Reason: "r", Data: []byte("x")}
	out, err := i.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(out)
	f.Add([]byte(`{"kept":1,"data":"AAAA","bytes":-5}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, omitted, err := delivery.DecodeDeadLetter(data)
		if err == nil && !omitted && len(got.Data) > 100*len(data)+1<<20 {
			t.Fatalf("%d bytes of %d", len(got.Data), len(data))
		}
	})
}

// Guarantees that data that does not fit into a message is replaced by its size and SHA-256.
func TestTooLarge(t *testing.T) {
	data := make([]byte, 1<<20)
	_, _ = rand.Read(data)
	i := delivery.DeadLetter{By: "publisher", ID: "5", Key: strings.Repeat("k", 5000),
		Reason: strings.Repeat("\xff", 5000), Data: data}
	out, err := i.Encode()
	if err != nil || len(out) > delivery.MaxDeadLetterBytes {
		t.Fatalf("%d bytes, %v", len(out), err)
	}
	got, omitted, err := delivery.DecodeDeadLetter(out)
	if err != nil || !omitted || got.ID != "5" || got.Data != nil ||
		!strings.Contains(string(out), `"bytes":1048576,"sha256":"`) {
		t.Errorf("%+v, %t, %v", got, omitted, err)
	}
}

// Guarantees that altered data and other formats are refused.
func TestDecodeRefuses(t *testing.T) {
	i := delivery.DeadLetter{By: "applier", Data: []byte("one")}
	out, err := i.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{
		"", "[]", `{"kept":2}`, `{"kept":1}`, `{"kept":1,"data":"AAAA"}`,
		strings.Replace(string(out), `"sha256":"`, `"sha256":"0`, 1),
		strings.Replace(string(out), `"bytes":3`, `"bytes":1`, 1),
	} {
		if _, _, err := delivery.DecodeDeadLetter([]byte(bad)); err == nil {
			t.Errorf("DecodeDeadLetter(%s) gives no error", bad)
		}
	}
}

// Guarantees that the log names the records that cannot be processed, without their content.
func TestLog(t *testing.T) {
	var out bytes.Buffer
	l := delivery.LogKeeper{Log: slog.New(slog.NewJSONHandler(&out, nil))}
	if err := l.Keep(t.Context(), delivery.DeadLetter{By: "applier", Cell: "eu-1", Table: "keys", Key: "k\x1b1",
		Reason: "why",
		Data:   []byte("not-to-be-seen")}); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); !strings.Contains(got, `k\\x1b1`) || !strings.Contains(got, "why") ||
		strings.Contains(got, "not-to-be-seen") {
		t.Errorf("the log is %s", got)
	}
}
