package cost

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

//go:embed prices.json
var listed []byte

// Prices are AWS's prices, by region. The zero Prices has none.
type Prices struct {
	From []string // the files that replaced some of the prices, in the order in which they were read

	prices  map[string]*price
	regions []string // regions that have all prices; sorted
}

// price is the price of one kind of unit.
type price struct {
	id, unit, published string
	per                 float64              // number of units that usd is for
	usd                 map[string][]step    // by region
	asOf                map[string]time.Time // the day on which that was the price, by region
}

// step is the price of the units of a month up to an amount.
type step struct {
	UpTo float64 // 0 in the last step, which has no upper bound
	USD  float64
}

// ListPrices returns the prices that come with the program.
func ListPrices() (*Prices, error) { return ReadPrices(nil, "prices.json", listed) }

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
	return of != nil && of.usd[region] != nil
}

const nodePrice = "elasticache." // begins the id of the price of a node; the type of the node follows

// knownPrices returns the ids of the prices that lines of a bill use, except for those of nodes.
func knownPrices() []string {
	return []string{
		"lambda.requests", "lambda.duration", "dynamodb.writes", "dynamodb.reads", "transfer.zones",
		"vpc.endpoint.hours", "vpc.nat.hours", "vpc.ipv4.hours", "sqs.requests", "s3.puts", "secretsmanager.secrets",
		"kms.keys", "kms.requests", "cloudwatch.metrics", "cloudwatch.alarms", "cloudwatch.dashboards",
		"cloudwatch.logs", "appconfig.requests", "appconfig.received", "cloudtrail.data",
	}
}

// amount returns the cost of a monthly quantity in a region, in dollars.
func (p *price) amount(region string, quantity float64) float64 {
	total, from := 0.0, 0.0
	for _, s := range p.usd[region] {
		if quantity <= from {
			break
		}
		to := quantity
		if s.UpTo > 0 {
			to = min(quantity, s.UpTo)
		}
		total += (to - from) * s.USD / p.per
		from = to
	}
	return total
}

// shown formats the price for a bill. A price with steps is shown as that of the first step and of the last.
func (p *price) shown(region string) string {
	all := p.usd[region]
	text := "$" + cents(all[0].USD)
	if len(all) > 1 {
		text += " to $" + cents(all[len(all)-1].USD)
	}
	return text + " for " + decimal(p.per, 0)
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
