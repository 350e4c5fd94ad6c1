package simulate

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/sluicelimits/sluice/internal/dev/accesslog"
)

// TenantFrom says where in a log line the tenant is found. The zero TenantFrom finds none: every request is one without
// a credential.
type TenantFrom struct {
	kind  tenantKind
	re    *regexp.Regexp
	group int
	name  string
}

type tenantKind uint8

const (
	noTenant      tenantKind = iota
	fromAddress              // each address is a tenant
	fromUser                 // the user that the server authenticated
	fromPath                 // by an expression, in the path
	fromTarget               // by an expression, in the path and query
	fromReferer              // by an expression, in the referer
	fromAgent                // by an expression, in the user agent
	alwaysTheSame            // a fixed name
)

// ErrTenantFrom is the error of [ParseTenantFrom].
var ErrTenantFrom = errors.New("not a way to find the tenant")

// ParseTenantFrom parses the value of the command line: "none", "address", "user", "path:REGEX", "target:REGEX",
// "referer:REGEX", "agent:REGEX", "header:FIELD:REGEX" with a field that logs have, or "fixed:NAME". The tenant is what
// the group named tenant matches, or else the first group.
func ParseTenantFrom(text string) (TenantFrom, error) {
	kind, rest, _ := strings.Cut(text, ":")
	if kind == "header" {
		field, expression, ok := strings.Cut(rest, ":")
		if kind = headerKinds[strings.ToLower(field)]; kind == "" || !ok {
			return TenantFrom{}, fmt.Errorf("%w: %q: want header:FIELD:REGEX with one of the fields that a log has: "+
				"referer, user-agent",
				ErrTenantFrom, text)
		}
		rest = expression
	}
	switch kind {
	case "none", "address", "user":
		if text != kind {
			return TenantFrom{}, fmt.Errorf("%w: %q: %s takes no argument", ErrTenantFrom, text, kind)
		}
		return TenantFrom{kind: tenantKinds[kind]}, nil
	case "fixed":
		if rest == "" {
			return TenantFrom{}, fmt.Errorf("%w: %q: want fixed:NAME", ErrTenantFrom, text)
		}
		return TenantFrom{kind: alwaysTheSame, name: rest}, nil
	case "path", "target", "referer", "agent":
		return expressionFrom(tenantKinds[kind], text, rest)
	}
	return TenantFrom{}, fmt.Errorf("%w: %q: want address, user, path:REGEX, target:REGEX, referer:REGEX, "+
		"agent:REGEX, header:FIELD:REGEX, fixed:NAME or none", ErrTenantFrom, text)
}

var headerKinds = map[string]string{"referer": "referer", "user-agent": "agent"}

var tenantKinds = map[string]tenantKind{
	"none": noTenant, "address": fromAddress, "user": fromUser,
	"path": fromPath, "target": fromTarget, "referer": fromReferer, "agent": fromAgent,
}

func expressionFrom(kind tenantKind, text, expression string) (TenantFrom, error) {
	re, err := regexp.Compile(expression)
	if err != nil {
		return TenantFrom{}, fmt.Errorf("%w: %q: %w", ErrTenantFrom, text, err)
	}
	group := max(1, re.SubexpIndex("tenant"))
	if re.NumSubexp() < 1 {
		return TenantFrom{}, fmt.Errorf("%w: %q: the expression needs a group for the tenant, as in %s", ErrTenantFrom,
			text,
			`path:^/orgs/([^/]+)/`)
	}
	return TenantFrom{kind: kind, re: re, group: group}, nil
}

// reads reports whether the tenant is found in the text of the line.
func (f *TenantFrom) reads() bool {
	return f.kind != noTenant && f.kind != fromAddress && f.kind != alwaysTheSame
}

// find returns the tenant that the line names, or an empty text.
func (f *TenantFrom) find(l *accesslog.Line, r *record, unescaped func([]byte) []byte) []byte {
	var text []byte
	switch f.kind {
	case fromUser:
		return r.user
	case fromPath:
		text = r.path
	case fromTarget:
		text = unescaped(l.Target)
	case fromReferer:
		text = unescaped(l.Referer)
	case fromAgent:
		text = unescaped(l.Agent)
	default:
		return nil
	}
	at := f.re.FindSubmatchIndex(text)
	if at == nil || at[2*f.group] < 0 {
		return nil
	}
	return text[at[2*f.group]:at[2*f.group+1]]
}
