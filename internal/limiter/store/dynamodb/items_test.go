package dynamodb_test

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
)

func window(tb testing.TB, id string, threshold int64) *limit.Limit {
	return must(tb, limit.Limit{ID: id, MaxCost: threshold,
		Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: threshold, Period: 10 * time.Second}}})
}

func requestOne(l *limit.Limit) *limit.Request {
	return &limit.Request{Owner: acme, Charges: []limit.Charge{{Limit: l, Cost: 1}}}
}

// items returns all items of a namespace, by sort key.
func items(tb testing.TB, c *sdk.Client, namespace string) map[string]map[string]types.AttributeValue {
	tb.Helper()
	pk := fmt.Sprintf("%d:%s,t4:acme,", len(namespace), namespace)
	out, err := c.Query(tb.Context(), &sdk.QueryInput{
		TableName: aws.String(table), KeyConditionExpression: aws.String("PK = :pk"), ConsistentRead: aws.Bool(true),
		ExpressionAttributeValues: map[string]types.AttributeValue{
			":pk": &types.AttributeValueMemberB{Value: []byte(pk)},
		},
	})
	if err != nil {
		tb.Fatal(err)
	}
	all := map[string]map[string]types.AttributeValue{}
	for _, item := range out.Items {
		all[string(item["SK"].(*types.AttributeValueMemberB).Value)] = item
	}
	return all
}

func put(tb testing.TB, c *sdk.Client, item map[string]types.AttributeValue) {
	tb.Helper()
	if _, err := c.PutItem(tb.Context(), &sdk.PutItemInput{TableName: aws.String(table), Item: item}); err != nil {
		tb.Fatal(err)
	}
}

func num(n any) types.AttributeValue { return &types.AttributeValueMemberN{Value: fmt.Sprint(n)} }

// Guarantees that an item with the key of a counter that this package did not write is an error that names the item. It
// must neither admit requests nor crash the process.
func TestForeignItems(t *testing.T) {
	client := server(t)
	l := window(t, "five", 5)
	str := &types.AttributeValueMemberS{Value: "five"}
	m := func(f map[string]types.AttributeValue) types.AttributeValue {
		return &types.AttributeValueMemberM{Value: f}
	}
	counted := func(n types.AttributeValue) map[string]types.AttributeValue { // in the window of noon
		f := map[string]types.AttributeValue{"w": num(noon.UnixMicro()), "n": n}
		if n == nil {
			delete(f, "n")
		}
		return map[string]types.AttributeValue{"five/f10000": m(f)}
	}
	for name, test := range map[string]struct {
		change map[string]types.AttributeValue // nil: the attribute is removed
		want   string
	}{
		"a newer layout": {map[string]types.AttributeValue{"v": num(4)},
			"layout version is 4, and this version of Sluice reads and writes 3: delete the item"},
		"an older layout":         {map[string]types.AttributeValue{"v": num(2)}, "layout version is 2, and"},
		"no layout":               {map[string]types.AttributeValue{"v": nil}, "no layout version"},
		"a layout in words":       {map[string]types.AttributeValue{"v": str}, `attribute "v"`},
		"a text for a counter":    {map[string]types.AttributeValue{"five/f10000": str}, "five/f10000"},
		"a number for a counter":  {map[string]types.AttributeValue{"five/f10000": num(7)}, "want a map"},
		"a text for a count":      {counted(str), `"n"`},
		"a fraction for a count":  {counted(num("0.5")), `"n"`},
		"a negative count":        {counted(num(-5)), `"n" is -`},
		"a count beyond 64 bits":  {counted(num("1E+30")), `"n"`},
		"a counter without count": {counted(nil), `"n" is missing`},
		"a ttl in words":          {map[string]types.AttributeValue{"ttl": str}, `"ttl"`},
	} {
		t.Run(name, func(t *testing.T) {
			c := config(client)
			var d limit.Decision
			known := open(t, c)
			if err := known.Decide(t.Context(), requestOne(l), noon, &d); err != nil || !d.Allowed {
				t.Fatalf("the first decision: %v, allowed %t; want it allowed", err, d.Allowed)
			}
			item := items(t, client, c.Namespace)["s0"]
			for k, v := range test.change {
				if item[k] = v; v == nil {
					delete(item, k)
				}
			}
			put(t, client, item)
			for what, s := range map[string]*dynamodb.Store{"a new store": open(t, c),
				"a store that knew the item": known} {
				for range 2 {
					err := s.Decide(t.Context(), requestOne(l), noon, &d)
					if err == nil || !errors.Is(err, dynamodb.ErrBadItem) ||
						!strings.Contains(err.Error(), test.want) || d.Allowed {
						t.Errorf("%s: Decide = %v, allowed %t; want ErrBadItem with %q", what, err, d.Allowed,
							test.want)
					}
					if !limit.Answered(err) || !strings.Contains(err.Error(), `t4:acme," "s0"`) ||
						!strings.Contains(err.Error(), "table "+table) {
						t.Errorf("%s: Decide = %v; want an error that says the store answered, and names table and key",
							what, err)
					}
				}
				if err := s.Peek(t.Context(), requestOne(l), noon, &d); !errors.Is(err, dynamodb.ErrBadItem) {
					t.Errorf("%s: Peek = %v, want ErrBadItem", what, err)
				}
			}
			if got := items(t, client, c.Namespace)["s0"]; len(got) != len(item) {
				t.Errorf("the item was changed: %v, want %v", got, item)
			}
		})
	}
}

// Guarantees that a counter in an item with 400 KB of foreign data is counted, or refused with an error. Requests must
// not be admitted uncounted.
func TestHugeItem(t *testing.T) {
	t.Parallel()
	client := server(t)
	var err error
	// DynamoDB Local sometimes resets the connection during a reply of 400 KB, and the store does not repeat writes
	for range 3 {
		if err = chargeHugeItem(t, client); !errors.Is(err, net.ErrClosed) {
			break
		}
	}
	if err != nil {
		t.Error(err)
	}
}

func chargeHugeItem(t *testing.T, client *sdk.Client) error {
	t.Helper()
	c := config(client)
	l := window(t, "five", 5)
	s := open(t, c)
	var d limit.Decision
	if err := s.Decide(t.Context(), requestOne(l), noon, &d); err != nil {
		return err
	}
	item := items(t, client, c.Namespace)["s0"]
	item["alien"] = &types.AttributeValueMemberS{Value: strings.Repeat("x", 400*1024-200)}
	put(t, client, item)
	for range 4 {
		if err := s.Decide(t.Context(), requestOne(l), noon, &d); err != nil {
			return fmt.Errorf("a charge of a counter in an item of 400 KB: %w", err)
		} else if !d.Allowed {
			return errors.New("a charge of a counter in an item of 400 KB is denied")
		}
	}
	if err := s.Decide(t.Context(), requestOne(l), noon, &d); err != nil {
		return fmt.Errorf("after five of five: %w", err)
	} else if d.Allowed {
		return errors.New("six of five are admitted")
	}
	if err := open(t, c).Decide(t.Context(), requestOne(window(t, strings.Repeat("new", 20), 5)), noon,
		&d); err != nil {
		return fmt.Errorf("a new counter beside 400 KB: %w", err)
	} else if !d.Allowed {
		return errors.New("a new counter beside 400 KB is denied; want it in the next item")
	}
	return nil
}

// Guarantees that the ttl is later than any use of the item's counters, is only raised, and is not written with every
// charge.
func TestTTL(t *testing.T) {
	t.Parallel()
	client := server(t)
	c := config(client)
	s := open(t, c)
	l := window(t, "wide", 1000)
	ttl := func() string { return items(t, client, c.Namespace)["s0"]["ttl"].(*types.AttributeValueMemberN).Value }
	seen := map[string]bool{}
	var d limit.Decision
	now := time.Now().Truncate(10 * time.Second)
	for i := range 100 {
		if err := s.Decide(t.Context(), requestOne(l), now.Add(time.Duration(i)*time.Second), &d); err != nil {
			t.Fatal(err)
		}
		seen[ttl()] = true
	}
	if len(seen) > 2 {
		t.Errorf("100 charges within 100 s wrote %d values of ttl, want hardly more than one an hour", len(seen))
	}
	for at := range seen {
		seconds, err := strconv.ParseInt(at, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if least := now.Add(24 * time.Hour).Unix(); seconds < least {
			t.Errorf("ttl is %d, want at least a day ahead, %d", seconds, least)
		}
	}
}

// Guarantees that a refund at a time in the past, as in a replay, is remembered: the ttl of the receipt's item goes by
// this machine's clock, too. DynamoDB would delete an item with a past ttl, and the receipt could be refunded twice.
func TestTTLOfARefundInThePast(t *testing.T) {
	t.Parallel()
	client := server(t)
	c := config(client)
	s := open(t, c)
	past := time.Now().Add(-30 * 24 * time.Hour)
	var d limit.Decision
	if err := s.Decide(t.Context(), requestOne(window(t, "w", 5)), past, &d); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Settle(t.Context(), d.Receipt(), nil, past); err != nil {
		t.Fatal(err)
	}
	refunds := 0
	for key, item := range items(t, client, c.Namespace) {
		if key[0] != 'r' {
			continue
		}
		refunds++
		ttl, err := strconv.ParseInt(item["ttl"].(*types.AttributeValueMemberN).Value, 10, 64)
		if least := time.Now().Add(23 * time.Hour).Unix(); err != nil || ttl < least {
			t.Errorf("ttl is %d, %v; want at least %d", ttl, err, least)
		}
	}
	if refunds != 1 {
		t.Errorf("%d items remember refunds, want 1", refunds)
	}
}

// Guarantees that a shared item stays within 1 KB when its fixed windows get the fields of a second window.
func TestSharedItemLeavesRoomForASecondWindow(t *testing.T) {
	t.Parallel()
	client := server(t)
	c := config(client)
	s := open(t, c)
	var limits []*limit.Limit
	for i := range 30 {
		limits = append(limits, window(t, fmt.Sprintf("fixed-window-%d", i), 5))
	}
	var d limit.Decision
	for _, now := range []time.Time{noon, noon.Add(10 * time.Second)} {
		for _, l := range limits {
			if err := s.Decide(t.Context(), requestOne(l), now, &d); err != nil || !d.Allowed {
				t.Fatalf("a decision of %s: allowed %t, %v; want it allowed", l.ID, d.Allowed, err)
			}
		}
	}
	all := items(t, client, c.Namespace)
	if len(all) < 2 {
		t.Errorf("%d limits lie in %d items, want several", len(limits), len(all))
	}
	for sk, item := range all {
		if size := dynamodbtest.ItemSize(item); size > 1024 {
			t.Errorf("item %q has %d bytes, want at most 1024", sk, size)
		}
	}
}

// Guarantees that counters per tenant and per endpoint share an item up to 1 KB, so that a write costs one unit.
// Further counters go to the next item, and each counter stays where it is: one that moved would lose its count.
func TestChain(t *testing.T) {
	t.Parallel()
	client := server(t)
	c := config(client)
	s := open(t, c)
	l := must(t, limit.Limit{ID: "put-product", Per: "endpoint",
		Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: 3, Period: time.Hour}}})
	const endpoints = 60
	request := func(i int) *limit.Request {
		return &limit.Request{Owner: acme, Charges: []limit.Charge{{Limit: l,
			Value: limit.ValueOf(fmt.Sprintf("PUT /v1/organizations/{orgId}/product-%d/*", i)), Cost: 1}}}
	}
	var d limit.Decision
	for round := range 4 {
		if round == 2 {
			s = open(t, c) // a process without copies
		}
		for i := range endpoints {
			err := s.Decide(t.Context(), request(i), noon, &d)
			// finding a new chain takes more than three tries
			for n := 0; errors.Is(err, dynamodb.ErrUndecided) && n < 3; n++ {
				err = s.Decide(t.Context(), request(i), noon, &d)
			}
			if err != nil {
				t.Fatal(err)
			}
			if want := round < 3; d.Allowed != want {
				t.Fatalf("round %d, endpoint %d: allowed %t, want %t", round+1, i, d.Allowed, want)
			}
		}
	}
	all := items(t, client, c.Namespace)
	if len(all) < 4 {
		t.Errorf("%d endpoints lie in %d items, want several", endpoints, len(all))
	}
	counters := map[string]int{}
	for sk, item := range all {
		if size := dynamodbtest.ItemSize(item); size > 1024 {
			t.Errorf("item %q has %d bytes, want at most 1024", sk, size)
		}
		for name := range item {
			if strings.Contains(name, "/") {
				counters[name]++
			}
		}
		_, full := item["full"]
		if _, ttl := item["ttl"]; full == ttl {
			t.Errorf("item %q: full %t, has a ttl %t; want one of the two", sk, full, ttl)
		}
	}
	for name, n := range counters {
		if n != 1 {
			t.Errorf("counter %q is in %d items, want one", name, n)
		}
	}
	if len(counters) != endpoints {
		t.Errorf("%d counters, want %d", len(counters), endpoints)
	}
	// A Peek of all endpoints by a process without copies finds every counter.
	fresh := open(t, c)
	for i := range endpoints {
		if err := fresh.Peek(t.Context(), request(i), noon, &d); err != nil || d.Allowed {
			t.Errorf("endpoint %d: peek %v, allowed %t, want denied", i, err, d.Allowed)
		}
	}
}
