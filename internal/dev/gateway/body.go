package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"
)

// DefaultBodyTimeout is how long the gateway waits for the body of a request by default.
const DefaultBodyTimeout = 30 * time.Second

// bytesPerSecond is how many bytes of a body extend the wait for the rest by a second. Any usable network is faster,
// and a client that only sends a byte now and then cannot hold a connection.
const bytesPerSecond = 1 << 10

// ErrSlowBody is the error of reading a body for which the gateway has waited too long.
var ErrSlowBody = errors.New("the body of the request did not arrive in time")

// limitWaiting returns a handler that lets next wait no longer than timeout for the body of a request; see [NewServer].
func limitWaiting(next http.Handler, timeout time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 0 { // an upgrade has no body, either
			next.ServeHTTP(w, r)
			return
		}
		b := &timedBody{body: r.Body, conn: http.NewResponseController(w), most: timeout, left: timeout}
		b.setDeadline(time.Now().Add(timeout)) // if next does not read the body, the server does before it answers
		defer b.finish()
		// The request is copied, because the server checks whether the body of its own request has been read.
		r = r.WithContext(context.WithValue(r.Context(), bodyKey{}, b))
		r.Body = b
		next.ServeHTTP(w, r)
	})
}

// bodyKey is the key of the *timedBody in the context of a request.
type bodyKey struct{}

// cameTooLate reports whether the body of a request did not arrive in time. The server then ends the context of the
// request, as if the client were gone.
func cameTooLate(ctx context.Context) bool {
	b, ok := ctx.Value(bodyKey{}).(*timedBody)
	if !ok {
		return false
	}
	b.mu.Lock() // waits for a Read that is under way
	defer b.mu.Unlock()
	return b.late
}

// timedBody is the body of a request that has to arrive in a limited time. The time only runs while a Read waits for
// the client, not while an upstream is slow to accept what has arrived.
type timedBody struct {
	body io.ReadCloser
	conn *http.ResponseController
	most time.Duration

	mu   sync.Mutex // a proxy's transport may read while the handler ends
	left time.Duration
	done bool // the body was closed or read to its end, or the handler has ended
	late bool // a Read has failed with ErrSlowBody
}

// Read implements io.Reader. It returns ErrSlowBody after the time is over.
func (b *timedBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done {
		return b.body.Read(p) // returns an error or io.EOF at once
	}
	began := time.Now()
	b.setDeadline(began.Add(b.left))
	n, err := b.body.Read(p)
	b.left = min(b.left-time.Since(began)+time.Duration(n)*time.Second/bytesPerSecond, b.most)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		b.left, b.late, err = 0, true, ErrSlowBody
	case err == io.EOF:
		b.end()
	}
	return n, err
}

// Close implements io.Closer. The server's Close reads the rest of a body if it is short, so it needs the deadline,
// too.
func (b *timedBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done {
		return b.body.Close()
	}
	b.setDeadline(time.Now().Add(b.left))
	err := b.body.Close()
	b.end()
	return err
}

// finish lets the server read the rest of the body, for as long as there is time.
func (b *timedBody) finish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.done {
		b.done = true
		b.setDeadline(time.Now().Add(b.left))
	}
}

// end removes the deadline, since a response may take any time.
func (b *timedBody) end() {
	b.done = true
	b.setDeadline(time.Time{})
}

func (b *timedBody) setDeadline(at time.Time) {
	_ = b.conn.SetReadDeadline(at) // fails only if the connection has gone
}
