package identity

import (
	"errors"
	"net/textproto"
	"strings"
)

// ErrBadCredential means that a credential is present but cannot be read: there are two of one kind, the scheme is not
// Bearer, or nothing follows the scheme.
var ErrBadCredential = errors.New("bad credential")

// APIKeyHeader carries a key. A key may also be sent as "Authorization: Bearer <key>".
const APIKeyHeader = "X-Api-Key" // in the canonical form of header maps

// Credentials are the texts by which a caller identifies itself. None of them is verified.
type Credentials struct {
	Key    string // of X-Api-Key; "" if absent
	Bearer string // of Authorization: a key or a JWT; "" if absent
}

// Any reports whether there is any credential. Only a request without one may be anonymous.
func (c Credentials) Any() bool { return c.Key != "" || c.Bearer != "" }

// FindCredentials reads the credentials from headers whose names are in canonical form. It returns ErrBadCredential if
// a credential is present but empty, malformed, or repeated.
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
