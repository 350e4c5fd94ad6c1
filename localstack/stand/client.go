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

// Answer is what a client of a sample API got.
type Answer struct {
	Status int
	Header http.Header
	Body   string
}

// maxBody is what is kept of an answer's body.
const maxBody = 64 << 10

// Call is one request of a tenant's client to a cell's sample API, "GET /product/1" say. The key is an API key; "" is
// none.
func (s *Stand) Call(ctx context.Context, cell, request, key string) (*Answer, error) {
	return Call(ctx, s.client, s.API(cell), request, key)
}

// Call is one request of a tenant's client to an API, without its being repeated.
func Call(ctx context.Context, client *http.Client, api, request, key string) (*Answer, error) {
	method, path, ok := strings.Cut(request, " ")
	if !ok || api == "" {
		return nil, fmt.Errorf("want a request such as GET /product/1 and an API, got %q and %q", request, api)
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

// ErrNever is what Until's error wraps.
var ErrNever = errors.New("it did not come about")

// Until asks again and again, at the pace given, until the answer is nil, and gives up after a time with the last one.
func Until(ctx context.Context, patience, pace time.Duration, is func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	again := time.NewTicker(pace)
	defer again.Stop()
	var last error
	for {
		err := is(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err // not that the time was up in mid-call
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w within %s: %w", ErrNever, patience, last)
		case <-again.C:
		}
	}
}
