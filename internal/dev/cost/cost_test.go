package cost

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/aws/grants"
	"github.com/sluicelimits/sluice/internal/cell/killswitch"
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

// same reports whether two numbers differ in rounding errors of float64 at most.
func same(a, b float64) bool { return math.Abs(a-b) <= 1e-15*max(a, b) }

func bill(t testing.TB, w Workload) *Bill {
	t.Helper()
	b, err := New(&w, listPrices(t))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// amounts returns the lines of a bill in dollars, by "service: line".
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

// Guarantees that a quantity costs what the steps of its price say, below and above each step. The expected values were
// calculated by hand.
func TestSteps(t *testing.T) {
	prices := listPrices(t)
	tests := []struct {
		id             string
		quantity, want float64 // in exact dollars
	}{
		{"lambda.requests", 0, 0},
		{"lambda.requests", 1, 0.0000002},
		{"lambda.duration", 7_500_000_000, 100000.5},
		{"lambda.duration", 7_500_000_001, 100000.5000120001},
		{"lambda.duration", 18_750_000_000, 235001.625}, // + 11,250 M x 0.0000120001
		{"lambda.duration", 18_750_000_001, 235001.6250106667},
		{"lambda.duration", 28_750_000_000, 341668.625}, // + 10,000 M x 0.0000106667
		{"cloudwatch.logs", 10_240, 5120},
		{"cloudwatch.logs", 60_000, 12728}, // 5,120 + 20,480 x 0.25 + 20,480 x 0.10 + 8,800 x 0.05
	}
	for _, tt := range tests {
		if got := prices.prices[tt.id].amount("us-east-1", tt.quantity); !same(got, tt.want) {
			t.Errorf("%.0f of %s cost %.10f, want %.10f", tt.quantity, tt.id, got, tt.want)
		}
	}
}

// Guarantees the steps of the prices in eu-west-1, which differ from those in us-east-1. The expected values were
// calculated by hand.
func TestStepsInIreland(t *testing.T) {
	for _, tt := range []struct {
		id             string
		quantity, want float64
	}{
		{"cloudwatch.logs", 10_240, 5836.8},
		{"cloudwatch.logs", 60_000, 14509.92}, // 5,836.8 + 20,480 x 0.285 + 20,480 x 0.114 + 8,800 x 0.057
		{"dynamodb.reads", 1_000_000, 0.1415},
	} {
		if got := listPrices(t).prices[tt.id].amount("eu-west-1", tt.quantity); !same(got, tt.want) {
			t.Errorf("%.0f of %s cost %.10f, want %.10f", tt.quantity, tt.id, got, tt.want)
		}
	}
}

// Guarantees the bill of a small deployment that nobody uses. Each line was calculated by hand: a month has 2,628,000
// s; the canary runs 8,760 times; with 10 changes a day there are 8,760 + 304.1667 changes.
func TestIdleByHand(t *testing.T) {
	b := bill(t, NewWorkload(0))
	wantAmounts(t, b, map[string]string{
		"KMS: requests":              "0.183960", // (2 x 12 x 730 + 6 x 2,920 + 3 x 8,760) x 0.03 / 10,000
		"Secrets Manager: secrets":   "0.400000",
		"S3: audit, objects":         "0.045321", // 9,064.1667 x 0.005 / 1,000
		"S3: CloudTrail, log files":  "0.043800", // 12 x 730
		"SQS: requests":              "0.270051", // (15 x 60 x 730 + 2 x 9,064.1667) x 0.40 / 1,000,000
		"DynamoDB: changes, writes":  "0.039656", // 7 x 9,064.1667 x 0.625 / 1,000,000
		"DynamoDB: canary, reads":    "0.043800", // 40 x 8,760 x 0.125 / 1,000,000
		"DynamoDB: balancer, reads":  "0.036956", // 43,800 runs x (1 + (20 + 1 + 2) KB / 4 KB) x 0.125 / 1,000,000
		"DynamoDB: reconcile, reads": "0.058400", // 2,920 runs x (320 + 320) KB / 4 KB x 0.125 / 1,000,000
		"EventBridge: schedules":     "",         // rules on a schedule are free
		"CloudTrail: data events":    "0.027193", // 3 x 9,064.1667 x 0.10 / 100,000
		"CloudWatch: metrics":        "0.900000", // active_cell_count, drift, propagation_seconds
	})
	if b.Usage.Environments != 0 {
		t.Errorf("an idle authorizer has %d environments; want none", b.Usage.Environments)
	}
	for _, l := range b.Lines {
		if strings.Contains(l.What, "authorizer") {
			t.Errorf("an idle deployment pays %s for %s", l.Amount, l.What)
		}
	}
	with := NewWorkload(0)
	with.Dashboard, with.CustomerKeys = true, true
	// Two alarms, one metric and one key; and 730 scheduled calls of 100 ms and 512 MB, each with its log line.
	anchored := NewWorkload(0)
	anchored.Anchors = true
	if got := bill(t, anchored).Total - b.Total; got < 1_500_000 || got > 1_510_000 {
		t.Errorf("anchors add %s, want a little more than 1.50", got.Dollars())
	}
	// 3.00 for the dashboard; two keys.
	if got, want := bill(t, with).Total-b.Total, Micros(3_000_000+2_000_000); got != want {
		t.Errorf("dashboard and keys add %s, want %s", got.Dollars(), want.Dollars())
	}
}

// Guarantees that metrics are billed by the hours in which they are written, and alarms by the metrics that they watch.
// Both were counted by hand in the lists of packages telemetry and grants.
func TestMetricsByHand(t *testing.T) {
	w := NewWorkload(0)
	// Written in each hour: active_cell_count; for the cell, drift and (by the canary) propagation_seconds.
	if got := bill(t, w).Usage.Metrics; !same(got, 3) {
		t.Errorf("%g metrics in an idle deployment, want 3", got)
	}
	w.Cells = 3 // two metrics more for each of the two new cells
	if got := bill(t, w).Usage.Metrics; !same(got, 7) {
		t.Errorf("%g metrics with three cells, want 7", got)
	}
	w.Cells, w.Canary, w.Changes = 1, 2*time.Hour, 0 // written in every second hour
	if got := bill(t, w).Usage.Metrics; !same(got, 2.5) {
		t.Errorf("%g metrics with a canary in every second hour, want 2 + 1/2", got)
	}
	w.Canary = 0
	if got := bill(t, w).Usage.Metrics; !same(got, 2) {
		t.Errorf("%g metrics without any change, want 2", got)
	}
	own := Alarms()
	// balancer 3, archiver 2; of the cell reconcile 1, canary 1.
	if got := bill(t, w).Usage.AlarmMetrics; got != 5+2+own.Control+own.Cell {
		t.Errorf("alarms look at %d metrics, want 7 and %+v", got, own)
	}
}

// Guarantees the aim that a default deployment which nobody uses costs less than 5 dollars a month, whatever metric or
// alarm is added.
func TestIdleStaysSmall(t *testing.T) {
	if b := bill(t, NewWorkload(0)); b.Total >= 5_000_000 {
		t.Errorf("a month of an idle deployment costs %s, of which metrics %s and alarms %s; the aim is below 5",
			b.Total, amounts(b)["CloudWatch: metrics"], amounts(b)["CloudWatch: alarms"])
	}
	w := NewWorkload(0) // shows that the check above can fail
	if w.Canary = time.Minute; bill(t, w).Total < 5_000_000 {
		t.Error("a deployment with a canary each minute also costs less than the aim; is the canary billed?")
	}
}

// Guarantees the lines that depend on the number of requests. They were calculated by hand.
func TestRequestsByHand(t *testing.T) {
	w := NewWorkload(50) // 131,400,000 requests
	w.Tenants = 20
	// At a time: 50 x 8 ms x 2 = 0.8, and 3 x 0.895 more: 4 environments. A tenant sends 50/(20 x 4) = 0.625 requests a
	// second to each. That is below the 2.325 from which on leases save calls, so each decision is a write of 1.038
	// units.
	b := bill(t, w)
	if b.Usage.Environments != 4 || !same(b.Usage.CallShare, 1) || !same(b.Usage.MeanMs, 8) {
		t.Errorf("%d environments, %g of the requests call, %g ms; want 4, 1, 8", b.Usage.Environments,
			b.Usage.CallShare, b.Usage.MeanMs)
	}
	wantAmounts(t, b, map[string]string{
		"Lambda: authorizer, requests":  "26.280000", // 131.4 x 0.20
		"Lambda: authorizer, duration":  "7.008035",  // 131,400,000 x 8 ms x 512 MB = 525,600 GB-s x 0.0000133334
		"DynamoDB: counters, writes":    "85.245750", // 131.4 x 1.038 x 0.625
		"DynamoDB: config polls, reads": "1.314000",  // 4/s x 2,628,000 s x 0.125 / 1,000,000
		// 4/s x 2,628,000 s x 1,864 bytes = 18.248677 GB, 131.4 M x 400 bytes = 48.950315 GB; x 0.50
		"CloudWatch: logs of the authorizer": "33.599496",
		"AppConfig: polls":                   "0.140160", // 4 / 15 a second x 2,628,000 s x 0.20 / 1,000,000
		"AppConfig: configurations":          "1.168000", // 4 x 730 / 2 x 0.0008
	})

	w.Tenants, w.RPS = 1, 1000 // one tenant; 1,000 x 8 ms x 2 = 16 + 12: 28 environments, 35.7 a second in each
	b = bill(t, w)
	wantAmounts(t, b, map[string]string{
		"DynamoDB: counters, writes": "106.926750", // 28 x 2.325/s x 2,628,000 s x 0.625 / 1,000,000
	})
	w.Leases = false
	wantAmounts(t, bill(t, w), map[string]string{
		"DynamoDB: counters, writes": "1704.915000", // 2,628 x 1.038 x 0.625
	})
	w.DeniedShare = 0.5
	b = bill(t, w)
	wantAmounts(t, b, map[string]string{
		"Lambda: authorizer, requests": "525.600000", // denied ones, too
		"DynamoDB: counters, writes":   "852.654600", // half of it, and 1,314 M x 0.00024 x 0.625 = 0.1971
	})
}

// Guarantees the lines of a full cell only. They were calculated by hand.
func TestFullCellByHand(t *testing.T) {
	w := NewWorkload(1_000_000)
	w.Tenants, w.Profile, w.Peak = 10_000, Full, 1
	b := bill(t, w)
	// 1,000,000 x 3 ms = 3,000 and 3 x 54.773: 3,165 environments. A tenant sends 0.03 requests/s to each, so every
	// decision is a call. 20 shards at 50,000/s each.
	if u := b.Usage; u.Environments != 3165 || u.Shards != 20 || u.Nodes != 40 {
		t.Errorf("%d environments, %d shards, %d nodes; want 3165, 20, 40", u.Environments, u.Shards, u.Nodes)
	}
	wantAmounts(t, b, map[string]string{
		"ElastiCache: cache.r7g.large": "5115.840000", // 40 x 730 x 0.1752
		"Network: interface endpoints": "29.200000",   // 2 x 2 x 730 x 0.01
		"Lambda: authorizer, requests": "525600.000000",
		"Network: between zones":       "16708.374023", // 2,628,000 M x 1 KB x 2/3, in GB of 2^30, x 0.01
	})
	w.NAT, w.Cells = 2, 3
	wantAmounts(t, bill(t, w), map[string]string{
		"Network: NAT gateways":          "197.100000", // 6 x 730 x 0.045
		"Network: public IPv4 addresses": "21.900000",  // 6 x 730 x 0.005
	})
	w.Quotas, w.NAT, w.Cells = true, 0, 1
	// 0.03/s is below a lease's 0.1/s
	wantAmounts(t, bill(t, w), map[string]string{"DynamoDB: quotas, writes": "1704915.000000"})
}

// random returns a random workload that New accepts.
func random(r *rand.Rand) Workload {
	w := NewWorkload(float64(r.Int64N(1_000_000)+1) / []float64{1, 10, 1000}[r.IntN(3)])
	w.Tenants, w.Cells = r.Int64N(5000)+1, r.Int64N(5)+1
	w.Region = []string{"us-east-1", "eu-west-1"}[r.IntN(2)]
	w.Profile = Profiles()[r.IntN(2)]
	w.Leases, w.PlatformLogs = r.IntN(2) == 0, r.IntN(2) == 0
	w.DeniedShare = float64(r.Int64N(10)) / 10
	w.Peak = float64(r.Int64N(90)+10) / 10
	if r.IntN(2) == 0 {
		w.Duration = time.Duration(r.IntN(50)+1) * time.Millisecond
	}
	return w
}

// hasDrop reports whether some amount is below the one before it.
func hasDrop(amounts []Micros) bool {
	for i := 1; i < len(amounts); i++ {
		if amounts[i] < amounts[i-1] {
			return true
		}
	}
	return false
}

// Guarantees that more requests, more tenants or more cells never make a bill smaller. With more cells, the nodes of
// caches are not compared: for the same load more cells may need fewer nodes, since each cell rounds its own number.
func TestMoreCostsMore(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 5))
	for range 15 {
		base := random(r)
		for name, more := range map[string]func(w *Workload, times int64){
			"requests": func(w *Workload, times int64) { w.RPS *= float64(times) },
			"tenants":  func(w *Workload, times int64) { w.Tenants *= times },
			"cells":    func(w *Workload, times int64) { w.Cells *= times },
			"changes":  func(w *Workload, times int64) { w.Changes *= times },
			"peak":     func(w *Workload, times int64) { w.Peak *= float64(times) },
		} {
			var totals []Micros
			for _, times := range []int64{1, 2, 3, 10} {
				w := base
				more(&w, times)
				b := bill(t, w)
				total := b.Total
				for _, l := range b.Lines {
					if name == "cells" && l.Service == "ElastiCache" {
						total -= l.Amount
					}
				}
				totals = append(totals, total)
			}
			if hasDrop(totals) {
				t.Errorf("more %s cost less: %v; of %+v, %g requests/s", name, totals, base, base.RPS)
			}
		}
	}
}

// Guarantees that the test above can fail.
func TestFalls(t *testing.T) {
	if !hasDrop([]Micros{1, 3, 2}) || hasDrop([]Micros{1, 1, 2}) || hasDrop(nil) {
		t.Error("falls does not detect an amount that falls")
	}
}

// Guarantees that the total is the sum of the lines, and that lines which share one price cost together what the sum
// of their quantities costs. Each line is at most half a millionth of a dollar from its exact amount.
func TestSums(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 6))
	for range 30 {
		w := random(r)
		b := bill(t, w)
		var total Micros
		quantities := map[string]float64{}
		lines := map[string]int64{}
		paid := map[string]Micros{}
		for _, l := range b.Lines {
			total += l.Amount
			quantities[l.id] += l.exact
			lines[l.id]++
			paid[l.id] += l.Amount
		}
		if total != b.Total {
			t.Errorf("the sum of the lines is %d, the total is %d", total, b.Total)
		}
		for id, q := range quantities {
			whole := b.Prices.prices[id].amount(w.Region, q) * 1_000_000
			const digits = 1e-14 // of a sum of float64
			if off := math.Abs(whole - float64(paid[id])); off > float64(lines[id])/2+whole*digits {
				t.Errorf("%d lines of %s cost %d, their sum %.2f", lines[id], id, paid[id], whole)
			}
		}
	}
}

// Guarantees that each listed price is used by some bill. An unused price would be a cost that was forgotten.
func TestEveryPriceIsUsed(t *testing.T) {
	used := map[string]bool{}
	for _, node := range listPrices(t).Nodes() {
		w := NewWorkload(100)
		w.Profile, w.Node, w.Dashboard, w.CustomerKeys, w.NAT = Full, node, true, true, 1
		for _, l := range bill(t, w).Lines {
			used[l.id] = true
		}
	}
	for id := range listPrices(t).prices {
		if !used[id] {
			t.Errorf("no line uses the price %s", id)
		}
	}
}

// Guarantees that the size with which a line of metrics is billed is that of the longest line in the tests of package
// telemetry, plus the 26 bytes that CloudWatch adds to each event.
func TestLineOfMetrics(t *testing.T) {
	text, err := os.ReadFile("../../telemetry/testdata/second.json")
	if err != nil {
		t.Fatal(err)
	}
	if n := int64(len(strings.TrimSpace(string(text)))) + 26; n < emfBytes*9/10 || n > emfBytes*11/10 {
		t.Errorf("a line of metrics has %d bytes, and is billed as %d", n, emfBytes)
	}
}

// Guarantees that polls of the kill switch are billed as often as environments make them.
func TestHowOftenEnvironmentsAsk(t *testing.T) {
	if billed := appConfigEvery * time.Second; billed != killswitch.Every {
		t.Errorf("AppConfig is requested every %s and billed as every %s", killswitch.Every, billed)
	}
}

// Guarantees that an impossible workload gives no bill and an error that names what is wrong.
func TestRefused(t *testing.T) {
	tests := []struct {
		change func(w *Workload)
		want   string
	}{
		{func(w *Workload) { w.RPS = -1 }, "rps is outside 0..1000000000"},
		{func(w *Workload) { w.RPS = MaxRPS + 1 }, "rps is outside"},
		{func(w *Workload) { w.RPS = math.NaN() }, "rps is outside"},
		{func(w *Workload) { w.Tenants = 0 }, "tenants is outside 1..10000000"},
		{func(w *Workload) { w.Cells = 0 }, "cells is outside 1..1000"},
		{func(w *Workload) { w.Cells = -3 }, "cells is outside 1..1000"},
		{func(w *Workload) { w.DeniedShare = 1.1 }, "denied-share is outside 0..1"},
		{func(w *Workload) { w.Peak = 0.5 }, "peak is outside 1..1000"},
		{func(w *Workload) { w.Region = "mars-north-1" },
			`region "mars-north-1" has no prices; there are eu-west-1, us-east-1`},
		{func(w *Workload) { w.Profile = "huge" }, `profile "huge" is neither`},
		{func(w *Workload) { w.Duration = time.Microsecond }, "duration 1µs is outside 1ms..10s"},
		{func(w *Workload) { w.Canary = time.Second }, "canary 1s is outside 1m..24h"},
		{func(w *Workload) { w.Profile, w.Node = Full, "cache.z9.huge" },
			`node "cache.z9.huge" has no price in us-east-1`},
		{func(w *Workload) { w.NAT = 1 }, "quotas and nat are for --profile full"},
		{func(w *Workload) { w.Profile, w.NAT = Full, 13 }, "nat is outside 0..12"},
		{func(w *Workload) { w.Changes = -1 }, "changes is outside"},
	}
	for _, tt := range tests {
		w := NewWorkload(50)
		tt.change(&w)
		b, err := New(&w, listPrices(t))
		if b != nil || err == nil || !strings.HasPrefix(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("got %v, %v; want one line with %q", b, err, tt.want)
		}
	}
}

// Guarantees that amounts are rounded half up, and that no amount above 0 is shown as 0.
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
	for dollars, want := range map[float64]Micros{0.0000005: 1, 0.00000049: 0, 2.5: 2_500_000} {
		if got := micros(dollars); got != want {
			t.Errorf("%g dollars are %d, want %d", dollars, got, want)
		}
	}
}

// wrongAlarms returns a line for each alarm that can never fire or always fires, because its function does not write
// the metric, or because it fires when a metric is missing that is not always written. It also returns a line for each
// metric that is always written and has no alarm for its absence.
func wrongAlarms(functions []grants.Function, metrics []telemetry.Metric) (wrong []string) {
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

// Guarantees that each function writes the metrics of its alarms. If an alarm fires when a metric is missing, the
// function always writes that metric. It writes no other metric in each hour, since each costs money.
func TestAlarmsAreHeard(t *testing.T) {
	for _, w := range wrongAlarms(grants.Functions(), telemetry.Metrics()) {
		t.Error(w)
	}
	bend := func(name string, change func(m *telemetry.Metric)) []string {
		all := telemetry.Metrics()
		for i := range all {
			if all[i].Name == name {
				change(&all[i])
			}
		}
		return wrongAlarms(grants.Functions(), all)
	}
	for name, got := range map[string][]string{
		"line only":      bend("records_unequal", func(m *telemetry.Metric) { m.LineOnly = true }),
		"misspelt":       bend("shares_refused", func(m *telemetry.Metric) { m.Name = "shares_refsed" }),
		"not always":     bend("drift", func(m *telemetry.Metric) { m.Always = false }),
		"for no purpose": bend("records_kept", func(m *telemetry.Metric) { m.Always = true }),
	} {
		if len(got) == 0 {
			t.Errorf("%s: wrongAlarms does not report it", name)
		}
	}
}

// Guarantees that docs/cost.md gives the correct numbers of metrics and of watched metrics for an idle deployment.
func TestPageOfIdle(t *testing.T) {
	page, err := os.ReadFile("../../../docs/cost.md")
	if err != nil {
		t.Fatal(err)
	}
	b := bill(t, NewWorkload(0))
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
