package caller_test

import (
	"context"
	"testing"

	"github.com/sluicelimits/sluice/caller"
)

// Guarantees that FromContext reports whether the context has a caller. Otherwise a request without a caller would
// look like one of a tenant without a name.
func TestFromContext(t *testing.T) {
	if c, ok := caller.FromContext(context.Background()); ok {
		t.Errorf("FromContext of a bare context = %+v, true", c)
	}
	want := caller.Caller{Tenant: "acme", Subject: "ci", Plan: "pro", KeyID: "k1", StoreFailed: true}
	if c, ok := caller.FromContext(caller.NewContext(context.Background(), want)); !ok || c != want {
		t.Errorf("FromContext = %+v, %v; want %+v", c, ok, want)
	}
}
