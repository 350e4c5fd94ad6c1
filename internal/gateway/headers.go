package gateway

import (
	"net/http"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/caller"
	"github.com/sluicelimits/sluice/internal/request/forward"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// cleanHeaders removes the credential from a request, which the backend does not need, and writes the headers that name
// the caller. These replace headers of the same names that the client sent.
func cleanHeaders(h http.Header, a *authorizer.Answer) {
	if !a.Anonymous {
		delete(h, identity.APIKeyHeader)
		delete(h, "Authorization")
	}
	forward.Write(h, &caller.Caller{Tenant: a.Tenant, Subject: a.Subject, Plan: a.Plan, KeyID: a.KeyID,
		Anonymous: a.Anonymous, StoreFailed: a.StoreFailed})
}
