package dynamodb_test

import (
	"context"
	"errors"
	"sync"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// meter is a client that adds up what its calls are charged for. A condition that fails reports no capacity: it is a write unit
// for each begun KB of the item.
type meter struct {
	*sdk.Client
	mu              sync.Mutex
	writes, reads   float64
	calls, failures int
	before          func() // called before each write, if set
}

func (m *meter) add(write, read float64, failed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes += write
	m.reads += read
	m.calls++
	if failed {
		m.failures++
	}
}

func units(c *types.ConsumedCapacity) float64 {
	if c == nil || c.CapacityUnits == nil {
		return 0
	}
	return *c.CapacityUnits
}

func (m *meter) UpdateItem(ctx context.Context, in *sdk.UpdateItemInput, o ...func(*sdk.Options)) (*sdk.UpdateItemOutput, error) {
	if m.before != nil {
		m.before()
	}
	in.ReturnConsumedCapacity = types.ReturnConsumedCapacityTotal
	out, err := m.Client.UpdateItem(ctx, in, o...)
	var refused *types.ConditionalCheckFailedException
	switch {
	case errors.As(err, &refused):
		m.add(float64((itemSize(refused.Item)+1023)/1024), 0, true)
	case err == nil:
		m.add(units(out.ConsumedCapacity), 0, false)
	}
	return out, err
}

func (m *meter) GetItem(ctx context.Context, in *sdk.GetItemInput, o ...func(*sdk.Options)) (*sdk.GetItemOutput, error) {
	in.ReturnConsumedCapacity = types.ReturnConsumedCapacityTotal
	out, err := m.Client.GetItem(ctx, in, o...)
	if err == nil {
		m.add(0, units(out.ConsumedCapacity), false)
	}
	return out, err
}

func (m *meter) TransactWriteItems(ctx context.Context, in *sdk.TransactWriteItemsInput, o ...func(*sdk.Options)) (*sdk.TransactWriteItemsOutput, error) {
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

// itemSize is the size of an item by DynamoDB's rules, rounded up where they are vague.
func itemSize(item map[string]types.AttributeValue) int {
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
