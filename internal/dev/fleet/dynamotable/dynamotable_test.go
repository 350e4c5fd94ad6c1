package dynamotable_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/dev/fleet/dynamotable"
	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// Guarantees that the DynamoDB store keeps the contract of a store on the simulated table, as it does on DynamoDB: the
// table understands every expression that the store sends, and carries it out.
func TestContract(t *testing.T) {
	t.Parallel()
	table := dynamotable.New()
	var mu sync.Mutex // many goroutines call the table
	c := dynamotable.Client{Send: func(_ context.Context, do func(*dynamotable.Table) (dynamotable.Cost, error)) (
		time.Time, error,
	) {
		mu.Lock()
		defer mu.Unlock()
		_, err := do(table)
		return time.Now(), err
	}}
	var configs sync.Map // by store, to open further stores with the same counters
	var spaces atomic.Int64
	open := func(tb testing.TB, config dynamodb.Config) limit.Store {
		s, err := dynamodb.New(config)
		if err != nil {
			tb.Fatal(err)
		}
		return s
	}
	limittest.RunStoreContract(t, limittest.Config{
		New: func(tb testing.TB) limit.Store {
			config := dynamodb.Config{Client: c, Table: "counters", CallerClock: true, Timeout: time.Minute,
				Namespace: fmt.Sprint(spaces.Add(1))}
			s := open(tb, config)
			configs.Store(s, config)
			return s
		},
		Peer: func(tb testing.TB, s limit.Store) limit.Store {
			config, _ := configs.Load(s)
			return open(tb, config.(dynamodb.Config))
		},
		Refuses:    []limit.Algorithm{limit.SlidingLog},
		MayFail:    true,
		Leases:     true,
		KeepsAhead: true,
		Goroutines: 16,
		Scripts:    soak.Times(20),
		Repeats:    soak.Times(25),
	})
}

func number(n string) types.AttributeValue { return &types.AttributeValueMemberN{Value: n} }

// keyed returns an update of the item with this sort key.
func keyed(sort, condition, update string, values map[string]types.AttributeValue) *sdk.UpdateItemInput {
	in := &sdk.UpdateItemInput{
		Key: map[string]types.AttributeValue{"PK": &types.AttributeValueMemberB{Value: []byte("p")},
			"SK": &types.AttributeValueMemberB{Value: []byte(sort)}},
		UpdateExpression: aws.String(update), ExpressionAttributeValues: values,
		ExpressionAttributeNames:            map[string]string{"#n": "n", "#m": "m"},
		ReturnValues:                        types.ReturnValueAllOld,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}
	if condition != "" {
		in.ConditionExpression = aws.String(condition)
	}
	return in
}

// Guarantees that conditions and updates do what they say, and that a write costs as DynamoDB charges it: a unit for
// each begun KB of the larger of the items before and after it, also if the condition does not hold.
func TestUpdate(t *testing.T) {
	table := dynamotable.New()
	values := map[string]types.AttributeValue{":one": number("1"), ":ten": number("10"),
		":huge": number("123456789012345678901234567890"), ":long": &types.AttributeValueMemberS{
			Value: strings.Repeat("x", 1500)},
		":map": &types.AttributeValueMemberM{Value: map[string]types.AttributeValue{"a": number("-5")}}}
	for i, test := range []struct {
		condition, update string
		holds             bool
		units             int64
		n                 string // the attribute n after it
	}{
		{"attribute_exists(PK)", "SET #n = :one", false, 1, ""},
		{"attribute_not_exists(PK)", "SET #n = :one, #m = :map", true, 1, "1"},
		{"attribute_not_exists(PK) OR (#n >= :one AND #n<=:one)", "SET #n = #n + :ten - :one", true, 1, "10"},
		{"#n < :ten", "SET #n = :one", false, 1, "10"},
		{"#m.a < :one AND #m = :map AND #n = :ten", "SET #n = if_not_exists(#m.b, :one) + #m.a", true, 1, "-4"},
		{"#m.missing = :one", "SET #n = :one", false, 1, "-4"},
		{"#n < :huge AND :huge > #n", "SET #n = :huge + :one", true, 1, "123456789012345678901234567891"},
		{"#n > :huge", "SET #n = :long", true, 2, ""},
		{"#n = :long", "SET #n = #m.a REMOVE #m.a", true, 2, "-5"},
		{"attribute_not_exists(#m.a)", "REMOVE #m", true, 1, "-5"},
	} {
		out, cost, err := table.Update(keyed("s", test.condition, test.update, values))
		var refused *types.ConditionalCheckFailedException
		if err != nil && !errors.As(err, &refused) {
			t.Fatalf("%d, %s: %v", i, test.update, err)
		}
		if (err == nil) != test.holds || cost.Writes != test.units {
			t.Errorf("%d, %s: error %v and %d units, want the condition to hold: %t, and %d units", i, test.condition,
				err, cost.Writes, test.holds, test.units)
		}
		if (out == nil) == test.holds {
			t.Errorf("%d: output %v", i, out)
		}
		read, cost, err := table.Get(&sdk.GetItemInput{Key: keyed("s", "", "", nil).Key})
		n, _ := read.Item["n"].(*types.AttributeValueMemberN)
		if err != nil || cost.Reads != 1 || test.n != "" && (n == nil || n.Value != test.n) {
			t.Errorf("%d: after %s n is %v, want %s; %d read units, error %v", i, test.update, read.Item["n"], test.n,
				cost.Reads, err)
		}
	}
}

// Guarantees that a transaction writes all of its items or none, and costs twice as much as its writes.
func TestTransact(t *testing.T) {
	table := dynamotable.New()
	part := func(sort, condition string) types.TransactWriteItem {
		in := keyed(sort, condition, "SET #n = :one", map[string]types.AttributeValue{":one": number("1")})
		return types.TransactWriteItem{Update: &types.Update{Key: in.Key, ConditionExpression: in.ConditionExpression,
			UpdateExpression: in.UpdateExpression, ExpressionAttributeNames: in.ExpressionAttributeNames,
			ExpressionAttributeValues: in.ExpressionAttributeValues}}
	}
	_, cost, err := table.Transact(&sdk.TransactWriteItemsInput{TransactItems: []types.TransactWriteItem{
		part("a", "attribute_not_exists(PK)"), part("b", "attribute_exists(PK)")}})
	var cancelled *types.TransactionCanceledException
	if !errors.As(err, &cancelled) || cost.Writes != 4 ||
		aws.ToString(cancelled.CancellationReasons[0].Code) != "None" ||
		aws.ToString(cancelled.CancellationReasons[1].Code) != "ConditionalCheckFailed" {
		t.Fatalf("a transaction of which one condition fails: %v, %d units", err, cost.Writes)
	}
	if _, _, err := table.Transact(&sdk.TransactWriteItemsInput{TransactItems: []types.TransactWriteItem{
		part("a", "attribute_not_exists(PK)"), part("b", "attribute_not_exists(PK)")}}); err != nil {
		t.Errorf("after a transaction that was not carried out, its items exist: %v", err)
	}
}

// Guarantees that what the table does not understand, or what DynamoDB refuses, is a ValidationException, and changes
// nothing.
func TestInvalid(t *testing.T) {
	table := dynamotable.New()
	values := map[string]types.AttributeValue{":one": number("1"), ":text": &types.AttributeValueMemberS{Value: "x"}}
	for _, test := range []struct{ condition, update string }{
		{"#n <> :one", "SET #n = :one"},
		{"size(#n) > :one", "SET #n = :one"},
		{"(#n = :one", "SET #n = :one"},
		{"attribute_exists(#n) AND", "SET #n = :one"},
		{"", "ADD #n :one"},
		{"", ""},
		{"", "SET #n = :one,"},
		{"", "SET #m.a = :one"},
		{"", "SET #n = #missing"},
		{"", "SET #n = #n + :one"},
		{"", "SET #n = :text + :one"},
		{"", "SET #n = :two"},
	} {
		_, _, err := table.Update(keyed("s", test.condition, test.update, values))
		if err == nil || !strings.Contains(err.Error(), "ValidationException") {
			t.Errorf("condition %q, update %q: error %v, want a ValidationException", test.condition, test.update, err)
		}
	}
	read, _, err := table.Get(&sdk.GetItemInput{Key: keyed("s", "", "", nil).Key})
	if err != nil || len(read.Item) > 0 {
		t.Errorf("after updates that are not valid the item is %v, error %v; want none", read.Item, err)
	}
}

// Guarantees that a call without a reply returns the given error, which differs from an error that the service answers.
// Also guarantees that a store learns the service's time from the replies: a store whose clock is an hour behind
// decides by the right time.
func TestClient(t *testing.T) {
	table, lost := dynamotable.New(), errors.New("lost")
	service := time.Date(2026, time.June, 1, 12, 0, 0, 0, time.UTC)
	var failure error
	c := dynamotable.Client{Send: func(_ context.Context, do func(*dynamotable.Table) (dynamotable.Cost, error)) (
		time.Time, error,
	) {
		if failure != nil {
			return time.Time{}, failure
		}
		_, err := do(table)
		return service, err
	}}
	behind := service.Add(-time.Hour)
	s, err := dynamodb.New(dynamodb.Config{Client: c, Table: "counters",
		Runtime: &clock.Runtime{Now: func() time.Time { return behind }}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := limit.New(limit.Limit{ID: "l", Tiers: []limit.Tier{
		{Algorithm: limit.FixedWindow, Threshold: 5, Period: time.Minute}}})
	if err != nil {
		t.Fatal(err)
	}
	req := &limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: "acme"},
		Charges: []limit.Charge{{Limit: l, Cost: 1}}}
	var d limit.Decision
	for range 2 { // the first reply sets the clock
		if err := s.Decide(t.Context(), req, behind, &d); err != nil || !d.Allowed {
			t.Fatalf("allowed %t, error %v", d.Allowed, err)
		}
	}
	if d.Now < service.UnixMicro() || d.Now > service.Add(time.Second).UnixMicro() {
		t.Errorf("the second decision is as of %s, want %s", time.UnixMicro(d.Now).UTC(), service)
	}
	if failure = lost; !errors.Is(s.Decide(t.Context(), req, behind, &d), lost) {
		t.Error("a call without a reply is not the error of Send")
	}
}
