package gateway

import (
	"net/http"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/caller"
	"github.com/sluicelimits/sluice/internal/request/forward"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// cleanHeaders takes out of a request what the backend must only believe from us, and the credential, which it does not
// need; then it writes who calls.
func cleanHeaders(h http.Header, a *authorizer.Answer) {
	if !a.Anonymous {
		delete(h, identity.APIKeyHeader)
		delete(h, "Authorization")
	}
	forward.Write(h, &caller.Caller{Tenant: a.Tenant, Subject: a.Subject, Plan: a.Plan, KeyID: a.KeyID,
		Anonymous:   a.Anonymous,
		StoreFailed: a.StoreFailed})
}
