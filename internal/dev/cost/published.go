package cost

import (
	"fmt"
	"math/big"
)

// PublishedRPS and PublishedTenants are the workload of the published bill that [Bill.Compare] compares with ours.
const (
	PublishedRPS     = 1_000_000
	PublishedTenants = 10_000
)

// Published is a line of a comparison with the bill in a published design review of rate limiting at gateway scale.
// That bill is for one cell and a month at 1,000,000 requests per second.
type Published struct {
	Line    string `json:"line"`
	Low     Micros `json:"printedLowUsd"` // the amount as printed; the lower end if a range was printed
	High    Micros `json:"printedHighUsd"`
	Monthly Micros `json:"wholeMonthUsd"` // what the printed quantity costs in a whole month, by list prices
	Ours    Micros `json:"oursUsd"`
	Why     string `json:"why"` // why the amounts differ
}

// Comparison compares the published bill with ours.
type Comparison struct {
	Lines   []Published `json:"lines"`
	Low     Micros      `json:"printedLowUsd"` // the sum of the lines as printed
	High    Micros      `json:"printedHighUsd"`
	Monthly Micros      `json:"wholeMonthUsd"`
	Ours    Micros      `json:"oursUsd"` // the sum of all lines of our bill, with those of the API
	Notes   []string    `json:"notes"`
}

// Numbers of the published bill, as of 2025-06-01, that prices.yaml does not have.
var (
	cloudFrontUSD = frac(1, 1_000_000) // price of a request by HTTPS: 1.00 for 1,000,000
	dayRequests   = num(PublishedRPS * 86_400)
)

const (
	publishedNodes  = 160
	publishedNode   = "cache.r7g.large"
	publishedDayTB  = 168 // data between zones in a day, TB
	dollar          = 1_000_000
	daysOfMonth     = hours / 24 // a whole number, 30, although a month has 10 hours more
	publishedEnvoyL = 1_000
	publishedEnvoyH = 3_000
)

// Compare compares the published bill with b. It returns an error if b is for another workload than the published bill:
// 1,000,000 requests per second of 10,000 tenants in one full cell.
func (b *Bill) Compare() (*Comparison, error) {
	w := &b.Workload
	if w.RPS.Cmp(num(PublishedRPS)) != 0 || w.Tenants != PublishedTenants || w.Cells != 1 || w.Profile != Full ||
		w.API != REST {
		return nil, fmt.Errorf("the published bill is for --rps %d --tenants %d --cells 1 --profile full --api rest",
			PublishedRPS, PublishedTenants)
	}
	prices, region := b.Prices.prices, w.Region
	month := num(PublishedRPS * seconds)
	priced := func(id string, quantity *big.Rat) *big.Rat { return prices[id].amount(region, quantity, false) }
	ours := func(services ...string) (total Micros) {
		for _, l := range b.Lines {
			for _, s := range services {
				if l.Service == s {
					total += l.Amount
				}
			}
		}
		return total
	}
	gigabytesOfDay := num(publishedDayTB * 1000)
	c := &Comparison{Lines: []Published{
		{"API Gateway, REST", 240_000 * dollar, 240_000 * dollar, micros(priced("apigateway.rest", month)),
			ours("API Gateway"),
			fmt.Sprintf("the printed amount is for a day: %s requests at 2.80 per million; a month has %d times as "+
				"many, most of them at the price of the last step", decimal(dayRequests, 0), daysOfMonth)},
		{"CloudFront and WAF", 130_000 * dollar, 130_000 * dollar,
			micros(sum(product(month, cloudFrontUSD), priced("waf.requests", month))), ours("WAF"),
			"the printed amount is for about a day (1.00 and 0.60 per million; without the fee for the ACL); ours " +
				"has no CloudFront, and WAF only with --waf"},
		{"ElastiCache", 14_000 * dollar, 20_000 * dollar,
			micros(priced(nodePrice+publishedNode, num(publishedNodes*hours))), ours("ElastiCache"),
			fmt.Sprintf("the printed amount is for a month of %d nodes and 8 operations per decision; ours has one "+
				"call per decision, which needs %d nodes", publishedNodes, b.Usage.Nodes)},
		{"data between zones", 1_700 * dollar, 1_700 * dollar,
			micros(product(priced("transfer.zones", gigabytesOfDay), frac(seconds, 86_400))), ours("Network"),
			fmt.Sprintf("the printed amount is for %d TB: 1.9 KB for each request of a day, billed once; ours is for "+
				"%d bytes per call, and for interface endpoints", publishedDayTB, callBytes)},
		{"metrics (EMF)", 2_000 * dollar, 12_000 * dollar, 12_000 * dollar, ours("CloudWatch"),
			"ours is for a line per second and environment, metrics without tenants, and alarms; the printed amount " +
				"is taken to be for a month"},
		{"DynamoDB, configuration", 50 * dollar, 500 * dollar, 500 * dollar, ours("DynamoDB"),
			"in ours, each environment reads each tenant's documents and polls every second; the printed amount is " +
				"taken to be for a month"},
		{"Envoy, or the authorizer", publishedEnvoyL * dollar, publishedEnvoyH * dollar, publishedEnvoyH * dollar,
			ours("Lambda"),
			"the printed amount is for servers, which are paid by the hour; ours is for a Lambda call per request, " +
				"at 0.20 per million, and its duration"},
	}}
	for _, l := range c.Lines {
		c.Low, c.High, c.Monthly = c.Low+l.Low, c.High+l.High, c.Monthly+l.Monthly
	}
	rest := b.Total + b.Anyway
	for _, l := range c.Lines {
		rest -= l.Ours
	}
	c.Lines = append(c.Lines, Published{"the rest", 0, 0, 0, rest,
		"AppConfig, secrets, topic, queues, audit: not in the published bill"})
	c.Ours = b.Total + b.Anyway
	c.Notes = []string{
		"The published sum is 385,000 to 420,000; its lines add up to " + c.Low.String() + " to " + c.High.String() +
			".",
		"Its amounts for requests (API Gateway, CloudFront, WAF, data between zones) are for a day of 86,400 s, and " +
			"its amounts for hours (nodes) are for a month.",
		"At this rate, API Gateway and a Lambda call for each request cost far more than the limiter itself. Servers " +
			"of your own, with a limiter in them, are cheaper.",
	}
	return c, nil
}
