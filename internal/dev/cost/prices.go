package cost

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

//go:embed prices.json
var listed []byte

// Prices are AWS's prices, by region.
type Prices struct {
	prices  map[string]*price // by id
	regions []string          // that have prices; sorted
}

// price is the price of one kind of unit.
type price struct {
	ID, Unit  string
	Published string           // where AWS has the price
	AsOf      string           // a day on which it was the price in each region
	Per       float64          // number of units that USD is for
	USD       map[string]steps // by region
}

// steps are the prices of the units of a month up to certain amounts. In the list, one step may be a number.
type steps []step

// step is the price of the units of a month up to an amount.
type step struct {
	UpTo float64 // 0 in the last step, which has no upper bound
	USD  float64
}

// UnmarshalJSON implements [json.Unmarshaler].
func (s *steps) UnmarshalJSON(text []byte) error {
	if text[0] == '[' {
		return json.Unmarshal(text, (*[]step)(s))
	}
	*s = steps{{}}
	return json.Unmarshal(text, &(*s)[0].USD)
}

// ListPrices returns the prices that come with the program.
func ListPrices() (*Prices, error) {
	var file struct{ Prices []*price }
	if err := json.Unmarshal(listed, &file); err != nil {
		return nil, fmt.Errorf("prices.json: %w", err)
	}
	p := &Prices{prices: map[string]*price{}}
	for _, one := range file.Prices {
		p.prices[one.ID] = one
		p.regions = slices.Sorted(maps.Keys(one.USD)) // every price is for the same regions
	}
	return p, nil
}

// Nodes returns the types of cache nodes that have a price, sorted.
func (p *Prices) Nodes() []string {
	var nodes []string
	for _, id := range slices.Sorted(maps.Keys(p.prices)) {
		if node, ok := strings.CutPrefix(id, nodePrice); ok {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

func (p *Prices) hasNode(node, region string) bool {
	of := p.prices[nodePrice+node]
	return of != nil && of.USD[region] != nil
}

const nodePrice = "elasticache." // begins the id of the price of a node; the type of the node follows

// amount returns the cost of a monthly quantity in a region, in dollars.
func (p *price) amount(region string, quantity float64) float64 {
	total, from := 0.0, 0.0
	for _, s := range p.USD[region] {
		if quantity <= from {
			break
		}
		to := quantity
		if s.UpTo > 0 {
			to = min(quantity, s.UpTo)
		}
		total += (to - from) * s.USD / p.Per
		from = to
	}
	return total
}

// shown formats the price for a bill. A price with steps is shown as that of the first step and of the last.
func (p *price) shown(region string) string {
	all := p.USD[region]
	text := "$" + cents(all[0].USD)
	if len(all) > 1 {
		text += " to $" + cents(all[len(all)-1].USD)
	}
	return text + " for " + decimal(p.Per, 0)
}

// cents formats a with at least two digits after the point, and as many as it has.
func cents(a float64) string {
	s := strconv.FormatFloat(a, 'f', -1, 64)
	if _, part, _ := strings.Cut(s, "."); len(part) < 2 {
		s = strconv.FormatFloat(a, 'f', 2, 64)
	}
	return s
}

// decimal formats a with at most digits digits after the point, without zeros at the end.
func decimal(a float64, digits int) string {
	s := strconv.FormatFloat(a, 'f', digits, 64)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	whole, part, point := strings.Cut(s, ".")
	if len(whole) > 3 && len(whole) <= 18 {
		var n int64
		if _, err := fmt.Sscan(whole, &n); err == nil {
			whole = grouped(n)
		}
	}
	if point {
		return whole + "." + part
	}
	return whole
}
