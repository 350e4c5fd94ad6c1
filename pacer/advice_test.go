package pacer_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/pacer"
)

// noon is when the replies of these tests are received: 1,800,000,000 seconds after 1970.
var noon = time.Unix(1_800_000_000, 0).UTC()

func TestParseAdvice(t *testing.T) {
	second := time.Second
	type fields map[string]string
	for _, tt := range []struct {
		name   string
		fields fields
		want   pacer.Advice
	}{
		{"nothing", nil, pacer.Advice{}},
		{"seconds", fields{"Retry-After": "7"}, pacer.Advice{RetryAfter: 7 * second}},
		{"retry after a fraction", fields{"Retry-After": " 0.25 "},
			pacer.Advice{RetryAfter: second / 4}},
		{"retry at a date", fields{"Retry-After": "Fri, 15 Jan 2027 08:00:30 GMT"},
			pacer.Advice{RetryAfter: 30 * second}},
		{"retry at a date in the past", fields{"Retry-After": "Fri, 15 Jan 2010 08:00:30 GMT"},
			pacer.Advice{}},
		{"retry after nonsense", fields{"Retry-After": "soon"}, pacer.Advice{}},
		{"retry after less than nothing", fields{"Retry-After": "-5"}, pacer.Advice{}},
		{"retry after forever", fields{"Retry-After": "1e300"}, pacer.Advice{}},
		{"retry after no number", fields{"Retry-After": "NaN"}, pacer.Advice{}},
		{"draft 8", fields{"RateLimit-Policy": `"default";q=100;w=10, "daily";q=5000;w=86400`,
			"RateLimit": `"default";r=50;t=3`},
			pacer.Advice{Limits: []pacer.Limit{{Units: 100, Period: 10 * second},
				{Units: 5000, Period: 86400 * second}},
				Left: []pacer.Left{{Name: "default", Units: 50, Until: 3 * second}}}},
		{"draft 7", fields{"RateLimit-Policy": `100;w=10`, "RateLimit": `limit=100, remaining=50, reset=5`},
			pacer.Advice{Limits: []pacer.Limit{{Units: 100, Period: 10 * second}},
				Left: []pacer.Left{{Units: 50, Until: 5 * second}}}},
		{"draft 6", fields{"RateLimit-Limit": "100, 100;w=60", "RateLimit-Remaining": "0",
			"RateLimit-Reset": "12"},
			pacer.Advice{Limits: []pacer.Limit{{Units: 100, Period: 60 * second}},
				Left: []pacer.Left{{Name: "Ratelimit-", Units: 0, Until: 12 * second}}}},
		{"GitHub", fields{"X-RateLimit-Limit": "5000", "X-RateLimit-Remaining": "4999",
			"X-RateLimit-Reset": "1800000060"},
			pacer.Advice{Left: []pacer.Left{{Name: "X-Ratelimit-", Units: 4999, Until: 60 * second}}}},
		{"milliseconds since 1970", fields{"X-Rate-Limit-Remaining": "1", "X-Rate-Limit-Reset": "1800000001500"},
			pacer.Advice{Left: []pacer.Left{{Name: "X-Rate-Limit-", Units: 1, Until: 1500 * time.Millisecond}}}},
		{"Discord", fields{"X-RateLimit-Remaining": "3", "X-RateLimit-Reset": "1800000500",
			"X-RateLimit-Reset-After": "1.5"},
			pacer.Advice{Left: []pacer.Left{{Name: "X-Ratelimit-", Units: 3, Until: 1500 * time.Millisecond}}}},
		{"a date with a time zone", fields{"X-RateLimit-Remaining": "3",
			"X-RateLimit-Reset": "2027-01-15T09:00:10+01:00"},
			pacer.Advice{Left: []pacer.Left{{Name: "X-Ratelimit-", Units: 3, Until: 10 * second}}}},
		{"no reset", fields{"X-RateLimit-Remaining": "3"}, pacer.Advice{}},
		{"a policy of nothing", fields{"RateLimit-Policy": `"a";q=0;w=10, "b";q=-1;w=10, "c";q=10;w=0, ` +
			`"d";q=10, "e";w=1`},
			pacer.Advice{}},
		{"a policy in a foreign unit", fields{"RateLimit-Policy": `"a";q=999999999999999;w=1`}, pacer.Advice{}},
		{"policies of other units", fields{"RateLimit-Policy": `"a";q=9;w=1;qu=requests, ` +
			`"b";q=8;w=1;qu="content-bytes", "c";q=7;w=1;sluice-unit="tokens"`,
			"RateLimit": `"b";r=1;t=3, "a";r=2;t=3, "c";r=0;t=3`},
			pacer.Advice{Limits: []pacer.Limit{{Units: 9, Period: second}},
				Left: []pacer.Left{{Name: "a", Units: 2, Until: 3 * second}}}},
		{"no structured field", fields{"RateLimit-Policy": `"a;q=1`, "RateLimit": `;;;`}, pacer.Advice{}},
		{"negative", fields{"X-RateLimit-Remaining": "-3", "X-RateLimit-Reset": "10"}, pacer.Advice{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := http.Header{}
			for name, value := range tt.fields {
				h.Set(name, value)
			}
			if got := pacer.ParseAdvice(h, noon); fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", tt.want) {
				t.Errorf("ParseAdvice = %+v, want %+v", got, tt.want)
			}
		})
	}
}

// Guarantees that the advice is within its bounds, whatever a provider sends.
func FuzzParseAdvice(f *testing.F) {
	f.Add("7", `"default";q=100;w=10`, `"default";r=50;t=3`, "100, 100;w=60", "5", "1800000060")
	f.Add("Fri, 15 Jan 2027 08:00:30 GMT", `100;w=10`, `limit=100, remaining=50, reset=5`, "1", "0", "1800000001500")
	f.Add("-1", `"a";q=9999999999999999;w=1`, `;`, "NaN", "1e9", "-Inf")
	f.Add("1e18", `(1 2);q=3;w=4`, `remaining=?1, reset="x"`, "5;window=1", "18446744073709551615",
		"2027-01-15T09:00:10+01:00")
	f.Fuzz(func(t *testing.T, retry, policy, left, limit, remaining, reset string) {
		h := http.Header{"Retry-After": {retry}, "Ratelimit-Policy": {policy}, "Ratelimit": {left, left},
			"X-Ratelimit-Limit": {limit}, "X-Ratelimit-Remaining": {remaining}, "X-Ratelimit-Reset": {reset},
			"Ratelimit-Limit": {policy}, "Ratelimit-Remaining": {remaining}, "Ratelimit-Reset": {retry},
			"X-Rate-Limit-Remaining": {reset}, "X-Ratelimit-Reset-After": {reset}}
		a := pacer.ParseAdvice(h, noon)
		if a.RetryAfter < 0 || a.RetryAfter > pacer.MaxPeriod || len(a.Limits) > 16 || len(a.Left) > 16 {
			t.Fatalf("advice out of bounds: %+v", a)
		}
		for _, l := range a.Limits {
			if l.Units < 1 || l.Units > pacer.MaxUnits || l.Period < pacer.MinPeriod || l.Period > pacer.MaxPeriod {
				t.Fatalf("a limit out of bounds: %+v", l)
			}
		}
		for _, l := range a.Left {
			if l.Units < 0 || l.Units > pacer.MaxUnits || l.Until < 0 || l.Until > pacer.MaxPeriod {
				t.Fatalf("units left out of bounds: %+v", l)
			}
		}
	})
}
