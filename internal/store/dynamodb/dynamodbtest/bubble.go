package dynamodbtest

import (
	"context"
	"math/rand/v2"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
)

// Bubble is a client for bubbles of testing/synctest. Its calls are made outside, while time stands still in the bubble;
// there they take as long as they would take to DynamoDB, whatever else this machine does.
type Bubble struct {
	made  time.Time
	meter *Meter
	away  time.Duration
	calls chan call
	free  chan chan struct{} // what calls wait on: no bubble may own a channel that others use
}

type call struct {
	make func()
	done chan struct{}
}

const outside = 32 // calls at a time

// NewBubble makes a client whose calls take away, and up to half as long again, in the bubble. Call it outside, and stop there
// when no call is under way.
func NewBubble(m *Meter, away time.Duration) (b *Bubble, stop func()) {
	b = &Bubble{made: time.Now(), meter: m, away: away, calls: make(chan call), free: make(chan chan struct{}, outside)}
	for range outside {
		b.free <- make(chan struct{})
		go func() {
			for c := range b.calls {
				c.make()
				c.done <- struct{}{}
			}
		}()
	}
	return b, func() { close(b.calls) }
}

// Enter has the bubble's clock, which begins in the year 2000, go on to the time outside: items are garbage when their ttl is
// past. Call it in the bubble, first of all.
func (b *Bubble) Enter() { time.Sleep(time.Until(b.made)) }

// through makes a call, half-way through the time that it takes.
func (b *Bubble) through(ctx context.Context, f func()) error {
	half := (b.away + rand.N(b.away/2+1)) / 2
	if err := wait(ctx, half); err != nil {
		return err
	}
	done := <-b.free
	b.calls <- call{f, done}
	<-done
	b.free <- done
	return wait(ctx, half)
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// UpdateItem is the meter's, made outside.
func (b *Bubble) UpdateItem(ctx context.Context, in *sdk.UpdateItemInput, o ...func(*sdk.Options)) (out *sdk.UpdateItemOutput, err error) {
	if failed := b.through(ctx, func() { out, err = b.meter.UpdateItem(context.Background(), in, o...) }); failed != nil {
		return nil, failed
	}
	return out, err
}

// GetItem is the meter's, made outside.
func (b *Bubble) GetItem(ctx context.Context, in *sdk.GetItemInput, o ...func(*sdk.Options)) (out *sdk.GetItemOutput, err error) {
	if failed := b.through(ctx, func() { out, err = b.meter.GetItem(context.Background(), in, o...) }); failed != nil {
		return nil, failed
	}
	return out, err
}

// TransactWriteItems is the meter's, made outside.
func (b *Bubble) TransactWriteItems(
	ctx context.Context, in *sdk.TransactWriteItemsInput, o ...func(*sdk.Options),
) (out *sdk.TransactWriteItemsOutput, err error) {
	if failed := b.through(ctx, func() { out, err = b.meter.TransactWriteItems(context.Background(), in, o...) }); failed != nil {
		return nil, failed
	}
	return out, err
}
