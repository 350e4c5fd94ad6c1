package config

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/sluicelimits/sluice/internal/configfile"
)

// what names the types of mappings in problems, and lists the types of lists.
var what = map[reflect.Type]struct{ one, several string }{
	reflect.TypeFor[Deployment](): {one: "a deployment"},
	reflect.TypeFor[Control]():    {one: "the control plane"},
	reflect.TypeFor[Audit]():      {one: "the audit trail"},
	reflect.TypeFor[Cell]():       {"a cell", "cells"},
	reflect.TypeFor[Retired]():    {"a cell that is gone", "cells"},
	reflect.TypeFor[Alarms]():     {one: "the alarms"},
	reflect.TypeFor[Callers]():    {one: "the operators"},
	reflect.TypeFor[Deadlines]():  {one: "the deadlines"},
	reflect.TypeFor[WAF]():        {one: "a firewall"},
	reflect.TypeFor[Issuer]():     {"an issuer", "issuers"},
	reflect.TypeFor[Valkey]():     {one: "a cache"},
	reflect.TypeFor[Network]():    {one: "a network"},
	reflect.TypeFor[Attachment](): {"an API", "APIs"},
	reflect.TypeFor[string]():     {several: "strings"},
}

// keyOf returns the key of a field: its name, beginning in lower case, or the tag key. negated says that the field
// means the opposite of the key: its name begins with "No", or the tag with "no ". zero says that 0 is not the default.
func keyOf(f reflect.StructField) (key string, negated, zero bool) {
	key = f.Name
	if name, cut := strings.CutPrefix(key, "No"); cut && unicode.IsUpper(rune(name[0])) {
		key, negated = name, true
	}
	initials := len(key) - len(strings.TrimLeftFunc(key, unicode.IsUpper))
	if initials > 1 && initials < len(key) { // the last one begins the next word
		initials--
	}
	key = strings.ToLower(key[:initials]) + key[initials:]
	switch tag := f.Tag.Get("key"); {
	case tag == "may be 0":
		zero = true
	case strings.HasPrefix(tag, "no "):
		key, negated = tag[len("no "):], true
	case tag != "":
		key = tag
	}
	return key, negated, zero
}

// fill reads a value of the file into a value of a type. [Deployment.Complete] checks it afterwards.
func (r *reader) fill(v value, to reflect.Value, zero bool) {
	switch to := to.Addr().Interface().(type) {
	case *string:
		r.text(v, to)
		return
	case *bool:
		*to, _ = r.Boolean(v)
		return
	case *int:
		r.number(v, to, zero)
		return
	case *time.Duration:
		r.duration(v, to)
		return
	}
	switch to.Kind() {
	case reflect.Pointer:
		to.Set(reflect.New(to.Type().Elem()))
		r.fill(v, to.Elem(), false)
	case reflect.Slice:
		items, _ := r.List(v, what[to.Type().Elem()].several)
		for _, item := range items {
			r.places[item.Path] = item
			to.Set(reflect.Append(to, reflect.Zero(to.Type().Elem())))
			r.fill(item, to.Index(to.Len()-1), false)
		}
	default:
		r.mapping(v, to)
	}
}

// mapping reads a mapping into a struct and reports unknown keys.
func (r *reader) mapping(v value, to reflect.Value) {
	r.places[v.Path] = v
	fields := map[string]reflect.StructField{}
	var keys []string
	for i := range to.NumField() {
		key, _, _ := keyOf(to.Type().Field(i))
		fields[key], keys = to.Type().Field(i), append(keys, key)
	}
	slices.Sort(keys)
	o, _ := r.Object(v, &configfile.Schema{What: what[to.Type()].one, Keys: keys})
	for _, e := range o.Entries {
		r.places[e.Path] = e.Value
		field := fields[e.Key]
		_, negated, zero := keyOf(field)
		if negated {
			is, ok := r.Boolean(e.Value)
			to.FieldByIndex(field.Index).SetBool(ok && !is)
			continue
		}
		r.fill(e.Value, to.FieldByIndex(field.Index), zero)
	}
}

// text reads a string that is not empty.
func (r *reader) text(v value, to *string) {
	switch text, ok := r.Text(v); {
	case ok && text == "":
		r.Problem(v, "is empty: leave it out for the default")
	case ok:
		*to = text
	}
}

// number reads a decimal integer. It refuses 0, which would be taken for "use the default", unless zero is set.
func (r *reader) number(v value, to *int, zero bool) {
	if n, ok := r.Integer(v, math.MinInt32, math.MaxInt32); ok {
		*to = int(n)
	}
	if !zero && v.Node.Text == "0" {
		r.Problem(v, "must not be 0")
	}
}

// duration reads a time with its unit, and refuses 0, which would be taken for "use the default".
func (r *reader) duration(v value, to *time.Duration) {
	d, err := time.ParseDuration(v.Node.Text)
	if err != nil || d == 0 {
		r.Problem(v, "want a time such as 8ms or 2s, got %s", configfile.Describe(v.Node))
		return
	}
	*to = d
}
