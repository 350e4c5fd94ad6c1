package dynamotable_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/cell/dynamotable"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/cell/table/tabletest"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
)

// childEnv makes the test binary a process that writes to the table that its value names.
const childEnv = "SLUICE_TEST_CONFIG_WRITER"

func TestMain(m *testing.M) {
	if spec := os.Getenv(childEnv); spec != "" {
		os.Exit(child(spec))
	}
	os.Exit(m.Run())
}

var tables atomic.Int64

// newTable makes a new table, and returns its name and a client.
func newTable(tb testing.TB) (*dynamodb.Client, string) {
	tb.Helper()
	c, done := dynamodbtest.Connect(dynamodbtest.Need(tb))
	name := fmt.Sprintf("cellconfig-%d-%d-%d", os.Getpid(), time.Now().UnixNano(), tables.Add(1))
	tb.Cleanup(done)
	dynamodbtest.CreateConfigTable(tb, c, name)
	return c, name
}

// Guarantees that the table in DynamoDB fulfils the contract of tables.
func TestContract(t *testing.T) {
	dynamodbtest.Need(t)
	tabletest.Run(t, func(t *testing.T, handles int) []table.Store {
		c, name := newTable(t)
		out := make([]table.Store, handles)
		for i := range out {
			out[i] = dynamotable.New(dynamotable.Config{Client: c, Table: name})
		}
		return out
	})
}

const (
	processes = 3
	writes    = 15
)

// child writes documents of its own, and one document that all processes write.
func child(spec string) int {
	name, who, _ := strings.Cut(spec, " ")
	c, done := dynamodbtest.Connect(os.Getenv("SLUICE_DYNAMODB"))
	defer done()
	t := dynamotable.New(dynamotable.Config{Client: c, Table: name})
	var err error
	for i := 0; err == nil && i < writes; i++ {
		_, err = t.Apply(context.Background(), []table.Document{
			tabletest.Tenant(fmt.Sprintf("%s-%d", who, i), "p", 1), tabletest.Tenant("all", "p"+who,
				int64(i)+1),
		})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Guarantees that appliers in several processes lose nothing: the log has no gap, each document exists, and the
// version of the document that all write only increases.
func TestProcesses(t *testing.T) {
	c, name := newTable(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for p := range processes {
		wg.Go(func() {
			cmd := exec.Command(self)
			cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", childEnv, name, p),
				"SLUICE_DYNAMODB="+dynamodbtest.Need(t))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("process %d: %v\n%s", p, err, out)
			}
		})
	}
	wg.Wait()
	store := dynamotable.New(dynamotable.Config{Client: c, Table: name})
	head, err := store.Head(t.Context())
	if err != nil || head.Seq != processes*writes || head.Retention != dynamotable.DefaultRetention {
		t.Fatalf("head %+v, %v; want %d entries kept for %s", head, err, processes*writes, dynamotable.DefaultRetention)
	}
	log, err := store.Log(t.Context(), 0, head.Seq)
	if err != nil || len(log) != processes*writes {
		t.Fatalf("%d entries, %v; want %d", len(log), err, processes*writes)
	}
	last, own := int64(0), 0
	for i, e := range log {
		if e.Seq != int64(i)+1 {
			t.Fatalf("entry %d is number %d", i+1, e.Seq)
		}
		for _, change := range e.Changes {
			if change.ID != "all" {
				own++
			} else if last++; change.Version != last {
				t.Fatalf("entry %d takes the shared document to version %d, want %d", e.Seq, change.Version, last)
			}
		}
	}
	if last != writes || own != processes*writes {
		t.Errorf("the shared document is at %d and %d others are there, want %d and %d", last, own, writes,
			processes*writes)
	}
}

// Guarantees that a log entry has an expiry time, so that the table does not grow for ever, and that the head has the
// retention.
func TestRetention(t *testing.T) {
	c, name := newTable(t)
	store := dynamotable.New(dynamotable.Config{Client: c, Table: name, Retention: 90 * time.Minute})
	if _, err := store.Apply(t.Context(), []table.Document{tabletest.Plan("p", 1, 1)}); err != nil {
		t.Fatal(err)
	}
	head, err := store.Head(t.Context())
	if err != nil || head.Retention != 90*time.Minute {
		t.Errorf("head %+v, %v; want a retention of 90m", head, err)
	}
	log, err := store.Log(t.Context(), 0, 1)
	if err != nil || len(log) != 1 {
		t.Fatalf("the log is %v, %v; want one entry", log, err)
	}
	out, err := c.GetItem(t.Context(), &dynamodb.GetItemInput{TableName: &name, Key: map[string]types.AttributeValue{
		"pk": &types.AttributeValueMemberS{Value: "log"},
		"sk": &types.AttributeValueMemberS{Value: "0000000000000000001"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprint(log[0].At.Add(90 * time.Minute).Unix())
	if ttl, ok := out.Item["ttl"].(*types.AttributeValueMemberN); !ok || ttl.Value != want {
		t.Errorf("the entry's ttl is %v, want %s", out.Item["ttl"], want)
	}
}

// Guarantees that items with another layout give errors that say so, and never a panic or an empty document.
func TestForeignItems(t *testing.T) {
	s := func(v string) types.AttributeValue { return &types.AttributeValueMemberS{Value: v} }
	n := func(v string) types.AttributeValue { return &types.AttributeValueMemberN{Value: v} }
	b := func(v string) types.AttributeValue { return &types.AttributeValueMemberB{Value: []byte(v)} }
	for name, attributes := range map[string]map[string]types.AttributeValue{
		"no number": {"pk": s("tenant#0"), "sk": s("t"), "v": s("1"), "n": n("1"), "body": b("{}"), "at": n("1")},
		"a fraction": {"pk": s("tenant#0"), "sk": s("t"), "v": n("1.5"), "n": n("1"), "body": b("{}"),
			"inc": s("i")},
		"a negative": {"pk": s("tenant#0"), "sk": s("t"), "v": n("-1"), "n": n("-1"), "body": b("{}"),
			"inc": s("i")},
		"no version": {"pk": s("log"), "sk": s("t"), "v": n("0"), "n": n("1"), "body": b("{}"), "at": n("-1")},
		"no body":    {"pk": s("tenant#0"), "sk": s("t"), "v": n("1"), "n": n("1"), "inc": s("")},
		"no gzip":    {"pk": s("tenant#0"), "sk": s("t"), "v": n("1"), "n": n("1"), "gz": b("{}"), "at": n("1")},
		"changes of text": {"pk": s("log"), "sk": s("1"), "v": n("1"), "n": n("1"), "at": n("1"),
			"changes": &types.AttributeValueMemberL{Value: []types.AttributeValue{s("x")}}},
		"changes unnamed": {"pk": s("log"), "sk": s("1"), "v": n("1"), "n": n("1"), "at": n("1"),
			"changes": &types.AttributeValueMemberL{Value: []types.AttributeValue{&types.AttributeValueMemberM{}}}},
	} {
		store := dynamotable.New(dynamotable.Config{Client: sameItem{attributes}, Table: "x"})
		ref := table.Ref{Kind: "tenant", ID: "t"}
		for what, call := range map[string]func() error{
			"Get":  func() error { _, err := store.Get(t.Context(), ref); return err },
			"Head": func() error { _, err := store.Head(t.Context()); return err },
			"Log":  func() error { _, err := store.Log(t.Context(), 0, 1); return err },
			"Gets": func() error {
				_, err := store.Get(t.Context(), ref,
					table.Ref{Kind: "plan", ID: "p"})
				return err
			},
			"List": func() error {
				var last error
				for _, err := range store.List(t.Context(), "tenant") {
					last = err
				}
				return last
			},
		} {
			if err := call(); err == nil || !strings.Contains(err.Error(), "an item does not have this layout") {
				t.Errorf("%s: %s = %v, want an error about the layout", name, what, err)
			}
		}
	}
}

// raw puts an item in the form of a document under any key. If body is "", the item has no attributes besides the key.
func raw(tb testing.TB, c *dynamodb.Client, name, pk, sk, body string) {
	tb.Helper()
	item := map[string]types.AttributeValue{
		"pk": &types.AttributeValueMemberS{Value: pk}, "sk": &types.AttributeValueMemberS{Value: sk},
	}
	if body != "" {
		item["v"], item["n"] = &types.AttributeValueMemberN{Value: "1"}, &types.AttributeValueMemberN{Value: "1"}
		item["body"] = &types.AttributeValueMemberB{Value: []byte(body)}
	}
	if _, err := c.PutItem(tb.Context(), &dynamodb.PutItemInput{TableName: &name, Item: item}); err != nil {
		tb.Fatal(err)
	}
}

// Guarantees that an item in another shard than its id's is not listed as the document with that id, that neither it
// nor an item without attributes ends a list, and that both can be deleted without deleting anything else. Otherwise
// whoever writes such items could hide other documents from comparisons.
func TestRowsThatAreNoDocuments(t *testing.T) {
	c, name := newTable(t)
	store := dynamotable.New(dynamotable.Config{Client: c, Table: name})
	var documents []table.Document
	want := map[table.Ref]string{}
	for i := range 40 {
		d := tabletest.Tenant(fmt.Sprintf("t%02d", i), "p", 1)
		documents = append(documents, d)
		want[d.Ref] = string(d.Body)
	}
	if _, err := store.Apply(t.Context(), documents); err != nil {
		t.Fatal(err)
	}
	for shard := range 16 { // one of them is the shard of t00, which must not be overwritten
		pk := fmt.Sprintf("tenant#%x", shard)
		key := map[string]types.AttributeValue{
			"pk": &types.AttributeValueMemberS{Value: pk}, "sk": &types.AttributeValueMemberS{Value: "t00"},
		}
		out, err := c.GetItem(t.Context(), &dynamodb.GetItemInput{TableName: &name, Key: key})
		if err != nil {
			t.Fatal(err)
		}
		if len(out.Item) == 0 {
			raw(t, c, name, pk, "t00", `{"id":"t00","plan":"forged"}`)
			continue
		}
		raw(t, c, name, pk, "t00", "")
		delete(want, documents[0].Ref)
	}
	list := func() (bad []table.BadRow) {
		t.Helper()
		got := map[table.Ref]string{}
		for d, err := range store.List(t.Context(), "tenant") {
			var row *table.BadRow
			switch {
			case errors.As(err, &row):
				bad = append(bad, *row)
			case err != nil:
				t.Fatal(err)
			case got[d.Ref] != "":
				t.Errorf("the list has %v twice, want once", d.Ref)
			default:
				got[d.Ref] = string(d.Body)
			}
		}
		if !maps.Equal(got, want) {
			t.Fatalf("%d documents are listed, want %d: %v", len(got), len(want), got)
		}
		return bad
	}
	bad := list()
	if len(bad) != 16 || strings.Contains(bad[0].Error(), "t00") {
		t.Fatalf("%d rows are no documents, want 16: %v", len(bad), bad)
	}
	var row *table.BadRow
	_, err := store.Get(t.Context(), documents[1].Ref, documents[0].Ref)
	if !errors.As(err, &row) || row.Ref != documents[0].Ref {
		t.Errorf("Get of a row that is no document: %v, want an error that names the row", err)
	}
	mended := documents[1] // a readable row, which must not be deleted
	bad = append(bad, table.BadRow{Kind: "tenant", Ref: mended.Ref, Key: [2]string{"tenant#0", mended.ID}})
	before, err := store.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n, err := table.DeleteRows(t.Context(), store, bad, time.Now); n != 16 || err != nil {
		t.Fatalf("%d rows were deleted, %v; want 16", n, err)
	}
	head, err := store.Head(t.Context())
	if err != nil || head.Incarnation == before.Incarnation || head.Seq != before.Seq+1 {
		t.Errorf("the head is %+v, %v; want another incarnation, since readers may have a copy", head, err)
	}
	if left := list(); len(left) != 0 {
		t.Errorf("after the deletion, these rows are still no documents: %v", left)
	}
	if got, err := store.Get(t.Context(), documents[0].Ref); err != nil || got[0].Version != 0 {
		t.Errorf("Get in place of the deleted row = %+v, %v; want an absent document", got, err)
	}
}

// sameItem is a table that returns the same item for every read.
type sameItem struct {
	item map[string]types.AttributeValue
}

func (c sameItem) GetItem(
	context.Context, *dynamodb.GetItemInput, ...func(*dynamodb.Options),
) (*dynamodb.GetItemOutput, error) {
	return &dynamodb.GetItemOutput{Item: c.item}, nil
}

func (c sameItem) BatchGetItem(
	_ context.Context, in *dynamodb.BatchGetItemInput, _ ...func(*dynamodb.Options),
) (*dynamodb.BatchGetItemOutput, error) {
	out := &dynamodb.BatchGetItemOutput{Responses: map[string][]map[string]types.AttributeValue{}}
	for name := range in.RequestItems {
		out.Responses[name] = []map[string]types.AttributeValue{c.item}
	}
	return out, nil
}

func (c sameItem) Query(
	context.Context, *dynamodb.QueryInput, ...func(*dynamodb.Options),
) (*dynamodb.QueryOutput, error) {
	return &dynamodb.QueryOutput{Items: []map[string]types.AttributeValue{c.item}}, nil
}

func (c sameItem) TransactWriteItems(
	context.Context, *dynamodb.TransactWriteItemsInput, ...func(*dynamodb.Options),
) (*dynamodb.TransactWriteItemsOutput, error) {
	return nil, errors.New("nothing is written here")
}

// oneAtATime answers a BatchGetItem with only one of the requested documents, as DynamoDB may, and refuses the first
// transaction.
type oneAtATime struct {
	*dynamodb.Client
	answers  atomic.Int64
	canceled atomic.Bool
}

func (g *oneAtATime) BatchGetItem(
	ctx context.Context, in *dynamodb.BatchGetItemInput, o ...func(*dynamodb.Options),
) (*dynamodb.BatchGetItemOutput, error) {
	g.answers.Add(1)
	left := map[string]types.KeysAndAttributes{}
	for name, k := range in.RequestItems {
		if len(k.Keys) > 1 {
			left[name] = types.KeysAndAttributes{Keys: k.Keys[1:], ConsistentRead: k.ConsistentRead}
		}
		k.Keys = k.Keys[:1]
		in.RequestItems[name] = k
	}
	out, err := g.Client.BatchGetItem(ctx, in, o...)
	if err == nil && len(left) > 0 {
		out.UnprocessedKeys = left
	}
	return out, err
}

func (g *oneAtATime) TransactWriteItems(
	ctx context.Context, in *dynamodb.TransactWriteItemsInput, o ...func(*dynamodb.Options),
) (*dynamodb.TransactWriteItemsOutput, error) {
	if !g.canceled.Swap(true) {
		return nil, &types.TransactionCanceledException{
			CancellationReasons: []types.CancellationReason{{Code: aws.String("TransactionConflict")}}}
	}
	return g.Client.TransactWriteItems(ctx, in, o...)
}

// Guarantees that keys that DynamoDB leaves unprocessed are requested again, and that a transaction that conflicts
// with another is repeated.
func TestUnprocessed(t *testing.T) {
	c, name := newTable(t)
	g := &oneAtATime{Client: c}
	store := dynamotable.New(dynamotable.Config{Client: g, Table: name})
	documents := []table.Document{tabletest.Plan("p", 1, 1), tabletest.Tenant("a", "p", 1),
		tabletest.Tenant("b", "p", 1)}
	if n, err := store.Apply(t.Context(), documents); n != 3 || err != nil {
		t.Fatalf("Apply = %d, %v; want 3 documents", n, err)
	}
	g.answers.Store(0)
	got, err := store.Get(t.Context(), documents[0].Ref, documents[1].Ref, documents[2].Ref)
	if err != nil || g.answers.Load() != 3 {
		t.Fatalf("Get: %v after %d answers, want 3", err, g.answers.Load())
	}
	for i := range got {
		if !bytes.Equal(got[i].Body, documents[i].Body) {
			t.Errorf("document %+v, want %s", got[i], documents[i].Body)
		}
	}
}
