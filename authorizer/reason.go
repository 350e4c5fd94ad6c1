package authorizer

import (
	"errors"

	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/request/identity/token"
)

// Reasons of [Answer.Reason] that no error of package identity or package token stands for.
const (
	reasonNone          = "no_credential"
	reasonNobody        = "nobody_can_be_identified" // the configuration identifies nobody; see ignoreCredentials
	reasonTwoKeys       = "two_different_keys"
	reasonOtherTenant   = "token_and_key_of_different_tenants"
	reasonTokenUnwanted = "token_not_accepted_here" // a JWT, and there is no issuer
	reasonOther         = "credential_refused"      // an error that is not in the table below
)

// reasons gives each error by which a credential is refused the word that logs have for it. Logs may hold the word, and
// must not hold the error's text, which may contain what a client presented.
var reasons = []struct {
	err  error
	name string
}{
	{identity.ErrBadCredential, "credential_malformed"},
	{identity.ErrMalformedKey, "key_malformed"},
	{identity.ErrUnknownKey, "key_unknown"},
	{identity.ErrExpiredKey, "key_expired"},
	{identity.ErrRevokedKey, "key_revoked"},
	{token.ErrTooLarge, "token_too_large"},
	{token.ErrMalformed, "token_malformed"},
	{token.ErrAlgorithm, "token_algorithm"},
	{token.ErrIssuer, "token_issuer"},
	{token.ErrAudience, "token_audience"},
	{token.ErrNoExpiry, "token_without_expiry"},
	{token.ErrExpired, "token_expired"},
	{token.ErrNotYetValid, "token_not_yet_valid"},
	{token.ErrTenant, "token_without_tenant"},
	{token.ErrNotBound, "token_issuer_not_bound_to_tenant"},
	{token.ErrSubject, "token_without_subject"},
	{token.ErrUnknownKey, "token_key_unknown"},
	{token.ErrSignature, "token_signature"},
}

// reasonOf returns the word for an error by which a credential is refused.
func reasonOf(err error) string {
	for _, r := range reasons {
		if errors.Is(err, r.err) {
			return r.name
		}
	}
	return reasonOther
}
