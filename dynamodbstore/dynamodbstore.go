// Package dynamodbstore keeps the counters of package sluice in a DynamoDB table, so that all processes that share it
// hold each limit together.
//
// A decision is one conditional write at most, and most need none, since units are leased. Attempts of addresses
// (ipLimits) are counted in each process's memory beside it: each would be a write that somebody else chooses to cost
// you.
package dynamodbstore

import (
	"context"
	"fmt"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/sluicelimits/sluice/internal/limiter/store"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
)

// DefaultTimeout is how long a decision waits for the table, where Config.Timeout is 0.
const DefaultTimeout = dynamodb.DefaultTimeout

// Client is the part of *dynamodb.Client (aws-sdk-go-v2) that the store uses.
type Client interface {
	UpdateItem(context.Context, *sdk.UpdateItemInput, ...func(*sdk.Options)) (*sdk.UpdateItemOutput, error)
	GetItem(context.Context, *sdk.GetItemInput, ...func(*sdk.Options)) (*sdk.GetItemOutput, error)
	TransactWriteItems(context.Context, *sdk.TransactWriteItemsInput,
		...func(*sdk.Options)) (*sdk.TransactWriteItemsOutput, error)
}

// Creator is the part of *dynamodb.Client that [Create] uses.
type Creator interface {
	DescribeTable(context.Context, *sdk.DescribeTableInput, ...func(*sdk.Options)) (*sdk.DescribeTableOutput, error)
	CreateTable(context.Context, *sdk.CreateTableInput, ...func(*sdk.Options)) (*sdk.CreateTableOutput, error)
	UpdateTimeToLive(context.Context, *sdk.UpdateTimeToLiveInput, ...func(*sdk.Options)) (*sdk.UpdateTimeToLiveOutput,
		error)
}

// Config says where the table is.
type Config struct {
	Client Client // required; *dynamodb.Client
	Table  string // required; see [Create]

	// Namespace keeps the counters of several programs in one table apart; any text up to 64 bytes.
	Namespace string

	// Timeout of one decision; default DefaultTimeout. One that is not answered by then is decided by each limit's
	// onStoreFailure.
	Timeout time.Duration
}

// Store is a store for sluice.Config. It is safe for concurrent use and needs no closing. Make it with [New].
type Store struct{ inner *dynamodb.Store }

// New makes a store on a table, which it does not ask for yet. The error names the field.
func New(c Config) (*Store, error) {
	s, err := dynamodb.New(dynamodb.Config{Client: c.Client, Table: c.Table, Namespace: c.Namespace,
		Timeout: c.Timeout})
	if err != nil {
		return nil, fmt.Errorf("dynamodbstore: %w", err)
	}
	return &Store{s}, nil
}

// Create makes the table, billed per request and with its items' time to live, and waits until it is there. A table
// that exists is left as it is.
func Create(ctx context.Context, c Creator, table string) error {
	return dynamodb.Create(ctx, c, table)
}

// Backend is for package sluice.
func (s *Store) Backend() store.Backend {
	return store.Backend{Name: "DynamoDB", Counters: s.inner, Metered: true}
}
