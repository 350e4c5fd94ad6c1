package dynamodb_test

import (
	"context"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/limiter/lease"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
)

// throttlesValues is a client that rejects writes to the items of values as throttled.
type throttlesValues struct{ *dynamodbtest.Meter }

func (v throttlesValues) UpdateItem(
	ctx context.Context, in *sdk.UpdateItemInput, o ...func(*sdk.Options),
) (*sdk.UpdateItemOutput, error) {
	if sk, ok := in.Key["SK"].(*types.AttributeValueMemberB); ok && len(sk.Value) > 0 && sk.Value[0] == 'v' {
		return nil, &types.ProvisionedThroughputExceededException{}
	}
	return v.Meter.UpdateItem(ctx, in, o...)
}

// Guarantees that a shadow limit whose write fails does not fail the decision, and that the caller then leases no units
// of it: nobody has charged them.
func TestShadowLeaseFails(t *testing.T) {
	t.Parallel()
	m := &dynamodbtest.Meter{Client: server(t)}
	c := config(m.Client)
	healthy := open(t, c)
	c.Client = throttlesValues{m}
	leases, err := lease.New(lease.Config{Store: open(t, c), GiveBackEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	shadow := must(t, limit.Limit{ID: "shadow", Per: "subject", Mode: limit.Shadow, Tiers: []limit.Tier{
		{Algorithm: limit.FixedWindow, Threshold: 100, Period: time.Hour}}})
	req := &limit.Request{Owner: acme, Charges: []limit.Charge{
		{Limit: window(t, "five", 5), Cost: 1}, {Limit: shadow, Value: limit.ValueOf("u"), Cost: 1}}}
	for i := range 7 {
		var d limit.Decision
		err := leases.Decide(t.Context(), req, noon, &d)
		if err != nil {
			t.Fatalf("decision %d: %v", i+1, err)
		}
		if d.Allowed != (i < 5) || d.Results[1].Charged != 0 {
			t.Errorf("decision %d: allowed %t, the shadow limit is charged %d; want only the first five allowed, "+
				"and no unit charged", i+1, d.Allowed, d.Results[1].Charged)
		}
	}
	if err := leases.Close(t.Context()); err != nil {
		t.Error(err)
	}
	var d limit.Decision
	if err := healthy.Peek(t.Context(), req, noon, &d); err != nil || d.Results[0].Remaining() != 0 ||
		d.Results[1].Remaining() != 100 {
		t.Errorf("Peek: %v, %d and %d remain, want 0 and 100", err, d.Results[0].Remaining(), d.Results[1].Remaining())
	}
}
