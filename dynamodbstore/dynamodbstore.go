// Package dynamodbstore keeps the counters of package sluice in a DynamoDB table. All processes that share the table
// enforce each limit together.
//
// A decision takes at most one conditional write. Most decisions need none, because units are leased. The counters of
// ipLimits are in the memory of each process, unless Config.IPLimits puts them into the table.
package dynamodbstore

import (
	"context"
	"fmt"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/sluicelimits/sluice/internal/limiter/store"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
)

// DefaultTimeout is how long a decision waits for the table if Config.Timeout is 0.
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

// Config says which table holds the counters.
type Config struct {
	Client Client // required; *dynamodb.Client
	Table  string // required; see [Create]

	// Namespace separates the counters of several programs in one table; any text up to 64 bytes.
	Namespace string

	// IPLimits counts ipLimits in the table, too, so that all processes count the attempts of an address together. An
	// attempt then costs up to one write, which you pay and an attacker causes. By default each process counts them in
	// its memory.
	IPLimits bool

	// Timeout bounds a decision; default DefaultTimeout. If the table does not answer by then, each limit's
	// onStoreFailure decides.
	Timeout time.Duration
}

// Store is a store for sluice.Config.Store. It is safe for concurrent use and need not be closed. Make it with [New].
type Store struct {
	inner    *dynamodb.Store
	ipLimits bool
}

// New makes a store on a table, without a call to it. The error names the field.
func New(c Config) (*Store, error) {
	s, err := dynamodb.New(dynamodb.Config{Client: c.Client, Table: c.Table, Namespace: c.Namespace,
		Timeout: c.Timeout})
	if err != nil {
		return nil, fmt.Errorf("dynamodbstore: %w", err)
	}
	return &Store{s, c.IPLimits}, nil
}

// Create makes the table, billed per request, with expiry of old items (TTL), and waits until the table is active. It
// does not change a table that exists.
func Create(ctx context.Context, c Creator, table string) error {
	return dynamodb.Create(ctx, c, table)
}

// Backend is for package sluice.
func (s *Store) Backend() store.Backend {
	return store.Backend{Name: "DynamoDB", Counters: s.inner, Keeper: s.inner, Metered: !s.ipLimits}
}
