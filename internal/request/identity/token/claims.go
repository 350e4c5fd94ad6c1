package token

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-jose/go-jose/v4/json"
)

const (
	maxTenantBytes = 128          // the longest id of a tenant
	maxTextBytes   = 256          // of any other text that is kept
	maxDate        = 253402300799 // the last second of the year 9999
)

// Claims holds what a verified token says. Texts have no control characters.
type Claims struct {
	Tenant  string // 1 to 128 bytes
	Subject string // 1 to 256 bytes
	Issuer  string
	ID      string    // "jti", at most 256 bytes; "" if absent
	Expires time.Time // "exp", without leeway
	kept    []keptClaim
}

type keptClaim struct{ name, value string }

// Claim returns the value of a claim that Config.Claims names: a text of at most 256 bytes, or a number or boolean as
// it is written in the token. It returns false for other values and for missing claims.
func (c *Claims) Claim(name string) (string, bool) {
	for i := range c.kept {
		if c.kept[i].name == name {
			return c.kept[i].value, true
		}
	}
	return "", false
}

// validity is the time in which a token is valid, leeway included.
type validity struct{ from, until time.Time }

func (v validity) check(now time.Time) error {
	switch {
	case !now.Before(v.until):
		return ErrExpired
	case now.Before(v.from):
		return ErrNotYetValid
	}
	return nil
}

// payload holds the claims of a token, not yet decoded.
type payload map[string]json.RawMessage

// parsePayload splits the payload into claims. The JSON decoder of go-jose refuses a duplicate member, of which other
// programs might read either.
func parsePayload(b []byte) (payload, error) {
	var p payload
	if !utf8.Valid(b) || json.Unmarshal(b, &p) != nil || p == nil {
		return nil, ErrMalformed
	}
	return p, nil
}

// text returns a claim that is a JSON string, and "" for anything else.
func (p payload) text(name string) string {
	var s string
	if raw := p[name]; len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

// date returns a claim that counts seconds since 1970. present says that the claim exists, and ok that it is such a
// number.
func (p payload) date(name string, round func(float64) float64) (t time.Time, present, ok bool) {
	raw, present := p[name]
	if !present {
		return t, false, false
	}
	var f float64
	if len(raw) == 0 || raw[0] < '0' || raw[0] > '9' || json.Unmarshal(raw, &f) != nil || f > maxDate {
		return t, true, false
	}
	return time.Unix(int64(round(f)), 0).UTC(), true, true
}

func (p payload) validity(leeway time.Duration) (validity, error) {
	exp, present, ok := p.date("exp", math.Floor)
	if !present {
		return validity{}, ErrNoExpiry
	}
	if !ok {
		return validity{}, ErrMalformed
	}
	v := validity{until: exp.Add(leeway)}
	nbf, present, ok := p.date("nbf", math.Ceil)
	if present && !ok {
		return validity{}, ErrMalformed
	}
	if present {
		v.from = nbf.Add(-leeway)
	}
	return v, nil
}

// claims reads which tenant and subject the token names.
func (p payload) claims(i *Issuer, tenants map[string]bool, keep []string) (c Claims, err error) {
	c = Claims{Tenant: p.text(i.TenantClaim), Subject: p.text(i.SubjectClaim), Issuer: i.Issuer, ID: p.text("jti")}
	_, identified := p["jti"]
	switch {
	case !p.audience(i):
		return Claims{}, fmt.Errorf("%w: the claim %q names none of %q", ErrAudience, i.AudienceClaim, i.Audiences)
	case !nameable(c.Tenant, maxTenantBytes):
		return Claims{}, fmt.Errorf("%w in the claim %q", ErrTenant, i.TenantClaim)
	case !i.AllTenants && !tenants[c.Tenant]:
		return Claims{}, ErrNotBound
	case !nameable(c.Subject, maxTextBytes):
		return Claims{}, fmt.Errorf("%w in the claim %q", ErrSubject, i.SubjectClaim)
	case identified && !nameable(c.ID, maxTextBytes):
		return Claims{}, ErrMalformed
	}
	c.Expires, _, _ = p.date("exp", math.Floor)
	for _, name := range keep {
		if value, ok := p.scalar(name); ok {
			c.kept = append(c.kept, keptClaim{name, value})
		}
	}
	return c, nil
}

// audience reports whether the audience claim, a text or a list of texts, has one of the issuer's audiences.
func (p payload) audience(i *Issuer) bool {
	raw := p[i.AudienceClaim]
	if len(raw) == 0 || raw[0] != '[' {
		return slices.Contains(i.Audiences, p.text(i.AudienceClaim))
	}
	var list []string
	if json.Unmarshal(raw, &list) != nil {
		return false
	}
	return slices.ContainsFunc(list, func(a string) bool { return slices.Contains(i.Audiences, a) })
}

func (p payload) scalar(name string) (string, bool) {
	raw := p[name]
	// the most bytes that a text of maxTextBytes can have with escapes
	if len(raw) == 0 || len(raw) > 6*maxTextBytes+2 {
		return "", false
	}
	switch raw[0] {
	case '"':
		s := p.text(name)
		return s, nameable(s, maxTextBytes)
	case '{', '[', 'n':
		return "", false
	}
	return string(raw), len(raw) <= maxTextBytes
}

// nameable reports whether s is 1..most bytes of text. It refuses replacement characters, because broken escapes become
// one: two different texts would be equal.
func nameable(s string, most int) bool {
	return s != "" && len(s) <= most && utf8.ValidString(s) && !strings.ContainsRune(s, utf8.RuneError) &&
		strings.IndexFunc(s, unicode.IsControl) < 0
}
