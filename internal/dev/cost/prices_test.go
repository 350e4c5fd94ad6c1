package cost

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// Guarantees that the price list is complete: every price has the day and the page of its publication, a unit, and
// steps that rise up to one without an end, for the same two regions.
func TestListPrices(t *testing.T) {
	p := listPrices(t)
	want := []string{"eu-west-1", "us-east-1"}
	if !slices.Equal(p.regions, want) {
		t.Errorf("regions %v, want %v", p.regions, want)
	}
	for id, price := range p.prices {
		if _, err := time.Parse(time.DateOnly, price.AsOf); err != nil {
			t.Errorf("the price %s: %v", id, err)
		}
		if !strings.Contains(price.Published, "pricing") || !strings.Contains(price.Published,
			"https://aws.amazon.com/") {
			t.Errorf("the price %s is published at %q", id, price.Published)
		}
		if price.Unit == "" || price.Per < 1 {
			t.Errorf("the price %s is for %g of the unit %q", id, price.Per, price.Unit)
		}
		if got := slices.Sorted(maps.Keys(price.USD)); !slices.Equal(got, want) {
			t.Errorf("the price %s is for %v, want %v", id, got, want)
		}
		for region, steps := range price.USD {
			last := 0.0
			for i, s := range steps {
				if final := i == len(steps)-1; s.USD < 0 || final != (s.UpTo == 0) || !final && s.UpTo <= last {
					t.Errorf("the price %s in %s: step %d is %+v", id, region, i+1, s)
				}
				last = s.UpTo
			}
			if len(steps) == 0 {
				t.Errorf("the price %s in %s has no steps", id, region)
			}
		}
	}
}

// Guarantees that an amount which is too large for its type is an error, and not a wrong amount.
func TestTooMuch(t *testing.T) {
	p := &Prices{maps.Clone(listPrices(t).prices), listPrices(t).regions}
	dear := *p.prices["lambda.requests"]
	dear.Per, dear.USD = 1, map[string]steps{"us-east-1": {{USD: 999999999999999999}}}
	p.prices["lambda.requests"] = &dear
	w := NewWorkload(50)
	if b, err := New(&w, p); b != nil || err == nil || err.Error() != "Lambda, authorizer, requests: costs more "+
		"than 100,000,000,000 dollars" {
		t.Errorf("New = %v, %v; want no bill and an error that names the line", b, err)
	}
}
