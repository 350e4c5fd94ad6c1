package authorizer

import (
	"errors"

	"github.com/sluicelimits/sluice/internal/identity"
	"github.com/sluicelimits/sluice/internal/identity/token"
)

// Why a credential is refused, where no single error says so.
const (
	reasonNone          = "no_credential"
	reasonNobody        = "nobody_can_be_identified"
	reasonTwoKeys       = "two_different_keys"
	reasonOtherTenant   = "token_and_key_of_different_tenants"
	reasonTokenUnwanted = "token_not_accepted_here"
	reasonOther         = "credential_refused"
)

// reasons classes what package identity and its verifier of tokens return. The classes are words of ours: a log or a metric
// may hold them, whatever was presented.
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

func reasonOf(err error) string {
	for _, r := range reasons {
		if errors.Is(err, r.err) {
			return r.name
		}
	}
	return reasonOther
}
