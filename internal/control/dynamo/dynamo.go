// Package dynamo stores the control tables in DynamoDB, and decodes the records of their streams.
//
// A Put is a consistent read and one conditional write, which costs one write unit for each KB of the item or part of
// one. Any number of processes may write. The tables' streams are the feed: a [Decoder] reads what they bring.
//
// There is one table for each of the control tables. Its partition key is id, and it has no sort key. Items and
// tombstones are never deleted, so there is no time to live. A table's stream carries new and old images.
//
//	attribute   type  meaning
//	id          S     the item's key
//	layout      N     the number of this list of attributes: always 1; another number is an error
//	version     N     1, 2, 3 …
//	actor       S     who wrote this version
//	reason      S     the reason
//	changed_at  S     the time by the writer's clock: 2026-11-21T18:00:00.000000Z
//	deleted     BOOL  a tombstone
//	body        S     the body in canonical JSON, as it is hashed; absent in a tombstone
//	prev_hash   S     hash of the previous version; empty in version 1
//	hash        S     hex of SHA-256 over the other fields of the item, see package control
//
// Other attributes are ignored.
package dynamo

import (
	"context"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
)

var _ control.Tables = (*Tables)(nil)

// client is the part of *dynamodb.Client that this package uses.
type client interface {
	GetItem(context.Context, *dynamodb.GetItemInput, ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error)
	PutItem(context.Context, *dynamodb.PutItemInput, ...func(*dynamodb.Options)) (*dynamodb.PutItemOutput, error)
	Scan(context.Context, *dynamodb.ScanInput, ...func(*dynamodb.Options)) (*dynamodb.ScanOutput, error)
}

// Tables are the control tables in DynamoDB. They are safe for concurrent use.
type Tables struct {
	client client
	names  map[control.Table]string
}

// Names returns the names of the tables in DynamoDB, if each is the prefix followed by the table's own name.
func Names(prefix string) map[control.Table]string {
	names := make(map[control.Table]string)
	for _, t := range events.AllTables() {
		names[t] = prefix + string(t)
	}
	return names
}

// New makes the tables over a *dynamodb.Client. names may leave out tables that are not used; using such a table is an
// error. The client's retries are safe, since a repeated Put makes one version.
func New(c client, names map[control.Table]string) *Tables { return &Tables{c, names} }

func (t *Tables) name(table control.Table) (*string, error) {
	name, ok := t.names[table]
	if !ok {
		return nil, fmt.Errorf("%w: the name of the table %s is not configured", control.ErrInvalid, table)
	}
	return aws.String(name), nil
}

// Get implements [control.Tables].
func (t *Tables) Get(ctx context.Context, table control.Table, key string) (control.Item, error) {
	if err := control.CheckGet(table, key); err != nil {
		return control.Item{}, err
	}
	i, err := t.get(ctx, table, key)
	if err == nil && i == nil {
		err = fmt.Errorf("get %s/%q: %w", table, key, control.ErrNotFound)
	}
	if err != nil {
		return control.Item{}, err
	}
	return *i, nil
}

// get returns nil if there is no item.
func (t *Tables) get(ctx context.Context, table control.Table, key string) (*control.Item, error) {
	name, err := t.name(table)
	if err != nil {
		return nil, err
	}
	out, err := t.client.GetItem(ctx, &dynamodb.GetItemInput{
		TableName: name, Key: KeyOf(key),
		ConsistentRead: aws.Bool(true),
	})
	if err != nil {
		return nil, fmt.Errorf("get %s/%q: %w", table, key, err)
	}
	if len(out.Item) == 0 {
		return nil, nil //nolint:nilnil // callers check for nil
	}
	i, err := ItemOf(table, out.Item)
	if err != nil {
		return nil, err
	}
	return &i, nil
}

// List implements [control.Tables], by consistent scans.
func (t *Tables) List(
	ctx context.Context, table control.Table, after string, most int,
) ([]control.Item, string, error) {
	if err := control.CheckList(table, most); err != nil {
		return nil, "", err
	}
	name, err := t.name(table)
	if err != nil {
		return nil, "", err
	}
	in := &dynamodb.ScanInput{TableName: name, ConsistentRead: aws.Bool(true), Limit: aws.Int32(int32(most))}
	if after != "" {
		in.ExclusiveStartKey = KeyOf(after)
	}
	out, err := t.client.Scan(ctx, in)
	if err != nil {
		return nil, "", fmt.Errorf("list %s: %w", table, err)
	}
	next := ""
	if last, ok := out.LastEvaluatedKey[ID].(*types.AttributeValueMemberS); ok {
		next = last.Value
	}
	var errs []error
	items := make([]control.Item, 0, len(out.Items))
	for _, attributes := range out.Items {
		i, err := ItemOf(table, attributes)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		items = append(items, i)
	}
	return items, next, errors.Join(errs...)
}

// Put implements [control.Tables].
func (t *Tables) Put(ctx context.Context, c control.Change) (control.Item, error) {
	c, err := c.Check()
	if err != nil {
		return control.Item{}, err
	}
	name, err := t.name(c.Table)
	if err != nil {
		return control.Item{}, err
	}
	var current *control.Item
	if c.Expect > 0 { // the first version needs no read, since the failed condition returns the present item
		if current, err = t.get(ctx, c.Table, c.Key); err != nil {
			return control.Item{}, err
		}
	}
	next, done, err := control.Next(current, c)
	if err != nil || done {
		return next, err
	}
	_, err = t.client.PutItem(ctx, write(name, &next, current))
	var refused *types.ConditionalCheckFailedException
	switch {
	case err == nil:
		return next, nil
	case !errors.As(err, &refused):
		return control.Item{}, fmt.Errorf("put %s/%q version %d: %w", c.Table, c.Key, next.Version, err)
	}
	// Either another writer was faster, or an earlier try of this Put has made the version and its answer was lost.
	there, err := ItemOf(c.Table, refused.Item)
	if err != nil {
		return control.Item{}, err
	}
	next, done, err = control.Next(&there, c)
	if err == nil && !done {
		// The item has the expected version but another hash: somebody altered it between the read and the write.
		err = &control.ConflictError{Table: c.Table, Key: c.Key, Expect: c.Expect, Have: there.Version}
	}
	return next, err
}

// write returns the conditional write that replaces current, or that makes the first version if current is nil.
func write(name *string, next, current *control.Item) *dynamodb.PutItemInput {
	in := &dynamodb.PutItemInput{
		TableName: name, Item: RowOf(next),
		ConditionExpression:                 aws.String("attribute_not_exists(#i)"),
		ExpressionAttributeNames:            map[string]string{"#i": ID},
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}
	if current != nil {
		in.ConditionExpression = aws.String("#v = :v AND #h = :h")
		in.ExpressionAttributeNames = map[string]string{"#v": Version, "#h": Hash}
		was := RowOf(current)
		in.ExpressionAttributeValues = Row{":v": was[Version], ":h": was[Hash]}
	}
	return in
}
