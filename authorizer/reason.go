package authorizer

import (
	"errors"

	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/request/identity/token"
)

// Reasons of [Answer.Reason] that no error of package identity or package token stands for.
const (
	reasonNone   = "no_credential"
	reasonNobody = "nobody_can_be_identified" // the configuration identifies nobody; see ignoreCredentials
	reasonOther  = "credential_refused"       // an error that is not in the table below
)

// Errors by which a credential is refused that package identity and package token do not know.
var (
	errTwoKeys       = errors.New("the headers Authorization and X-API-Key hold two different API keys")
	errOtherTenant   = errors.New("the JWT and the API key are of different tenants")
	errTokenUnwanted = errors.New("the credential is a JWT, and no issuer of JWTs is configured")
	errOther         = errors.New("the credential is refused")
)

// reasons gives each error by which a credential is refused the word that logs have for it. No text of these errors
// contains what a client presented.
var reasons = []struct {
	err  error
	name string
}{
	{errTwoKeys, "two_different_keys"},
	{errOtherTenant, "token_and_key_of_different_tenants"},
	{errTokenUnwanted, "token_not_accepted_here"},
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

// reasonOf returns the word for an error by which a credential is refused, and the error for logs. An error that is not
// in the table may come from another Configuration, and its text may contain what a client presented.
func reasonOf(err error) (word string, forLogs error) {
	for _, r := range reasons {
		if errors.Is(err, r.err) {
			return r.name, err
		}
	}
	return reasonOther, errOther
}
