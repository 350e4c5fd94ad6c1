package lambdaremote_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/lambda/types"
	"go.uber.org/goleak"

	"github.com/sluicelimits/sluice/internal/dev/gateway/stage"
	"github.com/sluicelimits/sluice/internal/dev/lambdahost"
	"github.com/sluicelimits/sluice/internal/dev/lambdaremote"
)

var _ stage.Function = (*lambdaremote.Function)(nil)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// reply is an answer of the service to a call.
type reply struct {
	status int
	header map[string]string
	body   string
	hangs  bool // does not answer until the caller gives up
	cuts   bool // closes the connection instead of answering
}

// service is a stand-in for Lambda's Invoke API. It gives the same answer to every call.
type service struct {
	reply
	arrived   chan struct{} // closed when the only call of a service that hangs arrives
	connected atomic.Int64

	mu       sync.Mutex
	requests []*http.Request
	payloads [][]byte
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	payload, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	s.mu.Lock()
	s.requests, s.payloads = append(s.requests, r), append(s.payloads, payload)
	s.mu.Unlock()
	if s.hangs {
		close(s.arrived)
		<-r.Context().Done()
	}
	if s.hangs || s.cuts {
		panic(http.ErrAbortHandler)
	}
	for name, v := range s.header {
		w.Header().Set(name, v)
	}
	w.WriteHeader(s.status)
	_, _ = io.WriteString(w, s.body) // the caller may be gone
}

func (s *service) calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requests)
}

// client returns a client of the service that connects as the SDK does by default. Its configuration has retries, which
// calls must not use.
func client(t *testing.T, s *service) *lambdaremote.Client {
	t.Helper()
	server := httptest.NewUnstartedServer(s)
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.connected.Add(1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	return lambdaremote.New(aws.Config{Region: "eu-west-1", BaseEndpoint: &server.URL, RetryMaxAttempts: 5,
		Credentials: credentials.NewStaticCredentialsProvider("AKIDEXAMPLE", "secret", "")})
}

const name = "sluice-eu-1-authorizer"

// Guarantees that a call is made as Lambda documents it: synchronous and signed, with the event unchanged and the trace
// id passed on.
func TestInvoke(t *testing.T) {
	s := &service{reply: reply{status: 200, header: map[string]string{"X-Amz-Executed-Version": "$LATEST"},
		body: ` {"isAuthorized":true} `}}
	out, err := client(t, s).Function(name+":live").Invoke(lambdahost.WithTraceID(t.Context(), "Root=1-2-3"),
		[]byte(`{"a":"é"}`))
	if err != nil || string(out) != s.body {
		t.Fatalf("Invoke = %q, %v", out, err)
	}
	r := s.requests[0]
	if r.Method != "POST" || r.URL.EscapedPath() != "/2015-03-31/functions/"+name+"%3Alive/invocations" ||
		string(s.payloads[0]) != `{"a":"é"}` ||
		r.Header.Get("X-Amz-Invocation-Type") != "RequestResponse" || r.Header.Get("X-Amzn-Trace-Id") != "Root=1-2-3" ||
		!strings.Contains(r.Header.Get("Authorization"), "Credential=AKIDEXAMPLE/") ||
		!strings.Contains(r.Header.Get("Authorization"), "/eu-west-1/lambda/aws4_request") {
		t.Errorf("the request is %s %s, payload %q, headers %v", r.Method, r.URL, s.payloads[0], r.Header)
	}
	if _, err := client(t, s).Function(name).Invoke(t.Context(), []byte("{}")); err != nil ||
		s.requests[1].Header["X-Amzn-Trace-Id"] != nil {
		t.Errorf("a call without a trace id: error %v, headers %v", err, s.requests[1].Header)
	}
}

// Guarantees that every failed call gives an error that says which function failed and why, after a single call. If the
// answer of a call is lost, repeating the call could charge a request twice.
func TestFailures(t *testing.T) {
	unhandled := map[string]string{"X-Amz-Function-Error": "Unhandled", "X-Amzn-Requestid": "r-1"}
	for _, tt := range []struct {
		name string
		s    reply
		kind lambdahost.Kind // 0: the function reported no error
		want string
	}{
		{"Unauthorized", reply{status: 200, header: unhandled,
			body: `{"errorMessage":"Unauthorized","errorType":"errorString"}`}, lambdahost.Reported, "errorString: " +
			"Unauthorized (request r-1)"},
		{"an error without a type", reply{status: 200, header: unhandled, body: `{"errorMessage":"no"}`},
			lambdahost.Reported, "Runtime.Unknown: no"},
		{"an error that is none", reply{status: 200, header: unhandled, body: `<p>`}, lambdahost.Reported,
			"not a JSON document"},
		{"an error that is handled", reply{status: 200, header: map[string]string{"X-Amz-Function-Error": "Handled"},
			body: `{"errorMessage":"Unauthorized"}`}, lambdahost.Reported, "Unauthorized"},
		{"timeout", reply{status: 200, header: unhandled,
			body: `{"errorType":"Sandbox.Timedout","errorMessage":"RequestId: r Error: Task timed out after 3.00 ` +
				`seconds"}`}, lambdahost.TimedOut, "timed out"},
		{"exit", reply{status: 200, header: unhandled,
			body: `{"errorType":"Runtime.ExitError","errorMessage":"Unauthorized"}`}, lambdahost.Exited, "process " +
			"ended"},
		{"no binary", reply{status: 200, header: unhandled,
			body: `{"errorType":"Runtime.InvalidEntrypoint","errorMessage":"x"}`}, lambdahost.InitFailed, "init " +
			"failed"},
		{"large answer", reply{status: 200, header: unhandled,
			body: `{"errorType":"Function.ResponseSizeTooLarge","errorMessage":"x"}`}, lambdahost.ResponseSize,
			"too large"},
		{"throttled", reply{status: 429, header: map[string]string{"X-Amzn-Errortype": "TooManyRequestsException"},
			body: `{"Reason":"ReservedFunctionConcurrentInvocationLimitExceeded","Type":"User","message":"Rate ` +
				`Exceeded."}`}, 0, "Rate Exceeded."},
		{"the service fails", reply{status: 500, header: map[string]string{"X-Amzn-Errortype": "ServiceException"},
			body: `{"Message":"Unauthorized"}`}, 0, "ServiceException: Unauthorized"},
		{"no such function", reply{status: 404,
			header: map[string]string{"X-Amzn-Errortype": "ResourceNotFoundException"},
			body:   `{"Message":"Function not found"}`}, 0, "Function not found"},
		{"a 500 that is no answer of Lambda's", reply{status: 500, body: "<html>"}, 0, "500"},
		{"a 403 that is no answer of Lambda's", reply{status: 403, body: "\x00"}, 0, "403"},
		{"an event that was only taken", reply{status: 202}, 0, "status 202"},
		{"no answer", reply{cuts: true}, 0, "EOF"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &service{reply: tt.s}
			_, err := client(t, s).Function(name).Invoke(t.Context(), []byte("{}"))
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), name) ||
				strings.Contains(err.Error(), "AKID") {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			var e *lambdahost.Error
			if failed := errors.As(err, &e); failed != (tt.kind != 0) || failed && e.Kind != tt.kind {
				t.Errorf("got %v, want the kind %v", err, tt.kind)
			}
			var throttled *types.TooManyRequestsException
			if errors.As(err, &throttled) != (tt.s.status == 429) {
				t.Errorf("the error of a throttled call is %v", err)
			}
			if n := s.calls(); n != 1 {
				t.Errorf("%d calls were made, want 1", n)
			}
		})
	}
}

// Guarantees that the gateway answers a failed call of the authorizer as API Gateway does: 401 if the function's error
// is exactly the text "Unauthorized", and 500 for every other error, even one that contains that text.
func TestFailuresAtTheGateway(t *testing.T) {
	unhandled := map[string]string{"X-Amz-Function-Error": "Unhandled"}
	for _, tt := range []struct {
		name string
		s    reply
		want int
	}{
		{"Unauthorized", reply{status: 200, header: unhandled,
			body: `{"errorMessage":"Unauthorized","errorType":"errorString"}`}, 401},
		{"another text", reply{status: 200, header: unhandled,
			body: `{"errorMessage":"Unauthorized.","errorType":"errorString"}`}, 500},
		{"the text of a process that ended", reply{status: 200, header: unhandled,
			body: `{"errorMessage":"Unauthorized","errorType":"Runtime.ExitError"}`}, 500},
		{"the text of the service", reply{status: 500, body: `{"message":"Unauthorized"}`}, 500},
		{"the text as an answer", reply{status: 200, body: `"Unauthorized"`}, 500},
		{"allowed", reply{status: 200, body: `{"principalId":"p","policyDocument":{"Statement":{"Effect":"Allow",` +
			`"Action":"*","Resource":"*"}}}`}, 204},
	} {
		d, err := stage.Parse("api.yaml", []byte(`{kind: REST, authorizers: {a: {function: f, resultTtlInSeconds: 0}},
			routes: [{route: GET /x, authorizer: a, integration: {type: MOCK, statusCode: "204"}}]}`))
		if err != nil {
			t.Fatal(err)
		}
		gateway, err := stage.New(stage.Config{Description: d,
			Functions: map[string]stage.Function{"f": client(t, &service{reply: tt.s}).Function(name)},
			Log:       slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		gateway.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/dev/x", nil))
		if w.Code != tt.want {
			t.Errorf("%s: %d %s, want %d", tt.name, w.Code, w.Body, tt.want)
		}
	}
}

// Guarantees that Invoke returns when its context ends, both before the call and during it.
func TestCallerLeaves(t *testing.T) {
	s := &service{reply: reply{hangs: true}, arrived: make(chan struct{})}
	f := client(t, s).Function(name)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := f.Invoke(ctx, []byte("{}"))
		done <- err
	}()
	<-s.arrived
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Invoke whose context ended during the call: %v", err)
	}
	if _, err := f.Invoke(ctx, []byte("{}")); !errors.Is(err, context.Canceled) || s.calls() != 1 {
		t.Errorf("Invoke whose context had ended: %v, after %d calls; want no call", err, s.calls())
	}
}

// Guarantees that a payload above Lambda's bound is refused without a call, with a clear error, and that a payload of
// exactly that size is sent.
func TestTooLarge(t *testing.T) {
	s := &service{reply: reply{status: 200, body: "{}"}}
	f := client(t, s).Function(name)
	if _, err := f.Invoke(t.Context(), make([]byte, lambdahost.MaxRequestBytes+1)); !errors.Is(err,
		lambdahost.ErrTooLarge) || s.calls() != 0 {
		t.Errorf("a payload above the bound: error %v after %d calls", err, s.calls())
	}
	if _, err := f.Invoke(t.Context(), bytes.Repeat([]byte("x"), lambdahost.MaxRequestBytes)); err != nil ||
		len(s.payloads[0]) != lambdahost.MaxRequestBytes {
		t.Errorf("a payload at the bound: %v", err)
	}
}

// Guarantees that connections are reused, also by more concurrent callers than the number of idle connections that the
// SDK keeps by default. A gateway under load that opens a connection for each call would run out of ports.
func TestConnectionsAreReused(t *testing.T) {
	const callers, rounds = 40, 5
	s := &service{reply: reply{status: 200, body: "{}"}}
	c := client(t, s)
	for range rounds {
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				if _, err := c.Function(name).Invoke(t.Context(), []byte("{}")); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
	if n := s.connected.Load(); n > 2*callers || s.calls() != callers*rounds {
		t.Errorf("%d connections for %d calls by %d callers", n, s.calls(), callers)
	}
}
