package bench

import (
	"context"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/cellconfig"
)

// Commit implements [cellconfig.Store].
func (c *cellStore) Commit(ctx context.Context, step cellconfig.Step) error {
	err := c.Store.Commit(ctx, step)
	if err == nil {
		c.commits.Add(1)
	}
	return err
}

// slowTable is a cell's table whose calls take about as long as DynamoDB's in the same region, or a little longer.
type slowTable struct{ cellconfig.Store }

const (
	readDelay  = 5 * time.Millisecond
	writeDelay = 25 * time.Millisecond // every write is a transaction
)

// Head implements [cellconfig.Table].
func (s slowTable) Head(ctx context.Context) (cellconfig.Head, error) {
	<-time.After(readDelay)
	return s.Store.Head(ctx)
}

// Log implements [cellconfig.Table].
func (s slowTable) Log(ctx context.Context, after, upTo int64) ([]cellconfig.Entry, error) {
	<-time.After(readDelay)
	return s.Store.Log(ctx, after, upTo)
}

// Get implements [cellconfig.Table].
func (s slowTable) Get(ctx context.Context, refs ...cellconfig.Ref) ([]cellconfig.Document, error) {
	<-time.After(readDelay)
	return s.Store.Get(ctx, refs...)
}

// Commit implements [cellconfig.Store].
func (s slowTable) Commit(ctx context.Context, step cellconfig.Step) error {
	<-time.After(writeDelay)
	return s.Store.Commit(ctx, step)
}
