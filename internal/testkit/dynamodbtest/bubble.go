package dynamodbtest

import (
	"context"
	"math/rand/v2"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
)

// Bubble is a client for bubbles of testing/synctest. It makes its calls outside of the bubble, while the bubble's time
// stands still. In the time of the bubble, a call takes as long as a call to DynamoDB would, even if this machine is
// busy.
type Bubble struct {
	made  time.Time
	meter *Meter
	away  time.Duration
	calls chan call
	free  chan chan struct{} // channels on which calls wait; a bubble must not own a channel that others use
}

type call struct {
	make func()
	done chan struct{}
}

const outside = 32 // most calls at a time

// NewBubble makes a client whose calls take between away and one and a half times away in the bubble. Call it outside
// of the bubble, and call stop there when no call is under way.
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

// Enter advances the bubble's clock, which begins in the year 2000, to the time outside, because DynamoDB deletes items
// whose ttl is past. Call it in the bubble before anything else.
func (b *Bubble) Enter() { time.Sleep(time.Until(b.made)) }

// through makes a call half-way through the time that the call takes.
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

// UpdateItem calls the meter outside of the bubble.
func (b *Bubble) UpdateItem(
	ctx context.Context, in *sdk.UpdateItemInput, o ...func(*sdk.Options),
) (out *sdk.UpdateItemOutput, err error) {
	if failed := b.through(ctx, func() {
		out, err = b.meter.UpdateItem(context.Background(), in,
			o...)
	}); failed != nil {
		return nil, failed
	}
	return out, err
}

// GetItem calls the meter outside of the bubble.
func (b *Bubble) GetItem(
	ctx context.Context, in *sdk.GetItemInput, o ...func(*sdk.Options),
) (out *sdk.GetItemOutput, err error) {
	if failed := b.through(ctx, func() { out, err = b.meter.GetItem(context.Background(), in, o...) }); failed != nil {
		return nil, failed
	}
	return out, err
}

// TransactWriteItems calls the meter outside of the bubble.
func (b *Bubble) TransactWriteItems(
	ctx context.Context, in *sdk.TransactWriteItemsInput, o ...func(*sdk.Options),
) (out *sdk.TransactWriteItemsOutput, err error) {
	if failed := b.through(ctx, func() {
		out, err = b.meter.TransactWriteItems(context.Background(), in,
			o...)
	}); failed != nil {
		return nil, failed
	}
	return out, err
}
