package front

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"
)

// DefaultBodyTimeout is how long the body of a request may keep the gateway waiting, unless a flag says otherwise.
const DefaultBodyTimeout = 30 * time.Second

// bytesPerSecond is how much of a body has to arrive to earn a second of waiting back: slower than any network that
// people wait for, and fast enough that a client cannot hold a connection by a byte now and then.
const bytesPerSecond = 1 << 10

// ErrSlowBody is the error of reading a body for which the gateway has waited too long.
var ErrSlowBody = errors.New("the body of the request did not arrive in time")

// limitWaiting has next wait no longer than timeout for the body of a request, see [NewServer].
func limitWaiting(next http.Handler, timeout time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 0 { // an upgrade has no body, either
			next.ServeHTTP(w, r)
			return
		}
		b := &timedBody{body: r.Body, conn: http.NewResponseController(w), most: timeout, left: timeout}
		b.setDeadline(time.Now().Add(timeout)) // also if nobody reads the body: the server does, before it answers
		defer b.finish()
		// A copy: the server looks at the body of its own request, to know whether more of it has to be read.
		r = r.WithContext(context.WithValue(r.Context(), bodyKey{}, b))
		r.Body = b
		next.ServeHTTP(w, r)
	})
}

// bodyKey is where the context of a request has its *timedBody.
type bodyKey struct{}

// cameTooLate reports whether the body of a request did not arrive in time. The server then ends the context of the
// request, as if the client were gone.
func cameTooLate(ctx context.Context) bool {
	b, ok := ctx.Value(bodyKey{}).(*timedBody)
	if !ok {
		return false
	}
	b.mu.Lock() // until a Read that goes on knows
	defer b.mu.Unlock()
	return b.late
}

// timedBody is a body that is waited for as long as its client has time left. The time runs only while something waits
// for the client, not while an upstream is slow to take what has arrived.
type timedBody struct {
	body io.ReadCloser
	conn *http.ResponseController
	most time.Duration

	mu   sync.Mutex // a proxy's transport may read while the handler ends
	left time.Duration
	done bool // it was closed, or read to its end, or the handler has ended
	late bool // a Read has failed with ErrSlowBody
}

// Read implements io.Reader. Its error is ErrSlowBody once the time is over.
func (b *timedBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done {
		return b.body.Read(p) // waits for nothing: it is an error, or the end
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

// Close implements io.Closer. Closing reads on to the end, if that is near.
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

// finish leaves what nobody has read to the server, for as long as there is time.
func (b *timedBody) finish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.done {
		b.done = true
		b.setDeadline(time.Now().Add(b.left))
	}
}

// end takes the deadline off: a response may take as long as it likes.
func (b *timedBody) end() {
	b.done = true
	b.setDeadline(time.Time{})
}

func (b *timedBody) setDeadline(at time.Time) {
	_ = b.conn.SetReadDeadline(at) // the connection is gone where this fails
}
