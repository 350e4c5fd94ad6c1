package plan

import (
	"math"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// MaxFileBytes is the largest size of a plans file.
const MaxFileBytes = configfile.MaxFileBytes

// Source is the name and content of one file. If Parse is nil, the content is JSON; configyaml.Parse reads YAML.
type Source = configfile.Source

// Problem is one thing that is wrong in a plans file.
type Problem = configfile.Problem

// Error holds every problem of the sources, in file order.
type Error = configfile.Error

// Short names for types of package configfile.
type (
	value  = configfile.Value
	object = configfile.Object
	schema = configfile.Schema
)

// reader collects what the sources hold and every problem in them.
type reader struct {
	configfile.Reader
	documents []*configfile.Document
	now       time.Time
	draft     bool // plans and tenants that the sources name may be on a server: see Draft
	stored    bool // the source is a stored document: checks against the present time are left out

	plansUnread, tenantsUnread bool // a source misspells the key of its plans, or tenants, which was reported
}

// place is a position in a source, and the layer of settings that it belongs to.
type place struct {
	configfile.Place
	layer string // "plan pro", "override of tenant acme"
}

func placeOf(v value, layer string) place { return place{v.Place(), layer} }

// field is an optional setting and its place.
type field[T any] struct {
	v    T
	set  bool // the setting is present (and may be bad)
	bad  bool // the setting cannot be read, or is required and absent; v is then a placeholder
	from place
}

func (r *reader) problemAt(at place, format string, args ...any) {
	r.ProblemAt(at.Place, format, args...)
}

func (r *reader) warnAt(at place, format string, args ...any) { r.WarnAt(at.Place, format, args...) }

// name reads text that people and machines use: 1 to MaxNameBytes bytes without control characters.
func (r *reader) name(v value, what string) (string, bool) {
	s, ok := r.Text(v)
	switch {
	case !ok:
		return s, false
	case s == "":
		r.Problem(v, "the %s is empty", what)
	case len(s) > limit.MaxNameBytes:
		r.Problem(v, "the %s has %d bytes, want at most %d", what, len(s), limit.MaxNameBytes)
	case !utf8.ValidString(s):
		r.Problem(v, "the %s is not valid UTF-8", what)
	case strings.ContainsFunc(s, unicode.IsControl):
		r.Problem(v, "the %s %s holds a control character", what, configfile.Quote(s))
	default:
		return s, true
	}
	return s, false
}

// id reads the id of a plan, limit, key or cell.
func (r *reader) id(v value) (string, bool) {
	s, ok := r.Text(v)
	if ok && !limit.ValidID(s) {
		r.Problem(v, "id %s is not 1 to 64 of A-Z a-z 0-9 . _ -", configfile.Quote(s))
		return s, false
	}
	return s, ok
}

// unit reads what a limit counts.
func (r *reader) unit(v value) (string, bool) {
	s, ok := r.Text(v)
	if ok && !limit.ValidUnit(s) {
		r.Problem(v, "unit %s is not %s, such as tokens or micro-usd", configfile.Quote(s), limit.UnitGrammar)
		return s, false
	}
	if ok && s == limit.ConcurrentRequests {
		r.Problem(v, "write a limit on requests in flight as concurrency: 8, holdFor: 30s")
		return s, false
	}
	return s, ok
}

func (r *reader) units(v value) (int64, bool) { return r.Integer(v, 1, limit.MaxUnits) }

// duration reads 500ms, 10s, 1m, 24h. A bare integer is a number of seconds.
func (r *reader) duration(v value) (time.Duration, bool) {
	if v.Node.Kind == configfile.Integer {
		n, ok := r.Integer(v, math.MinInt64, math.MaxInt64)
		if ok && (n < 1 || n > int64(limit.MaxPeriod/time.Second)) {
			r.Problem(v, "%d seconds is not within %s to %s", n, limit.MinPeriod, limit.DurationText(limit.MaxPeriod))
			ok = false
		}
		return time.Duration(n) * time.Second, ok
	}
	if v.Node.Kind != configfile.String {
		r.Problem(v, "want a duration such as 500ms, 10s, 1m or 24h, got %s", configfile.Describe(v.Node))
		return 0, false
	}
	d, err := time.ParseDuration(v.Node.Text)
	switch {
	case err != nil:
		r.Problem(v, "%s is not a duration: write 500ms, 10s, 1m or 24h (there is no unit for days); a bare "+
			"number counts seconds", configfile.Quote(v.Node.Text))
		return 0, false
	case d < limit.MinPeriod || d > limit.MaxPeriod || d%time.Millisecond != 0:
		r.Problem(v, "%s is not whole milliseconds within %s to %s",
			configfile.Clip(v.Node.Text), limit.MinPeriod, limit.DurationText(limit.MaxPeriod))
		return 0, false
	}
	return d, true
}

// instant reads a time of RFC 3339, which includes its offset from UTC.
func (r *reader) instant(v value) (time.Time, bool) {
	if v.Node.Kind == configfile.Timestamp || v.Node.Kind == configfile.String {
		if at, err := time.Parse(time.RFC3339, v.Node.Text); err == nil {
			return at.UTC(), true
		}
		r.Problem(v, "%s is not a time of RFC 3339: write 2026-12-01T00:00:00Z", configfile.Quote(v.Node.Text))
		return time.Time{}, false
	}
	r.Problem(v, "want a time such as 2026-12-01T00:00:00Z, got %s", configfile.Describe(v.Node))
	return time.Time{}, false
}

// choice reads one word of a list.
func choice[T any](r *reader, v value, parse func(string) (T, bool), words []string) (T, bool) {
	var zero T
	s, ok := r.Text(v)
	if !ok {
		return zero, false
	}
	if got, ok := parse(s); ok {
		return got, true
	}
	r.Problem(v, "unknown %s%s; want one of %s", configfile.Quote(s), configfile.DidYouMean(s, words),
		strings.Join(words, ", "))
	return zero, false
}
