// Package dynamodbtest has what tests and measurements of the DynamoDB store share: a server, a client, and a meter
// that counts what the client's calls cost.
package dynamodbtest

import (
	"context"
	"errors"
	"sync"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// Meter is a client that adds up the capacity units of its calls. DynamoDB does not report the capacity of a write
// whose condition fails. For such a write, the meter counts a write unit for each begun KB of the item, and twice as
// much in a transaction.
type Meter struct {
	*sdk.Client
	mu    sync.Mutex
	usage Usage
}

// Usage holds the capacity units of calls.
type Usage struct {
	Writes, Reads float64 // units
	Failed        int     // writes whose condition failed; Writes includes their units
}

// Take returns the usage so far, and starts a new count.
func (m *Meter) Take() Usage {
	m.mu.Lock()
	defer m.mu.Unlock()
	u := m.usage
	m.usage = Usage{}
	return u
}

func (m *Meter) add(write, read float64, failed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.usage.Writes += write
	m.usage.Reads += read
	if failed {
		m.usage.Failed++
	}
}

func units(c *types.ConsumedCapacity) float64 {
	if c == nil || c.CapacityUnits == nil {
		return 0
	}
	return *c.CapacityUnits
}

// UpdateItem calls the client and counts the call.
func (m *Meter) UpdateItem(
	ctx context.Context, in *sdk.UpdateItemInput, o ...func(*sdk.Options),
) (*sdk.UpdateItemOutput, error) {
	in.ReturnConsumedCapacity = types.ReturnConsumedCapacityTotal
	out, err := m.Client.UpdateItem(ctx, in, o...)
	var refused *types.ConditionalCheckFailedException
	switch {
	case errors.As(err, &refused):
		m.add(float64((ItemSize(refused.Item)+1023)/1024), 0, true)
	case err == nil:
		m.add(units(out.ConsumedCapacity), 0, false)
	}
	return out, err
}

// GetItem calls the client and counts the call.
func (m *Meter) GetItem(
	ctx context.Context, in *sdk.GetItemInput, o ...func(*sdk.Options),
) (*sdk.GetItemOutput, error) {
	in.ReturnConsumedCapacity = types.ReturnConsumedCapacityTotal
	out, err := m.Client.GetItem(ctx, in, o...)
	if err == nil {
		m.add(0, units(out.ConsumedCapacity), false)
	}
	return out, err
}

// TransactWriteItems calls the client and counts the call.
func (m *Meter) TransactWriteItems(
	ctx context.Context, in *sdk.TransactWriteItemsInput, o ...func(*sdk.Options),
) (*sdk.TransactWriteItemsOutput, error) {
	in.ReturnConsumedCapacity = types.ReturnConsumedCapacityTotal
	out, err := m.Client.TransactWriteItems(ctx, in, o...)
	var refused *types.TransactionCanceledException
	switch {
	case errors.As(err, &refused):
		m.add(2*float64(len(in.TransactItems)), 0, true)
	case err == nil:
		total := 0.0
		for i := range out.ConsumedCapacity {
			total += units(&out.ConsumedCapacity[i])
		}
		m.add(total, 0, false)
	}
	return out, err
}

// ItemSize returns the size of an item in bytes by DynamoDB's rules. Where the rules are vague, ItemSize assumes the
// larger value.
func ItemSize(item map[string]types.AttributeValue) int {
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
