// Package caller tells a handler behind Sluice's middleware who calls. The middleware has verified the caller.
package caller

import "context"

// Caller says who calls.
type Caller struct {
	Tenant      string // "" if Anonymous
	Subject     string // "" if nobody in particular
	Plan        string // id of the plan whose limits applied
	KeyID       string // id of the API key that the caller sent; "" if the caller sent no key
	Anonymous   bool   // the caller is not identified: the anonymousPlan applies, or ipLimits alone
	StoreFailed bool   // the limits' store did not answer, and each limit's onStoreFailure applied
}

type key struct{}

// NewContext returns a context that carries the caller. It is for middleware, and for tests of handlers.
func NewContext(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, key{}, c)
}

// FromContext returns the caller. It returns false if no middleware of Sluice is in front of the handler.
func FromContext(ctx context.Context) (Caller, bool) {
	c, ok := ctx.Value(key{}).(Caller)
	return c, ok
}
