package cost

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// MaxFileBytes is the most that a price file may have.
const MaxFileBytes = 1 << 20

const (
	maxProblems = 100
	maxSteps    = 20
)

// PriceError is what is wrong with a price file: at least one line of the form "file:line:column: path: message".
type PriceError struct{ Problems []string }

func (e *PriceError) Error() string { return strings.Join(e.Problems, "\n") }

// ReadPrices reads a price file, strictly, and returns base with what it names replaced; base stays what it is. With a nil base the
// file must have everything. A region that base does not have needs every price. The error is a *PriceError with all that is wrong.
func ReadPrices(base *Prices, name string, data []byte) (*Prices, error) {
	r := &reader{name: name, whole: base == nil, next: &Prices{prices: map[string]*price{}}}
	if base != nil {
		for id, p := range base.prices {
			own := *p
			own.usd, own.asOf = maps.Clone(p.usd), maps.Clone(p.asOf)
			r.next.prices[id] = &own
		}
	}
	if root := r.parse(data); root != nil {
		r.file(root)
	}
	if len(r.problems) == 0 {
		r.complete()
	}
	if len(r.problems) > 0 {
		return nil, &PriceError{r.problems}
	}
	if base != nil {
		r.next.From = append(slices.Clone(base.From), Replacement{name, r.date})
	}
	return r.next, nil
}

type reader struct {
	name     string
	whole    bool // there is nothing that the file adds to
	next     *Prices
	date     time.Time // of the prices that name no day
	problems []string
}

// problem notes what is wrong at a node, or with the file where n is nil.
func (r *reader) problem(n *yaml.Node, path, format string, args ...any) {
	at := r.name
	if n != nil {
		at += ":" + strconv.Itoa(max(n.Line, 1)) + ":" + strconv.Itoa(max(n.Column, 1))
	}
	if path != "" {
		at += ": " + path
	}
	if len(r.problems) < maxProblems {
		r.problems = append(r.problems, at+": "+fmt.Sprintf(format, args...))
	}
}

var syntaxLine = regexp.MustCompile(`^yaml: line ([0-9]+): `)

// parse returns the file's one value, or nil and a problem.
func (r *reader) parse(data []byte) *yaml.Node {
	if len(data) > MaxFileBytes {
		r.problem(nil, "", "the file has more than %d bytes", MaxFileBytes)
		return nil
	}
	one, more, err := decode(data)
	switch {
	case err != nil:
		at := &yaml.Node{Line: 1}
		if m := syntaxLine.FindStringSubmatch(err.Error()); m != nil {
			at.Line, _ = strconv.Atoi(m[1]) // digits, and if too many, line 1
		}
		text := strings.TrimPrefix(syntaxLine.ReplaceAllString(err.Error(), ""), "yaml: ")
		r.problem(at, "", "not valid YAML: %s", strings.ReplaceAll(text, "\n", " "))
		return nil
	case more:
		r.problem(nil, "", "the file has a second YAML document; want one")
		return nil
	case one.Kind != yaml.DocumentNode || len(one.Content) != 1:
		r.problem(nil, "", "the file is empty: it needs date and prices")
		return nil
	}
	return one.Content[0]
}

func decode(data []byte) (one yaml.Node, more bool, err error) {
	defer func() { // the library reports by panics inside; one that it does not catch must not end the program
		if p := recover(); p != nil {
			err = fmt.Errorf("yaml: cannot be read: %v", p)
		}
	}()
	d := yaml.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(&one); err != nil {
		if errors.Is(err, io.EOF) {
			return yaml.Node{}, false, nil
		}
		return one, false, err
	}
	err = d.Decode(new(yaml.Node))
	if errors.Is(err, io.EOF) {
		return one, false, nil
	}
	return one, true, err
}

// object returns a mapping's values by key; what is not known is a problem, and so is a key that is there twice. known is nil where
// any key is one.
func (r *reader) object(n *yaml.Node, path string, known []string) map[string]*yaml.Node {
	if n.Kind != yaml.MappingNode {
		r.problem(n, path, "want a mapping")
		return nil
	}
	got := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i]
		switch {
		case k.Kind != yaml.ScalarNode:
			r.problem(k, path, "a key must be a word")
		case known != nil && !slices.Contains(known, k.Value):
			r.problem(k, path, "unknown key %q; known: %s", clip(k.Value), strings.Join(known, ", "))
		case got[k.Value] != nil:
			r.problem(k, path, "key %q is there twice", clip(k.Value))
		default:
			got[k.Value] = n.Content[i+1]
		}
	}
	return got
}

// text reads a string that is not empty.
func (r *reader) text(n *yaml.Node, path string) string {
	if n.Kind != yaml.ScalarNode || n.Value == "" {
		r.problem(n, path, "want a text")
		return ""
	}
	return n.Value
}

// number reads one of 0 or more, or of above 0.
func (r *reader) number(n *yaml.Node, path string, positive bool) *big.Rat {
	if n.Kind != yaml.ScalarNode {
		r.problem(n, path, "want a number")
		return nil
	}
	v, err := ParseNumber(n.Value)
	switch {
	case err != nil:
		r.problem(n, path, "%s", err)
		return nil
	case positive && v.Sign() == 0:
		r.problem(n, path, "want a number above 0")
		return nil
	}
	return v
}

// day reads a date.
func (r *reader) day(n *yaml.Node, path string) time.Time {
	date, err := time.Parse(time.DateOnly, n.Value)
	if n.Kind != yaml.ScalarNode || err != nil {
		r.problem(n, path, "want a day such as 2026-03-01")
	}
	return date
}

func (r *reader) file(root *yaml.Node) {
	o := r.object(root, "", []string{"date", "prices"})
	if o == nil {
		return
	}
	if n := o["date"]; n == nil {
		r.problem(root, "", "date is missing: of which day the prices are")
	} else {
		r.date = r.day(n, "date")
	}
	n := o["prices"]
	switch {
	case n == nil:
		r.problem(root, "", "prices is missing")
	case n.Kind != yaml.SequenceNode || len(n.Content) == 0:
		r.problem(n, "prices", "want a list of prices")
	default:
		seen := map[string]bool{}
		for i, entry := range n.Content {
			r.price(entry, "prices["+strconv.Itoa(i)+"]", seen)
		}
	}
}

var nodeType = regexp.MustCompile(`^elasticache\.cache\.[a-z0-9]+\.[a-z0-9]+$`)

func (r *reader) price(entry *yaml.Node, path string, seen map[string]bool) {
	o := r.object(entry, path, []string{"id", "per", "unit", "free", "published", "asOf", "usd"})
	if o == nil {
		return
	}
	if o["id"] == nil {
		r.problem(entry, path, "id is missing")
		return
	}
	id := r.text(o["id"], path+".id")
	switch {
	case id == "" || slices.Contains(retiredPrices(), id):
		return
	case !slices.Contains(knownPrices(), id) && !nodeType.MatchString(id):
		r.problem(o["id"], path+".id", "no price is called %q; there are %s and elasticache.cache.TYPE", clip(id), strings.Join(knownPrices(), ", "))
		return
	case seen[id]:
		r.problem(o["id"], path+".id", "price %q is there twice", id)
		return
	}
	seen[id] = true
	p := r.described(entry, o, path, id)
	if o["usd"] == nil {
		r.problem(entry, path, "usd is missing: the price in each region")
		return
	}
	regions := r.object(o["usd"], path+".usd", nil)
	for _, region := range slices.Sorted(maps.Keys(regions)) {
		if !regionName.MatchString(region) {
			r.problem(o["usd"], path+".usd", "%q is no name of a region", clip(region))
			continue
		}
		p.usd[region] = r.steps(regions[region], path+".usd."+region)
		p.asOf[region] = r.date
	}
	if n := o["asOf"]; n != nil {
		r.asOf(n, path+".asOf", p, regions)
	}
}

// asOf reads the day of a price: one for all regions of the entry, or one for each of some.
func (r *reader) asOf(n *yaml.Node, path string, p *price, regions map[string]*yaml.Node) {
	if n.Kind == yaml.ScalarNode {
		date := r.day(n, path)
		for region := range regions {
			p.asOf[region] = date
		}
		return
	}
	named := r.object(n, path, nil)
	for _, region := range slices.Sorted(maps.Keys(named)) {
		if regions[region] == nil {
			r.problem(named[region], path, "there is no price in %q here", clip(region))
			continue
		}
		p.asOf[region] = r.day(named[region], path+"."+region)
	}
}

// described is the price of that id, with what the entry says of it but amounts; a new one must say all of it.
func (r *reader) described(entry *yaml.Node, o map[string]*yaml.Node, path, id string) *price {
	p := r.next.prices[id]
	if p == nil {
		p = &price{id: id, free: new(big.Rat), usd: map[string][]step{}, asOf: map[string]time.Time{}}
		for _, key := range []string{"per", "unit", "published"} {
			if o[key] == nil {
				r.problem(entry, path, "%s is missing", key)
			}
		}
		r.next.prices[id] = p
	}
	if n := o["per"]; n != nil {
		if p.per = r.number(n, path+".per", true); p.per != nil && !p.per.IsInt() {
			r.problem(n, path+".per", "want a whole number")
		}
	}
	if n := o["free"]; n != nil {
		p.free = r.number(n, path+".free", false)
	}
	if n := o["unit"]; n != nil {
		p.unit = r.text(n, path+".unit")
	}
	if n := o["published"]; n != nil {
		p.published = r.text(n, path+".published")
	}
	return p
}

var regionName = regexp.MustCompile(`^[a-z]{2}(-[a-z]{2,12}){1,3}-[0-9]{1,2}$`)

// steps reads one price, or a list of steps.
func (r *reader) steps(n *yaml.Node, path string) []step {
	if n.Kind != yaml.SequenceNode {
		return []step{{usd: r.number(n, path, false)}}
	}
	if len(n.Content) == 0 || len(n.Content) > maxSteps {
		r.problem(n, path, "want 1 to %d steps", maxSteps)
		return nil
	}
	var steps []step
	last := new(big.Rat)
	for i, entry := range n.Content {
		path := path + "[" + strconv.Itoa(i) + "]"
		o := r.object(entry, path, []string{"upTo", "usd"})
		if o == nil {
			continue
		}
		var s step
		if o["usd"] == nil {
			r.problem(entry, path, "usd is missing")
		} else {
			s.usd = r.number(o["usd"], path+".usd", false)
		}
		final := i == len(n.Content)-1
		switch {
		case o["upTo"] == nil && !final:
			r.problem(entry, path, "upTo is missing: only the last step has none")
		case o["upTo"] != nil && final:
			r.problem(o["upTo"], path+".upTo", "the last step holds for all that is beyond, and has no upTo")
		case o["upTo"] != nil:
			if s.upTo = r.number(o["upTo"], path+".upTo", true); s.upTo == nil {
				break
			}
			if s.upTo.Cmp(last) <= 0 {
				r.problem(o["upTo"], path+".upTo", "want more than the step before")
			}
			last = s.upTo
		}
		steps = append(steps, s)
	}
	return steps
}

// complete finds the regions, and what a region lacks.
func (r *reader) complete() {
	regions := map[string]bool{}
	for _, p := range r.next.prices {
		for region := range p.usd {
			regions[region] = true
		}
	}
	for _, region := range slices.Sorted(maps.Keys(regions)) {
		var missing []string
		for _, id := range knownPrices() {
			p := r.next.prices[id]
			if (p == nil || p.usd[region] == nil) && !slices.Contains(laterPrices(), id) {
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
		r.problem(nil, "", "region %s lacks the price of %s%s", region, strings.Join(shown, ", "), more)
	}
	if r.whole && len(regions) == 0 {
		r.problem(nil, "", "no region has a price")
	}
}
