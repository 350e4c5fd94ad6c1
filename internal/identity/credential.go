package identity

import (
	"errors"
	"net/textproto"
	"strings"
)

// ErrBadCredential is a credential that is there and cannot be read: two that differ, a scheme that is not Bearer,
// nothing after it.
var ErrBadCredential = errors.New("bad credential")

// APIKeyHeader carries a key. "Authorization: Bearer <key>" does as well.
const APIKeyHeader = "X-Api-Key" // in the canonical form of header maps

// FindCredential reads the presented key from headers whose names are in canonical form. present reports whether there is
// any credential at all, also one that is empty or malformed: only a request without one may be anonymous.
func FindCredential(header map[string][]string) (key string, present bool, err error) {
	keys, auths := header[APIKeyHeader], header["Authorization"]
	if len(keys) == 0 && len(auths) == 0 {
		return "", false, nil
	}
	if len(keys) > 1 || len(auths) > 1 {
		return "", true, ErrBadCredential
	}
	if len(keys) == 1 {
		key = textproto.TrimString(keys[0])
		if key == "" {
			return "", true, ErrBadCredential
		}
	}
	if len(auths) == 0 {
		return key, true, nil
	}
	scheme, bearer, _ := strings.Cut(textproto.TrimString(auths[0]), " ")
	bearer = textproto.TrimString(bearer)
	if !strings.EqualFold(scheme, "Bearer") || bearer == "" || (key != "" && key != bearer) {
		return "", true, ErrBadCredential
	}
	return bearer, true, nil
}
