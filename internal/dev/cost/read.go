package cost

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	maxSteps  = 20
	maxNumber = 1e18 // largest number of a price file
)

// entry is a price in a price file.
type entry struct {
	ID        string           `json:"id"`
	Per       *float64         `json:"per"` // Per, Unit and Published: as in the list if they are missing
	Unit      string           `json:"unit"`
	Published string           `json:"published"`
	AsOf      string           `json:"asOf"`
	USD       map[string]steps `json:"usd"`
}

// steps are a price with steps, or one step if the file has a number.
type steps []step

// UnmarshalJSON implements [json.Unmarshaler].
func (s *steps) UnmarshalJSON(text []byte) error {
	if !bytes.HasPrefix(text, []byte("[")) && string(text) != "null" { // null has no steps, which is an error
		*s = steps{{}}
		return json.Unmarshal(text, &(*s)[0].USD)
	}
	var written []struct {
		UpTo float64
		USD  *float64
	}
	if err := decode(text, &written); err != nil {
		return err
	}
	for i, w := range written {
		if w.USD == nil {
			return fmt.Errorf("step %d has no usd", i+1)
		}
		*s = append(*s, step{w.UpTo, *w.USD})
	}
	return nil
}

// decode reads a JSON value without unknown fields. The text must be one valid value.
func decode(text []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(to)
}

// readEntries reads the entries of a price file. The error names the file, and the line or the entry.
func readEntries(name string, data []byte) ([]entry, error) {
	if len(data) > MaxFileBytes {
		return nil, fmt.Errorf("%s: the file is larger than %d MiB", name, MaxFileBytes>>20)
	}
	var file map[string]json.RawMessage
	if err := json.Unmarshal(data, &file); err != nil {
		at := int64(0)
		if syntax := new(json.SyntaxError); errors.As(err, &syntax) {
			at = syntax.Offset
		}
		return nil, fmt.Errorf("%s:%d: not a price file in JSON: %w", name, 1+bytes.Count(data[:at], []byte("\n")), err)
	}
	for key := range file {
		if key != "prices" {
			return nil, fmt.Errorf("%s: unknown field %q; the only one is prices", name, clip(key))
		}
	}
	var texts []json.RawMessage
	if list, ok := file["prices"]; ok {
		if err := json.Unmarshal(list, &texts); err != nil {
			return nil, fmt.Errorf("%s: prices: %w", name, err)
		}
	}
	entries := make([]entry, len(texts))
	for i, text := range texts {
		if err := decode(text, &entries[i]); err != nil {
			return nil, fmt.Errorf("%s: prices[%d] %q: %w", name, i, clip(entries[i].ID), err)
		}
	}
	return entries, nil
}

// ReadPrices reads a price file, JSON of the form of prices.json, and returns a copy of base in which the file's prices
// replace others. If base is nil, the file must have every price. If the file adds a region, it must have every price
// for it. The error names the file, and the line or the price.
func ReadPrices(base *Prices, name string, data []byte) (*Prices, error) {
	entries, err := readEntries(name, data)
	if err != nil {
		return nil, err
	}
	next := &Prices{prices: map[string]*price{}}
	if base != nil {
		next.From = append(slices.Clone(base.From), name)
		for id, p := range base.prices {
			own := *p
			own.usd, own.asOf = maps.Clone(p.usd), maps.Clone(p.asOf)
			next.prices[id] = &own
		}
	}
	seen := map[string]bool{}
	for i := range entries {
		e := &entries[i]
		err := next.replace(e)
		if seen[e.ID] {
			err = errors.New("the file has this price twice")
		}
		if err != nil {
			return nil, fmt.Errorf("%s: price %q: %w", name, clip(e.ID), err)
		}
		seen[e.ID] = true
	}
	if len(seen) == 0 {
		return nil, fmt.Errorf("%s: it has no prices", name)
	}
	if err := next.complete(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return next, nil
}

var (
	nodeType   = regexp.MustCompile(`^elasticache\.cache\.[a-z0-9]+\.[a-z0-9]+$`)
	regionName = regexp.MustCompile(`^[a-z]{2}(-[a-z]{2,12}){1,3}-[0-9]{1,2}$`)
)

// replace sets what an entry says of a price.
func (p *Prices) replace(e *entry) error {
	if !slices.Contains(knownPrices(), e.ID) && !nodeType.MatchString(e.ID) {
		return fmt.Errorf("no bill has such a price; the ids are %s and elasticache.cache.TYPE",
			strings.Join(knownPrices(), ", "))
	}
	day, err := time.Parse(time.DateOnly, e.AsOf)
	if err != nil {
		return fmt.Errorf("asOf is %q; want a day such as 2026-03-01", clip(e.AsOf))
	}
	to := p.prices[e.ID]
	if to == nil {
		if e.Per == nil || e.Unit == "" || e.Published == "" {
			return errors.New("a new price needs per, unit and published")
		}
		to = &price{id: e.ID, usd: map[string][]step{}, asOf: map[string]time.Time{}}
		p.prices[e.ID] = to
	}
	if e.Per != nil {
		if to.per = *e.Per; !(to.per > 0 && to.per <= maxNumber) || to.per != math.Trunc(to.per) {
			return fmt.Errorf("per is %v; want a whole number above 0", to.per)
		}
	}
	if len(e.USD) == 0 {
		return errors.New("usd is missing: the price in each region")
	}
	if e.Unit != "" {
		to.unit = e.Unit
	}
	if e.Published != "" {
		to.published = e.Published
	}
	for region, s := range e.USD {
		if !regionName.MatchString(region) {
			return fmt.Errorf("%q is not the name of a region", clip(region))
		}
		if err := s.check(); err != nil {
			return fmt.Errorf("in %s: %w", region, err)
		}
		to.usd[region], to.asOf[region] = s, day
	}
	return nil
}

// check returns an error unless each step ends above the one before, and the last one has no end.
func (s steps) check() error {
	if len(s) == 0 || len(s) > maxSteps {
		return fmt.Errorf("want 1 to %d steps", maxSteps)
	}
	last := 0.0
	for i, step := range s {
		switch final := i == len(s)-1; {
		case !(step.USD >= 0 && step.USD <= maxNumber):
			return fmt.Errorf("usd is %v; want a number of 0 to %.0e", step.USD, maxNumber)
		case final && step.UpTo != 0:
			return errors.New("the last step has no upper bound: remove its upTo")
		case !final && !(step.UpTo > last && step.UpTo <= maxNumber):
			return fmt.Errorf("upTo of step %d is %v; want more than in the step before", i+1, step.UpTo)
		}
		last = step.UpTo
	}
	return nil
}

// complete lists the regions, and returns an error for one that does not have every price.
func (p *Prices) complete() error {
	regions := map[string]bool{}
	for _, of := range p.prices {
		for region := range of.usd {
			regions[region] = true
		}
	}
	for _, region := range slices.Sorted(maps.Keys(regions)) {
		var missing []string
		for _, id := range knownPrices() {
			if of := p.prices[id]; of == nil || of.usd[region] == nil {
				missing = append(missing, id)
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("region %s lacks the price of %s", region, strings.Join(missing, ", "))
		}
		p.regions = append(p.regions, region)
	}
	return nil
}
