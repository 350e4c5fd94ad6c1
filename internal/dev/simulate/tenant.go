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
	kind  string         // one of the kinds below; "" is noTenant
	re    *regexp.Regexp // of the kinds with an expression
	group int
	name  string // of alwaysTheSame
}

const (
	noTenant      = "none"
	fromAddress   = "address" // each address is a tenant
	fromUser      = "user"    // the user that the server authenticated
	alwaysTheSame = "fixed"   // a fixed name
	fromPath      = "path"    // what an expression matches of the path
	fromTarget    = "target"  // what an expression matches of path and query
)

// ErrTenantFrom is the error of [ParseTenantFrom].
var ErrTenantFrom = errors.New("not a way to find the tenant")

// ParseTenantFrom parses the value of the command line: "none", "address", "user", "path:REGEX", "target:REGEX"
// or "fixed:NAME". The tenant is what the group named tenant matches, or else the first group.
func ParseTenantFrom(text string) (TenantFrom, error) {
	wrong := func(format string, args ...any) (TenantFrom, error) {
		return TenantFrom{}, fmt.Errorf("%w: %q: %w", ErrTenantFrom, text, fmt.Errorf(format, args...))
	}
	kind, rest, _ := strings.Cut(text, ":")
	switch {
	case kind == noTenant, kind == fromAddress, kind == fromUser:
		if text != kind {
			return wrong("%s takes no argument", kind)
		}
		return TenantFrom{kind: kind}, nil
	case kind == alwaysTheSame && rest != "":
		return TenantFrom{kind: kind, name: rest}, nil
	case kind != fromPath && kind != fromTarget:
		return wrong("want address, user, path:REGEX, target:REGEX, fixed:NAME or none")
	}
	re, err := regexp.Compile(rest)
	if err != nil {
		return wrong("%w", err)
	}
	if re.NumSubexp() < 1 {
		return wrong("the expression needs a group for the tenant, as in path:^/orgs/([^/]+)/")
	}
	return TenantFrom{kind: kind, re: re, group: max(1, re.SubexpIndex("tenant"))}, nil
}

// appendTenant appends the tenant that the line names to dst, or nothing. user and path are without escapes.
func (f *TenantFrom) appendTenant(dst []byte, l *accesslog.Line, user, path []byte) []byte {
	if f.re == nil {
		if f.kind == fromUser {
			return append(dst, user...)
		}
		return dst
	}
	text := path
	if f.kind == fromTarget {
		text = accesslog.Unescape(nil, l.Target)
	}
	at := f.re.FindSubmatchIndex(text)
	if at == nil || at[2*f.group] < 0 {
		return dst
	}
	return append(dst, text[at[2*f.group]:at[2*f.group+1]]...)
}
