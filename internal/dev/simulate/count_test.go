package simulate_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/dev/simulate"
	"github.com/sluicelimits/sluice/internal/plan"
)

// An independent count of what each algorithm admits, in the simplest code possible, with times in whole seconds. It
// shares nothing with the core, so that a mistake on either side shows as a difference.

// hit is one request of a log, as read by a regular expression.
type hit struct {
	second  int64
	address string
}

var plainLine = regexp.MustCompile(`^(\w\S*) \S+ [^\[]+ \[([^\]]+)\] "[A-Z]+ /`)

func hitsOf(text string) []hit {
	var hits []hit
	for line := range strings.Lines(text) {
		m := plainLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		at, err := time.Parse("02/Jan/2006:15:04:05 -0700", m[2])
		if err != nil {
			continue
		}
		hits = append(hits, hit{at.Unix(), m[1]})
	}
	slices.SortStableFunc(hits, func(a, b hit) int { return cmp.Compare(a.second, b.second) })
	return hits
}

// counters returns a function for each algorithm with 10 per minute. It reports whether one address may make a request
// at a time, and keeps the state of that address.
var counters = map[string]func() func(second int64) bool{
	"fixed_window": func() func(int64) bool {
		count := map[int64]int{}
		return func(s int64) bool {
			if count[s/60] >= 10 {
				return false
			}
			count[s/60]++
			return true
		}
	},
	"sliding_window": func() func(int64) bool {
		count := map[int64]int64{}
		return func(s int64) bool {
			weighted := count[s/60-1] * (60 - s%60) // in units times 60
			if (weighted+59)/60+count[s/60]+1 > 10 {
				return false
			}
			count[s/60]++
			return true
		}
	},
	"sliding_buckets": func() func(int64) bool {
		count := map[int64]int{} // by buckets of 2.5 s
		return func(s int64) bool {
			now := s * 10 / 25
			sum := 0
			for b := now - 24; b <= now; b++ {
				sum += count[b]
			}
			if sum >= 10 {
				return false
			}
			count[now]++
			return true
		}
	},
	"sliding_log": func() func(int64) bool {
		var log []int64
		return func(s int64) bool {
			recent := 0
			for _, at := range log {
				if at > s-60 {
					recent++
				}
			}
			if recent >= 10 {
				return false
			}
			log = append(log, s)
			return true
		}
	},
	"token_bucket": func() func(int64) bool {
		level, last := int64(60), int64(0) // in sixths of a token; a second adds one sixth
		return func(s int64) bool {
			level = min(60, level+(s-last))
			last = s
			if level < 6 {
				return false
			}
			level -= 6
			return true
		}
	},
	"leaky_bucket": func() func(int64) bool {
		free := int64(0)
		return func(s int64) bool {
			if s < free {
				return false
			}
			free = s + 6
			return true
		}
	},
	"quota": func() func(int64) bool {
		count := map[int64]int{} // by day in UTC
		return func(s int64) bool {
			if count[s/86400] >= 10 {
				return false
			}
			count[s/86400]++
			return true
		}
	},
}

func rule(algorithm string) string {
	switch algorithm {
	case "token_bucket", "leaky_bucket":
		return fmt.Sprintf("{ id: per-address, algorithm: %s, rate: 10, period: 1m }", algorithm)
	case "quota":
		return "{ id: per-address, quota: { units: 10, every: day, timezone: UTC } }"
	default:
		return fmt.Sprintf("{ id: per-address, algorithm: %s, tiers: [ { period: 1m, threshold: 10 } ] }", algorithm)
	}
}

func config(t testing.TB, text string) *plan.Config {
	t.Helper()
	c, err := plan.Parse(configyaml.Source("plans.yaml", []byte(text)))
	if err != nil {
		t.Fatalf("plans file:\n%s\n%v", text, err)
	}
	return c
}

// run runs a simulation, and fails the test on any error.
func run(t testing.TB, o simulate.Options) *simulate.Report {
	t.Helper()
	r, err := simulate.Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Guarantees that a simulation is correct: for each algorithm its numbers equal those of a count that shares nothing
// with the core, in total and for every address and minute that the report names. SLUICE_ACCESS_LOG names a further log
// to count, such as one of a real server.
func TestIndependentCount(t *testing.T) {
	logs := []string{filepath.Join("testdata", "small.log")}
	if given := os.Getenv("SLUICE_ACCESS_LOG"); given != "" {
		logs = append(logs, given)
	}
	for _, log := range logs {
		t.Run(filepath.Base(log), func(t *testing.T) {
			text, err := os.ReadFile(log)
			if err != nil {
				t.Fatal(err)
			}
			hits := hitsOf(string(text))
			for algorithm, fresh := range counters {
				t.Run(algorithm, func(t *testing.T) { compare(t, log, algorithm, hits, fresh) })
			}
		})
	}
}

func compare(t *testing.T, log, algorithm string, hits []hit, fresh func() func(int64) bool) {
	may := map[string]func(int64) bool{}
	deniedBy := map[string]int64{}
	deniedIn := map[int64]int64{}
	var allowed, denied int64
	for _, h := range hits {
		if may[h.address] == nil {
			may[h.address] = fresh()
		}
		if may[h.address](h.second) {
			allowed++
			continue
		}
		denied++
		deniedBy[h.address]++
		deniedIn[h.second/60]++
	}
	r := run(t, simulate.Options{
		Config: config(t, "ipLimits: [ "+rule(algorithm)+" ]"),
		Logs:   []simulate.Log{simulate.FileLog(log)},
		Top:    len(may),
	})
	t.Logf("%s: %d requests, %d allowed, %d denied", algorithm, r.Requests, r.Allowed, r.Denied)
	if denied == 0 || allowed == 0 {
		t.Fatalf("the log is no test, since it needs both: %d allowed, %d denied", allowed, denied)
	}
	if r.Requests != int64(len(hits)) || r.Allowed != allowed || r.Denied != denied {
		t.Errorf("%d requests, %d allowed, %d denied; want %d, %d, %d by the independent count",
			r.Requests, r.Allowed, r.Denied, len(hits), allowed, denied)
	}
	if l := r.Limits; len(l) != 1 || l[0].Allowed != allowed || l[0].Denied != denied || l[0].Applied != r.Requests {
		t.Errorf("limits %+v; want %d allowed, %d denied by the independent count", l, allowed, denied)
	}
	for _, p := range r.Addresses.Top {
		if p.Denied != deniedBy[p.Name] {
			t.Errorf("address %s: %d denied; want %d by the independent count", p.Name, p.Denied, deniedBy[p.Name])
		}
	}
	if len(r.Addresses.Top) != len(may) {
		t.Errorf("%d addresses, want %d by the independent count", len(r.Addresses.Top), len(may))
	}
	for _, m := range r.WorstMinutes {
		if want := deniedIn[m.At.Unix()/60]; m.Denied != want {
			t.Errorf("minute %s: %d denied; want %d by the independent count", m.At, m.Denied, want)
		}
	}
	worst := slices.MaxFunc(mapValues(deniedIn), cmp.Compare[int64])
	if len(r.WorstMinutes) == 0 || r.WorstMinutes[0].Denied != worst {
		t.Errorf("worst minutes %+v; want %d denials in the worst by the independent count", r.WorstMinutes, worst)
	}
}

func mapValues[K comparable, V any](m map[K]V) []V {
	var out []V
	for _, v := range m {
		out = append(out, v)
	}
	return out
}
