package cost

import (
	"bytes"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
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

// Guarantees that a price file replaces the prices that it names and no others, each with its day, and that the list it
// is applied to is unchanged.
func TestReplace(t *testing.T) {
	base := listPrices(t)
	p, err := ReadPrices(base, "mine.json", []byte(`{ "prices": [
  { "id": "lambda.requests", "asOf": "2026-03-01", "usd": { "us-east-1": 0.40 } },
  { "id": "dynamodb.writes", "asOf": "2026-03-01", "per": 1, "usd": { "eu-west-1": [ { "upTo": 10, "usd": 2 },
    { "usd": 1 } ] } },
  { "id": "elasticache.cache.r8g.large", "asOf": "2026-03-01", "per": 1, "unit": "node hours", "published": "ours",
    "usd": { "us-east-1": 0.2 } }
] }`))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(p.From, []string{"mine.json"}) || !slices.Contains(p.Nodes(), "cache.r8g.large") {
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
				tt.want, tt.before)
		}
	}
	w := NewWorkload(10) // 26.28 M requests
	got, err := New(&w, p)
	if err != nil {
		t.Fatal(err)
	}
	wantAmounts(t, got, map[string]string{"Lambda: authorizer, requests": "10.512000"})
	notes := strings.Join(got.Notes(), "\n")
	for _, want := range []string{"Some prices are from mine.json.", "as of 2025-06-01 to 2026-09-29"} {
		if !strings.Contains(notes, want) {
			t.Errorf("the notes of the bill lack %q:\n%s", want, notes)
		}
	}
	days := map[string]string{}
	for _, l := range got.Lines {
		days[l.id] = l.AsOf
	}
	if days["lambda.requests"] != "2026-03-01" || days["sqs.requests"] == "2026-03-01" {
		t.Errorf("the days of the prices are %v", days)
	}
}

// Guarantees that an amount which is too large for its type is an error, and not a wrong amount.
func TestTooMuch(t *testing.T) {
	p, err := ReadPrices(listPrices(t), "f.json", []byte(
		`{"prices":[{"id":"lambda.requests","asOf":"2026-01-01","per":1,"usd":{"us-east-1":999999999999999999}}]}`))
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
	p, err := ReadPrices(listPrices(t), "tokyo.json", bytes.ReplaceAll(listed, []byte("eu-west-1"),
		[]byte("ap-northeast-1")))
	if err != nil || !slices.Contains(p.regions, "ap-northeast-1") || len(p.regions) != 3 {
		t.Fatalf("%v, %v", p, err)
	}
	_, err = ReadPrices(listPrices(t), "tokyo.json", []byte(
		`{"prices":[{"id":"lambda.requests","asOf":"2026-01-01","usd":{"ap-northeast-1":0.2}}]}`))
	want := "tokyo.json: region ap-northeast-1 lacks the price of lambda.duration, dynamodb.writes"
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// Guarantees that a mistake in a price file is an error that names the file, and its line or the price, and that no
// price of such a file is used.
func TestPriceProblems(t *testing.T) {
	one := func(entry string) string {
		return `{"prices":[{"id":"sqs.requests","asOf":"2026-01-01",` + entry + `}]}`
	}
	tests := []struct{ name, text, want string }{
		{"empty", "", "f.json:1: not a price file in JSON"},
		{"no JSON", "{\n\"prices\": [\n}", "f.json:3: not a price file in JSON"},
		{"two documents", one(`"usd":{}`) + "\n{}",
			"f.json:2: not a price file in JSON: invalid character '{' after top-level value"},
		{"a bracket too many", one(`"usd":{}`) + "}", "f.json:1: not a price file in JSON: invalid character '}'"},
		{"the end is missing", "{\n\"prices\": [\n", "f.json:3: not a price file in JSON: unexpected end"},
		{"too large", strings.Repeat(" ", MaxFileBytes) + one(`"usd":{}`), "f.json: the file is larger than 1 MiB"},
		{"another member", `{"prices":[],"price":[]}`, `f.json: unknown field "price"; the only one is prices`},
		{"no list", `{"prices":3}`, "f.json: prices: json: cannot unmarshal number"},
		{"no usd", one(`"per":1`), `f.json: price "sqs.requests": usd is missing`},
		{"a step without usd", one(`"usd":{"us-east-1":[{"upTo":10},{"usd":1}]}`),
			`f.json: prices[0] "sqs.requests": step 1 has no usd`},
		{"a list", "[]", "f.json:1: not a price file in JSON"},
		{"no prices", "{}", "f.json: it has no prices"},
		{"unknown key", one(`"discount":5`), `f.json: prices[0] "sqs.requests": json: unknown field "discount"`},
		{"unknown key of a step", one(`"usd":{"us-east-1":[{"usd":1,"free":2}]}`), `unknown field "free"`},
		{"a day that is none", `{"prices":[{"id":"sqs.requests","asOf":"May"}]}`,
			`f.json: price "sqs.requests": asOf is "May"`},
		{"no day", `{"prices":[{"id":"sqs.requests"}]}`, `asOf is ""`},
		{"unknown price", `{"prices":[{"id":"sns.hugs","asOf":"2026-01-01"}]}`,
			`price "sns.hugs": no bill has such a price; the ids are lambda.requests`},
		{"twice", strings.Replace(one(`"usd":{"us-east-1":1}`), "[", `[{"id":"sqs.requests","asOf":"2026-01-01",`+
			`"usd":{"us-east-1":1}},`, 1), "the file has this price twice"},
		{"negative", one(`"usd":{"us-east-1":-1}`), "in us-east-1: usd is -1; want a number of 0 to 1e+18"},
		{"not a number", one(`"usd":{"us-east-1":"x"}`),
			`f.json: prices[0] "sqs.requests": json: cannot unmarshal string`},
		{"null", one(`"usd":{"us-east-1":null}`), "in us-east-1: want 1 to 20 steps"},
		{"infinite", one(`"usd":{"us-east-1":1e999}`), "cannot unmarshal number 1e999"},
		{"per nothing", one(`"per":0`), "per is 0; want a whole number above 0"},
		{"per a part", one(`"per":0.5`), "per is 0.5; want a whole number"},
		{"no region", one(`"usd":{"Ireland":1}`), `"Ireland" is not the name of a region`},
		{"steps that fall", one(`"usd":{"us-east-1":[{"upTo":5,"usd":1},{"upTo":5,"usd":1},{"usd":1}]}`),
			"upTo of step 2 is 5; want more than in the step before"},
		{"steps that end", one(`"usd":{"us-east-1":[{"upTo":5,"usd":1}]}`), "the last step has no upper bound"},
		{"a step without an end", one(`"usd":{"us-east-1":[{"usd":1},{"usd":2}]}`), "upTo of step 1 is 0"},
		{"no steps", one(`"usd":{"us-east-1":[]}`), "want 1 to 20 steps"},
		{"a new node without a unit", `{"prices":[{"id":"elasticache.cache.a.b","asOf":"2026-01-01","per":1}]}`,
			"a new price needs per, unit and published"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			base := listPrices(t)
			before := maps.Clone(base.prices)
			p, err := ReadPrices(base, "f.json", []byte(tt.text))
			if p != nil || err == nil || !strings.Contains(err.Error(), tt.want) ||
				!strings.HasPrefix(err.Error(), "f.json:") {
				t.Fatalf("got  %v, %v\nwant %s", p, err, tt.want)
			}
			if !maps.Equal(before, base.prices) {
				t.Error("the price list was changed by a file with problems")
			}
		})
	}
}

// FuzzReadPrices checks that no text makes ReadPrices panic, and that accepted prices give a bill.
func FuzzReadPrices(f *testing.F) {
	f.Add(listed)
	f.Add([]byte(`{"prices":[{"id":"sqs.requests","asOf":"2026-01-01","usd":{"us-east-1":[{"upTo":5,"usd":1},` +
		`{"usd":0}]}}]}`))
	f.Add([]byte(`{"prices":[null,{}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := ReadPrices(listPrices(t), "f.json", data)
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
