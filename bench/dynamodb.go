package bench

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
)

const (
	dynamoTable   = "bench"
	dynamoTimeout = 30 * time.Second
)

// dynamoWorkload is a workload in which several writers decide about the requests of one tenant.
type dynamoWorkload struct {
	meter   *dynamodbtest.Meter
	config  dynamodb.Config
	charges []limit.Charge
	close   func()
}

func newDynamoWorkload(name string, limits ...limit.Limit) (*dynamoWorkload, error) {
	endpoint, err := dynamodbtest.Endpoint()
	if err != nil {
		return nil, err
	}
	client, done := dynamodbtest.Connect(endpoint)
	if err := dynamodb.Create(context.Background(), client, dynamoTable); err != nil {
		done()
		return nil, err
	}
	w := &dynamoWorkload{meter: &dynamodbtest.Meter{Client: client}, close: done}
	w.config = dynamodb.Config{
		Client: w.meter, Table: dynamoTable, Timeout: dynamoTimeout, CallerClock: true,
		Namespace: fmt.Sprintf("%s-%d-%d", name, os.Getpid(), time.Now().UnixNano()),
	}
	for _, l := range limits {
		built, err := limit.New(l)
		if err != nil {
			done()
			return nil, err
		}
		w.charges = append(w.charges, limit.Charge{Limit: built, Cost: 1})
	}
	return w, nil
}
