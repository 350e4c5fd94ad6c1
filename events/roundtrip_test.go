package events_test

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/events"
)

// texts are texts that names, actors and reasons may contain, and that JSON must escape or that encoding/json would
// change.
var texts = []string{"a", "/", "\"", "\\", "<&>", "é", "e\u0301", "😀", "\u200d", "\ufeff", " x", "%", "{", "ﬁ",
	"\ufffd", "{{", "1"}

func random(r *rand.Rand, most int) string {
	var b strings.Builder
	for range 1 + r.IntN(most) {
		b.WriteString(texts[r.IntN(len(texts))])
	}
	return b.String()
}

func randomID(r *rand.Rand) string {
	const chars = "ABZabz09._-"
	id := make([]byte, 1+r.IntN(64))
	for i := range id {
		id[i] = chars[r.IntN(len(chars))]
	}
	return string(id)
}

func randomBody(t *testing.T, r *rand.Rand) json.RawMessage {
	t.Helper()
	m := map[string]any{}
	for range r.IntN(5) {
		m[random(r, 4)] = []any{random(r, 4) + "\u2028\x00\n", r.Int64N(1 << 53), r.IntN(2) == 0, nil,
			map[string]any{random(r, 2): 1}}
	}
	body, err := events.MarshalCanonical(m)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func randomTime(r *rand.Rand) time.Time {
	return time.UnixMicro(r.Int64N(time.Date(9998, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro())).UTC()
}

func randomEvent(t *testing.T, r *rand.Rand) events.Event {
	t.Helper()
	hex := strings.Repeat(string("0123456789abcdef"[r.IntN(16)]), 64)
	switch r.IntN(2) {
	case 0:
		all := []struct {
			t   events.Type
			key string
		}{
			{events.PlanChanged, randomID(r)}, {events.SettingsChanged, events.SettingsKey},
			{events.Canary, events.CanaryKey},
			{events.TenantChanged, random(r, 9)}, {events.KeyChanged, random(r, 9)},
			{events.SharesChanged, events.SharesKey},
		}
		one := all[r.IntN(len(all))]
		e := &events.Changed{Type: one.t, Key: one.key, ItemVersion: 1 + r.Int64N(events.MaxVersion),
			Time: randomTime(r), Hash: hex}
		if e.Deleted = r.IntN(3) == 0; !e.Deleted {
			e.Body = randomBody(t, r)
		}
		return e
	default:
		e := &events.AuditRecord{
			Table: events.Tenants, Key: random(r, 9), ItemVersion: 1, Time: randomTime(r), Actor: random(r, 99) + ".",
			Reason: random(r, 99) + ".", Hash: hex,
		}
		if r.IntN(2) == 0 {
			e.ItemVersion, e.PrevHash, e.Deleted = 2+r.Int64N(events.MaxVersion-1), hex, r.IntN(3) == 0
			if r.IntN(3) > 0 {
				e.Before = randomBody(t, r)
			}
		}
		if !e.Deleted {
			e.After = randomBody(t, r)
		}
		return e
	}
}

// Guarantees that an encoded event is decoded to an equal event, whatever it contains, and that encoding/json reads the
// same values: a subscriber need not be written in Go, or use this package.
func TestRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 9))
	for range 1000 {
		e := randomEvent(t, r)
		data, err := events.Encode(e)
		if err != nil {
			t.Fatalf("Encode(%+v) = %v", e, err)
		}
		if got, err := events.Decode(data); err != nil || !reflect.DeepEqual(got, e) {
			t.Fatalf("%s is read as\n%+v, %v; want\n%+v", data, got, err, e)
		}
		var head struct {
			Type    events.Type `json:"type"`
			Version int         `json:"version"`
			ID      string      `json:"id"`
			Time    time.Time   `json:"time"`
		}
		if err := json.Unmarshal(data, &head); err != nil || events.Header(head) != e.Header() {
			t.Fatalf("encoding/json reads %+v from %s, %v; want %+v", head, data, err, e.Header())
		}
	}
}
