package awspacer_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sluicelimits/sluice/pacer"
	"github.com/sluicelimits/sluice/pacer/awspacer"
)

// service answers the requests of a client, one reply after the other, and remembers when each request came.
type service struct {
	replies []reply // the last one is repeated
	came    []time.Time
}

type reply struct {
	status int
	kind   string // of the error; "": none
	header http.Header
}

func (s *service) Do(r *http.Request) (*http.Response, error) {
	s.came = append(s.came, time.Now())
	next := s.replies[0]
	if len(s.replies) > 1 {
		s.replies = s.replies[1:]
	}
	h := next.header.Clone()
	if h == nil {
		h = http.Header{}
	}
	body := `{"QueueUrl":"http://localhost/q"}`
	if next.kind != "" {
		h.Set("X-Amzn-Errortype", next.kind)
		body = `{"__type":"` + next.kind + `"}`
	}
	return &http.Response{StatusCode: next.status, Header: h, Body: io.NopCloser(strings.NewReader(body)), Request: r},
		nil
}

// client returns a client of the service whose attempts wait for a pacer, and which retries without a delay of its own.
func client(t *testing.T, s *service, c pacer.Config, bend func(*awspacer.Retryer)) (*sqs.Client, *pacer.Pacer) {
	t.Helper()
	p, err := pacer.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	r := &awspacer.Retryer{Pacer: p, Base: retry.NewStandard(func(o *retry.StandardOptions) {
		o.Backoff = retry.BackoffDelayerFunc(func(int, error) (time.Duration, error) { return 0, nil })
	})}
	if bend != nil {
		bend(r)
	}
	return sqs.New(sqs.Options{Region: "eu-west-1", HTTPClient: s, Retryer: r,
		BaseEndpoint: aws.String("http://localhost"),
		Credentials:  credentials.NewStaticCredentialsProvider("id", "secret", "")}), p
}

func call(ctx context.Context, c *sqs.Client) error {
	_, err := c.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: aws.String("q")})
	return err
}

// Each attempt waits for its turn: with one unit per second, the retries of a call come a second apart.
func TestEachAttemptWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{replies: []reply{{status: 500, kind: "InternalFailure"}, {status: 500, kind: "InternalFailure"},
			{status: 200}}}
		c, p := client(t, s, pacer.Config{Limit: pacer.PerSecond(1)}, nil)
		began := time.Now()
		if err := call(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if len(s.came) != 3 {
			t.Fatalf("%d attempts, want 3", len(s.came))
		}
		for i, at := range s.came {
			if at.Sub(began).Truncate(time.Second) != time.Duration(i)*time.Second {
				t.Errorf("attempt %d came after %s, want one second later for each", i, at.Sub(began))
			}
		}
		if got := p.Status().Granted; got != 3 {
			t.Errorf("%d units were granted, want 3", got)
		}
	})
}

// A call that would be late fails at once, and nothing is sent. Base gets back what it gave.
func TestLateCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{replies: []reply{{status: 200}}}
		c, _ := client(t, s, pacer.Config{Limit: pacer.Limit{Units: 1, Period: time.Hour}}, nil)
		if err := call(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		err := call(ctx, c)
		var late *pacer.LateError
		if !errors.As(err, &late) || !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 0 {
			t.Errorf("after %s: %v, want a LateError at once", time.Since(began), err)
		}
		if len(s.came) != 1 {
			t.Errorf("%d requests were sent, want 1", len(s.came))
		}
	})
}

// The pacer obeys the Retry-After of a reply.
func TestObeysRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{replies: []reply{{status: 503, kind: "Busy", header: http.Header{"Retry-After": {"7"}}},
			{status: 200}}}
		c, _ := client(t, s, pacer.Config{Limit: pacer.PerSecond(100)}, nil)
		began := time.Now()
		if err := call(t.Context(), c); err != nil || time.Since(began) < 7*time.Second {
			t.Errorf("after %s: %v, want a reply after the 7 s of Retry-After", time.Since(began), err)
		}
	})
}

// Keys and costs may depend on the operation. A Base of the first version of the interface will do.
func TestKeysAndCosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{replies: []reply{{status: 200}}}
		var key string
		c, p := client(t, s, pacer.Config{Limit: pacer.PerSecond(100)}, func(r *awspacer.Retryer) {
			r.Base = struct{ aws.Retryer }{r.Base}
			r.Key = func(ctx context.Context) string {
				key = middleware.GetOperationName(ctx)
				return key
			}
			r.Cost = func(context.Context) int64 { return 5 }
		})
		if err := call(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if got := p.Status().Granted; got != 5 || key != "GetQueueUrl" {
			t.Errorf("%d units were granted for key %q, want 5 for GetQueueUrl", got, key)
		}
	})
}
