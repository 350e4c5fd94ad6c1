package cost

import (
	"encoding/json"
	"fmt"
	"math/big"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/aws/grants"
	"github.com/sluicelimits/sluice/internal/cell/killswitch"
	"github.com/sluicelimits/sluice/internal/cell/secrets"
	"github.com/sluicelimits/sluice/internal/request/identity/token"
	"github.com/sluicelimits/sluice/internal/telemetry"
)

func listPrices(t testing.TB) *Prices {
	t.Helper()
	p, err := pricesOnce()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

var pricesOnce = sync.OnceValues(ListPrices)

func number(t testing.TB, s string) *big.Rat {
	t.Helper()
	n, err := ParseNumber(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func bill(t testing.TB, w Workload) *Bill {
	t.Helper()
	b, err := New(&w, listPrices(t))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// amounts are the lines of a bill in dollars, by service and line.
func amounts(b *Bill) map[string]string {
	got := map[string]string{}
	for _, l := range b.Lines {
		got[l.Service+": "+l.What] = l.Amount.Dollars()
	}
	return got
}

func wantAmounts(t *testing.T, b *Bill, want map[string]string) {
	t.Helper()
	got := amounts(b)
	for line, usd := range want {
		if got[line] != usd {
			t.Errorf("%s: %s is %q, want %q", b.Title(), line, got[line], usd)
		}
	}
}

// Guarantees that a quantity costs what the steps of its price say, on both sides of each edge; worked out by hand.
func TestSteps(t *testing.T) {
	prices := listPrices(t)
	tests := []struct {
		id, quantity string
		free         bool
		want         string // exact dollars
	}{
		{"apigateway.rest", "0", false, "0"},
		{"apigateway.rest", "1", false, "0.0000035"},
		{"apigateway.rest", "333_000_000", false, "1165.5"},
		{"apigateway.rest", "333_000_001", false, "1165.5000028"},
		{"apigateway.rest", "1_000_000_000", false, "3033.1"}, // + 667 M x 2.80
		{"apigateway.rest", "1_000_000_001", false, "3033.10000238"},
		{"apigateway.rest", "20_000_000_000", false, "48253.1"}, // + 19,000 M x 2.38
		{"apigateway.rest", "21_000_000_000", false, "49763.1"}, // + 1,000 M x 1.51
		{"apigateway.http", "300_000_000", false, "300"},
		{"apigateway.http", "400_000_000", false, "390"},
		{"lambda.duration", "7_500_000_000", false, "100000.5"},
		{"lambda.duration", "7_500_000_001", false, "100000.5000120001"},
		{"lambda.requests", "1_000_000", true, "0"},
		{"lambda.requests", "1_500_000", true, "0.1"},
		{"cloudwatch.logs", "10_240", false, "5120"},
		{"cloudwatch.logs", "10_245", true, "5120"},   // 5 of them are free, before the steps
		{"cloudwatch.logs", "60_000", false, "12728"}, // 5,120 + 20,480 x 0.25 + 20,480 x 0.10 + 8,800 x 0.05
	}
	for _, tt := range tests {
		want := number(t, tt.want)
		got := prices.prices[tt.id].amount("us-east-1", number(t, tt.quantity), tt.free)
		if got.Cmp(want) != 0 {
			t.Errorf("%s of %s (free tier %t) cost %s, want %s", tt.quantity, tt.id, tt.free, got.FloatString(10),
				tt.want)
		}
	}
}

// Guarantees the steps of the prices in eu-west-1, which are not those of us-east-1; worked out by hand.
func TestStepsInIreland(t *testing.T) {
	for _, tt := range []struct{ id, quantity, want string }{
		{"apigateway.rest", "333_000_000", "1165.5"},
		{"apigateway.rest", "1_000_000_000", "3293.23"},   // + 667 M x 3.19
		{"apigateway.rest", "20_000_000_000", "54783.23"}, // + 19,000 M x 2.71
		{"apigateway.rest", "21_000_000_000", "56503.23"}, // + 1,000 M x 1.72
		{"cloudwatch.logs", "10_240", "5836.8"},
		{"cloudwatch.logs", "60_000", "14509.92"}, // 5,836.8 + 20,480 x 0.285 + 20,480 x 0.114 + 8,800 x 0.057
		{"dynamodb.reads", "1_000_000", "0.1415"},
	} {
		got := listPrices(t).prices[tt.id].amount("eu-west-1", number(t, tt.quantity), false)
		if want := number(t, tt.want); got.Cmp(want) != 0 {
			t.Errorf("%s of %s cost %s, want %s", tt.quantity, tt.id, got.FloatString(10), tt.want)
		}
	}
}

// Guarantees the sums of a small deployment that nobody uses, each line worked out by hand. A month has 2,628,000 s;
// the canary runs 8,760 times, and with 10 changes a day there are 8,760 + 304.1667 changes.
func TestIdleByHand(t *testing.T) {
	b := bill(t, NewWorkload(num(0)))
	wantAmounts(t, b, map[string]string{
		"KMS: requests":              "0.183960", // (2 x 12 x 730 + 6 x 2,920 + 3 x 8,760) x 0.03 / 10,000
		"Secrets Manager: secrets":   "0.400000",
		"S3: audit, objects":         "0.045321", // 9,064.1667 x 0.005 / 1,000
		"S3: CloudTrail, log files":  "0.043800", // 12 x 730
		"SNS: publishes":             "0.004532", // 9,064.1667 x 0.50 / 1,000,000
		"SQS: requests":              "0.270051", // (15 x 60 x 730 + 2 x 9,064.1667) x 0.40 / 1,000,000
		"DynamoDB: changes, writes":  "0.039656", // 7 x 9,064.1667 x 0.625 / 1,000,000
		"DynamoDB: canary, reads":    "0.043800", // 40 x 8,760 x 0.125 / 1,000,000
		"DynamoDB: balancer, reads":  "0.036956", // 43,800 runs x (1 + (20 + 1 + 2) KB / 4 KB) x 0.125 / 1,000,000
		"DynamoDB: reconcile, reads": "0.058400", // 2,920 runs x (320 + 320) KB / 4 KB x 0.125 / 1,000,000
		"EventBridge: schedules":     "",         // rules on a schedule are free
		"CloudTrail: data events":    "0.027193", // 3 x 9,064.1667 x 0.10 / 100,000
		"CloudWatch: metrics":        "0.900000", // active_cell_count, drift, propagation_seconds
	})
	if b.Anyway != 0 || b.Usage.Environments != 0 {
		t.Errorf("an idle API costs %s, in %d environments; want nothing", b.Anyway, b.Usage.Environments)
	}
	for _, l := range b.Lines {
		if strings.Contains(l.What, "authorizer") {
			t.Errorf("an idle deployment pays %s for %s", l.Amount, l.What)
		}
	}
	with := NewWorkload(num(0))
	with.Dashboard, with.CustomerKeys, with.WAF = true, true, true
	// Two alarms, a metric and a key; and 730 calls of 100 ms and 512 MB, each with its line, which a schedule makes.
	anchored := NewWorkload(num(0))
	anchored.Anchors = true
	if got := bill(t, anchored).Total - b.Total; got < 1_500_000 || got > 1_510_000 {
		t.Errorf("anchors add %s, want 1.50 and a little", got.Dollars())
	}
	// 3.00 for the dashboard; two keys; an ACL and a rule.
	if got, want := bill(t, with).Total-b.Total, Micros(3_000_000+2_000_000+6_000_000); got != want {
		t.Errorf("dashboard, keys and WAF add %s, want %s", got.Dollars(), want.Dollars())
	}
}

// Guarantees that metrics are paid by the hours in which they are written, and alarms by the metrics that they look at;
// counted by hand in the list of package telemetry and in that of package grants.
func TestMetricsByHand(t *testing.T) {
	w := NewWorkload(num(0))
	// In each hour: active_cell_count; of the cell drift and, by the canary, propagation_seconds.
	if got := bill(t, w).Usage.Metrics; got.Cmp(num(3)) != 0 {
		t.Errorf("%s metrics in an idle deployment, want 3", got)
	}
	w.Cells = 3 // 2 x 2 more
	if got := bill(t, w).Usage.Metrics; got.Cmp(num(7)) != 0 {
		t.Errorf("%s metrics with three cells, want 7", got)
	}
	w.Cells, w.Canary, w.Changes = 1, 2*time.Hour, 0 // each second hour
	if got := bill(t, w).Usage.Metrics; got.Cmp(frac(5, 2)) != 0 {
		t.Errorf("%s metrics with a canary each second hour, want 2 + 1/2", got)
	}
	w.Canary = 0
	if got := bill(t, w).Usage.Metrics; got.Cmp(num(2)) != 0 {
		t.Errorf("%s metrics without any change, want 2", got)
	}
	own := Alarms()
	// balancer 3, archiver 2; of the cell reconcile 1, canary 1.
	if got := bill(t, w).Usage.AlarmMetrics; got != 5+2+own.Control+own.Cell {
		t.Errorf("alarms look at %d metrics, want 7 and %+v", got, own)
	}
}

// Guarantees the aim: a default deployment that nobody uses stays below 5 dollars a month, whatever metric or alarm is
// added.
func TestIdleStaysSmall(t *testing.T) {
	if b := bill(t, NewWorkload(num(0))); b.Total >= 5*dollar {
		t.Errorf("a month of an idle deployment costs %s, of which metrics %s and alarms %s; the aim is below 5",
			b.Total, amounts(b)["CloudWatch: metrics"], amounts(b)["CloudWatch: alarms"])
	}
	w := NewWorkload(num(0)) // the twin: it can fail
	if w.Canary = time.Minute; bill(t, w).Total < 5*dollar {
		t.Error("a canary each minute is within the aim, too: is it paid for?")
	}
}

// Guarantees the lines that go with requests, worked out by hand.
func TestRequestsByHand(t *testing.T) {
	w := NewWorkload(num(50)) // 131,400,000 requests
	w.Tenants = 20
	// At once: 50 x 8 ms x 2 = 0.8, and 3 x 0.895 more: 4 environments. A tenant asks 50/(20 x 4) = 0.625 times a
	// second in each, below the 2.325 at which leases begin to save: each decision is a write, 1.038 units of it.
	b := bill(t, w)
	if b.Usage.Environments != 4 || b.Usage.CallShare.Cmp(num(1)) != 0 || b.Usage.MeanMs.Cmp(num(8)) != 0 {
		t.Errorf("%d environments, %s of the requests call, %s ms; want 4, 1, 8", b.Usage.Environments,
			b.Usage.CallShare, b.Usage.MeanMs)
	}
	wantAmounts(t, b, map[string]string{
		"API Gateway: requests (rest)":  "459.900000", // 131.4 x 3.50
		"Lambda: authorizer, requests":  "26.280000",  // 131.4 x 0.20
		"Lambda: authorizer, duration":  "7.008035",   // 131,400,000 x 8 ms x 512 MB = 525,600 GB-s x 0.0000133334
		"DynamoDB: counters, writes":    "85.245750",  // 131.4 x 1.038 x 0.625
		"DynamoDB: config polls, reads": "1.314000",   // 4/s x 2,628,000 s x 0.125 / 1,000,000
		// 4/s x 2,628,000 s x 1,864 bytes = 18.248677 GB, 131.4 M x 400 bytes = 48.950315 GB; x 0.50
		"CloudWatch: logs of the authorizer": "33.599496",
		"AppConfig: polls":                   "0.140160", // 4 / 15 a second x 2,628,000 s x 0.20 / 1,000,000
		"Secrets Manager: calls":             "0.175200", // 4 / 300 a second x 2,628,000 s x 0.05 / 10,000
		"CloudWatch: logs, storage":          "0.302786", // these and 0.086697 GB of the control plane; x 0.15 x 0.03
		"AppConfig: configurations":          "1.168000", // 4 x 730 / 2 x 0.0008
	})

	w.Tenants, w.RPS = 1, num(1000) // one tenant; 1,000 x 8 ms x 2 = 16 + 12: 28 environments, 35.7 a second in each
	b = bill(t, w)
	wantAmounts(t, b, map[string]string{
		"DynamoDB: counters, writes": "106.926750", // 28 x 2.325/s x 2,628,000 s x 0.625 / 1,000,000
	})
	w.Leases = false
	wantAmounts(t, bill(t, w), map[string]string{
		"DynamoDB: counters, writes": "1704.915000", // 2,628 x 1.038 x 0.625
	})
	w.DeniedShare = number(t, "0.5")
	b = bill(t, w)
	wantAmounts(t, b, map[string]string{
		"API Gateway: requests (rest)": "3780.420000", // of 1,314 M: 3,033.10 for 1,000 M, and 314 M x 2.38
		"Lambda: authorizer, requests": "525.600000",  // denied ones, too
		"DynamoDB: counters, writes":   "852.654600",  // half of it, and 1,314 M x 0.00024 x 0.625 = 0.1971
	})
}

// Guarantees a full cell's own lines, worked out by hand.
func TestFullCellByHand(t *testing.T) {
	w := NewWorkload(num(1_000_000))
	w.Tenants, w.Profile, w.Peak = 10_000, Full, num(1)
	b := bill(t, w)
	// 1,000,000 x 3 ms = 3,000 and 3 x 54.773: 3,165 environments. 0.03 requests/s of a tenant in each: all call. 20
	// shards of 50,000/s.
	if u := b.Usage; u.Environments != 3165 || u.Shards != 20 || u.Nodes != 40 {
		t.Errorf("%d environments, %d shards, %d nodes; want 3165, 20, 40", u.Environments, u.Shards, u.Nodes)
	}
	wantAmounts(t, b, map[string]string{
		"ElastiCache: cache.r7g.large": "5115.840000", // 40 x 730 x 0.1752
		"Network: interface endpoints": "29.200000",   // 2 x 2 x 730 x 0.01
		// 3,165 environments x (1/15 + 1/300) a second x 2,628,000 s x 8 KB: 4,442.088318 GB x 0.01
		"Network: interface endpoints, data": "44.420883",
		"Network: NAT gateways, data":        "", // there is none
		"Lambda: authorizer, requests":       "525600.000000",
		"Network: between zones":             "16708.374023", // 2,628,000 M x 1 KB x 2/3, in GB of 2^30, x 0.01
	})
	w.NAT, w.Cells = 2, 3
	wantAmounts(t, bill(t, w), map[string]string{
		"Network: NAT gateways":          "197.100000", // 6 x 730 x 0.045
		"Network: public IPv4 addresses": "21.900000",  // 6 x 730 x 0.005
		// 3 x 1,095 environments / 900 s x 2,628,000 s x 16 KB: 146.365356 GB x 0.045
		"Network: NAT gateways, data": "6.586441",
	})
	w.Quotas, w.NAT, w.Cells = true, 0, 1
	// 0.03/s is below a lease's 0.1/s
	wantAmounts(t, bill(t, w), map[string]string{"DynamoDB: quotas, writes": "1704915.000000"})
}

// Guarantees that every table pays for point-in-time recovery, since each has it; worked out by hand. In 3 cells of
// 10,000 tenants 30,020 KB are in control tables, and 40,020 KB in the tables of each cell: 150,080 KB, 0.143127 GB.
func TestRecoveryByHand(t *testing.T) {
	w := NewWorkload(num(0))
	w.Tenants, w.Cells = 10_000, 3
	wantAmounts(t, bill(t, w), map[string]string{
		"DynamoDB: storage":                "0.035782", // x 0.25
		"DynamoDB: point-in-time recovery": "0.028625", // x 0.20
	})
}

// Guarantees that WebSocket connections are billed by messages and minutes, apart from what is paid for Sluice.
func TestWebSocket(t *testing.T) {
	w := NewWorkload(num(10)) // 26.28 M connections
	w.API = WebSocket
	wantAmounts(t, bill(t, w), map[string]string{
		"API Gateway: messages":           "262.800000", // 262.8 M x 1.00
		"API Gateway: connection minutes": "65.700000",  // 262.8 M x 0.25
	})
}

// random is any workload that makes sense.
func random(r *rand.Rand) Workload {
	w := NewWorkload(big.NewRat(r.Int64N(1_000_000)+1, []int64{1, 10, 1000}[r.IntN(3)]))
	w.Tenants, w.Cells = r.Int64N(5000)+1, r.Int64N(5)+1
	w.Region = []string{"us-east-1", "eu-west-1"}[r.IntN(2)]
	w.Profile, w.API = Profiles()[r.IntN(2)], APIs()[r.IntN(3)]
	w.Leases, w.WAF, w.PlatformLogs, w.FreeTier = r.IntN(2) == 0, r.IntN(2) == 0, r.IntN(2) == 0, r.IntN(2) == 0
	w.DeniedShare = big.NewRat(r.Int64N(10), 10)
	w.Peak = big.NewRat(r.Int64N(90)+10, 10)
	if r.IntN(2) == 0 {
		w.Duration = time.Duration(r.IntN(50)+1) * time.Millisecond
	}
	return w
}

// falls reports whether an amount is below one before it.
func falls(amounts []Micros) bool {
	for i := 1; i < len(amounts); i++ {
		if amounts[i] < amounts[i-1] {
			return true
		}
	}
	return false
}

// Guarantees that more requests, more tenants or more cells never make a bill smaller, whatever the rest. Nodes of
// caches are left out where cells are more: of the same load more cells may have fewer, since each rounds up its own.
func TestMoreCostsMore(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 5))
	for range 15 {
		base := random(r)
		for name, more := range map[string]func(w *Workload, times int64){
			"requests": func(w *Workload, times int64) { w.RPS = product(w.RPS, num(times)) },
			"tenants":  func(w *Workload, times int64) { w.Tenants *= times },
			"cells":    func(w *Workload, times int64) { w.Cells *= times },
			"changes":  func(w *Workload, times int64) { w.Changes *= times },
			"peak":     func(w *Workload, times int64) { w.Peak = product(w.Peak, num(times)) },
		} {
			var totals []Micros
			for _, times := range []int64{1, 2, 3, 10} {
				w := base
				more(&w, times)
				b := bill(t, w)
				total := b.Total + b.Anyway
				for _, l := range b.Lines {
					if name == "cells" && l.Service == "ElastiCache" {
						total -= l.Amount
					}
				}
				totals = append(totals, total)
			}
			if falls(totals) {
				t.Errorf("more %s cost less: %v; of %+v, %s requests/s", name, totals, base, base.RPS)
			}
		}
	}
}

// The twin of the test above: the check can fail.
func TestFalls(t *testing.T) {
	if !falls([]Micros{1, 3, 2}) || falls([]Micros{1, 1, 2}) || falls(nil) {
		t.Error("falls does not tell what falls")
	}
}

// Guarantees that the sums are those of the lines, and that what is billed together costs what its sum costs: each line
// is at most half a millionth from its exact amount.
func TestSums(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 6))
	for range 30 {
		w := random(r)
		b := bill(t, w)
		var total Micros
		quantities := map[string]*big.Rat{}
		lines := map[string]int64{}
		paid := map[string]Micros{}
		for _, l := range b.Lines {
			total += l.Amount
			if quantities[l.id] == nil {
				quantities[l.id] = new(big.Rat)
			}
			quantities[l.id] = sum(quantities[l.id], l.exact)
			lines[l.id]++
			paid[l.id] += l.Amount
		}
		if total != b.Total+b.Anyway {
			t.Errorf("the lines are %d, the sums %d + %d", total, b.Total, b.Anyway)
		}
		for id, q := range quantities {
			whole := product(b.Prices.prices[id].amount(w.Region, q, w.FreeTier), num(1_000_000))
			if off := new(big.Rat).Abs(minus(whole, num(int64(paid[id])))); off.Cmp(frac(lines[id], 2)) > 0 {
				t.Errorf("%d lines of %s cost %d, their sum %s", lines[id], id, paid[id], whole.FloatString(2))
			}
		}
	}
}

// Guarantees that each listed price is used by some bill: one that is not would be a cost that was forgotten.
func TestEveryPriceIsUsed(t *testing.T) {
	used := map[string]bool{}
	for _, api := range APIs() {
		for _, node := range listPrices(t).Nodes() {
			w := NewWorkload(num(100))
			w.API, w.Profile, w.Node, w.WAF, w.Dashboard, w.CustomerKeys, w.NAT = api, Full, node, true, true, true, 1
			for _, l := range bill(t, w).Lines {
				used[l.id] = true
			}
		}
	}
	for id := range listPrices(t).prices {
		if !used[id] {
			t.Errorf("no line uses the price %s", id)
		}
	}
	for _, id := range knownPrices() {
		if listPrices(t).prices[id] == nil {
			t.Errorf("there is no price %s", id)
		}
	}
}

// Guarantees that the size of a line of metrics is the one that is written: that of the longest line of the tests of
// telemetry, and the 26 bytes that CloudWatch adds to each event.
func TestLineOfMetrics(t *testing.T) {
	text, err := os.ReadFile("../../telemetry/testdata/second.json")
	if err != nil {
		t.Fatal(err)
	}
	if n := int64(len(strings.TrimSpace(string(text)))) + 26; n < emfBytes*9/10 || n > emfBytes*11/10 {
		t.Errorf("a line of metrics has %d bytes, and is billed as %d", n, emfBytes)
	}
}

// Guarantees that environments are billed for asking as often as they ask.
func TestHowOftenEnvironmentsAsk(t *testing.T) {
	for _, tt := range []struct {
		what   string
		billed int64
		asks   time.Duration
	}{
		{"AppConfig", appConfigEvery, killswitch.Every},
		{"the secret", secretEvery, secrets.DefaultRefresh},
		{"an issuer's keys", keysEvery, token.DefaultRefresh},
	} {
		if billed := time.Duration(tt.billed) * time.Second; billed != tt.asks {
			t.Errorf("%s is asked every %s and billed as every %s", tt.what, tt.asks, billed)
		}
	}
}

// Guarantees that a workload that makes no sense is refused by the name of what is wrong, and gives no bill.
func TestRefused(t *testing.T) {
	tests := []struct {
		change func(w *Workload)
		want   string
	}{
		{func(w *Workload) { w.RPS = num(-1) }, "rps is outside 0..1000000000"},
		{func(w *Workload) { w.RPS = nil }, "rps is outside"},
		{func(w *Workload) { w.RPS = num(MaxRPS + 1) }, "rps is outside"},
		{func(w *Workload) { w.Tenants = 0 }, "tenants is outside 1..10000000"},
		{func(w *Workload) { w.Cells = 0 }, "cells is outside 1..1000"},
		{func(w *Workload) { w.Cells = -3 }, "cells is outside 1..1000"},
		{func(w *Workload) { w.DeniedShare = frac(11, 10) }, "denied-share is outside 0..1"},
		{func(w *Workload) { w.Peak = frac(1, 2) }, "peak is outside 1..1000"},
		{func(w *Workload) { w.Region = "mars-north-1" },
			`region "mars-north-1" has no prices; there are eu-west-1, us-east-1`},
		{func(w *Workload) { w.Profile = "huge" }, `profile "huge" is neither`},
		{func(w *Workload) { w.API = "soap" }, `api "soap" is none of`},
		{func(w *Workload) { w.Duration = time.Microsecond }, "duration 1µs is outside 1ms..10s"},
		{func(w *Workload) { w.Canary = time.Second }, "canary 1s is outside 1m..24h"},
		{func(w *Workload) { w.Profile, w.Node = Full, "cache.z9.huge" },
			`node "cache.z9.huge" has no price in us-east-1`},
		{func(w *Workload) { w.NAT = 1 }, "quotas and nat are for --profile full"},
		{func(w *Workload) { w.Profile, w.NAT = Full, 13 }, "nat is outside 0..12"},
		{func(w *Workload) { w.Changes = -1 }, "changes is outside"},
	}
	for _, tt := range tests {
		w := NewWorkload(num(50))
		tt.change(&w)
		b, err := New(&w, listPrices(t))
		if b != nil || err == nil || !strings.HasPrefix(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("got %v, %v; want one line with %q", b, err, tt.want)
		}
	}
}

// Guarantees that the published bill stands beside ours as it was printed, that what it counts for a day is told for a
// month, and that it is not set beside anything else.
func TestCompare(t *testing.T) {
	w := NewWorkload(num(PublishedRPS))
	w.Tenants, w.Profile = PublishedTenants, Full
	b := bill(t, w)
	c, err := b.Compare()
	if err != nil {
		t.Fatal(err)
	}
	// by hand: 240,000 + 130,000 + 14,000 + 1,700 + 2,000 + 50 + 1,000; …
	if c.Low != 388_750*dollar || c.High != 407_200*dollar {
		t.Errorf("the printed lines sum to %s..%s, want 388,750 to 407,200", c.Low, c.High)
	}
	// 2,628,000 M requests: 48,253.10 for the first 20,000 M, 1.51 for each million beyond.
	if got, want := c.Lines[0].Monthly, Micros(3_986_333_100_000); got != want {
		t.Errorf("a month of API Gateway is %s, want %s", got.Dollars(), want.Dollars())
	}
	if got, want := c.Lines[2].Monthly, Micros(20_463_360_000); got != want { // 160 x 730 x 0.1752
		t.Errorf("a month of nodes is %s, want %s", got.Dollars(), want.Dollars())
	}
	var ours Micros
	for _, l := range c.Lines {
		ours += l.Ours
		if l.Why == "" {
			t.Errorf("%s: not said why it differs", l.Line)
		}
	}
	if ours != b.Total+b.Anyway {
		t.Errorf("our lines sum to %s, the bill is %s", ours, b.Total+b.Anyway)
	}
	w.Tenants++
	if _, err := bill(t, w).Compare(); err == nil {
		t.Error("the published bill was set beside another workload")
	}
}

// Guarantees that amounts are shown rounded half up, and that none above 0 is shown as nothing.
func TestMicros(t *testing.T) {
	for m, want := range map[Micros]string{
		0: "0.00", 1: "<0.01", 4_999: "<0.01", 5_000: "0.01", 14_999: "0.01", 15_000: "0.02",
		1_234_567_890_000: "1,234,567.89", 999_999_999: "1,000.00",
	} {
		if got := m.String(); got != want {
			t.Errorf("%d is shown as %s, want %s", int64(m), got, want)
		}
	}
	text, err := json.Marshal(Micros(1_000_001))
	if string(text) != `"1.000001"` || err != nil {
		t.Errorf("as JSON %s, %v", text, err)
	}
	for dollars, want := range map[string]Micros{"0.0000005": 1, "0.00000049": 0, "2.5": 2_500_000} {
		if got := micros(number(t, dollars)); got != want {
			t.Errorf("%s dollars are %d, want %d", dollars, got, want)
		}
	}
}

// Guarantees that a number is read exactly or refused.
func FuzzParseNumber(f *testing.F) {
	for _, s := range []string{"0", "50", "0.5", "1_000_000", "007", "", "-1", "NaN", "Inf", "1e6", "1/3", ".5", "5.",
		"0x10", "1.2.3", "_1", "９", "1e999999999", strings.Repeat("9", 40)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseNumber(s)
		if err != nil {
			if n != nil || strings.ContainsRune(fmt.Sprint(err), '\n') {
				t.Fatalf("ParseNumber(%q) = %v, %v", s, n, err)
			}
			return
		}
		if n.Sign() < 0 || strings.ContainsAny(s, "-+eEx/NI") {
			t.Fatalf("ParseNumber(%q) = %s", s, n)
		}
		again, err := ParseNumber(n.FloatString(maxDigits))
		if err != nil || again.Cmp(n) != 0 {
			t.Fatalf("ParseNumber(%q) = %s, which is read as %v, %v", s, n, again, err)
		}
	})
}

// Guarantees that what is no number is refused, whatever else it looks like.
func TestNoNumbers(t *testing.T) {
	for _, s := range []string{"", "-1", "+1", "NaN", "Inf", "1e6", "1/3", ".5", "5.", "0x10", "1.2.3", "_1", "1,000",
		" 1", strings.Repeat("9", 19)} {
		if n, err := ParseNumber(s); err == nil {
			t.Errorf("ParseNumber(%q) = %s", s, n)
		}
	}
}

// unheard are alarms that could never ring, or would always: on what no function tells as a metric; on the silence of
// what is told only now and then; and none on the silence of what is told for nothing else.
func unheard(functions []grants.Function, metrics []telemetry.Metric) (wrong []string) {
	for _, f := range functions {
		if f.Name == "authorizer" {
			continue
		}
		listed := map[string]telemetry.Metric{}
		for _, m := range metrics {
			if slices.Contains(m.Functions, f.Name) {
				listed[m.Name] = m
			}
		}
		silences := map[string]bool{}
		for _, a := range f.Alarms {
			m, there := listed[a.Metric]
			switch {
			case !there || m.LineOnly:
				wrong = append(wrong, f.Name+" does not tell "+a.Metric+" as a metric")
			case a.Silence && !m.Always:
				wrong = append(wrong, f.Name+" does not always tell "+a.Metric)
			}
			silences[a.Metric] = a.Silence
		}
		for name, m := range listed {
			if m.Always && !silences[name] {
				wrong = append(wrong, f.Name+" always tells "+name+", and nobody hears its silence")
			}
		}
	}
	return wrong
}

// Guarantees that each function's alarms are on metrics which it tells, that silence is heard where there is an alarm
// for it, and that nothing else is told, and paid, in each hour.
func TestAlarmsAreHeard(t *testing.T) {
	for _, w := range unheard(grants.Functions(), telemetry.Metrics()) {
		t.Error(w)
	}
	bend := func(name string, change func(m *telemetry.Metric)) []string {
		all := telemetry.Metrics()
		for i := range all {
			if all[i].Name == name {
				change(&all[i])
			}
		}
		return unheard(grants.Functions(), all)
	}
	for name, got := range map[string][]string{
		"line only":      bend("records_unequal", func(m *telemetry.Metric) { m.LineOnly = true }),
		"misspelt":       bend("shares_refused", func(m *telemetry.Metric) { m.Name = "shares_refsed" }),
		"not always":     bend("drift", func(m *telemetry.Metric) { m.Always = false }),
		"for no purpose": bend("records_kept", func(m *telemetry.Metric) { m.Always = true }),
	} {
		if len(got) == 0 {
			t.Errorf("%s: not seen", name)
		}
	}
}

// Guarantees that the page says of an idle deployment how many metrics it tells and looks at.
func TestPageOfIdle(t *testing.T) {
	page, err := os.ReadFile("../../../docs/cost.md")
	if err != nil {
		t.Fatal(err)
	}
	b := bill(t, NewWorkload(num(0)))
	for what, n := range map[string]string{
		"alarms": fmt.Sprintf("| metrics that alarms look at | %d for %%s |", b.Usage.AlarmMetrics),
		"metrics": fmt.Sprintf("| metrics that functions write in each hour | %s for %%s |",
			decimal(b.Usage.Metrics, 0)),
	} {
		for _, l := range b.Lines {
			if l.Service != "CloudWatch" || l.What != what {
				continue
			}
			if row := fmt.Sprintf(n, l.Amount); !strings.Contains(string(page), row) {
				t.Errorf("docs/cost.md does not have %q", row)
			}
		}
	}
}
