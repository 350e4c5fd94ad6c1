package cost

import (
	"encoding/json"
	"errors"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Guarantees that the built-in price list is complete: every price has values for at least two regions, and the page on
// which it is published.
func TestListPrices(t *testing.T) {
	p := listPrices(t)
	if got := p.regions; !slices.Equal(got, []string{"eu-west-1", "us-east-1"}) {
		t.Errorf("regions %v", got)
	}
	if len(p.From) != 0 {
		t.Errorf("from %v", p.From)
	}
	for id, price := range p.prices {
		for region := range price.usd {
			if price.asOf[region].IsZero() {
				t.Errorf("the price %s in %s has no date", id, region)
			}
		}
		if !strings.Contains(price.published, "pricing") || !strings.Contains(price.published,
			"https://aws.amazon.com/") {
			t.Errorf("the price %s is published at %q", id, price.published)
		}
	}
}

// Guarantees that a price file replaces the prices that it names and no others, and that the list it is applied to is
// unchanged.
func TestReplace(t *testing.T) {
	base := listPrices(t)
	p, err := ReadPrices(base, "mine.yaml", []byte(`
date: 2026-03-01
prices:
  - { id: lambda.requests, usd: { us-east-1: 0.40 } }
  - { id: dynamodb.writes, per: 1, usd: { eu-west-1: [ { upTo: 10, usd: 2 }, { usd: 1 } ] } }
  - { id: elasticache.cache.r8g.large, per: 1, unit: node hours, published: ours, usd: { us-east-1: 0.2 } }
`))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(p.From, []string{"mine.yaml"}) || !slices.Contains(p.Nodes(), "cache.r8g.large") {
		t.Errorf("from %v, nodes %v", p.From, p.Nodes())
	}
	amount := func(p *Prices, id, region string, of float64) string {
		return strconv.FormatFloat(p.prices[id].amount(region, of), 'f', 7, 64)
	}
	for _, tt := range []struct {
		id, region   string
		of           float64
		want, before string
	}{
		{"lambda.requests", "us-east-1", 1_000_000, "0.4000000", "0.2000000"},
		{"lambda.requests", "eu-west-1", 1_000_000, "0.2000000", "0.2000000"},
		{"dynamodb.writes", "eu-west-1", 12, "22.0000000", "0.0000085"},
		{"sqs.requests", "us-east-1", 1_000_000, "0.4000000", "0.4000000"},
	} {
		if got, before := amount(p, tt.id, tt.region, tt.of), amount(base, tt.id, tt.region, tt.of); got != tt.want ||
			before != tt.before {
			t.Errorf("%g of %s in %s: %s, and %s in the list; want %s, %s", tt.of, tt.id, tt.region, got, before,
				tt.want,
				tt.before)
		}
	}
	w := NewWorkload(10) // 26.28 M requests
	got, err := New(&w, p)
	if err != nil {
		t.Fatal(err)
	}
	wantAmounts(t, got, map[string]string{"Lambda: authorizer, requests": "10.512000"})
	notes := strings.Join(got.Notes(), "\n")
	if !strings.Contains(notes, "Some prices are from mine.yaml.") {
		t.Errorf("the bill does not say where its prices come from:\n%s", notes)
	}
}

// Guarantees that each price has its own date: the one of its entry, or else that of its file.
func TestAsOf(t *testing.T) {
	base := listPrices(t)
	p, err := ReadPrices(base, "mine.yaml", []byte(`
date: 2026-03-01
prices:
  - { id: lambda.requests, usd: { us-east-1: 0.40 } }
  - { id: sqs.requests, asOf: 2026-02-02, usd: { us-east-1: 0.40, eu-west-1: 0.40 } }
  - { id: kms.requests, asOf: 2019-12-31, usd: { eu-west-1: 0.40 } }
`))
	if err != nil {
		t.Fatal(err)
	}
	listed := base.prices["lambda.requests"].asOf["eu-west-1"].Format(time.DateOnly)
	for _, tt := range []struct{ id, region, want string }{
		{"lambda.requests", "us-east-1", "2026-03-01"},
		{"lambda.requests", "eu-west-1", listed},
		{"sqs.requests", "us-east-1", "2026-02-02"},
		{"sqs.requests", "eu-west-1", "2026-02-02"},
		{"kms.requests", "eu-west-1", "2019-12-31"},
	} {
		if got := p.prices[tt.id].asOf[tt.region].Format(time.DateOnly); got != tt.want {
			t.Errorf("the price %s in %s has the date %s, want %s", tt.id, tt.region, got, tt.want)
		}
	}
}

// Guarantees that a bill gives the days of the oldest and the newest price that it uses in its region, and no others.
func TestDaysOfPrices(t *testing.T) {
	p, err := ReadPrices(nil, "all.yaml", []byte(plainDays(ListedPrices())))
	if err != nil {
		t.Fatal(err)
	}
	if p, err = ReadPrices(p, "mine.yaml", []byte(`
date: 2026-03-01
prices:
  - { id: sqs.requests, usd: { us-east-1: 0.50 } }
  - { id: s3.puts, asOf: 2001-01-01, usd: { eu-west-1: 0.50 } }
  - { id: vpc.nat.hours, asOf: 2002-02-02, usd: { us-east-1: 5 } }
`)); err != nil {
		t.Fatal(err)
	}
	w := NewWorkload(0)
	b, err := New(&w, p)
	if err != nil {
		t.Fatal(err)
	}
	const want = "as of 2025-06-01 to 2026-03-01, not checked against AWS today"
	if notes := strings.Join(b.Notes(), "\n"); !strings.Contains(notes, want) {
		t.Errorf("the bill says\n%s\nwant %s", notes, want)
	}
	var said struct {
		PricesOf, PricesTo string
		Lines              []struct{ Service, PriceAsOf string }
	}
	var text strings.Builder
	if err := b.WriteJSON(&text); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(text.String()), &said); err != nil {
		t.Fatal(err)
	}
	if said.PricesOf != "2025-06-01" || said.PricesTo != "2026-03-01" {
		t.Errorf("the JSON says %+v", said)
	}
	for _, l := range said.Lines {
		if want := map[bool]string{true: "2026-03-01", false: "2025-06-01"}[l.Service == "SQS"]; l.PriceAsOf != want {
			t.Errorf("the price of %s has the date %q, want %s", l.Service, l.PriceAsOf, want)
		}
	}
}

// plainDays returns a price file with one date for all prices.
func plainDays(text string) string {
	return regexp.MustCompile(`asOf: [0-9-]+,`).ReplaceAllString(text, "")
}

// Guarantees that an amount which is too large for its type is an error, and not a wrong amount.
func TestTooMuch(t *testing.T) {
	p, err := ReadPrices(listPrices(t), "f.yaml", []byte("date: 2026-01-01\nprices: [ { id: lambda.requests, per: "+
		"1, usd: { us-east-1: 999999999999999999 } } ]"))
	if err != nil {
		t.Fatal(err)
	}
	w := NewWorkload(50)
	if b, err := New(&w, p); b != nil || err == nil || err.Error() != "Lambda, authorizer, requests: costs more "+
		"than 100,000,000,000 dollars" {
		t.Errorf("New = %v, %v; want no bill and an error that names the line", b, err)
	}
}

// Guarantees that a new region must have all of its prices.
func TestNewRegion(t *testing.T) {
	text := ListedPrices()
	p, err := ReadPrices(listPrices(t), "tokyo.yaml", []byte(strings.ReplaceAll(text, "eu-west-1", "ap-northeast-1")))
	if err != nil || !slices.Contains(p.regions, "ap-northeast-1") || len(p.regions) != 3 {
		t.Fatalf("%v, %v", p, err)
	}
	_, err = ReadPrices(listPrices(t), "tokyo.yaml", []byte("date: 2026-01-01\nprices: [ { id: lambda.requests, "+
		"usd: { ap-northeast-1: 0.2 } } ]"))
	want := "tokyo.yaml: region ap-northeast-1 lacks the price of lambda.duration, dynamodb.writes, dynamodb.reads, " +
		"transfer.zones, vpc.endpoint.hours and 14 more"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// Guarantees that all problems of a price file are reported in one run, each with its place, and that no price of such
// a file is used.
func TestPriceProblems(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"empty", "", "f.yaml:1:1: the file is empty: it needs date and prices"},
		{"no YAML", "date: [", "f.yaml:1:1: not valid YAML: did not find expected node content"},
		{"two documents", "date: 2026-01-01\n---\na: 1\n", "f.yaml:3:1: a second YAML document begins here: one " +
			"file holds one document"},
		{"a list", "- 1\n", "f.yaml:1:1: want a price file (a mapping), got a list"},
		{"no date", "prices: [ { id: sqs.requests, usd: { us-east-1: 1 } } ]",
			"f.yaml:1:1: date is missing: of which day the prices are"},
		{"bad date", "date: tomorrow\nprices: [ { id: sqs.requests, usd: { us-east-1: 1 } } ]",
			"f.yaml:1:7: date: want a day such as 2026-03-01"},
		{"no prices", "date: 2026-01-01\n", "f.yaml:1:1: prices is missing"},
		{"unknown key", "date: 2026-01-01\nprices:\n  - { id: sqs.requests, usd: { us-east-1: 1 }, discount: 5 }\n",
			`f.yaml:3:48: prices[0]: unknown key "discount" in a price; known: id, per, unit, published, asOf, ` +
				`usd`},
		{"a day that is none", "date: 2026-01-01\nprices: [ { id: sqs.requests, asOf: May, usd: { us-east-1: 1 } } ]",
			"f.yaml:2:37: prices[0].asOf: want a day such as 2026-03-01"},
		{"unknown price", "date: 2026-01-01\nprices: [ { id: sns.hugs, usd: {} } ]",
			`f.yaml:2:17: prices[0].id: "sns.hugs" is not the id of a price; the ids are lambda.requests`},
		{"twice", "date: 2026-01-01\nprices: [ { id: sqs.requests, usd: { us-east-1: 1 } }, { id: sqs.requests, " +
			"usd: { us-east-1: 1 } } ]",
			`f.yaml:2:62: prices[1].id: the file has two prices "sqs.requests"`},
		{"a key twice", "date: 2026-01-01\ndate: 2026-01-01\nprices: [ { id: sqs.requests, usd: { us-east-1: 1 } } ]",
			"date"},
		{"negative", "date: 2026-01-01\nprices: [ { id: sqs.requests, usd: { us-east-1: -1 } } ]",
			`f.yaml:2:49: prices[0].usd.us-east-1: "-1" is not a number of 0 to 1e+18: write one such as 50 or 0.25`},
		{"not a number", "date: 2026-01-01\nprices: [ { id: sqs.requests, usd: { us-east-1: .nan } } ]",
			`prices[0].usd.us-east-1: ".nan" is not a number`},
		{"infinite", "date: 2026-01-01\nprices: [ { id: sqs.requests, usd: { us-east-1: \"inf\" } } ]",
			`"inf" is not a number`},
		{"per nothing", "date: 2026-01-01\nprices: [ { id: sqs.requests, per: 0, usd: { us-east-1: 1 } } ]",
			"f.yaml:2:36: prices[0].per: want a number above 0"},
		{"per a part", "date: 2026-01-01\nprices: [ { id: sqs.requests, per: 0.5, usd: { us-east-1: 1 } } ]",
			"prices[0].per: want a whole number"},
		{"no region", "date: 2026-01-01\nprices: [ { id: sqs.requests, usd: { Ireland: 1 } } ]",
			`f.yaml:2:38: prices[0].usd: "Ireland" is not the name of a region`},
		{"steps that fall", "date: 2026-01-01\nprices: [ { id: sqs.requests, usd: { us-east-1: [ { upTo: 5, usd: 1 " +
			"}, { upTo: 5, usd: 1 }, { usd: 1 } ] } } ]",
			"f.yaml:2:80: prices[0].usd.us-east-1[1].upTo: want a larger number than in the step before"},
		{"steps that end", "date: 2026-01-01\nprices: [ { id: sqs.requests, usd: { us-east-1: [ { upTo: 5, usd: 1 " +
			"} ] } } ]",
			"prices[0].usd.us-east-1[0].upTo: the last step has no upper bound: remove its upTo"},
		{"a step without an end", "date: 2026-01-01\nprices: [ { id: sqs.requests, usd: { us-east-1: [ { usd: 1 }, " +
			"{ usd: 2 } ] } } ]",
			"prices[0].usd.us-east-1[0]: upTo is missing: only the last step has none"},
		{"no steps", "date: 2026-01-01\nprices: [ { id: sqs.requests, usd: { us-east-1: [] } } ]",
			"prices[0].usd.us-east-1: want 1 to 20 steps"},
		{"a new node without a unit", "date: 2026-01-01\nprices: [ { id: elasticache.cache.a.b, per: 1, published: " +
			"x, usd: { us-east-1: 1 } } ]", "prices[0]: unit is missing"},
		{"an alias", "date: &d 2026-01-01\nprices: [ { id: sqs.requests, per: *d, usd: { us-east-1: 1 } } ]",
			"prices[0].per: want a number"},
		{"too large", strings.Repeat("#", MaxFileBytes+1), "f.yaml: the file is larger than 1 MiB"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			base := listPrices(t)
			before := maps.Clone(base.prices)
			p, err := ReadPrices(base, "f.yaml", []byte(tt.text))
			var told *PriceError
			if p != nil || !errors.As(err, &told) || !strings.Contains(err.Error(), tt.want) ||
				!strings.HasPrefix(err.Error(), "f.yaml:") {
				t.Fatalf("got  %v, %v\nwant %s", p, err, tt.want)
			}
			if !maps.Equal(before, base.prices) {
				t.Error("the price list was changed by a file with problems")
			}
		})
	}
	_, err := ReadPrices(listPrices(t), "f.yaml", []byte("date: x\nprices: [ { id: y, usd: {} }, { id: "+
		"sqs.requests, usd: { us-east-1: z } } ]"))
	if err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("a file with three problems gives the error %v", err)
	}
}

// FuzzReadPrices checks that no text makes ReadPrices panic, and that accepted prices give a bill.
func FuzzReadPrices(f *testing.F) {
	f.Add([]byte(ListedPrices()))
	f.Add([]byte("date: 2026-01-01\nprices: [ { id: sqs.requests, per: 1, usd: { us-east-1: [ { upTo: 5, usd: 1 }, " +
		"{ usd: 0 } ] } } ]"))
	f.Add([]byte("date: &a 2026-01-01\nprices: [ *a, { id: *a } ]"))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("? [x]\n: y"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := ReadPrices(listPrices(t), "f.yaml", data)
		if err != nil {
			if p != nil || err.Error() == "" {
				t.Fatalf("%v, %q", p, err)
			}
			return
		}
		w := NewWorkload(50)
		w.Profile = Full
		b, err := New(&w, p)
		if err != nil {
			if b != nil || !strings.Contains(err.Error(), "costs more than") {
				t.Fatal(err)
			}
			return
		}
		for _, l := range b.Lines {
			if l.Amount < 0 {
				t.Fatalf("%s costs %s", l.What, l.Amount.Dollars())
			}
		}
	})
}
