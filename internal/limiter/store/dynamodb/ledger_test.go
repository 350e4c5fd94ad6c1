package dynamodb_test

import (
	"errors"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/limiter/ledger"
	"github.com/sluicelimits/sluice/internal/limiter/ledger/ledgertest"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
)

func TestLedgerContract(t *testing.T) {
	client := server(t)
	configs := map[ledger.Ledger]dynamodb.Config{}
	connect := func(tb testing.TB, c dynamodb.Config) ledger.Ledger {
		l := open(tb, c).Ledger()
		configs[l] = c
		return l
	}
	ledgertest.Run(t, ledgertest.Config{
		New:     func(tb testing.TB) ledger.Ledger { return connect(tb, config(client)) },
		Peer:    func(tb testing.TB, l ledger.Ledger) ledger.Ledger { return connect(tb, configs[l]) },
		Scripts: 4,
	})
}

// Guarantees that an item expires if nobody has set its limit, and does not otherwise. An item of another version is an
// error.
func TestLedgerItems(t *testing.T) {
	client := server(t)
	c := config(client)
	l := open(t, c).Ledger()
	claim := ledger.Claim{Window: 5, Limit: 10, Unit: 1}
	if _, err := l.Claim(t.Context(), "api", claim); err != nil {
		t.Fatal(err)
	}
	item := func() map[string]types.AttributeValue {
		t.Helper()
		out, err := client.Query(t.Context(), &sdk.QueryInput{
			TableName: aws.String(table), KeyConditionExpression: aws.String("PK = :pk"),
			ConsistentRead: aws.Bool(true),
			ExpressionAttributeValues: map[string]types.AttributeValue{":pk": &types.AttributeValueMemberB{
				Value: []byte(string(limit.AppendNetstring(nil, c.Namespace)) + "l3:api,")}},
		})
		if err != nil || len(out.Items) != 1 {
			t.Fatalf("the table has %d items, %v; want one", len(out.Items), err)
		}
		return out.Items[0]
	}
	if item()["ttl"] == nil {
		t.Error("an item without a limit has no ttl, want one")
	}
	if err := l.SetLimit(t.Context(), "api", 20, 9); err != nil {
		t.Fatal(err)
	}
	claim.Window = 6
	if _, err := l.Claim(t.Context(), "api", claim); err != nil {
		t.Fatal(err)
	}
	stored := item()
	if stored["ttl"] != nil {
		t.Error("an item with a limit has a ttl, want none")
	}
	for _, version := range []string{"1", "2", "3", "5"} {
		stored["v"] = &types.AttributeValueMemberN{Value: version}
		if _, err := client.PutItem(t.Context(), &sdk.PutItemInput{TableName: aws.String(table),
			Item: stored}); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Claim(t.Context(), "api", claim); !errors.Is(err, dynamodb.ErrBadItem) {
			t.Errorf("a claim on an item of version %s: %v, want ErrBadItem", version, err)
		}
		if err := l.SetLimit(t.Context(), "api", 20, 99); !errors.Is(err, dynamodb.ErrBadItem) {
			t.Errorf("a limit of an item of version %s: %v, want ErrBadItem", version, err)
		}
	}
}
