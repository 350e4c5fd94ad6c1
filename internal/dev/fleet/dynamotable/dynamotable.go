// Package dynamotable is a table of DynamoDB in memory, for a simulation: it carries out the conditional writes of the
// DynamoDB store, and says how many capacity units DynamoDB charges for each call. It does not model time, throughput
// or the network; the caller does.
//
// It understands what the store sends: conditions of comparisons, attribute_exists and attribute_not_exists, joined by
// AND and OR; updates with SET and REMOVE, whose values are numbers, sums and if_not_exists; paths of one or two names;
// whole numbers. Anything else is an error. Items are not deleted when their ttl is past.
package dynamotable

import (
	"errors"
	"fmt"
	"maps"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"
)

// attributes are the attributes of an item, or of a value of type M. The table never changes such a map; it makes a new
// one.
type attributes = map[string]types.AttributeValue

// Table is a table whose partition key PK and sort key SK are binary. It is not safe for concurrent use. Callers must
// not change what they get from it.
type Table struct {
	items      map[key]item
	conditions map[string]condition // parsed expressions by their text
	updates    map[string]*update
}

type key struct{ partition, sort string }

type item struct {
	attributes attributes // nil: there is no such item
	size       int        // bytes
}

// Cost is what DynamoDB charges for a call, in capacity units.
type Cost struct{ Writes, Reads int64 }

// maxParsed bounds how many parsed expressions a table keeps. The store makes far fewer different ones.
const maxParsed = 10_000

// New returns an empty table.
func New() *Table {
	return &Table{items: map[key]item{}, conditions: map[string]condition{}, updates: map[string]*update{}}
}

// Get carries out a GetItem.
func (t *Table) Get(in *dynamodb.GetItemInput) (*dynamodb.GetItemOutput, Cost, error) {
	k, err := keyOf(in.Key)
	if err != nil {
		return nil, Cost{}, err
	}
	found := t.items[k]
	const readUnit = 4 << 10 // bytes that a consistent read of one unit covers
	return &dynamodb.GetItemOutput{Item: found.attributes}, Cost{Reads: unitsOf(found.size, readUnit)}, nil
}

// Update carries out an UpdateItem. The error is a ConditionalCheckFailedException if the condition does not hold, and
// a ValidationException if the update is not valid for the item.
func (t *Table) Update(in *dynamodb.UpdateItemInput) (*dynamodb.UpdateItemOutput, Cost, error) {
	w, err := t.evaluate(&types.Update{Key: in.Key, ConditionExpression: in.ConditionExpression,
		UpdateExpression: in.UpdateExpression, ExpressionAttributeNames: in.ExpressionAttributeNames,
		ExpressionAttributeValues: in.ExpressionAttributeValues})
	if err != nil {
		return nil, Cost{Writes: 1}, err
	}
	if !w.holds {
		refused := &types.ConditionalCheckFailedException{Message: aws.String("The conditional request failed")}
		if in.ReturnValuesOnConditionCheckFailure == types.ReturnValuesOnConditionCheckFailureAllOld {
			refused.Item = w.before.attributes
		}
		return nil, w.cost(), refused
	}
	t.items[w.key] = w.after
	out := &dynamodb.UpdateItemOutput{}
	if in.ReturnValues == types.ReturnValueAllOld {
		out.Attributes = w.before.attributes
	}
	return out, w.cost(), nil
}

// Transact carries out a TransactWriteItems of updates: all of them or none. Each costs twice as much as an UpdateItem.
func (t *Table) Transact(in *dynamodb.TransactWriteItemsInput) (*dynamodb.TransactWriteItemsOutput, Cost, error) {
	var cost Cost
	writes, reasons := make([]write, len(in.TransactItems)), make([]types.CancellationReason, len(in.TransactItems))
	refused := false
	for i := range in.TransactItems {
		u := in.TransactItems[i].Update
		if u == nil {
			return nil, Cost{}, invalid("a part of a transaction is no update")
		}
		reasons[i].Code = aws.String("None")
		w, err := t.evaluate(u)
		writes[i] = w
		cost.Writes += 2 * w.cost().Writes
		var bad smithy.APIError
		switch {
		case errors.As(err, &bad):
			refused = true
			reasons[i].Code, reasons[i].Message = aws.String("ValidationError"), aws.String(bad.ErrorMessage())
		case err != nil:
			return nil, Cost{}, err
		case !w.holds:
			refused = true
			reasons[i].Code, reasons[i].Item = aws.String("ConditionalCheckFailed"), w.before.attributes
		}
	}
	if refused {
		return nil, cost, &types.TransactionCanceledException{CancellationReasons: reasons}
	}
	for i := range writes {
		t.items[writes[i].key] = writes[i].after
	}
	return &dynamodb.TransactWriteItemsOutput{}, cost, nil
}

// write is an update of one item that is not carried out yet: the item before the update and after it.
type write struct {
	key           key
	holds         bool // whether the condition holds
	before, after item // if the condition does not hold, after is not set
}

// cost returns the units of the write: one for each begun KB of the larger of the item before and after. A write whose
// condition does not hold costs as much as the item that is there.
func (w *write) cost() Cost {
	const writeUnit = 1 << 10 // bytes
	return Cost{Writes: unitsOf(max(w.before.size, w.after.size), writeUnit)}
}

func unitsOf(size, unit int) int64 { return max(int64((size+unit-1)/unit), 1) }

// evaluate finds out what an update would do. It changes nothing.
func (t *Table) evaluate(u *types.Update) (w write, err error) {
	if w.key, err = keyOf(u.Key); err != nil {
		return w, err
	}
	w.before = t.items[w.key]
	e := &expression{names: u.ExpressionAttributeNames, values: u.ExpressionAttributeValues,
		item: w.before.attributes}
	if text := aws.ToString(u.ConditionExpression); text != "" {
		c := t.conditions[text]
		if c == nil {
			if c, err = parseCondition(text); err != nil {
				return w, err
			}
			if len(t.conditions) >= maxParsed {
				clear(t.conditions)
			}
			t.conditions[text] = c
		}
		if w.holds = c.holds(e); e.err != nil || !w.holds {
			return w, e.err
		}
	}
	w.holds = true
	parsed := t.updates[aws.ToString(u.UpdateExpression)]
	if parsed == nil {
		if parsed, err = parseUpdate(aws.ToString(u.UpdateExpression)); err != nil {
			return w, err
		}
		if len(t.updates) >= maxParsed {
			clear(t.updates)
		}
		t.updates[aws.ToString(u.UpdateExpression)] = parsed
	}
	after := maps.Clone(w.before.attributes)
	if after == nil {
		after = maps.Clone(u.Key)
	}
	parsed.apply(e, after)
	w.after = item{after, Size(after)}
	return w, e.err
}

func keyOf(k attributes) (key, error) {
	partition, ok := k["PK"].(*types.AttributeValueMemberB)
	sort, isBinary := k["SK"].(*types.AttributeValueMemberB)
	if !ok || !isBinary || len(k) != 2 {
		return key{}, invalid("the key of an item is not a binary PK and a binary SK")
	}
	return key{string(partition.Value), string(sort.Value)}, nil
}

// invalid returns DynamoDB's error for a request that is not valid.
func invalid(format string, args ...any) error {
	return &smithy.GenericAPIError{Code: "ValidationException", Message: fmt.Sprintf(format, args...)}
}

// Size returns the size of an item in bytes by DynamoDB's rules. Where the rules are vague, Size assumes the larger
// value.
func Size(item map[string]types.AttributeValue) int {
	n := 0
	for name, v := range item {
		n += len(name) + valueSize(v)
	}
	return n
}

func valueSize(v types.AttributeValue) int {
	switch v := v.(type) {
	case *types.AttributeValueMemberN:
		return (len(v.Value)+1)/2 + 1
	case *types.AttributeValueMemberB:
		return len(v.Value)
	case *types.AttributeValueMemberS:
		return len(v.Value)
	case *types.AttributeValueMemberM:
		n := 3
		for name, v := range v.Value {
			n += 1 + len(name) + valueSize(v)
		}
		return n
	default:
		return 1
	}
}
