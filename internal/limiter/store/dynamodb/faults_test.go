package dynamodb_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
)

// startProxy is a proxy in front of the DynamoDB under test. fault decides what happens to a call, and returns true if
// it has answered the call itself.
func startProxy(t *testing.T, fault func(w http.ResponseWriter, r *http.Request, forward http.Handler) bool) string {
	target, err := url.Parse(dynamodbtest.Need(t))
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	proxy := &httputil.ReverseProxy{
		Transport:    transport,
		Rewrite:      func(r *httputil.ProxyRequest) { r.SetURL(target) },
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !fault(w, r, proxy) {
			proxy.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(func() { s.CloseClientConnections(); s.Close(); transport.CloseIdleConnections() })
	return s.URL
}

func isUpdate(r *http.Request) bool {
	return strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".UpdateItem")
}

// Guarantees that throttling is an error of the store, returned after one call. A retry by the SDK would use up the
// time limit, and more of the capacity that is short.
func TestThrottled(t *testing.T) {
	server(t)
	var calls atomic.Int64
	at := startProxy(t, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) bool {
		calls.Add(1)
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"__type":"com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException",`+
			`"message":"too fast"}`)
		return true
	})
	s := open(t, config(connect(t, at)))
	var d limit.Decision
	err := s.Decide(t.Context(), requestOne(window(t, "five", 5)), noon, &d)
	var throttled *types.ProvisionedThroughputExceededException
	if !errors.As(err, &throttled) || d.Allowed {
		t.Errorf("Decide = %v, allowed %t; want a ProvisionedThroughputExceededException", err, d.Allowed)
	}
	if calls.Load() != 1 {
		t.Errorf("%d calls, want 1: no retries on this path", calls.Load())
	}
}

// Guarantees that a table that does not answer delays a request no longer than its time limit, and leaves no goroutine
// waiting (which TestMain checks).
func TestStalled(t *testing.T) {
	server(t)
	release := make(chan struct{})
	at := startProxy(t, func(_ http.ResponseWriter, r *http.Request, _ http.Handler) bool {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-release:
		case <-r.Context().Done():
		}
		return true
	})
	defer close(release)
	c := config(connect(t, at))
	c.Timeout = 100 * time.Millisecond
	s := open(t, c)
	user := must(t, limit.Limit{ID: "user", Per: "subject",
		Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: 5, Period: time.Second}}})
	for name, req := range map[string]*limit.Request{
		"one item": requestOne(window(t, "five", 5)),
		"a transaction": {Owner: acme, Charges: []limit.Charge{{Limit: window(t, "five", 5), Cost: 1},
			{Limit: user, Value: limit.ValueOf("u"), Cost: 1}}},
	} {
		begin := time.Now()
		var d limit.Decision
		err := s.Decide(t.Context(), req, noon, &d)
		if !errors.Is(err, context.DeadlineExceeded) || d.Allowed {
			t.Errorf("%s: Decide = %v, allowed %t; want the deadline", name, err, d.Allowed)
		}
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("%s: the decision took %s, want at most its time limit of %s", name, took, c.Timeout)
		}
	}
}

// breakOff begins an answer, and resets the connection in the middle of it.
func breakOff(t *testing.T, w http.ResponseWriter) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		t.Error(err)
		return
	}
	_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{\"Attr")
	_ = conn.(*net.TCPConn).SetLinger(0) // so that Close resets the connection
	conn.Close()
}

// Guarantees that an item is read a second time if the answer is cut off, but not a third time.
func TestReadBreaksOff(t *testing.T) {
	server(t)
	var left, calls atomic.Int64
	at := startProxy(t, func(w http.ResponseWriter, r *http.Request, _ http.Handler) bool {
		if !strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".GetItem") {
			return false
		}
		calls.Add(1)
		if left.Add(-1) < 0 {
			return false
		}
		_, _ = io.Copy(io.Discard, r.Body) // the answer is to break off, not the request
		breakOff(t, w)
		return true
	})
	s, l := open(t, config(connect(t, at))), window(t, "five", 5)
	for _, c := range []struct {
		breaks, calls int64
		fails         bool
	}{{1, 2, false}, {2, 2, true}} {
		left.Store(c.breaks)
		calls.Store(0)
		var d limit.Decision
		if err := s.Peek(t.Context(), requestOne(l), noon, &d); (err != nil) != c.fails || calls.Load() != c.calls {
			t.Errorf("%d answers break off: %d calls and %v; want %d calls, an error %t", c.breaks, calls.Load(), err,
				c.calls, c.fails)
		}
	}
}

// Guarantees that a connection which is reset after the write was carried out costs the units and an error, but nothing
// more: the units are not charged twice, and the store works for the next request.
func TestResetInMidReply(t *testing.T) {
	direct := server(t)
	var broken atomic.Bool
	at := startProxy(t, func(w http.ResponseWriter, r *http.Request, forward http.Handler) bool {
		if !broken.Load() || !isUpdate(r) {
			return false
		}
		forward.ServeHTTP(httptest.NewRecorder(), r) // the write is carried out
		breakOff(t, w)
		return true
	})
	c := config(connect(t, at))
	s := open(t, c)
	l := window(t, "five", 5)
	var d limit.Decision
	broken.Store(true)
	if err := s.Decide(t.Context(), requestOne(l), noon, &d); err == nil || d.Allowed {
		t.Errorf("Decide = %v, allowed %t; want an error", err, d.Allowed)
	}
	broken.Store(false)
	c.Client = direct
	if err := open(t, c).Peek(t.Context(), requestOne(l), noon, &d); err != nil || d.Results[0].Remaining() != 4 {
		t.Errorf("after one write whose reply was lost: %v, %d of 5 remain, want 4", err, d.Results[0].Remaining())
	}
	for i := range 5 {
		if err := s.Decide(t.Context(), requestOne(l), noon, &d); err != nil || d.Allowed != (i < 4) {
			t.Errorf("decision %d after the reset: %v, allowed %t; want it allowed", i+1, err, d.Allowed)
		}
	}
}

// answersEarly is an HTTP client that closes the body of a request when its last byte was read, as the SDK does when
// the reply begins early, and then reads on, as net/http does.
type answersEarly struct{ err error }

func (c *answersEarly) Do(r *http.Request) (*http.Response, error) {
	if _, err := io.CopyN(io.Discard, r.Body, r.ContentLength); err != nil {
		return nil, err
	}
	if err := r.Body.Close(); err != nil {
		return nil, err
	}
	_, c.err = io.Copy(io.Discard, r.Body)
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("{}"))}, nil
}

// Guarantees that a decision that DynamoDB has charged is no error if the reply begins before net/http has seen the end
// of the request: see plainBodies.
func TestReplyBeforeEndOfRequest(t *testing.T) {
	early := new(answersEarly)
	s := open(t, config(sdk.New(sdk.Options{
		Region: "eu-west-1", HTTPClient: early, Credentials: credentials.NewStaticCredentialsProvider("a", "b", ""),
	})))
	var d limit.Decision
	if err := s.Decide(t.Context(), requestOne(window(t, "five", 5)), noon, &d); err != nil || !d.Allowed {
		t.Errorf("Decide = %v, allowed %t; want it allowed", err, d.Allowed)
	}
	if early.err != nil {
		t.Errorf("reading on after the last byte of the request: %v, want no error", early.err)
	}
}
