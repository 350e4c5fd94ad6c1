package identity

import (
	"errors"
	"net/textproto"
	"strings"
)

// ErrBadCredential is a credential that is there and cannot be read: two of one kind, a scheme that is not Bearer,
// nothing after it.
var ErrBadCredential = errors.New("bad credential")

// APIKeyHeader carries a key. "Authorization: Bearer <key>" does as well.
const APIKeyHeader = "X-Api-Key" // in the canonical form of header maps

// Credentials are the texts by which a caller says who it is, none of them verified.
type Credentials struct {
	Key    string // of X-Api-Key; "" where there is none
	Bearer string // of Authorization: a key or a JWT; "" where there is none
}

// Any reports whether there is any credential. Only a request without one may be anonymous.
func (c Credentials) Any() bool { return c.Key != "" || c.Bearer != "" }

// FindCredentials reads what is presented from headers whose names are in canonical form. ErrBadCredential is a
// credential that is there and empty, malformed, or there twice.
func FindCredentials(header map[string][]string) (Credentials, error) {
	keys, auths := header[APIKeyHeader], header["Authorization"]
	if len(keys) > 1 || len(auths) > 1 {
		return Credentials{}, ErrBadCredential
	}
	var c Credentials
	if len(keys) == 1 {
		if c.Key = textproto.TrimString(keys[0]); c.Key == "" {
			return Credentials{}, ErrBadCredential
		}
	}
	if len(auths) == 1 {
		scheme, bearer, _ := strings.Cut(textproto.TrimString(auths[0]), " ")
		if c.Bearer = textproto.TrimString(bearer); !strings.EqualFold(scheme, "Bearer") || c.Bearer == "" {
			return Credentials{}, ErrBadCredential
		}
	}
	return c, nil
}
