package dynamodb

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// serviceClock corrects this machine's clock by the Date of the service's replies. A Date has whole seconds and the
// reply was on its way for a while, so each reply says only that the service's clock is ahead by something within
// [Date − received, Date + 1 s − sent]. The correction is the least that every recent reply allows: none for a clock
// that is right, and for one that is wrong it ends within a second of the truth.
type serviceClock struct {
	correction  atomic.Int64
	hasObserved atomic.Bool
}

const maxImmediateStep = 10_000 // µs; corrections up to this are made at once

// offset is what to add to this machine's time, µs.
func (s *serviceClock) offset() int64 { return s.correction.Load() }

// observe takes one reply into account. The first is believed; later ones move the correction halfway to what they
// allow, so that one wrong Date cannot move the clock by more than half of its error, and the next ones move it back.
func (s *serviceClock) observe(date, sent, received time.Time) {
	low := date.Sub(received.Round(0)).Microseconds()
	high := date.Add(time.Second).Sub(sent.Round(0)).Microseconds()
	if low > high { // this machine's clock was set meanwhile
		return
	}
	old := s.correction.Load()
	to := min(max(old, low), high)
	if gap := to - old; (gap > maxImmediateStep || gap < -maxImmediateStep) && !s.hasObserved.CompareAndSwap(false, true) {
		to = old + gap/2
	}
	s.hasObserved.Store(true)
	s.correction.CompareAndSwap(old, to)
}

// watch is an option of a call: it looks at the reply's Date.
func (s *serviceClock) observeReplies(o *dynamodb.Options) {
	o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error {
		return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("SluiceClock",
			func(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler) (middleware.DeserializeOutput, middleware.Metadata, error) {
				sent := time.Now()
				out, meta, err := next.HandleDeserialize(ctx, in)
				if reply, ok := out.RawResponse.(*smithyhttp.Response); ok && reply != nil && reply.Response != nil {
					if date, e := http.ParseTime(reply.Header.Get("Date")); e == nil {
						s.observe(date, sent, time.Now())
					}
				}
				return out, meta, err
			}), middleware.After)
	})
}
