package plan

import (
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan/route"
)

// form says which of the four ways to write a limit's counting is used.
type form uint8

const (
	formNone   form = iota
	formSingle      // algorithm, rate or threshold, period
	formTiers       // tiers
	formQuota       // quota
	formPlaces      // concurrency, holdFor
)

var formNames = [...]string{"", "algorithm", "tiers", "quota", "concurrency"}

// spec is a limit as written, with the place of each setting. Overrides replace settings in a copy.
type spec struct {
	kind      kind
	from      place
	form      form
	id        field[string]
	per       field[string] // sorted words joined with "+"
	parts     []part
	methods   field[[]string]
	pattern   field[string]
	options   routeOptions
	rule      route.Rule // methods and pattern, with the options applied
	group     field[string]
	algorithm field[limit.Algorithm]
	buckets   field[int]
	tiersAt   place
	tiers     []tierSpec // exactly one for formSingle, formQuota and formPlaces
	mode      field[limit.Mode]
	onFailure field[limit.FailurePolicy]
	unit      field[string]
	cost      field[CostRule]
	align     field[bool] // true: periods begin at a time that depends on the tenant
	exact     field[bool]
	maxValues field[int]
}

// tierSpec is one tier of a spec.
type tierSpec struct {
	from        place
	amount      field[int64]         // rate, threshold, units or concurrency
	period      field[time.Duration] // or holdFor
	burst       field[int64]
	every       field[limit.Every]
	timezone    field[*time.Location]
	anchorDay   field[int]
	anchorMonth field[int]
}

// kind says which list a limit is in.
type kind uint8

const (
	planLimit kind = iota
	ipLimit
	slaLimit
)

// take reads an optional key. If the key is absent, set is false in the result.
func take[T any](o object, key, layer string, read func(value) (T, bool)) field[T] {
	v, ok := o.Get(key)
	if !ok {
		return field[T]{}
	}
	got, ok := read(v)
	return field[T]{v: got, set: true, bad: !ok, from: placeOf(v, layer)}
}

// need reads a required key. It reports a problem if the key is absent; what says what is wanted.
func need[T any](r *reader, o object, key, layer, what string, read func(value) (T, bool)) field[T] {
	if _, ok := r.Required(o, key, what); !ok {
		return field[T]{bad: true, from: placeOf(o.Value, layer)}
	}
	return take(o, key, layer, read)
}

// limit reads one limit of a plan, of ipLimits or of slas. It returns nil if the value is not a mapping. The options
// apply where the limit's match does not set them.
func (r *reader) limit(v value, k kind, layer string, options routeOptions) *spec {
	o, ok := r.Object(v, limitSchemas[k])
	if !ok {
		return nil
	}
	s := &spec{kind: k, from: placeOf(v, layer)}
	s.id = need(r, o, "id", layer, "1 to 64 of A-Z a-z 0-9 . _ -", r.id)
	r.matchOf(o, s, layer, options)
	if k == slaLimit {
		r.sla(o, s, layer)
		return s
	}
	s.per = take(o, "per", layer, func(v value) (string, bool) {
		var text string
		text, s.parts, ok = r.per(v)
		return text, ok
	})
	s.group = take(o, "group", layer, r.id)
	r.formOf(o, s, layer)
	for i := range policies {
		policies[i].read(r, o, s, layer)
	}
	return s
}

// sla reads the remaining keys of an SLA, which stands for fixed windows for each endpoint.
func (r *reader) sla(o object, s *spec, layer string) {
	s.per = field[string]{v: "endpoint", set: true, from: s.from}
	s.parts = []part{{kind: perEndpoint}}
	s.form = formTiers
	s.algorithm = field[limit.Algorithm]{v: limit.FixedWindow}
	s.mode = take(o, "enabled", layer, func(v value) (limit.Mode, bool) {
		on, ok := r.Boolean(v)
		if on {
			return limit.Enforce, ok
		}
		return limit.Off, ok
	})
	if v, ok := r.Required(o, "tiers", "a list of {period, threshold}"); ok {
		s.tiers, s.tiersAt = r.tiers(v, layer), placeOf(v, layer)
	}
}
