package resilience_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/limiter/breaker"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
	"github.com/sluicelimits/sluice/internal/testkit/logtest"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// undecidable is a store in which one tenant's requests cannot be decided.
type undecidable struct {
	store limit.Store
	spoil func() // makes the requests undecidable, after the tenant's first decision
	key   string // must be named in the log
}

// onDynamoDB opens a store on a namespace of its own. item changes the tenant's shared item.
func onDynamoDB(t *testing.T, item func(map[string]types.AttributeValue)) undecidable {
	t.Helper()
	url := dynamodbtest.Need(t)
	const table = "counters"
	c, done := dynamodbtest.Connect(url)
	t.Cleanup(done)
	if err := dynamodb.Create(t.Context(), c, table); err != nil {
		t.Fatal(err)
	}
	namespace := fmt.Sprintf("%d.%d", os.Getpid(), time.Now().UnixNano())
	s, err := dynamodb.New(dynamodb.Config{Client: c, Table: table, Timeout: 10 * time.Second, Namespace: namespace})
	if err != nil {
		t.Fatal(err)
	}
	pk := fmt.Sprintf("%d:%s,t3:bad,", len(namespace), namespace)
	return undecidable{store: s, key: pk, spoil: func() {
		if item == nil {
			return
		}
		key := map[string]types.AttributeValue{"PK": &types.AttributeValueMemberB{Value: []byte(pk)},
			"SK": &types.AttributeValueMemberB{Value: []byte("s0")}}
		out, err := c.GetItem(t.Context(), &sdk.GetItemInput{TableName: aws.String(table), Key: key,
			ConsistentRead: aws.Bool(true)})
		if err != nil || len(out.Item) == 0 {
			t.Fatalf("the tenant's item: %v, %v", out, err)
		}
		item(out.Item)
		if _, err := c.PutItem(t.Context(), &sdk.PutItemInput{TableName: aws.String(table),
			Item: out.Item}); err != nil {
			t.Fatal(err)
		}
	}}
}

func onRedis(t *testing.T, command func(key string) []any) undecidable {
	t.Helper()
	server := redistest.Start(t)
	s, err := redis.New(t.Context(), redis.Config{Addrs: []string{server.Addr}, Deadline: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	const key = "{rl:t3:bad,}"
	return undecidable{store: s, key: "bad", spoil: func() {
		c := server.Client(t)
		if n, err := c.Del(t.Context(), key).Result(); err != nil || n != 1 {
			t.Fatalf("%d keys are deleted, %v", n, err)
		}
		if err := c.Do(t.Context(), command(key)...).Err(); err != nil {
			t.Fatal(err)
		}
	}}
}

// tooMany is a number of limits that is larger than a decision on DynamoDB can have.
const tooMany = 200

// Guarantees that one tenant whose requests cannot be decided, because of what is stored under its key or of the size
// of its plan, does not affect others, however many requests it makes: no breaker opens, no call counts as failed, and
// the leases of others go on. For its own requests each limit's onStoreFailure applies, and the log names the key.
func TestUndecidable(t *testing.T) {
	t.Parallel()
	number := func(name string, n string) func(map[string]types.AttributeValue) {
		return func(item map[string]types.AttributeValue) { item[name] = &types.AttributeValueMemberN{Value: n} }
	}
	for name, test := range map[string]struct {
		on     func(t *testing.T) undecidable
		limits int // of the tenant's request
	}{
		"DynamoDB, a plan that is too large": {func(t *testing.T) undecidable { return onDynamoDB(t, nil) }, tooMany},
		"DynamoDB, a malformed counter": {func(t *testing.T) undecidable {
			return onDynamoDB(t,
				number("l0/t1000", "7"))
		}, 2},
		"DynamoDB, another version": {func(t *testing.T) undecidable {
			return onDynamoDB(t,
				number("v", "1"))
		}, 2},
		"DynamoDB, no item at all": {func(t *testing.T) undecidable {
			return onDynamoDB(t, func(item map[string]types.AttributeValue) {
				delete(item, "v")
				delete(item,
					"l0/t1000")
			})
		}, 2},
		"Redis, a list": {func(t *testing.T) undecidable {
			return onRedis(t, func(key string) []any { return []any{"RPUSH", key, "x"} })
		}, 2},
		"Redis, a text": {func(t *testing.T) undecidable {
			return onRedis(t, func(key string) []any { return []any{"SET", key, "42"} })
		}, 2},
		"Redis, a long text": {func(t *testing.T) undecidable {
			return onRedis(t, func(key string) []any { return []any{"SET", key, strings.Repeat("x", 1000)} })
		}, 2},
		"Redis, another layout": {func(t *testing.T) undecidable {
			return onRedis(t, func(key string) []any { return []any{"SET", key, "SLU9" + strings.Repeat("\x01", 200)} })
		}, 2},
	} {
		for _, leases := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/leases %t", name, leases), func(t *testing.T) {
				t.Parallel()
				of := test.on(t)
				hammerUndecidable(t, of, test.limits, leases)
			})
		}
	}
}

func hammerUndecidable(t *testing.T, of undecidable, limits int, leases bool) {
	began := time.Now()
	const hammers, each = 4, 25
	var failed, degraded atomic.Int64
	var log logtest.Buffer
	failures := &failureLog{Store: of.store}
	ld, err := resilience.NewChain(resilience.ChainConfig{
		Rates: resilience.NamedStore{Name: "the store", Store: failures}, NoLeases: !leases,
		Log: slog.New(slog.NewTextHandler(&log, nil)),
		Observe: func(_ string, _ time.Duration, wrong bool) {
			if wrong {
				failed.Add(1)
			}
		}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ld.Close(context.Background()) }()
	request := func(tenant string, limits int) *limit.Request {
		req := &limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: tenant}}
		for i := range limits {
			l := limit.Limit{ID: fmt.Sprint("l", i),
				Tiers: []limit.Tier{{Algorithm: limit.TokenBucket, Threshold: 10_000, Period: time.Second}}}
			charge := limit.Charge{Cost: 1}
			if limits == tooMany { // in one item
				l.Per, charge.Value = "subject", limit.ValueOf("u")
			}
			var err error
			if charge.Limit, err = limit.New(l); err != nil {
				t.Fatal(err)
			}
			req.Charges = append(req.Charges, charge)
		}
		return req
	}
	var d limit.Decision
	if err := ld.Decide(t.Context(), request("bad", 2), time.Now(), &d); err != nil || d.Degraded {
		t.Fatalf("the tenant's first decision: %v, degraded %t; want it made by the store", err, d.Degraded)
	}
	of.spoil()
	bad, other := request("bad", limits), request("other", 1)
	if leases { // leased units are spent first
		for range 30_000 {
			if err := ld.Decide(t.Context(), bad, time.Now(), &d); err != nil || d.Degraded {
				break
			}
		}
	}
	var wg sync.WaitGroup
	for n := range hammers {
		wg.Go(func() {
			var d limit.Decision
			for range each {
				if err := ld.Decide(t.Context(), bad, time.Now(), &d); err != nil {
					t.Errorf("a request that the store cannot decide: %v, want no error, because its limits are not "+
						"closed", err)
				} else if d.Degraded {
					degraded.Add(1)
				}
			}
		})
		wg.Go(func() {
			var d limit.Decision
			// one owner for each writer: writers of one counter may delay each other
			other := request(fmt.Sprint("other-", n), 1)
			for range 2 * each {
				if err := ld.Decide(t.Context(), other, time.Now(), &d); err != nil || d.Degraded {
					t.Errorf("a request of another tenant: %v, degraded %t; want it decided by the store", err,
						d.Degraded)
				}
			}
		})
	}
	wg.Wait()
	for _, b := range ld.Breakers {
		if s := b.Stats(); s.Opened > 0 || s.Refused > 0 || s.State != breaker.Closed {
			t.Errorf("the breaker is %s, and has opened %d times; want it closed, and never opened", s.State, s.Opened)
		}
	}
	if n := failed.Load(); n > 0 {
		t.Errorf("%d calls are counted as failures of the store, want none: %s", n, failures.text.String())
	}
	want := int64(hammers * each)
	if leases {
		want -= each // the rest of the leased units may be spent
	}
	if s, n := ld.Stats(), degraded.Load(); n < want || s.Undecidable < n || s.Failures != s.Undecidable {
		t.Errorf("%d decisions are degraded, and %d are counted as undecidable of %d, want all, at least %d", n,
			s.Undecidable, s.Failures, want)
	}
	if leases {
		before := ld.Leases.Stats().Local
		for range each {
			for range 2 {
				if err := ld.Decide(t.Context(), other, time.Now(), &d); err != nil || d.Degraded {
					t.Errorf("a request of another tenant: %v, degraded %t; want it decided by the store", err,
						d.Degraded)
				}
			}
			if err := ld.Decide(t.Context(), bad, time.Now(), &d); err != nil {
				t.Error(err)
			}
		}
		if local := ld.Leases.Stats().Local - before; local < each {
			t.Errorf("%d of %d decisions of another tenant are from a lease, want most", local, 2*each)
		}
	}
	text := log.String()
	// One line a second, and some lines about other events.
	if lines, took := strings.Count(text, "\n"), time.Since(began); lines == 0 || lines > 20+int(took.Seconds()) {
		t.Errorf("the log has %d lines in %s, want some, and not one for each request", lines, took)
	}
	if !strings.Contains(text, "cannot decide a request") || !strings.Contains(text, of.key) {
		t.Errorf("the log does not say that %s cannot be decided: %.1000s", of.key, text)
	}
}

// failureLog is a store that records the error of each call that the wrapped store did not answer. A call whose
// connection was closed is made once more: under heavy load this sometimes happens with DynamoDB Local.
type failureLog struct {
	limit.Store
	text logtest.Buffer
}

// Decide implements [limit.Store].
func (f *failureLog) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	err := f.Store.Decide(ctx, req, now, d)
	if broken := new(net.OpError); errors.As(err, &broken) {
		err = f.Store.Decide(ctx, req, now, d)
	}
	if err != nil && !limit.Answered(err) {
		_, _ = fmt.Fprintf(&f.text, "%s: %v\n", req.Owner.Name, err)
	}
	return err
}
