package pacer

import (
	"net/http"
	"time"
)

// Transport is an [http.RoundTripper] whose requests wait for their turn. It passes the replies to [Pacer.Observe]. It
// sends each request once: the caller decides whether to try again after a refusal.
type Transport struct {
	Pacer *Pacer

	// Base sends the requests. If nil, http.DefaultTransport does.
	Base http.RoundTripper

	// Key returns the key of a request. If nil, all requests have the key "".
	Key func(*http.Request) string

	// Cost returns the cost of a request, in units. If nil, each costs 1.
	Cost func(*http.Request) int64
}

// RoundTrip waits until the request may be sent, and sends it. It returns the errors of [Pacer.Acquire] and of Base.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	key, cost := "", int64(1)
	if t.Key != nil {
		key = t.Key(r)
	}
	if t.Cost != nil {
		cost = t.Cost(r)
	}
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	var permit Permit
	for !permit.InTime() {
		permit.Release() // the goroutine was suspended until it was too late to send the request
		var err error
		if permit, err = t.Pacer.Acquire(r.Context(), key, cost); err != nil {
			if r.Body != nil {
				_ = r.Body.Close() // a RoundTripper must close the body even if it does not send the request
			}
			return nil, err
		}
	}
	resp, err := base.RoundTrip(r)
	if err != nil {
		return nil, err // the provider may have counted the request, so its units are spent
	}
	t.Pacer.Observe(Reply{Header: resp.Header, Permit: permit, Received: time.Now()})
	return resp, nil
}
