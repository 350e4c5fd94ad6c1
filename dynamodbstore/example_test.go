package dynamodbstore_test

import (
	"context"
	"log"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/sluicelimits/sluice"
	"github.com/sluicelimits/sluice/dynamodbstore"
)

// It needs a table and a plans file, so it is compiled and not run; sluice's own tests run the same on DynamoDB Local.
func Example() {
	open := func(cfg aws.Config) (*sluice.Limiter, error) {
		store, err := dynamodbstore.New(dynamodbstore.Config{Client: dynamodb.NewFromConfig(cfg), Table: "sluice"})
		if err != nil {
			return nil, err
		}
		return sluice.New(sluice.Config{Plans: []string{"plans.yaml"}, Store: store})
	}
	limiter, err := open(aws.Config{Region: "eu-west-1"})
	if err != nil {
		log.Print(err)
		return
	}
	defer func() { _ = limiter.Close(context.Background()) }()
}
