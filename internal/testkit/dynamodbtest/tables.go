package dynamodbtest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// CreateControlTable makes a control table, with a stream of new and old images, and deletes it at the end of the test.
func CreateControlTable(tb testing.TB, c *sdk.Client, name string) {
	tb.Helper()
	create(tb, c, &sdk.CreateTableInput{TableName: &name, StreamSpecification: &types.StreamSpecification{
		StreamEnabled: aws.Bool(true), StreamViewType: types.StreamViewTypeNewAndOldImages,
	}}, "id")
}

// CreateConfigTable makes a cell's config table, and deletes it at the end of the test.
func CreateConfigTable(tb testing.TB, c *sdk.Client, name string) {
	tb.Helper()
	create(tb, c, &sdk.CreateTableInput{TableName: &name}, "pk", "sk")
}

// create makes a table with keys of text, the partition key first.
func create(tb testing.TB, c *sdk.Client, in *sdk.CreateTableInput, keys ...string) {
	tb.Helper()
	in.BillingMode = types.BillingModePayPerRequest
	for i, key := range keys {
		kind := [...]types.KeyType{types.KeyTypeHash, types.KeyTypeRange}[i]
		in.KeySchema = append(in.KeySchema, types.KeySchemaElement{AttributeName: &key, KeyType: kind})
		in.AttributeDefinitions = append(in.AttributeDefinitions,
			types.AttributeDefinition{AttributeName: &key, AttributeType: types.ScalarAttributeTypeS})
	}
	_, err := c.CreateTable(tb.Context(), in)
	if err == nil {
		tb.Cleanup(func() {
			_, err := c.DeleteTable(context.Background(), &sdk.DeleteTableInput{TableName: in.TableName})
			if err != nil {
				tb.Error(err)
			}
		})
		wait := sdk.NewTableExistsWaiter(c, func(o *sdk.TableExistsWaiterOptions) {
			o.MinDelay, o.MaxDelay = time.Second/4, time.Second
		})
		err = wait.Wait(tb.Context(), &sdk.DescribeTableInput{TableName: in.TableName}, 2*time.Minute)
	}
	if err != nil {
		tb.Fatal(fmt.Errorf("create table %s: %w", *in.TableName, err))
	}
}
