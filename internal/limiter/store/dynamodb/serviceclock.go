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

// serviceClock corrects this machine's clock by the Date header of DynamoDB's replies. A Date has whole seconds, and
// the reply takes a while to arrive. A reply therefore says only that DynamoDB's clock is ahead of this machine's by
// something between Date − received and Date + 1 s − sent. The correction is the smallest change that the recent
// replies allow. It is zero for a clock that is right, and brings a clock that is wrong to within a second of
// DynamoDB's.
type serviceClock struct {
	correction  atomic.Int64 // added to this machine's time, µs
	hasObserved atomic.Bool  // a reply was taken into account
}

const maxImmediateStep = 10_000 // µs; of a larger change of the correction, one reply makes only half

// offset returns what to add to this machine's time, µs.
func (s *serviceClock) offset() int64 { return s.correction.Load() }

// observe takes one reply into account. The first reply sets the correction. A later reply moves the correction into
// the range that the reply allows, but by a step above maxImmediateStep only half of the way. A single wrong Date
// therefore has at most half of its effect, and later replies undo it.
func (s *serviceClock) observe(date, sent, received time.Time) {
	low := date.Sub(received.Round(0)).Microseconds()
	high := date.Add(time.Second).Sub(sent.Round(0)).Microseconds()
	if low > high { // this machine's clock was set between sent and received
		return
	}
	old := s.correction.Load()
	to := min(max(old, low), high)
	gap := to - old
	if (gap > maxImmediateStep || gap < -maxImmediateStep) && !s.hasObserved.CompareAndSwap(false, true) {
		to = old + gap/2
	}
	s.hasObserved.Store(true)
	s.correction.CompareAndSwap(old, to)
}

// observeReplies is an option of an SDK call that passes the Date of its reply to observe.
func (s *serviceClock) observeReplies(o *dynamodb.Options) {
	o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error {
		return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("SluiceClock",
			func(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler) (
				middleware.DeserializeOutput, middleware.Metadata, error,
			) {
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
