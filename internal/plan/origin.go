package plan

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Origin is the place that a setting comes from. A setting without a place is a default.
type Origin struct {
	File   string `json:"file,omitempty"`
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
	Layer  string `json:"layer"` // "default", "plan pro", "override of tenant acme", "boost ×2 until …"
}

// String returns "layer (file:line:column)".
func (o Origin) String() string {
	if o.File == "" {
		return o.Layer
	}
	return fmt.Sprintf("%s (%s:%d:%d)", o.Layer, o.File, o.Line, o.Column)
}

// Value is one setting of an effective limit.
type Value struct {
	Name   string `json:"name"` // as in "rate" or "tiers[0].threshold"
	Text   string `json:"value"`
	Origin Origin `json:"from"`
}

// Values lists the settings of the limit in the order in which a plan is best written, each with its origin. Defaults
// are listed if they affect what the limit does.
func (e *Effective) Values() []Value {
	l := &lister{e: e}
	for _, k := range limitKeys.keys {
		if k.list != nil {
			k.list(l)
		} else if k.text != nil && (!k.ifSet || k.mark(e.spec).set) {
			if text := k.text(e); text != "" {
				l.add(k.name, text, k.mark(e.spec))
			}
		}
	}
	return l.values
}

// match lists the settings that say which requests the limit counts.
func (l *lister) match() {
	s := l.e.spec
	if len(s.methods.v) > 0 {
		l.add("match.methods", strings.Join(s.methods.v, ", "), markOf(&s.methods))
		if head := &s.impliesHead; head.set && s.lacksHead() {
			l.add("match.impliesHead", strconv.FormatBool(head.v), markOf(head))
		}
	}
	if s.pattern.set {
		l.add("match.pathPattern", s.pattern.v.String(), markOf(&s.pattern))
		if anyCase := &s.caseInsensitive; anyCase.set && s.rule.Pattern.HasCase() {
			l.add("match.caseInsensitive", strconv.FormatBool(anyCase.v), markOf(anyCase))
		}
	}
}

func (s *spec) perText() string {
	switch {
	case s.in == ipLimit:
		return "address"
	case s.per.v.text == "":
		return limit.PerTenant
	}
	return strings.ReplaceAll(s.per.v.text, "+", " + ")
}

type lister struct {
	e      *Effective
	values []Value
}

func (l *lister) add(name, text string, m mark) {
	l.values = append(l.values, Value{name, text, m.origin()})
}

func (m mark) origin() Origin {
	if !m.set {
		return Origin{Layer: "default"}
	}
	layer := m.from.layer
	if layer == slasPlan {
		layer = "SLA"
	}
	return Origin{m.from.Doc.Name, m.from.Line, m.from.Column, layer}
}

// tiers lists the algorithm and the tiers.
func (l *lister) tiers() {
	s := l.e.spec
	if s.form != formQuota && s.form != formPlaces {
		l.add("algorithm", s.algorithm.v.String(), markOf(&s.algorithm))
	}
	for i := range s.tiers {
		l.tier(i)
	}
}

// tier lists one tier. It takes the amounts from the limit itself, since a boost may have raised them.
func (l *lister) tier(i int) {
	s, t, spec := l.e.spec, &l.e.Limit.Tiers[i], &l.e.spec.tiers[i]
	prefix := ""
	switch s.form {
	case formTiers:
		prefix = fmt.Sprintf("tiers[%d].", i)
	case formQuota:
		prefix = "quota."
	case formPlaces:
		l.amount("concurrency", i, markOf(&spec.amount), func(t *limit.Tier) int64 { return t.Threshold })
		l.add("holdFor", limit.DurationText(t.Period), markOf(&spec.period))
		return
	default: // the tier's settings are keys of the limit
	}
	l.amount(prefix+t.Algorithm.AmountField(), i, markOf(&spec.amount),
		func(t *limit.Tier) int64 { return t.Threshold })
	if t.Calendar != nil {
		l.add(prefix+"every", t.Calendar.Every.String(), markOf(&spec.every))
		l.add(prefix+"timezone", t.Calendar.Location.String(), markOf(&spec.timezone))
		if spec.anchorMonth.set {
			l.add(prefix+"anchorMonth", strconv.Itoa(spec.anchorMonth.v), markOf(&spec.anchorMonth))
		}
		if spec.anchorDay.set {
			l.add(prefix+"anchorDay", strconv.Itoa(spec.anchorDay.v), markOf(&spec.anchorDay))
		}
		return
	}
	l.add(prefix+"period", limit.DurationText(t.Period), markOf(&spec.period))
	if t.Algorithm.HasBurst() {
		l.amount("burst", i, markOf(&spec.burst), func(t *limit.Tier) int64 { return t.Burst })
	}
}

// amount lists an amount that a boost may raise and that cells may divide. The origin then names the boost or the
// share, the amount before it, and the layer that set that amount.
func (l *lister) amount(name string, i int, m mark, of func(*limit.Tier) int64) {
	n := of(&l.e.Limit.Tiers[i])
	from := m.origin()
	if b := l.e.boost; b != nil {
		was := fmt.Sprintf("%d from %s", of(&l.e.base.Limit.Tiers[i]), from.Layer)
		at := b.factor.from
		from = Origin{at.Doc.Name, at.Line, at.Column, fmt.Sprintf("boost ×%s until %s of %s",
			b.factorText(), b.until.v.Format(time.RFC3339), was)}
	}
	if sh := l.e.share; sh != nil {
		was := fmt.Sprintf("%s of %d from %s", sh.Why, of(&l.e.whole.Limit.Tiers[i]), from.Layer)
		if from.Layer = was; sh.Limit == nil {
			n = 0
		}
	}
	l.values = append(l.values, Value{name, strconv.FormatInt(n, 10) + l.e.Limit.UnitSuffix(), from})
}
