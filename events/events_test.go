package events_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/events"
)

var update = flag.Bool("update", false, "write golden files that are not there; one that is there never changes")

var noon = time.Date(2026, 11, 21, 12, 0, 0, 123456000, time.UTC)

func hash(c string) string { return strings.Repeat(c, 64) }

// examples holds one event for each type and form. The name is that of the golden file.
func examples() map[string]events.Event {
	changed := func(t events.Type, key string, version int64, body string) *events.Changed {
		return &events.Changed{Type: t, Key: key, ItemVersion: version, Time: noon, Hash: hash("a"),
			Body: json.RawMessage(body)}
	}
	gone := changed(events.TenantChanged, "acme/Zürich \"1\"", 4, "")
	gone.Deleted, gone.Body = true, nil
	return map[string]events.Event{
		"plan.changed.v1": changed(events.PlanChanged, "pro", 3,
			`{"id":"pro","limits":[{"burst":200,"id":"burst","period":"1s","rate":100}]}`),
		"settings.changed.v1": changed(events.SettingsChanged, events.SettingsKey, 1,
			`{"anonymousPlan":"public","ipLimits":[],"routes":[{"methods":["GET"],"pathPattern":"/product/*"}]}`),
		"tenant.changed.v1": changed(events.TenantChanged, "acme", 2,
			`{"id":"acme","note":"<&>","plan":"pro"}`),
		"tenant.changed.v1.deleted": gone,
		"key.changed.v1": changed(events.KeyChanged, "k1", 1, `{"hash":"`+hash("b")+
			`","id":"k1","pepper":"p1","tenant":"acme"}`),
		"shares.changed.v1": changed(events.SharesChanged, events.SharesKey, 9, `{"epoch":4}`),
		"canary.v1":         changed(events.Canary, events.CanaryKey, 1440, `{}`),
		"audit.record.v1": &events.AuditRecord{
			Table: events.Tenants, Key: "acme", ItemVersion: 2, Time: noon,
			Actor:  "arn:aws:sts::123456789012:assumed-role/ops/jo",
			Reason: "ticket 4711: more for \"acme\"", Before: json.RawMessage(`{"id":"acme","plan":"free"}`),
			After: json.RawMessage(`{"id":"acme","plan":"pro"}`), PrevHash: hash("c"), Hash: hash("d"),
		},
		"audit.record.v1.first": &events.AuditRecord{
			Table: events.Operations, Key: "op-1", ItemVersion: 1, Time: noon, Actor: "a", Reason: "r",
			After: json.RawMessage(`{}`), Hash: hash("d"),
		},
		"audit.record.v1.deleted": &events.AuditRecord{
			Table: events.Cells, Key: "eu-1", ItemVersion: 7, Time: noon, Actor: "a", Reason: "r", Deleted: true,
			Before: json.RawMessage(`{}`), PrevHash: hash("c"), Hash: hash("d"),
		},
	}
}

// published has the SHA-256 of each golden file whose form subscribers know. A new type or version adds an entry. No
// entry is ever changed, because subscribers depend on every byte.
var published = map[string]string{
	"audit.record.v1":           "cd9b398db2f46185d59ae74177b9e1e739d66158cd92b414da284bf1d7c76776",
	"audit.record.v1.deleted":   "8bf79d8fb7cd789f403999e5d6f85303328a574f39c0cfe088e77ffbd241f53c",
	"audit.record.v1.first":     "5e92c337f57a04d99c62202418dfbe604029baf723d98e8765206e4fc58c4c2d",
	"canary.v1":                 "eca0cb2ed33bad74b0c873dc5efd054b69b6284b6c4f40ce1cfab1b2d1b596b1",
	"key.changed.v1":            "fe390697b0417031e3ba995634b08ba41292626e8511ac4390e2d36c4610f599",
	"plan.changed.v1":           "2c4587d553c25d6561cb2e8826b77eb0d88e3e7dd27a4613e8c509b410bc7ff9",
	"settings.changed.v1":       "97a78509fae342b3a78826fa0d474b43443410f535b7ab5a433d6b5068b69a05",
	"shares.changed.v1":         "bbb4fc4631d8eb579b85a0a2db856ad369c3c363635aa4489cdbbe8fdda37394",
	"tenant.changed.v1":         "22d1cc0a5e055a02993f5a7bd00980112b27e9b70bdaa01ae36e4a4a3ad572bf",
	"tenant.changed.v1.deleted": "5d0edcbc4f8dc6e11d07aa7cf4e363e1c521e375608f123bd94dffbd083091d8",
}

// Guarantees what subscribers depend on, byte for byte: each event is encoded as its golden file, which is decoded to
// the event, and the file is the one that was published.
func TestGolden(t *testing.T) {
	for name, e := range examples() {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join("testdata", name+".json")
			got, err := events.Encode(e)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, '\n')
			want, err := os.ReadFile(path)
			if *update && errors.Is(err, os.ErrNotExist) {
				want, err = got, os.WriteFile(path, got, 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s is\n%sencoded\n%s", path, want, got)
			}
			sum := sha256.Sum256(want)
			if hex := hex.EncodeToString(sum[:]); published[name] != hex {
				t.Errorf("%s has the SHA-256 %s, and was published as %q: fields are only ever added, in a version "+
					"of their own "+
					"golden file; a published one never changes", path, hex, published[name])
			}
			read, err := events.Decode(want)
			if err != nil || !reflect.DeepEqual(read, e) {
				t.Errorf("%s is read as\n%+v, %v; want\n%+v", path, read, err, e)
			}
		})
	}
}

// Guarantees that each golden file has an example, and each type in its present version a golden file.
func TestGoldenFilesAreComplete(t *testing.T) {
	files, err := filepath.Glob("testdata/*.json")
	if err != nil {
		t.Fatal(err)
	}
	all := examples()
	for _, f := range files {
		if name := strings.TrimSuffix(filepath.Base(f), ".json"); all[name] == nil {
			t.Errorf("%s has no example", f)
		}
	}
	for _, typ := range []events.Type{
		events.PlanChanged, events.SettingsChanged, events.TenantChanged, events.KeyChanged, events.SharesChanged,
		events.Canary, events.AuditRecorded,
	} {
		if e := all[string(typ)+".v1"]; e == nil || e.Header().Type != typ || e.Header().Version != events.Version {
			t.Errorf("type %s has no golden file of version %d", typ, events.Version)
		}
	}
	if len(published) != len(all) || len(files) != len(all) {
		t.Errorf("%d published, %d files, %d examples", len(published), len(files), len(all))
	}
}

// Guarantees that this reader reads events to which a later version adds a field.
func TestFieldsThatAreAdded(t *testing.T) {
	for name, e := range examples() {
		data, err := events.Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		more := bytes.Replace(data, []byte(`{"type"`), []byte(`{"cells":["eu-1"],"note":{"a":1e3},"type"`), 1)
		got, err := events.Decode(more)
		if err != nil || !reflect.DeepEqual(got, e) {
			t.Errorf("%s with two more fields is read as %+v, %v", name, got, err)
		}
	}
}

// Guarantees that an event that this reader does not know is kept whole, so that it can be counted and stored, and is
// encoded unchanged.
func TestUnknown(t *testing.T) {
	tests := []struct {
		name, data string
		want       events.Header
	}{
		{"a type", `{"type":"cell.moved","version":1,"id":"x","time":"2026-11-21T12:00:00.123456Z","to":[1e3]}`,
			events.Header{Type: "cell.moved", Version: 1, ID: "x", Time: noon}},
		{"a version",
			` { "version": 2, "type": "plan.changed", "id": "plans/pro/3", "time": "2026-11-21T12:00:00.123456Z"} `,
			events.Header{Type: events.PlanChanged, Version: 2, ID: "plans/pro/3", Time: noon}},
		{"another id and time", `{"type":"plan.changed","version":3,"id":17,"time":"noon"}`,
			events.Header{Type: events.PlanChanged, Version: 3}},
		{"no id and time", `{"type":"plan.changed","version":3}`, events.Header{Type: events.PlanChanged, Version: 3}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e, err := events.Decode([]byte(tt.data))
			raw, ok := e.(*events.Raw)
			if err != nil || !ok || raw.Head != tt.want || string(raw.Data) != tt.data {
				t.Fatalf("Decode(%s) = %+v, %v; want a raw event with %+v", tt.data, e, err, tt.want)
			}
			again, err := events.Encode(raw)
			if err != nil || string(again) != tt.data {
				t.Errorf("Encode = %s, %v; want it as it came", again, err)
			}
		})
	}
	lies := &events.Raw{Head: events.Header{Type: "other", Version: 1},
		Data: json.RawMessage(`{"type":"cell.moved","version":1}`)}
	if got, err := events.Encode(lies); !errors.Is(err, events.ErrMalformed) {
		t.Errorf("Encode of a raw event whose data is another = %s, %v", got, err)
	}
}

// set returns the JSON object with one field set, or without it if the value is empty.
func set(t *testing.T, data []byte, field, value string) []byte {
	t.Helper()
	var m map[string]json.RawMessage
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	if _, ok := m[field]; !ok {
		t.Fatalf("%s has no field %s", data, field)
	}
	var b bytes.Buffer
	b.WriteByte('{')
	for k, v := range m {
		if k == field {
			v = json.RawMessage(value)
		}
		if len(v) == 0 {
			continue
		}
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		b.WriteString(`"` + k + `":`)
		b.Write(v)
	}
	b.WriteByte('}')
	return b.Bytes()
}

// Guarantees that an event of any type is refused if a field is missing, has another type, or is out of bounds, and
// that the error names the field.
func TestEveryField(t *testing.T) {
	long := `"` + strings.Repeat("x", 600) + `"`
	bad := map[string][]string{
		"type":    {``, `null`, `1`, `""`, `"Plan.Changed"`, `"a b"`, long, `"\ud800"`},
		"version": {``, `null`, `"1"`, `0`, `-1`, `1.0`, `1e0`, `9007199254740992`, `99999999999999999999`},
		"id":      {``, `null`, `1`, `""`, `"plans/other/3"`},
		"time": {``, `null`, `1`, `""`, `"2026-11-21T12:00:00Z"`, `"2026-11-21T12:00:00.123456+00:00"`,
			`"2026-11-21T12:00:00,123456Z"`, `"2026-13-21T12:00:00.123456Z"`, `"1969-11-21T12:00:00.123456Z"`},
		"key":          {``, `null`, `1`, `""`, `"a\u0000"`, long},
		"item_version": {``, `null`, `"3"`, `0`, `-3`, `3.0`, `9007199254740992`},
		"deleted":      {``, `null`, `"false"`, `0`},
		"hash":         {``, `null`, `1`, `""`, `"` + hash("A") + `"`, `"` + hash("g") + `"`, `"ab"`},
		"prev_hash":    {``, `null`, `1`, `"ab"`},
		"body":         {``, `1`, `"{}"`, `[]`},
		"after":        {``, `1`, `"{}"`, `[]`, `{"b":1,"a":2}`, `{ }`},
		"before":       {``, `1`, `[]`, `{"b":1,"a":2}`},
		"table":        {``, `null`, `1`, `""`, `"counters"`},
		"actor":        {``, `null`, `1`, `""`, `" "`, `"a\nb"`, `"a\u2028b"`, long},
		"reason":       {``, `null`, `1`, `""`, `"\t"`, `"\u0085"`, long},
	}
	met := make(map[string]bool)
	for name, e := range examples() {
		data, err := events.Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(data, &fields); err != nil {
			t.Fatal(err)
		}
		for field := range fields {
			if len(bad[field]) == 0 {
				t.Errorf("%s: no bad values for %s", name, field)
			}
			met[field] = true
			for _, value := range bad[field] {
				if string(fields[field]) == value {
					continue
				}
				got, err := events.Decode(set(t, data, field, value))
				if !errors.Is(err, events.ErrMalformed) {
					t.Errorf("%s with %s = %s is read as %+v, %v; want an error", name, field, value, got, err)
				} else if !strings.Contains(err.Error(), field) && !strings.Contains(err.Error(), "id:") &&
					!strings.Contains(err.Error(), "version 1") {
					t.Errorf("%s with %s = %s: the error does not name the field: %v", name, field, value, err)
				}
			}
		}
	}
	for field := range bad {
		if !met[field] {
			t.Errorf("no event has a field %s", field)
		}
	}
}

// Guarantees that events whose fields contradict each other are refused: the body and the mark of a deletion, the key
// and the type, the first version and a previous one.
func TestFieldsThatContradict(t *testing.T) {
	tests := []struct {
		name string
		edit func(map[string]events.Event) events.Event
	}{
		{"deleted with a body", func(m map[string]events.Event) events.Event {
			e := m["plan.changed.v1"].(*events.Changed)
			e.Deleted = true
			return e
		}},
		{"neither deleted nor a body", func(m map[string]events.Event) events.Event {
			e := m["plan.changed.v1"].(*events.Changed)
			e.Body = nil
			return e
		}},
		{"a plan with the key of the settings", func(m map[string]events.Event) events.Event {
			e := m["plan.changed.v1"].(*events.Changed)
			e.Key = events.SettingsKey
			return e
		}},
		{"settings with the key of a plan", func(m map[string]events.Event) events.Event {
			e := m["settings.changed.v1"].(*events.Changed)
			e.Key = "pro"
			return e
		}},
		{"shares with the name of a cell", func(m map[string]events.Event) events.Event {
			e := m["shares.changed.v1"].(*events.Changed)
			e.Key = "eu-1"
			return e
		}},
		{"a changed document of another type", func(m map[string]events.Event) events.Event {
			e := m["plan.changed.v1"].(*events.Changed)
			e.Type = events.AuditRecorded
			return e
		}},
		{"a first version with one before", func(m map[string]events.Event) events.Event {
			e := m["audit.record.v1.first"].(*events.AuditRecord)
			e.PrevHash = hash("a")
			return e
		}},
		{"a first version that replaces something", func(m map[string]events.Event) events.Event {
			e := m["audit.record.v1.first"].(*events.AuditRecord)
			e.Before = json.RawMessage(`{}`)
			return e
		}},
		{"a second version without one before", func(m map[string]events.Event) events.Event {
			e := m["audit.record.v1"].(*events.AuditRecord)
			e.PrevHash = ""
			return e
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := events.Encode(tt.edit(examples())); !errors.Is(err, events.ErrMalformed) {
				t.Errorf("Encode = %s, %v; want an error", got, err)
			}
		})
	}
}

// Guarantees that a text that could be read in two ways, or is not an event, is refused.
func TestDecodeRefuses(t *testing.T) {
	for _, data := range []string{
		"", "null", "1", "[]", `"plan.changed"`, "{}", "{", `{"type":"plan.changed"`,
		`{"type":"plan.changed","version":1`,
		`{"type":"plan.changed","version":1}`, `{"type":"a","version":1} {}`, `{"type":"a","version":1}x`,
		`{"type":"a","version":1,"type":"b"}`, `{"type":"a","version":1,"x":1,"x":1}`, `{"Type":"a","version":1}`,
		`{"type":"a","version":1,"x":}`, `{"type":"a" "version":1}`, `{1:2}`,
		"{\"type\":\"a\",\"version\":1,\"x\":\"\xff\"}",
	} {
		if e, err := events.Decode([]byte(data)); !errors.Is(err, events.ErrMalformed) {
			t.Errorf("Decode(%s) = %+v, %v; want an error", data, e, err)
		}
	}
}

// Guarantees that the largest document fits into a message together with all other fields, and that one byte more is an
// error that says so.
func TestSizes(t *testing.T) {
	body := func(n int) json.RawMessage {
		return json.RawMessage(`{"a":"` + strings.Repeat("x", n-len(`{"a":""}`)) + `"}`)
	}
	worst := strings.Repeat(`\`, 128) // a name that is twice as long in JSON
	e := &events.Changed{
		Type: events.TenantChanged, Key: worst, ItemVersion: events.MaxVersion, Time: noon, Hash: hash("a"),
		Body: body(events.MaxBodyBytes),
	}
	data, err := events.Encode(e)
	if err != nil || len(data) > events.MaxBytes {
		t.Fatalf("the largest document is %d bytes, %v", len(data), err)
	}
	if got, err := events.Decode(data); err != nil || !reflect.DeepEqual(got, e) {
		t.Errorf("the largest document is not read back: %v", err)
	}
	e.Body = body(events.MaxBodyBytes + 1)
	if _, err := events.Encode(e); !errors.Is(err, events.ErrTooLarge) ||
		!strings.Contains(err.Error(), "body has 204801 bytes") {
		t.Errorf("a document that is too large: %v", err)
	}
	record := &events.AuditRecord{
		Table: events.Tenants, Key: worst, ItemVersion: events.MaxVersion, Time: noon,
		Actor:  strings.Repeat("\U0001f600", 512),
		Reason: strings.Repeat(`"`, 512), Before: body(events.MaxBodyBytes), After: body(events.MaxBodyBytes),
		PrevHash: hash("a"), Hash: hash("b"),
	}
	data, err = events.Encode(record)
	if err != nil || len(data) > events.MaxAuditBytes {
		t.Fatalf("the largest record is %d bytes, %v", len(data), err)
	}
	if got, err := events.Decode(data); err != nil || !reflect.DeepEqual(got, record) {
		t.Errorf("the largest record is not read back: %v", err)
	}
	for _, tt := range []struct {
		typ  string
		size int
	}{{"plan.changed", events.MaxBytes + 1}, {"cell.moved", events.MaxBytes + 1},
		{"audit.record", events.MaxAuditBytes + 1}} {
		data := []byte(`{"type":"` + tt.typ + `","version":2,"x":""}`)
		data = bytes.Replace(data, []byte(`""`), []byte(`"`+strings.Repeat("x", tt.size-len(data))+`"`), 1)
		if e, err := events.Decode(data); !errors.Is(err, events.ErrTooLarge) {
			t.Errorf("%s of %d bytes is read as %T, %v", tt.typ, len(data), e, err)
		}
	}
}

// Guarantees that no two documents share an event's id.
func TestIDs(t *testing.T) {
	seen := make(map[string]events.Event)
	add := func(e events.Event) {
		id := e.Header().ID
		if seen[id] != nil {
			t.Errorf("%q is the id of %+v and %+v", id, seen[id], e)
		}
		seen[id] = e
	}
	for _, key := range []string{"a", "a/1", "a/1/2", "1", "1/1", "/", "//1"} {
		for _, version := range []int64{1, 2, 11} {
			add(&events.Changed{Type: events.TenantChanged, Key: key, ItemVersion: version})
			add(&events.Changed{Type: events.KeyChanged, Key: key, ItemVersion: version})
		}
	}
}

// FuzzDecode guarantees that any bytes are decoded to an event, to an unknown event, or to a clear error, and that an
// event that was decoded is encoded and decoded to an equal one.
func FuzzDecode(f *testing.F) {
	for _, e := range examples() {
		data, err := events.Encode(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"type":"cell.moved","version":1,"id":"x","time":"2026-11-21T12:00:00.123456Z"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := events.Decode(data)
		if err != nil {
			if !errors.Is(err, events.ErrMalformed) && !errors.Is(err, events.ErrTooLarge) {
				t.Fatalf("Decode(%q) = %v, of no kind", data, err)
			}
			return
		}
		again, err := events.Encode(e)
		if err != nil {
			t.Fatalf("Decode(%q) = %+v, which cannot be encoded: %v", data, e, err)
		}
		if back, err := events.Decode(again); err != nil || !reflect.DeepEqual(back, e) {
			t.Fatalf("Decode(%q) = %+v, and encoded and decoded %+v, %v", data, e, back, err)
		}
	})
}

// Guarantees that a body that is not one JSON object is never written into an event: such a text could end the body and
// add fields to the event.
func TestBodyIsOneObject(t *testing.T) {
	for _, body := range []string{
		"", " {}", "{", "{}}", "[]", "null", `{},"hash":"` + hash("b") + `"`, "{\"a\":\"\xff\"}", `{"a":1,}`,
	} {
		changed := examples()["plan.changed.v1"].(*events.Changed)
		record := examples()["audit.record.v1"].(*events.AuditRecord)
		changed.Body, record.After = json.RawMessage(body), json.RawMessage(body)
		for _, e := range []events.Event{changed, record} {
			if data, err := events.Encode(e); !errors.Is(err, events.ErrMalformed) {
				t.Errorf("the body %q is written into %s, %v; want an error", body, data, err)
			}
		}
	}
}

// Guarantees that an event is decoded to equal fields after a transport has encoded its JSON again: with white space,
// other escapes, and members in another order. LocalStack's event source mapping of a queue does this to every message.
// Only the body keeps the new spelling, which has the same meaning.
func TestSpelledAnew(t *testing.T) {
	body := `{"id":"acme","plan":"pro","é<":["\u001f",1.50]}`
	want := &events.Changed{Type: events.TenantChanged, Key: "acmé", ItemVersion: 7, Time: noon, Hash: hash("a"),
		Body: json.RawMessage(body)}
	data, err := events.Encode(want)
	if err != nil {
		t.Fatal(err)
	}
	anew := strings.NewReplacer(body, `{ "plan": "pro", "\u00e9\u003c": [ "\u001F" ,1.50],`+"\n\t"+`"id": "\u0061cme"}`,
		"acmé", `acm\u00e9`, `":`, `": `, `,"`, `, "`).
		Replace(string(data))
	if anew == string(data) || strings.Contains(anew, body) {
		t.Fatalf("not spelled anew: %s", anew)
	}
	got, err := events.Decode([]byte(anew))
	if err != nil {
		t.Fatal(err)
	}
	if e, ok := got.(*events.Changed); ok {
		if e.Body, err = events.Canonical(e.Body); err != nil {
			t.Fatal(err)
		}
	}
	if !reflect.DeepEqual(got, events.Event(want)) {
		t.Errorf("%s is read as %+v, want %+v", anew, got, want)
	}
}
