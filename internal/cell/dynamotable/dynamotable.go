// Package dynamotable stores a cell's configuration in one DynamoDB table, with its change log.
//
// # Layout
//
// The keys are pk and sk, both strings. Every read is consistent.
//
//	head      pk "head", sk "head": inc (incarnation, S), n (number of the last log entry, N), ret (retention of the
//	          log, seconds, N), at (time of the last move, µs since 1970, N)
//	log       pk "log", sk the entry's number with leading zeros: at (µs, N), changes (L of M: k kind, i id,
//	          v version, d tombstone), ttl (when DynamoDB may delete the entry, seconds since 1970, N)
//	documents pk kind#x, sk id: v (version, N), n (number of its log entry, N), and body (JSON, B), or gz (the same in
//	          gzip, B), or d (BOOL) for a tombstone. x is one hex digit, a hash of the id: a kind is listed by 16
//	          queries, and its documents are on 16 partitions.
//
// A step is one TransactWriteItems: its documents, its log entry, and the head from n to n+1, on the condition that
// the head is still at n. A writer that comes second is refused and reads again. Items therefore need no conditions of
// their own, and the log has no gap until its entries expire. The step of a repair also gives the head another inc,
// and may delete items of documents; in its log entry a removed document has v 0 and d.
//
// An item among the documents that does not have this layout, or is in another shard than its id's, is not a document.
// List returns it as a *table.BadRow.
//
// Each reader's poll reads the head: one read unit per second and process, all on one partition, which supports 3,000
// per second.
package dynamotable

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"iter"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/cell/table"
)

var _ table.Store = (*Table)(nil)

// DefaultRetention is how long log entries are kept.
const DefaultRetention = 24 * time.Hour

const (
	gzipFrom     = 1 << 10   // size of a body, in bytes, from which it is compressed
	maxItemBytes = 390 << 10 // DynamoDB's limit is 400 KB, including names and keys
	batch        = 100       // largest number of items of one BatchGetItem
	shards       = 16
	headKey      = "head"
	logKey       = "log"
)

// client is the part of *dynamodb.Client that this package uses.
type client interface {
	GetItem(context.Context, *dynamodb.GetItemInput, ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error)
	BatchGetItem(context.Context, *dynamodb.BatchGetItemInput,
		...func(*dynamodb.Options)) (*dynamodb.BatchGetItemOutput, error)
	Query(context.Context, *dynamodb.QueryInput, ...func(*dynamodb.Options)) (*dynamodb.QueryOutput, error)
	TransactWriteItems(context.Context, *dynamodb.TransactWriteItemsInput,
		...func(*dynamodb.Options)) (*dynamodb.TransactWriteItemsOutput, error)
}

// Config sets up a [Table].
type Config struct {
	Client    client        // required
	Table     string        // required
	Retention time.Duration // of log entries that this process writes, a minute or more; 0 selects DefaultRetention
}

// Table is a cell config table in DynamoDB. It is safe for concurrent use. Make it with [New].
type Table struct{ c Config }

// New makes a Table. It makes no calls.
func New(c Config) *Table {
	c.Retention = cmp.Or(c.Retention, DefaultRetention)
	return &Table{c}
}

// Apply writes the documents that are newer than the stored ones; see [table.Apply].
func (t *Table) Apply(ctx context.Context, documents []table.Document) (int, error) {
	return table.Apply(ctx, t, documents, time.Now)
}

// Head implements [table.Table].
func (t *Table) Head(ctx context.Context) (table.Head, error) {
	out, err := t.c.Client.GetItem(ctx, &dynamodb.GetItemInput{
		TableName: &t.c.Table, ConsistentRead: aws.Bool(true), Key: key(headKey, headKey),
	})
	if err != nil {
		return table.Head{}, fmt.Errorf("head of %s: %w", t.c.Table, err)
	}
	if len(out.Item) == 0 {
		return table.Head{}, fmt.Errorf("head of %s: %w", t.c.Table, table.ErrEmpty)
	}
	i := item{out.Item, nil}
	head := table.Head{Incarnation: i.text("inc"), Seq: i.number("n"),
		Retention: time.Duration(i.number("ret")) * time.Second}
	if i.bad != nil {
		return table.Head{}, fmt.Errorf("head of %s: %w", t.c.Table, i.bad)
	}
	return head, nil
}

// Log implements [table.Table].
func (t *Table) Log(ctx context.Context, after, upTo int64) ([]table.Entry, error) {
	if upTo <= after {
		return nil, nil
	}
	pages := dynamodb.NewQueryPaginator(t.c.Client, &dynamodb.QueryInput{
		TableName: &t.c.Table, ConsistentRead: aws.Bool(true),
		KeyConditionExpression:   aws.String("#p = :p AND #s BETWEEN :a AND :b"),
		ExpressionAttributeNames: map[string]string{"#p": "pk", "#s": "sk"},
		ExpressionAttributeValues: map[string]types.AttributeValue{
			":p": text(logKey), ":a": text(logNumber(after + 1)), ":b": text(logNumber(upTo)),
		},
	})
	var out []table.Entry
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, fmt.Errorf("log of %s after %d: %w", t.c.Table, after, err)
		}
		for _, attributes := range page.Items {
			e, err := entryOf(attributes)
			if err != nil {
				return nil, fmt.Errorf("log of %s after %d: %w", t.c.Table, after, err)
			}
			out = append(out, e)
		}
	}
	return out, nil
}

// Get implements [table.Table].
func (t *Table) Get(ctx context.Context, refs ...table.Ref) ([]table.Document, error) {
	if len(refs) == 1 {
		out, err := t.c.Client.GetItem(ctx, &dynamodb.GetItemInput{
			TableName: &t.c.Table, ConsistentRead: aws.Bool(true), Key: documentKey(refs[0]),
		})
		if err != nil {
			return nil, fmt.Errorf("read a %s of %s: %w", refs[0].Kind, t.c.Table, err)
		}
		d, err := documentOf(refs[0], out.Item)
		return []table.Document{d}, err
	}
	found := make(map[table.Ref]table.Document, len(refs))
	var keys []map[string]types.AttributeValue
	for _, ref := range refs {
		if _, twice := found[ref]; !twice { // BatchGetItem refuses duplicate keys
			found[ref] = table.Document{Ref: ref}
			keys = append(keys, documentKey(ref))
		}
	}
	for wait := 5 * time.Millisecond; len(keys) > 0; {
		n := min(len(keys), batch)
		out, err := t.c.Client.BatchGetItem(ctx,
			&dynamodb.BatchGetItemInput{RequestItems: map[string]types.KeysAndAttributes{
				t.c.Table: {Keys: keys[:n], ConsistentRead: aws.Bool(true)},
			}})
		if err != nil {
			return nil, fmt.Errorf("read %d documents of %s: %w", len(refs), t.c.Table, err)
		}
		for _, attributes := range out.Responses[t.c.Table] {
			ref, err := refOf(attributes)
			if err != nil {
				return nil, fmt.Errorf("read %d documents of %s: %w", len(refs), t.c.Table, err)
			}
			if found[ref], err = documentOf(ref, attributes); err != nil {
				return nil, err
			}
		}
		left := out.UnprocessedKeys[t.c.Table].Keys
		keys = append(keys[n:], left...)
		if len(left) > 0 {
			select {
			case <-ctx.Done():
				return nil, fmt.Errorf("read %d documents of %s: %w", len(refs), t.c.Table, ctx.Err())
			case <-time.After(wait):
				wait = min(2*wait, time.Second)
			}
		}
	}
	out := make([]table.Document, len(refs))
	for i, ref := range refs {
		out[i] = found[ref]
	}
	return out, nil
}

// List implements [table.Lister].
func (t *Table) List(ctx context.Context, kind table.Kind) iter.Seq2[table.Document, error] {
	return func(yield func(table.Document, error) bool) {
		for shard := range uint32(shards) {
			pages := dynamodb.NewQueryPaginator(t.c.Client, &dynamodb.QueryInput{
				TableName: &t.c.Table, ConsistentRead: aws.Bool(true), KeyConditionExpression: aws.String("#p = :p"),
				ExpressionAttributeNames:  map[string]string{"#p": "pk"},
				ExpressionAttributeValues: map[string]types.AttributeValue{":p": text(partition(kind, shard))},
			})
			for pages.HasMorePages() {
				page, err := pages.NextPage(ctx)
				if err != nil {
					yield(table.Document{}, fmt.Errorf("list each %s of %s: %w", kind, t.c.Table, err))
					return
				}
				for _, attributes := range page.Items {
					ref, err := refOf(attributes)
					var d table.Document
					if err == nil {
						d, err = documentOf(ref, attributes)
					}
					if !yield(d, err) { // an error here is about one item only
						return
					}
				}
			}
		}
	}
}

// Commit implements [table.Store].
func (t *Table) Commit(ctx context.Context, step table.Step) error {
	items := make([]types.TransactWriteItem, 0, len(step.Documents)+len(step.Rows)+2)
	for i := range step.Documents {
		d := &step.Documents[i]
		if d.Version == 0 {
			items = append(items, types.TransactWriteItem{Delete: &types.Delete{TableName: &t.c.Table,
				Key: documentKey(d.Ref)}})
			continue
		}
		attributes, err := documentItem(d)
		if err != nil {
			return err
		}
		items = append(items, types.TransactWriteItem{Put: &types.Put{TableName: &t.c.Table, Item: attributes}})
	}
	for i := range step.Rows {
		row := key(step.Rows[i].Key[0], step.Rows[i].Key[1])
		items = append(items, types.TransactWriteItem{Delete: &types.Delete{TableName: &t.c.Table, Key: row}})
	}
	items = append(items,
		types.TransactWriteItem{Put: &types.Put{TableName: &t.c.Table, Item: entryItem(&step.Entry, t.c.Retention)}},
		t.headStep(&step))
	_, err := t.c.Client.TransactWriteItems(ctx, &dynamodb.TransactWriteItemsInput{TransactItems: items})
	var canceled *types.TransactionCanceledException
	if errors.As(err, &canceled) {
		for _, r := range canceled.CancellationReasons {
			if code := aws.ToString(r.Code); code == "ConditionalCheckFailed" || code == "TransactionConflict" {
				return fmt.Errorf("commit entry %d of %s: %w", step.Entry.Seq, t.c.Table, table.ErrConflict)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("commit entry %d of %s: %w", step.Entry.Seq, t.c.Table, err)
	}
	return nil
}

// headStep moves the head, on the condition that it is where the step begins.
func (t *Table) headStep(step *table.Step) types.TransactWriteItem {
	values := map[string]types.AttributeValue{
		":n": number(step.Entry.Seq), ":at": number(step.Entry.At.UnixMicro()),
		":ret": number(int64(t.c.Retention / time.Second)),
	}
	condition := "attribute_not_exists(#p)"
	names := map[string]string{"#n": "n", "#at": "at", "#ret": "ret", "#inc": "inc"}
	if step.Incarnation == "" {
		names["#p"] = "pk"
		values[":inc"] = text(rand.Text())
	} else {
		condition = "#n = :before AND #inc = :inc"
		values[":before"], values[":inc"] = number(step.Entry.Seq-1), text(step.Incarnation)
		if step.Repair {
			condition = "#n = :before AND #inc = :was"
			values[":was"], values[":inc"] = text(step.Incarnation), text(rand.Text())
		}
	}
	return types.TransactWriteItem{Update: &types.Update{
		TableName: &t.c.Table, Key: key(headKey, headKey), ConditionExpression: &condition,
		UpdateExpression:         aws.String("SET #n = :n, #at = :at, #ret = :ret, #inc = :inc"),
		ExpressionAttributeNames: names, ExpressionAttributeValues: values,
	}}
}

func key(pk, sk string) map[string]types.AttributeValue {
	return map[string]types.AttributeValue{"pk": text(pk), "sk": text(sk)}
}

func text(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }

func number(n int64) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatInt(n, 10)}
}

func logNumber(seq int64) string { return fmt.Sprintf("%019d", seq) }

func partition(kind table.Kind, shard uint32) string {
	return string(kind) + "#" + strconv.FormatUint(uint64(shard), 16)
}

func documentKey(ref table.Ref) map[string]types.AttributeValue {
	h := fnv.New32a()
	_, _ = io.WriteString(h, ref.ID) // writing to a hash cannot fail
	return key(partition(ref.Kind, h.Sum32()%shards), ref.ID)
}

func documentItem(d *table.Document) (map[string]types.AttributeValue, error) {
	out := documentKey(d.Ref)
	out["v"], out["n"] = number(d.Version), number(d.Seq)
	switch {
	case d.Deleted:
		out["d"] = &types.AttributeValueMemberBOOL{Value: true}
	case len(d.Body) < gzipFrom:
		out["body"] = &types.AttributeValueMemberB{Value: d.Body}
	default:
		var packed bytes.Buffer
		w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
		if err != nil {
			return nil, err
		}
		if _, err := w.Write(d.Body); err != nil {
			return nil, err
		}
		if err := w.Close(); err != nil {
			return nil, err
		}
		if packed.Len() > maxItemBytes {
			return nil, fmt.Errorf("%w %s %q: %d bytes packed, want at most %d", table.ErrInvalid, d.Kind, d.ID,
				packed.Len(), maxItemBytes)
		}
		out["gz"] = &types.AttributeValueMemberB{Value: packed.Bytes()}
	}
	return out, nil
}

func entryItem(e *table.Entry, retention time.Duration) map[string]types.AttributeValue {
	out := key(logKey, logNumber(e.Seq))
	out["at"], out["ttl"] = number(e.At.UnixMicro()), number(e.At.Add(retention).Unix())
	changes := make([]types.AttributeValue, len(e.Changes))
	for i, c := range e.Changes {
		m := map[string]types.AttributeValue{"k": text(string(c.Kind)), "i": text(c.ID), "v": number(c.Version)}
		if c.Deleted {
			m["d"] = &types.AttributeValueMemberBOOL{Value: true}
		}
		changes[i] = &types.AttributeValueMemberM{Value: m}
	}
	out["changes"] = &types.AttributeValueMemberL{Value: changes}
	return out
}
