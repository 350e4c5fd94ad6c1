// Package caller tells a handler behind Sluice's middleware who calls, as was verified before it.
package caller

import "context"

// Caller is who calls.
type Caller struct {
	Tenant      string // "" where Anonymous
	Subject     string // "" where nobody in particular
	Plan        string // id of the plan whose limits applied
	KeyID       string // names the API key; "" where there was none
	Anonymous   bool   // not identified: under the plans' anonymousPlan, or under ipLimits alone
	StoreFailed bool   // the limits were checked without their store
}

type key struct{}

// NewContext returns a context that carries the caller: for middleware, and for tests of handlers.
func NewContext(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, key{}, c)
}

// FromContext is who calls; false where no middleware of Sluice stands before the handler.
func FromContext(ctx context.Context) (Caller, bool) {
	c, ok := ctx.Value(key{}).(Caller)
	return c, ok
}
