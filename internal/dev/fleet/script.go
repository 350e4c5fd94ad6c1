package fleet

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
)

// ReadScript reads a scenario from a YAML or JSON file, strictly. The error is a *configfile.Error with everything that
// is wrong in the file, each with its line and column. An error about the scenario as a whole, such as an instance that
// dies twice, names the number of the fault.
//
// plans and log say whether a plans file and an access log are given in addition to the script. The script must not
// have the keys whose values come from them.
func ReadScript(name string, data []byte, plans, log bool) (*Scenario, error) {
	r := &scriptReader{s: &Scenario{Name: strings.TrimSuffix(name, ".yaml")}, log: log,
		keys: map[string]configfile.Place{}}
	r.MaxBytes = 1 << 20
	document := r.Open(configyaml.Source(name, data), "it needs instances and requestsPerSecond")
	if document.Root != nil {
		r.scenario(configfile.Value{Doc: document, Node: document.Root})
	}
	if r.Found() == 0 {
		if err := r.check(plans); err != nil {
			at, message := r.placeOf(err)
			r.ProblemAt(at, "%s", message)
		}
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	return r.s, nil
}

type scriptReader struct {
	configfile.Reader
	s      *Scenario
	log    bool // an access log is given in addition to the script
	root   configfile.Place
	keys   map[string]configfile.Place // the place of each key of the script
	faults []configfile.Place          // the place of each fault
}

// check checks a copy of the scenario as a whole. The copy gets the default values, and the scenario does not, because
// Run must be able to tell a key that the script leaves out from one that it has.
func (r *scriptReader) check(plans bool) error {
	s := *r.s
	if err := s.checkInputs(plans, r.log); err != nil {
		return err
	}
	if r.log {
		s.Requests, s.Measured = 1, cmp.Or(s.Measured, maxLength) // values that pass; Run takes its own from the log
	}
	return s.check()
}

// placeOf returns the place of the fault or of the key with which an error of Scenario.check begins, and the error
// without the number of the fault. For other errors it returns the place of the whole script.
func (r *scriptReader) placeOf(err error) (at configfile.Place, message string) {
	for i, at := range r.faults {
		if message, ok := strings.CutPrefix(err.Error(), "faults["+strconv.Itoa(i)+"], "); ok {
			return at, message
		}
	}
	key, _, _ := strings.Cut(err.Error(), " ")
	if at, ok := r.keys[key]; ok {
		return at, err.Error()
	}
	return r.root, err.Error()
}

var (
	scriptSchema = &configfile.Schema{What: "a scenario", Keys: []string{"about", "rampUp", "warmUp", "measured",
		"shape", "store", "cells", "pinEvery", "instances", "affinity", "shards", "leaseLife", "placement", "busy",
		"coldStart",
		"idleDeath", "functions", "behindAuthorizer", "sampleEvery", "tenants", "requestsPerSecond", "zipf",
		"dailySwing", "day", "limits", "faults", "bounds"}}
	limitsSchema = &configfile.Schema{What: "limits", Keys: []string{"algorithm", "period", "low", "high", "ample",
		"scarce", "bindEvery", "align"}}
	boundsSchema = &configfile.Schema{What: "bounds", Keys: []string{"over", "p99", "storeCalls", "earlyDenials",
		"degraded", "unserved"}}
	faultSchema = &configfile.Schema{What: "a fault", Keys: []string{"kind", "at", "for", "instances", "factor", "by",
		"perSecond", "loses", "tenant", "cell", "trafficAfter", "removedAfter"}}
)

func (r *scriptReader) scenario(v configfile.Value) {
	r.root = v.Place()
	o, ok := r.Object(v, scriptSchema)
	if !ok {
		return
	}
	r.Required(o, "instances", "how many processes there are")
	if !r.log {
		r.Required(o, "requestsPerSecond", "how often all tenants ask")
	}
	s := r.s
	durations := map[string]*time.Duration{"rampUp": &s.RampUp, "warmUp": &s.WarmUp, "measured": &s.Measured,
		"leaseLife": &s.LeaseLife, "busy": &s.Busy, "idleDeath": &s.IdleDeath, "coldStart": &s.ColdStart, "day": &s.Day,
		"behindAuthorizer": &s.BehindAuthorizer}
	counts := map[string]struct {
		to   *int
		most int64
	}{"instances": {&s.Instances, maxInstances}, "affinity": {&s.Affinity, maxInstances},
		"shards": {&s.Shards, maxShards}, "cells": {&s.Cells, maxCells}, "pinEvery": {&s.PinEvery, maxTenants},
		"functions":   {&s.Functions, maxInstances},
		"sampleEvery": {&s.SampleEvery, maxTenants}, "tenants": {&s.Tenants, maxTenants}}
	numbers := map[string]*float64{"requestsPerSecond": &s.Requests, "zipf": &s.Zipf, "dailySwing": &s.DailySwing}
	for _, e := range o.Entries {
		r.keys[e.Key] = e.KeyAt
		switch e.Key {
		case "about":
			s.About, _ = r.Text(e.Value)
		case "shape":
			s.Shape = Shape(r.word(e.Value, "serve", "lambda"))
		case "store":
			s.Store = Store(r.word(e.Value, "redis", "dynamodb"))
		case "placement":
			s.Placement = Placement(r.word(e.Value, "mostRecent", "roundRobin"))
		case "limits":
			r.limits(e.Value)
		case "faults":
			r.faultList(e.Value)
		case "bounds":
			r.bounds(e.Value)
		}
		if to := durations[e.Key]; to != nil {
			*to = r.duration(e.Value)
		}
		if c := counts[e.Key]; c.to != nil {
			*c.to = r.count(e.Value, c.most)
		}
		if to := numbers[e.Key]; to != nil {
			*to = r.number(e.Value)
		}
	}
	r.lambdaKeys(o)
}

// lambdaKeys reports, if the shape is serve, the keys that have an effect only on environments of Lambda.
func (r *scriptReader) lambdaKeys(o configfile.Object) {
	if r.s.Shape != Serve {
		return
	}
	for _, e := range o.Entries {
		if slices.Contains([]string{"placement", "idleDeath", "coldStart"}, e.Key) ||
			e.Key == "busy" && r.s.BehindAuthorizer == 0 {
			r.ProblemAt(e.KeyAt, "%s is for Lambda environments, and the shape is serve", e.Key)
		}
	}
}

func (r *scriptReader) limits(v configfile.Value) {
	o, _ := r.Object(v, limitsSchema)
	l := &r.s.Limits
	for _, e := range o.Entries {
		switch e.Key {
		case "algorithm":
			algorithms := madeUpAlgorithms()
			names := make([]string, len(algorithms))
			for i, a := range algorithms {
				names[i] = a.String()
			}
			l.Algorithm = algorithms[r.word(e.Value, names...)]
		case "period":
			if l.Period = r.duration(e.Value); l.Period%time.Second != 0 || l.Period == 0 {
				r.Problem(e.Value, "want whole seconds, at least one")
			}
		case "align":
			l.AlignTenant = r.word(e.Value, "clock", "tenant") == 1
		case "low":
			l.Low = r.positive(e.Value)
		case "high":
			l.High = r.positive(e.Value)
		case "ample":
			l.Ample = r.positive(e.Value)
		case "scarce":
			l.Scarce = r.positive(e.Value)
		case "bindEvery":
			l.BindEvery = r.count(e.Value, maxTenants)
		}
	}
}

func (r *scriptReader) bounds(v configfile.Value) {
	o, _ := r.Object(v, boundsSchema)
	b := &r.s.Bounds
	numbers := map[string]**float64{"over": &b.Over, "storeCalls": &b.StoreCalls, "earlyDenials": &b.EarlyPct,
		"degraded": &b.Degraded, "unserved": &b.Unserved}
	for _, e := range o.Entries {
		if to := numbers[e.Key]; to != nil {
			n := r.number(e.Value)
			*to = &n
		}
		if e.Key == "p99" {
			d := r.duration(e.Value)
			b.P99 = &d
		}
	}
}

func (r *scriptReader) faultList(v configfile.Value) {
	entries, _ := r.List(v, "faults")
	for _, entry := range entries {
		r.faults = append(r.faults, entry.Place())
		r.s.Faults = append(r.s.Faults, r.fault(entry))
	}
}

func (r *scriptReader) fault(v configfile.Value) (f Fault) {
	o, _ := r.Object(v, faultSchema)
	r.Required(o, "kind", "what goes wrong")
	r.Required(o, "at", "when it begins")
	for _, e := range o.Entries {
		switch e.Key {
		case "kind":
			kinds := make([]string, 0, len(FaultKinds()))
			for _, kind := range FaultKinds() {
				kinds = append(kinds, string(kind))
			}
			f.Kind = FaultKind(kinds[r.word(e.Value, kinds...)])
		case "at":
			f.At = r.duration(e.Value)
		case "for":
			f.For = r.duration(e.Value)
		case "by":
			f.By = r.signedDuration(e.Value)
		case "factor":
			f.Factor = r.positive(e.Value)
		case "perSecond":
			f.PerSecond = int64(r.count(e.Value, maxRequests))
		case "loses":
			f.Loses, _ = r.Boolean(e.Value)
		case "tenant":
			f.Tenant = r.count(e.Value, maxTenants)
		case "cell":
			f.Cell = r.count(e.Value, maxCells)
		case "trafficAfter":
			f.TrafficAfter = r.duration(e.Value)
		case "removedAfter":
			f.RemovedAfter = r.duration(e.Value)
		case "instances":
			all, _ := r.List(e.Value, "instances")
			for _, n := range all {
				number, _ := r.Integer(n, 0, maxInstances)
				f.Instances = append(f.Instances, int(number))
			}
		}
	}
	return f
}

// word returns the index of the value in words. If the value is none of the words, it reports that and returns 0.
func (r *scriptReader) word(v configfile.Value, words ...string) int {
	text, ok := r.Text(v)
	if !ok {
		return 0
	}
	i := slices.Index(words, text)
	if i < 0 {
		r.Problem(v, "want one of %s, got %s", strings.Join(words, ", "), configfile.Quote(text))
	}
	return max(i, 0)
}

// duration returns a duration that is not below zero. It reports any other value and returns 0.
func (r *scriptReader) duration(v configfile.Value) time.Duration {
	d := r.signedDuration(v)
	if d < 0 {
		r.Problem(v, "%s is below zero", d)
		return 0
	}
	return d
}

// signedDuration returns a duration of -maxLength to maxLength. It reports any other value and returns 0.
func (r *scriptReader) signedDuration(v configfile.Value) time.Duration {
	text, ok := r.Text(v)
	if !ok {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil || d > maxLength || d < -maxLength {
		r.Problem(v, "want a duration such as 30s or 5m, at most %s, got %s", maxLength, configfile.Quote(text))
		return 0
	}
	return d
}

// count returns a whole number of 1 to most. It reports any other value.
func (r *scriptReader) count(v configfile.Value, most int64) int {
	n, _ := r.Integer(v, 1, most)
	return int(n)
}

// number returns a number that is not below zero. It reports any other value and returns 0.
func (r *scriptReader) number(v configfile.Value) float64 {
	n, err := strconv.ParseFloat(v.Node.Text, 64)
	if err != nil || !v.IsNumber() || math.IsNaN(n) || math.IsInf(n, 0) {
		r.Problem(v, "want a number, got %s", configfile.Describe(v.Node))
		return 0
	}
	if n < 0 {
		r.Problem(v, "%g is below zero", n)
		return 0
	}
	return n
}

// positive returns a number above zero. It reports any other value. It reports zero only if nothing else was reported
// so far, because number also returns 0 for a value that it has reported.
func (r *scriptReader) positive(v configfile.Value) float64 {
	n := r.number(v)
	if n == 0 && r.Found() == 0 {
		r.Problem(v, "want more than zero")
	}
	return n
}
