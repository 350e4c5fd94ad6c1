package cost

import (
	"fmt"
	"math/big"
)

// PublishedRPS and PublishedTenants are the design point of the bill that [Compare] sets beside ours.
const (
	PublishedRPS     = 1_000_000
	PublishedTenants = 10_000
)

// Published is a line of the bill that a published design review of rate limiting at gateway scale gives for a cell and
// a month at 1,000,000 requests a second, what the same quantity comes to by list prices over a whole month, and ours.
type Published struct {
	Line    string `json:"line"`
	Low     Micros `json:"printedLowUsd"` // as it is printed
	High    Micros `json:"printedHighUsd"`
	Monthly Micros `json:"wholeMonthUsd"` // what it counts, by the list prices, over a month
	Ours    Micros `json:"oursUsd"`
	Why     string `json:"why"` // they differ
}

// Comparison is the published bill beside ours.
type Comparison struct {
	Lines   []Published `json:"lines"`
	Low     Micros      `json:"printedLowUsd"` // the sum of the lines as printed
	High    Micros      `json:"printedHighUsd"`
	Monthly Micros      `json:"wholeMonthUsd"`
	Ours    Micros      `json:"oursUsd"` // all lines of our bill, the API's included
	Notes   []string    `json:"notes"`
}

// What is in no price list of ours, as of 2025-06-01.
var (
	cloudFrontUSD = frac(1, 1_000_000) // a request by HTTPS, 1.00 for 1,000,000
	dayRequests   = num(PublishedRPS * 86_400)
)

const (
	publishedNodes  = 160
	publishedNode   = "cache.r7g.large"
	publishedDayTB  = 168 // between zones
	dollar          = 1_000_000
	daysOfMonth     = hours / 24 // 30 and some hours
	publishedEnvoyL = 1_000
	publishedEnvoyH = 3_000
)

// Compare sets the published bill beside b. The error says that b is not for the published design point: 1,000,000
// requests a second of 10,000 tenants in one full cell.
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
			fmt.Sprintf("printed is a day: %s requests at 2.80 for a million; a month has %d times as many, most of "+
				"them at the last step's price", decimal(dayRequests, 0), daysOfMonth)},
		{"CloudFront and WAF", 130_000 * dollar, 130_000 * dollar,
			micros(sum(product(month, cloudFrontUSD), priced("waf.requests", month))), ours("WAF"),
			"printed is about a day (1.00 and 0.60 for a million; the fee for the ACL left out); here there is no " +
				"CloudFront, and WAF with --waf only"},
		{"ElastiCache", 14_000 * dollar, 20_000 * dollar,
			micros(priced(nodePrice+publishedNode, num(publishedNodes*hours))), ours("ElastiCache"),
			fmt.Sprintf("printed is a month of %d nodes for 8 operations a decision; here a decision is one call, "+
				"for which %d nodes do", publishedNodes, b.Usage.Nodes)},
		{"data between zones", 1_700 * dollar, 1_700 * dollar,
			micros(product(priced("transfer.zones", gigabytesOfDay), frac(seconds, 86_400))), ours("Network"),
			fmt.Sprintf("printed is %d TB, 1.9 KB for each request of a day, billed once; ours are %d bytes a call, "+
				"and interface endpoints", publishedDayTB, callBytes)},
		{"metrics (EMF)", 2_000 * dollar, 12_000 * dollar, 12_000 * dollar, ours("CloudWatch"),
			"ours: a line a second and environment, metrics without tenants, alarms; what is printed is taken for a " +
				"month"},
		{"DynamoDB, configuration", 50 * dollar, 500 * dollar, 500 * dollar, ours("DynamoDB"),
			"ours: each environment reads each tenant's documents, and polls each second; what is printed is taken " +
				"for a month"},
		{"Envoy, or the authorizer", publishedEnvoyL * dollar, publishedEnvoyH * dollar, publishedEnvoyH * dollar,
			ours("Lambda"),
			"theirs are servers, paid by the hour; ours is a Lambda call for each request, at 0.20 for a million " +
				"and its time"},
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
		"What it prints for requests (API Gateway, CloudFront, WAF, data between zones) is a day of 86,400 s, and " +
			"what it prints for hours (nodes) is a month.",
		"At this rate API Gateway and a Lambda call for each request cost far more than all that limits: an edge of " +
			"one's own with a limiter beside it is cheaper.",
	}
	return c, nil
}
