package dynamodb

import (
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

const (
	keptSortKey = "k"
	attrKept    = "kept"
	keepTimeout = 2 * time.Second // of one call of Keep, unless its context ends before, or Config.Timeout is longer
)

// Keep implements [store.Keeper]. It stores the value by a conditional write, so that all processes get the same value.
// The item never expires. place names the item and the table.
func (s *Store) Keep(ctx context.Context, name string, value []byte) (kept []byte, place string, err error) {
	ctx, cancel := context.WithTimeout(ctx, max(keepTimeout, s.timeout))
	defer cancel()
	key := itemKey{string(limit.AppendNetstring([]byte(s.namespace+"s"), name)), keptSortKey}
	place = fmt.Sprintf("the item %q %q of the table %s", key.partition, key.sort, *s.tableName)
	read, err := s.client.GetItem(ctx, &dynamodb.GetItemInput{TableName: s.tableName, Key: key.attributes(),
		ConsistentRead: aws.Bool(true)}, s.callOptions...)
	if err != nil {
		return nil, "", fmt.Errorf("dynamodb store: %w", key.wrapError(err))
	}
	item := read.Item
	if len(item) == 0 {
		written, err := s.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{TableName: s.tableName,
			Key: key.attributes(), UpdateExpression: aws.String("SET #k = if_not_exists(#k, :k)"),
			ExpressionAttributeNames: map[string]string{"#k": attrKept},
			ExpressionAttributeValues: map[string]types.AttributeValue{
				":k": &types.AttributeValueMemberB{Value: value}},
			ReturnValues: types.ReturnValueAllNew}, s.callOptions...)
		if err != nil {
			return nil, "", fmt.Errorf("dynamodb store: %w", key.wrapError(err))
		}
		item = written.Attributes
	}
	bytes, ok := item[attrKept].(*types.AttributeValueMemberB)
	if !ok {
		return nil, "", fmt.Errorf("dynamodb store: %w", key.wrapError(ErrBadItem))
	}
	return bytes.Value, place, nil
}
