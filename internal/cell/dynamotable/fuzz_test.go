package dynamotable

import (
	"bytes"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/cell/table"
)

// FuzzItem guarantees that every document is read from its item unchanged, and that no item, whatever its attributes,
// stops the program or takes more memory than a body may.
func FuzzItem(f *testing.F) {
	f.Add("tenant", "t", int64(1), int64(2), false, []byte(`{}`))
	f.Add("tenant", "#", int64(1<<62), int64(1), true, []byte(nil))
	f.Add("plan", "p", int64(3), int64(9), false, bytes.Repeat([]byte("a long body "), 1000))
	f.Add("log", "1", int64(-1), int64(0), false, []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, kind, id string, version, seq int64, deleted bool, body []byte) {
		raw := map[string]types.AttributeValue{
			"pk": text(kind), "sk": text(id), "v": number(version), "n": number(seq),
			"gz":      &types.AttributeValueMemberB{Value: body},
			"changes": &types.AttributeValueMemberL{Value: []types.AttributeValue{text(id)}},
		}
		if d, err := documentOf(table.Ref{}, raw); err == nil &&
			(d.Version != version || len(d.Body) > table.MaxBodyBytes) {
			t.Fatalf("the item %v is read as %+v, want another version refused, and no body above the bound", raw, d)
		}
		if e, err := entryOf(raw); err == nil {
			t.Fatalf("the item %v is read as the invalid log entry %+v", raw, e)
		}
		d := table.Document{Ref: table.Ref{Kind: table.Kind(kind), ID: id}, Version: version, Seq: seq,
			Deleted: deleted, Body: body}
		if deleted {
			d.Body = nil
		}
		if version < 1 || seq < 0 || id == "" || bytes.ContainsRune([]byte(kind), '#') ||
			len(body) > table.MaxBodyBytes {
			return // Check refuses these
		}
		item, err := documentItem(&d)
		if err != nil {
			return // too large even when compressed
		}
		ref, err := refOf(item)
		if err != nil || ref != d.Ref {
			t.Fatalf("the key of the item of %+v is read as %+v, %v; want the same", d.Ref, ref, err)
		}
		back, err := documentOf(ref, item)
		if err != nil || back.Version != version || back.Seq != seq || back.Deleted != deleted ||
			!bytes.Equal(back.Body, d.Body) {
			t.Fatalf("the document %+v is read back as %+v, %v; want it unchanged", d, back, err)
		}
	})
}
