package dynamo_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"
	streamtypes "github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"
	"go.uber.org/goleak"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/controltest"
	"github.com/sluicelimits/sluice/internal/control/dynamo"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
)

// childEnv makes the test binary a process that writes. Its value is the prefix of the tables.
const childEnv = "SLUICE_TEST_CHILD"

func TestMain(m *testing.M) {
	if prefix := os.Getenv(childEnv); prefix != "" {
		os.Exit(child(prefix))
	}
	if err := flag.Set("test.parallel", "4"); err != nil { // calls wait more than they compute
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

var (
	noon     = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	prefixes atomic.Int64
)

func connect(tb testing.TB) *sdk.Client {
	tb.Helper()
	c, done := dynamodbtest.Connect(dynamodbtest.Need(tb))
	tb.Cleanup(done)
	return c
}

// named are tables under test and the decoder of their streams.
type named struct {
	*dynamo.Tables
	prefix  string
	streams *dynamodbstreams.Client
	decoder *dynamo.Decoder
}

// openFresh makes new, empty tables, and removes them at the end.
func openFresh(tb testing.TB) *named {
	tb.Helper()
	c := connect(tb)
	prefix := fmt.Sprintf("control-%d-%d-", os.Getpid(), prefixes.Add(1))
	names := dynamo.Names(prefix)
	for _, name := range names {
		dynamodbtest.CreateControlTable(tb, c, name)
	}
	return openWithPrefix(tb, c, prefix)
}

func openWithPrefix(tb testing.TB, c *sdk.Client, prefix string) *named {
	tb.Helper()
	names := dynamo.Names(prefix)
	tables := dynamo.New(c, names)
	decoder := dynamo.NewDecoder(names)
	client := c.Options().HTTPClient
	streams := dynamodbstreams.New(dynamodbstreams.Options{
		Region: "eu-west-1", BaseEndpoint: aws.String(dynamodbtest.Need(tb)), HTTPClient: client,
		Credentials: credentials.NewStaticCredentialsProvider("local", "local", ""),
	})
	return &named{tables, prefix, streams, decoder}
}

func TestContract(t *testing.T) {
	dynamodbtest.Need(t)
	controltest.Run(t, controltest.Config{
		New: func(tb testing.TB) control.Tables { return openFresh(tb) },
		Peer: func(tb testing.TB, tables control.Tables) control.Tables {
			return openWithPrefix(tb, connect(tb), tables.(*named).prefix)
		},
		Feed: func(ctx context.Context, tables control.Tables, n int) ([]control.Delivery, error) {
			return tables.(*named).feed(ctx, n)
		},
		Parallel: true,
		Steps:    40,
	})
}

// feed reads the five streams to their present ends, repeatedly until there are n records, and decodes them as a
// Lambda function would.
func (t *named) feed(ctx context.Context, n int) ([]control.Delivery, error) {
	for {
		var all []control.Delivery
		for _, name := range dynamo.Names(t.prefix) {
			some, err := t.stream(ctx, name)
			if err != nil {
				return nil, err
			}
			all = append(all, some...)
		}
		// Streams of different tables have no common order. Sorting by name gives the same order each time.
		slices.SortStableFunc(all, func(a, b control.Delivery) int { return strings.Compare(tableOf(a), tableOf(b)) })
		if len(all) >= n {
			return all, nil
		}
		select {
		case <-ctx.Done(): // return what came in time
			return all, nil
		default:
		}
	}
}

func tableOf(d control.Delivery) string {
	var e *control.RecordError
	if errors.As(d.Err, &e) {
		return string(e.Table)
	}
	return string(d.Record.New.Table)
}

func (t *named) stream(ctx context.Context, table string) ([]control.Delivery, error) {
	list, err := t.streams.ListStreams(ctx, &dynamodbstreams.ListStreamsInput{TableName: aws.String(table)})
	if err != nil {
		return nil, err
	}
	if len(list.Streams) != 1 {
		return nil, fmt.Errorf("%s has %d streams", table, len(list.Streams))
	}
	arn := list.Streams[0].StreamArn
	described, err := t.streams.DescribeStream(ctx, &dynamodbstreams.DescribeStreamInput{StreamArn: arn})
	if err != nil {
		return nil, err
	}
	if described.StreamDescription.StreamViewType != streamtypes.StreamViewTypeNewAndOldImages {
		return nil, fmt.Errorf("the stream of %s carries %s", table, described.StreamDescription.StreamViewType)
	}
	var all []control.Delivery
	for _, shard := range described.StreamDescription.Shards {
		it, err := t.streams.GetShardIterator(ctx, &dynamodbstreams.GetShardIteratorInput{
			StreamArn: arn, ShardId: shard.ShardId, ShardIteratorType: streamtypes.ShardIteratorTypeTrimHorizon,
		})
		if err != nil {
			return nil, err
		}
		for next := it.ShardIterator; next != nil; {
			page, err := t.streams.GetRecords(ctx, &dynamodbstreams.GetRecordsInput{ShardIterator: next})
			if err != nil {
				return nil, err
			}
			if len(page.Records) == 0 {
				break
			}
			event, err := lambdaEvent(aws.ToString(arn), page.Records)
			if err != nil {
				return nil, err
			}
			some, err := t.decoder.Decode(event)
			if err != nil {
				return nil, err
			}
			all, next = append(all, some...), page.NextShardIterator
		}
	}
	return all, nil
}

// lambdaEvent returns the event with which Lambda calls a function for these records.
func lambdaEvent(arn string, records []streamtypes.Record) ([]byte, error) {
	type object = map[string]any
	var list []object
	for i := range records {
		r := &records[i]
		change := object{
			"ApproximateCreationDateTime": r.Dynamodb.ApproximateCreationDateTime.Unix(),
			"Keys":                        image(r.Dynamodb.Keys),
			"SequenceNumber":              r.Dynamodb.SequenceNumber,
			"SizeBytes":                   r.Dynamodb.SizeBytes,
			"StreamViewType":              r.Dynamodb.StreamViewType,
		}
		for name, attributes := range map[string]map[string]streamtypes.AttributeValue{"NewImage": r.Dynamodb.NewImage,
			"OldImage": r.Dynamodb.OldImage} {
			if len(attributes) > 0 {
				change[name] = image(attributes)
			}
		}
		list = append(list, object{
			"eventID": r.EventID, "eventName": r.EventName, "eventVersion": "1.1", "eventSource": "aws:dynamodb",
			"awsRegion":      "eu-west-1",
			"eventSourceARN": arn, "dynamodb": change,
		})
	}
	return json.Marshal(object{"Records": list})
}

func image(attributes map[string]streamtypes.AttributeValue) map[string]any {
	out := make(map[string]any)
	for name, a := range attributes {
		switch a := a.(type) {
		case *streamtypes.AttributeValueMemberS:
			out[name] = map[string]any{"S": a.Value}
		case *streamtypes.AttributeValueMemberN:
			out[name] = map[string]any{"N": a.Value}
		case *streamtypes.AttributeValueMemberBOOL:
			out[name] = map[string]any{"BOOL": a.Value}
		default:
			out[name] = map[string]any{"NULL": true}
		}
	}
	return out
}

func change(key string, expect int64) control.Change {
	return control.Change{
		Table: control.Tenants, Key: key, Expect: expect, Body: fmt.Appendf(nil, `{"pid":%d}`, os.Getpid()),
		Actor:  "jo",
		Reason: fmt.Sprintf("process %d", os.Getpid()), Now: noon,
	}
}

const perProcess = 25

// child makes versions of one item, in competition with another process, and prints each version that it has made.
func child(prefix string) int {
	c, done := dynamodbtest.Connect(os.Getenv("SLUICE_DYNAMODB"))
	defer done()
	tables := dynamo.New(c, dynamo.Names(prefix))
	expect := int64(0)
	for made := 0; made < perProcess; {
		i, err := tables.Put(context.Background(), change("acme", expect))
		var lost *control.ConflictError
		switch {
		case errors.As(err, &lost):
			expect = lost.Have
		case err != nil:
			fmt.Fprintln(os.Stderr, err)
			return 1
		default:
			fmt.Fprintln(os.Stdout, i.Version)
			expect = i.Version
			made++
		}
	}
	return 0
}

// Guarantees that operating system processes that share only the table make each version once.
func TestProcesses(t *testing.T) {
	tables := openFresh(t)
	const processes = 2
	var (
		mu   sync.Mutex
		wg   sync.WaitGroup
		made = make(map[string]bool)
	)
	for range processes {
		wg.Go(func() {
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), childEnv+"="+tables.prefix)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil || stderr.Len() > 0 {
				t.Errorf("process: got the error %v, and on stderr %q; want neither", err, stderr.String())
			}
			mu.Lock()
			defer mu.Unlock()
			for version := range strings.Lines(string(out)) {
				if made[version] {
					t.Errorf("version %s was made twice, want once", strings.TrimSpace(version))
				}
				made[version] = true
			}
		})
	}
	wg.Wait()
	records, err := tables.feed(t.Context(), processes*perProcess)
	if err != nil || len(records) != processes*perProcess || len(made) != len(records) {
		t.Fatalf("%d records of %d versions, %v; want %d", len(records), len(made), err, processes*perProcess)
	}
	chain := control.NewChain(control.Tenants, "acme")
	for _, d := range records {
		if d.Err != nil {
			t.Fatal(d.Err)
		}
		for _, b := range chain.AddRecord(d.Record.Audit()) {
			t.Error(b)
		}
	}
	head, err := tables.Get(t.Context(), control.Tenants, "acme")
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range chain.End(head.Head()) {
		t.Error(b)
	}
}

// reserved returns names for the reserved words of an expression.
func reserved(expression string) map[string]string {
	if strings.Contains(expression, "#h") {
		return map[string]string{"#h": "hash"}
	}
	return nil
}

// edit changes attributes of an item without this package, as somebody could in the AWS console.
func edit(t *testing.T, c *sdk.Client, table, key, expression string, values map[string]types.AttributeValue) {
	t.Helper()
	_, err := c.UpdateItem(t.Context(), &sdk.UpdateItemInput{
		TableName:        aws.String(table),
		Key:              map[string]types.AttributeValue{"id": &types.AttributeValueMemberS{Value: key}},
		UpdateExpression: aws.String(expression), ExpressionAttributeValues: values,
		ExpressionAttributeNames: reserved(expression),
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Guarantees that what is written without this package is reported and prevents nothing: neither the list of the
// others, nor later records.
func TestAltered(t *testing.T) {
	ctx, tables, c := t.Context(), openFresh(t), connect(t)
	name := dynamo.Names(tables.prefix)[control.Tenants]
	for _, key := range []string{"a", "b", "c"} {
		if _, err := tables.Put(ctx, change(key, 0)); err != nil {
			t.Fatal(err)
		}
	}
	text := func(s string) map[string]types.AttributeValue {
		return map[string]types.AttributeValue{":x": &types.AttributeValueMemberS{Value: s}}
	}
	edit(t, c, name, "a", "SET body = :x", text(`{"plan":"free of charge"}`)) // a change that nobody signed
	edit(t, c, name, "b", "SET version = :x", text("1"))                      // with another type
	if _, err := tables.Get(ctx, control.Tenants, "b"); !errors.Is(err, control.ErrBadItem) ||
		!strings.Contains(err.Error(), `tenants/"b"`) {
		t.Errorf("Get of an unreadable item: got the error %v, want ErrBadItem with its key", err)
	}
	if _, err := tables.Put(ctx, change("b", 1)); !errors.Is(err, control.ErrBadItem) {
		t.Errorf("Put over an unreadable item: got the error %v, want ErrBadItem", err)
	}
	if _, err := tables.Put(ctx, change("b", 0)); !errors.Is(err, control.ErrBadItem) {
		t.Errorf("Put over an unreadable item: got the error %v, want ErrBadItem", err)
	}
	items, next, err := tables.List(ctx, control.Tenants, "", 10)
	if !errors.Is(err, control.ErrBadItem) || !strings.Contains(err.Error(), `"b"`) || len(items) != 2 || next != "" {
		t.Errorf("List = %d items, %q, %v; want the two that can be read, and an error that names the other",
			len(items), next, err)
	}
	if i, err := tables.Get(ctx, control.Tenants, "a"); err != nil || i.Verify() == nil {
		t.Errorf("an altered item: got Verify %v, and the error %v of Get; want that only Verify fails", i.Verify(),
			err)
	}
	// The next version repairs the altered item and must pass.
	if _, err := tables.Put(ctx, change("a", 1)); err != nil {
		t.Error(err)
	}
	if _, err := c.DeleteItem(ctx, &sdk.DeleteItemInput{
		TableName: aws.String(name),
		Key:       map[string]types.AttributeValue{"id": &types.AttributeValueMemberS{Value: "c"}},
	}); err != nil {
		t.Fatal(err)
	}
	records, err := tables.feed(ctx, 7)
	if err != nil {
		t.Fatal(err)
	}
	var bad []string
	good := 0
	for _, d := range records {
		var e *control.RecordError
		if d.Err == nil {
			good++
		} else if errors.As(d.Err, &e) && e.Sequence != "" && e.Table == control.Tenants && len(d.Raw) > 0 {
			bad = append(bad, e.Key)
		}
	}
	slices.Sort(bad)
	if good != 4 || !slices.Equal(bad, []string{"a", "b", "c"}) {
		t.Errorf("of 7 records %d are in order and those of %v are not; want 4, and one of each item", good, bad)
		for _, d := range records {
			t.Log(d.Sequence, d.Err)
		}
	}
}

// flaky loses the answer to a write that was carried out.
type flaky struct {
	*sdk.Client
	lose func() bool
}

var errLost = errors.New("the answer was lost")

func (f *flaky) PutItem(
	ctx context.Context, in *sdk.PutItemInput, o ...func(*sdk.Options),
) (*sdk.PutItemOutput, error) {
	out, err := f.Client.PutItem(ctx, in, o...)
	if err == nil && f.lose() {
		return nil, errLost
	}
	return out, err
}

// Guarantees that a writer whose answer was lost repeats the Put and gets its version, whether it is the first or a
// later one, and that the write is not made twice.
func TestLostAnswer(t *testing.T) {
	ctx, made := t.Context(), openFresh(t)
	lose := false
	tables := dynamo.New(&flaky{connect(t), func() bool { lose = !lose; return lose }}, dynamo.Names(made.prefix))
	for n := range int64(3) {
		if _, err := tables.Put(ctx, change("acme", n)); !errors.Is(err, errLost) {
			t.Fatalf("Put = %v, want the client's error", err)
		}
		if i, err := tables.Put(ctx, change("acme", n)); err != nil || i.Version != n+1 {
			t.Fatalf("Put again = version %d, %v; want version %d", i.Version, err, n+1)
		}
		lose = false
	}
	if records, err := made.feed(ctx, 3); err != nil || len(records) != 3 {
		t.Errorf("got %d records of 3 versions, error %v; want 3", len(records), err)
	}
}

// between makes another writer write between the read and the write of a Put.
type between struct {
	*sdk.Client
	do func()
}

func (b *between) PutItem(
	ctx context.Context, in *sdk.PutItemInput, o ...func(*sdk.Options),
) (*sdk.PutItemOutput, error) {
	b.do()
	return b.Client.PutItem(ctx, in, o...)
}

// Guarantees that a write between a Put's read and its own write is a conflict and is not overwritten, even if it was
// made without this package and kept the version.
func TestBetweenReadAndWrite(t *testing.T) {
	ctx, made, c := t.Context(), openFresh(t), connect(t)
	for _, tt := range []struct {
		key  string
		have int64
		do   func(t *testing.T, key string)
	}{
		{"a Put", 2, func(t *testing.T, key string) {
			other := change(key, 1)
			other.Actor = "another"
			if _, err := made.Put(ctx, other); err != nil {
				t.Error(err)
			}
		}},
		{"by hand", 1, func(t *testing.T, key string) {
			edit(t, c, dynamo.Names(made.prefix)[control.Tenants], key, "SET #h = :x", map[string]types.AttributeValue{
				":x": &types.AttributeValueMemberS{Value: strings.Repeat("0", 64)},
			})
		}},
	} {
		t.Run(tt.key, func(t *testing.T) {
			if _, err := made.Put(ctx, change(tt.key, 0)); err != nil {
				t.Fatal(err)
			}
			tables := dynamo.New(&between{c, func() { tt.do(t, tt.key) }}, dynamo.Names(made.prefix))
			var lost *control.ConflictError
			if i, err := tables.Put(ctx, change(tt.key, 1)); !errors.As(err, &lost) || lost.Have != tt.have {
				t.Errorf("Put = version %d, %v; want a conflict at version %d", i.Version, err, tt.have)
			}
		})
	}
}

// weak counts reads that are not consistent. All reads of DynamoDB Local are consistent, so only the request shows
// this.
type weak struct {
	*sdk.Client
	reads, consistent int
}

func (w *weak) count(consistent *bool) {
	if w.reads++; aws.ToBool(consistent) {
		w.consistent++
	}
}

func (w *weak) GetItem(ctx context.Context, in *sdk.GetItemInput, o ...func(*sdk.Options)) (*sdk.GetItemOutput, error) {
	w.count(in.ConsistentRead)
	return w.Client.GetItem(ctx, in, o...)
}

func (w *weak) Scan(ctx context.Context, in *sdk.ScanInput, o ...func(*sdk.Options)) (*sdk.ScanOutput, error) {
	w.count(in.ConsistentRead)
	return w.Client.Scan(ctx, in, o...)
}

// Guarantees that every read is consistent, and that a Put reads at most once, and for a first version not at all.
func TestReads(t *testing.T) {
	ctx, made := t.Context(), openFresh(t)
	w := &weak{Client: connect(t)}
	tables := dynamo.New(w, dynamo.Names(made.prefix))
	want := 0
	reads := func(what string, n int, err error) {
		t.Helper()
		if want += n; err != nil || w.reads != want || w.consistent != want {
			t.Errorf("after %s: %d reads, %d of them consistent, %v; want %d", what, w.reads, w.consistent, err, want)
		}
	}
	_, err := tables.Put(ctx, change("acme", 0))
	reads("a first version", 0, err)
	_, err = tables.Put(ctx, change("acme", 1))
	reads("a second version", 1, err)
	_, err = tables.Get(ctx, control.Tenants, "acme")
	reads("Get", 1, err)
	_, _, err = tables.List(ctx, control.Tenants, "", 10)
	reads("List", 1, err)
}

func TestNew(t *testing.T) {
	c := &sdk.Client{}
	tables := dynamo.New(c, map[control.Table]string{control.Plans: "plans"})
	if _, err := tables.Get(t.Context(), control.Tenants, "acme"); !errors.Is(err, control.ErrInvalid) ||
		!strings.Contains(err.Error(), "tenants") {
		t.Errorf("Get of a table without a name: got the error %v, want ErrInvalid with the table", err)
	}
	if _, err := tables.Put(t.Context(), change("acme", 0)); !errors.Is(err, control.ErrInvalid) {
		t.Errorf("Put into a table without a name: got the error %v, want ErrInvalid", err)
	}
	if _, _, err := tables.List(t.Context(), control.Tenants, "", 1); !errors.Is(err, control.ErrInvalid) {
		t.Errorf("List of a table without a name: got the error %v, want ErrInvalid", err)
	}
}
