package stand

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Answer is an answer that a client of a sample API got.
type Answer struct {
	Status int
	Header http.Header
	Body   string
}

// maxBody is how many bytes of an answer's body are read.
const maxBody = 64 << 10

// Call sends a request to a cell's sample API, as a tenant's client does. The request is for example "GET /product/1".
// The key is an API key, or "" for none.
func (s *Stand) Call(ctx context.Context, cell, request, key string) (*Answer, error) {
	return Call(ctx, s.client, s.API(cell), request, key)
}

// Call sends a request to an API, as a tenant's client does. It does not repeat a request that fails.
func Call(ctx context.Context, client *http.Client, api, request, key string) (*Answer, error) {
	method, path, ok := strings.Cut(request, " ")
	if !ok || api == "" {
		return nil, fmt.Errorf("a call needs a request such as GET /product/1 and an API, and has %q and %q", request,
			api)
	}
	r, err := http.NewRequestWithContext(ctx, method, api+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	if key != "" {
		r.Header.Set("X-API-Key", key)
	}
	said, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = said.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(said.Body, maxBody))
	if err != nil {
		return nil, err
	}
	return &Answer{said.StatusCode, said.Header, string(body)}, nil
}

// ErrNever is the error of Until if the check did not succeed in time.
var ErrNever = errors.New("the check did not succeed")

// Until calls check at the given interval until it returns nil. If that does not happen within the timeout, the error
// wraps ErrNever and the last error of check.
func Until(ctx context.Context, timeout, interval time.Duration, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	again := time.NewTicker(interval)
	defer again.Stop()
	var last error
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err // a check that the timeout interrupted has no useful error
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w within %s: %w", ErrNever, timeout, last)
		case <-again.C:
		}
	}
}
