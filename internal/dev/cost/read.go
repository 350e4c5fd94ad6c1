package cost

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
)

// MaxFileBytes is the largest size of a price file.
const MaxFileBytes = 1 << 20

const (
	maxSteps  = 20
	maxNumber = 1e18 // largest number of a price file
)

// PriceError holds all problems of a price file.
type PriceError = configfile.Error

// ReadPrices reads a price file, and returns a copy of base in which the file's prices replace others. If base is nil,
// the file must have every price. If the file adds a region, it must have every price for it. Unknown keys are
// problems. The error is a *PriceError.
func ReadPrices(base *Prices, name string, data []byte) (*Prices, error) {
	r := &reader{whole: base == nil, next: &Prices{prices: map[string]*price{}}}
	if base != nil {
		for id, p := range base.prices {
			own := *p
			own.usd, own.asOf = maps.Clone(p.usd), maps.Clone(p.asOf)
			r.next.prices[id] = &own
		}
	}
	r.MaxBytes = MaxFileBytes
	document := r.Open(configyaml.Source(name, data), "it needs date and prices")
	if document.Root != nil {
		r.file(value{Doc: document, Node: document.Root})
	}
	if r.Found() == 0 {
		r.complete(configfile.Place{Doc: document})
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	if base != nil {
		r.next.From = append(slices.Clone(base.From), name)
	}
	return r.next, nil
}

// value is a node with its path in the file.
type value = configfile.Value

type reader struct {
	configfile.Reader
	whole bool // there is no base, so the file must have every price
	next  *Prices
	date  time.Time // the day of prices that have no day of their own
}

// The keys of each mapping of a price file.
var (
	fileSchema   = &configfile.Schema{What: "a price file", Keys: []string{"date", "prices"}}
	priceSchema  = &configfile.Schema{What: "a price", Keys: []string{"id", "per", "unit", "published", "asOf", "usd"}}
	stepSchema   = &configfile.Schema{What: "a step", Keys: []string{"upTo", "usd"}}
	regionSchema = &configfile.Schema{What: "prices by region"}
)

// text reads a string that is not empty.
func (r *reader) text(v value) string {
	text, ok := r.Text(v)
	if ok && text == "" {
		r.Problem(v, "want a text")
	}
	return text
}

// number reads a number of 0 or more, or above 0 if positive. It may be in quotes.
func (r *reader) number(v value, positive bool) float64 {
	if !v.IsNumber() && v.Node.Kind != configfile.String {
		r.Problem(v, "want a number, got %s", configfile.Describe(v.Node))
		return 0
	}
	n, err := strconv.ParseFloat(v.Node.Text, 64)
	switch {
	case err != nil || math.IsNaN(n) || n < 0 || n > maxNumber:
		r.Problem(v, "%q is not a number of 0 to %.0e: write one such as 50 or 0.25", clip(v.Node.Text), maxNumber)
		return 0
	case positive && n == 0:
		r.Problem(v, "want a number above 0")
		return 0
	}
	return n
}

// day reads a date.
func (r *reader) day(v value) time.Time {
	date, err := time.Parse(time.DateOnly, v.Node.Text)
	if err != nil {
		r.Problem(v, "want a day such as 2026-03-01, got %s", configfile.Describe(v.Node))
	}
	return date
}

func (r *reader) file(root value) {
	o, ok := r.Object(root, fileSchema)
	if !ok {
		return
	}
	if v, ok := r.Required(o, "date", "of which day the prices are"); ok {
		r.date = r.day(v)
	}
	v, ok := r.Required(o, "prices", "a list of prices")
	if !ok {
		return
	}
	entries, ok := r.List(v, "prices")
	if ok && len(entries) == 0 {
		r.Problem(v, "want at least one price")
	}
	seen := map[string]bool{}
	for _, entry := range entries {
		r.price(entry, seen)
	}
}

var nodeType = regexp.MustCompile(`^elasticache\.cache\.[a-z0-9]+\.[a-z0-9]+$`)

func (r *reader) price(entry value, seen map[string]bool) {
	o, ok := r.Object(entry, priceSchema)
	if !ok {
		return
	}
	v, ok := r.Required(o, "id", "which price it is")
	if !ok {
		return
	}
	id := r.text(v)
	switch {
	case id == "":
		return
	case !slices.Contains(knownPrices(), id) && !nodeType.MatchString(id):
		r.Problem(v, "%s is not the id of a price; the ids are %s and elasticache.cache.TYPE",
			configfile.Quote(id), strings.Join(knownPrices(), ", "))
		return
	case seen[id]:
		r.Problem(v, "the file has two prices %q", id)
		return
	}
	seen[id] = true
	p := r.described(o, id)
	usd, ok := r.Required(o, "usd", "the price in each region")
	if !ok {
		return
	}
	regions, _ := r.Object(usd, regionSchema)
	date := r.date
	if v, ok := o.Get("asOf"); ok {
		date = r.day(v)
	}
	for _, region := range regions.Entries {
		if !regionName.MatchString(region.Key) {
			r.ProblemAt(region.KeyAt, "%s is not the name of a region", configfile.Quote(region.Key))
			continue
		}
		p.usd[region.Key], p.asOf[region.Key] = r.steps(region.Value), date
	}
}

// described returns the price with an id, with everything that the entry says except for amounts. The entry of a new
// price must have all these keys.
func (r *reader) described(o configfile.Object, id string) *price {
	p := r.next.prices[id]
	if p == nil {
		p = &price{id: id, usd: map[string][]step{}, asOf: map[string]time.Time{}}
		r.Required(o, "per", "how many units the price is for")
		r.Required(o, "unit", "what is counted")
		r.Required(o, "published", "where AWS has the price")
		r.next.prices[id] = p
	}
	if v, ok := o.Get("per"); ok {
		if p.per = r.number(v, true); p.per != math.Trunc(p.per) {
			r.Problem(v, "want a whole number")
		}
	}
	if v, ok := o.Get("unit"); ok {
		p.unit = r.text(v)
	}
	if v, ok := o.Get("published"); ok {
		p.published = r.text(v)
	}
	return p
}

var regionName = regexp.MustCompile(`^[a-z]{2}(-[a-z]{2,12}){1,3}-[0-9]{1,2}$`)

// steps reads one price, or a list of steps.
func (r *reader) steps(v value) []step {
	if v.Node.Kind != configfile.List {
		return []step{{usd: r.number(v, false)}}
	}
	entries, _ := r.List(v, "steps")
	if len(entries) == 0 || len(entries) > maxSteps {
		r.Problem(v, "want 1 to %d steps", maxSteps)
		return nil
	}
	var steps []step
	last := 0.0
	for i, entry := range entries {
		o, ok := r.Object(entry, stepSchema)
		if !ok {
			continue
		}
		var s step
		if usd, ok := r.Required(o, "usd", "the price of a unit in this step"); ok {
			s.usd = r.number(usd, false)
		}
		upTo, there := o.Get("upTo")
		final := i == len(entries)-1
		switch {
		case !there && !final:
			r.Problem(entry, "upTo is missing: only the last step has none")
		case there && final:
			r.Problem(upTo, "the last step has no upper bound: remove its upTo")
		case there:
			if s.upTo = r.number(upTo, true); s.upTo == 0 {
				break
			}
			if s.upTo <= last {
				r.Problem(upTo, "want a larger number than in the step before")
			}
			last = s.upTo
		}
		steps = append(steps, s)
	}
	return steps
}

// complete lists the regions that have every price, and reports a problem for each other region.
func (r *reader) complete(whole configfile.Place) {
	regions := map[string]bool{}
	for _, p := range r.next.prices {
		for region := range p.usd {
			regions[region] = true
		}
	}
	for _, region := range slices.Sorted(maps.Keys(regions)) {
		var missing []string
		for _, id := range knownPrices() {
			if p := r.next.prices[id]; p == nil || p.usd[region] == nil {
				missing = append(missing, id)
			}
		}
		if len(missing) == 0 {
			r.next.regions = append(r.next.regions, region)
			continue
		}
		shown := missing[:min(len(missing), 5)]
		more := ""
		if n := len(missing) - len(shown); n > 0 {
			more = fmt.Sprintf(" and %d more", n)
		}
		r.ProblemAt(whole, "region %s lacks the price of %s%s", region, strings.Join(shown, ", "), more)
	}
	if r.whole && len(regions) == 0 {
		r.ProblemAt(whole, "no region has a price")
	}
}
