package functiontest

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/dynamo"
)

// Record returns the record of a change in the stream of a control table, as JSON. The table has its usual name.
func Record(t testing.TB, sequence int, d control.Delivery) string {
	t.Helper()
	return RecordOf(t, sequence, string(d.Record.New.Table), d)
}

// RecordOf does what Record does for a table with another name.
func RecordOf(t testing.TB, sequence int, table string, d control.Delivery) string {
	t.Helper()
	image := func(i *control.Item) map[string]any {
		out := map[string]any{}
		for name, v := range dynamo.RowOf(i) {
			switch v := v.(type) {
			case *types.AttributeValueMemberS:
				out[name] = map[string]any{"S": v.Value}
			case *types.AttributeValueMemberN:
				out[name] = map[string]any{"N": v.Value}
			case *types.AttributeValueMemberBOOL:
				out[name] = map[string]any{"BOOL": v.Value}
			}
		}
		return out
	}
	change := map[string]any{"SequenceNumber": fmt.Sprint(sequence),
		"Keys": map[string]any{"id": map[string]any{"S": d.Record.New.Key}}, "NewImage": image(&d.Record.New)}
	name := "INSERT"
	if d.Record.Old != nil {
		name, change["OldImage"] = "MODIFY", image(d.Record.Old)
	}
	out, err := json.Marshal(map[string]any{"eventName": name, "eventSource": "aws:dynamodb", "dynamodb": change,
		"eventSourceARN": "arn:aws:dynamodb:eu-west-1:123456789012:table/" + table + "/stream/2026-11-21T00:00:00.000"})
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
