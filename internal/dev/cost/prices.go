package cost

import (
	_ "embed"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"
	"time"
)

//go:embed prices.yaml
var listed []byte

// Prices are what AWS asks for, by region. The zero Prices has none.
type Prices struct {
	From []Replacement // the files that replaced a part of the list, in their order

	prices  map[string]*price
	regions []string // that have all prices but laterPrices, sorted
}

// Replacement is a price file that replaced a part of a list.
type Replacement struct {
	File string
	Date time.Time // as of which its prices are that name no day of their own
}

// price is what a unit costs.
type price struct {
	id, unit, published string
	per                 *big.Rat             // units that a price is for
	free                *big.Rat             // units of a month that are free without an end
	usd                 map[string][]step    // by region
	asOf                map[string]time.Time // the day on which that was the price, by region
}

// step holds for the units of a month up to an amount.
type step struct {
	upTo *big.Rat // nil: for all that are beyond
	usd  *big.Rat
}

// ListPrices are those that come with the program.
func ListPrices() (*Prices, error) { return ReadPrices(nil, "prices.yaml", listed) }

// ListedPrices is the text of which [ListPrices] is made, as a form for a file of one's own.
func ListedPrices() string { return string(listed) }

// Regions are those for which there is every price.
func (p *Prices) Regions() []string { return slices.Clone(p.regions) }

// Nodes are the types of cache nodes that have a price, sorted.
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

const nodePrice = "elasticache." // and the type of the node

// knownPrices are the ids that lines of a bill use, but those of nodes.
func knownPrices() []string {
	return []string{
		"apigateway.rest", "apigateway.http", "apigateway.websocket.messages", "apigateway.websocket.minutes",
		"lambda.requests", "lambda.duration", "dynamodb.writes", "dynamodb.reads", "dynamodb.storage",
		"dynamodb.backup",
		"transfer.zones", "vpc.endpoint.hours", "vpc.endpoint.data", "vpc.nat.hours", "vpc.nat.data", "vpc.ipv4.hours",
		"sns.publishes", "sqs.requests", "s3.puts", "s3.storage",
		"secretsmanager.secrets", "secretsmanager.calls", "kms.keys", "kms.requests", "cloudwatch.metrics",
		"cloudwatch.alarms",
		"cloudwatch.dashboards", "cloudwatch.logs", "cloudwatch.archive", "appconfig.requests", "appconfig.received",
		"cloudtrail.data", "waf.acl", "waf.rules", "waf.requests",
	}
}

// laterPrices are those of knownPrices that files of earlier releases do not have. A region may be without them: a
// bill that needs one says so.
func laterPrices() []string { return []string{"vpc.endpoint.data", "vpc.nat.data", "vpc.ipv4.hours"} }

// retiredPrices are the ids that price files of earlier releases may have and no line of a bill uses. Functions are
// called on a schedule by EventBridge's rules, which are free; only EventBridge Scheduler has a price.
func retiredPrices() []string { return []string{"eventbridge.schedules"} }

// amount is what a quantity of a month costs in a region, in dollars. Steps hold for the units that are paid; free ones
// come first.
func (p *price) amount(region string, quantity *big.Rat, freeTier bool) *big.Rat {
	paid := quantity
	if freeTier {
		paid = minus(quantity, least(quantity, p.free))
	}
	total, from := new(big.Rat), new(big.Rat)
	for _, s := range p.usd[region] {
		if paid.Cmp(from) <= 0 {
			break
		}
		to := paid
		if s.upTo != nil {
			to = least(paid, s.upTo)
		}
		total.Add(total, over(product(minus(to, from), s.usd), p.per))
		from = to
	}
	return total
}

// shown is the price as a bill shows it: with steps, that of the first and the last.
func (p *price) shown(region string) string {
	steps := p.usd[region]
	text := "$" + cents(steps[0].usd)
	if len(steps) > 1 {
		text += " to $" + cents(steps[len(steps)-1].usd)
	}
	return text + " for " + decimal(p.per, 0)
}

// cents writes a with two digits after the point, or more where it has them.
func cents(a *big.Rat) string {
	s := a.FloatString(maxDigits)
	point := strings.IndexByte(s, '.')
	return s[:max(point+3, len(strings.TrimRight(s, "0")))]
}

// decimal writes a with at most so many digits after the point, and none that say nothing.
func decimal(a *big.Rat, digits int) string {
	s := a.FloatString(digits)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	whole, part, point := strings.Cut(s, ".")
	if len(whole) > 3 && len(whole) <= maxDigits {
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
