package dynamodb_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"go.uber.org/goleak"

	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
)

const table = "counters"

var (
	create    sync.Once
	createErr error
	spaces    atomic.Int64
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(child())
	}
	// more tests run in parallel than there are processors, because they mostly wait; the command line may set another
	// number
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// connect returns a client of the endpoint with connections of its own.
func connect(tb testing.TB, url string) *sdk.Client {
	c, done := dynamodbtest.Connect(url)
	if tb != nil {
		tb.Cleanup(done)
	}
	return c
}

// server returns a client of the DynamoDB under test, in which the table exists.
func server(tb testing.TB) *sdk.Client {
	tb.Helper()
	c := connect(tb, dynamodbtest.Need(tb))
	create.Do(func() { createErr = dynamodb.Create(context.Background(), c, table) })
	if createErr != nil {
		tb.Fatal(createErr)
	}
	return c
}

// config returns the configuration of a store on counters of its own, with a time limit for a busy machine.
func config(c *sdk.Client) dynamodb.Config {
	return dynamodb.Config{
		Client: c, Table: table, CallerClock: true, Timeout: time.Minute,
		Namespace: fmt.Sprintf("%d.%d.%d", os.Getpid(), time.Now().UnixNano(), spaces.Add(1)),
	}
}

func open(tb testing.TB, c dynamodb.Config) *dynamodb.Store {
	tb.Helper()
	s, err := dynamodb.New(c)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}
