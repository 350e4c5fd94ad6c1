package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/testkit/golden"
)

// The deployments whose bills the documentation quotes.
var costPoints = map[string][]string{
	"idle":  {"cost", "--rps", "0"},
	"small": {"cost", "--rps", "50", "--tenants", "20"},
	"full":  {"cost", "--rps", "1000000", "--tenants", "10000", "--profile", "full", "--peak", "1"},
}

// The golden files hold three bills, so a change of what a deployment costs shows as a diff.
func TestCost(t *testing.T) {
	for name, args := range costPoints {
		t.Run(name, func(t *testing.T) {
			got := sluice(t, "", args...)
			if got.code != 0 || got.stderr != "" {
				t.Fatalf("sluice cost gives %+v", got)
			}
			golden.Check(t, "cost/"+name+".txt", got.stdout)
			if !strings.Contains(got.stdout, "not checked against AWS today") {
				t.Error("the output does not say that prices are not checked")
			}
			got = sluice(t, "", append(args, "--json")...)
			if got.code != 0 {
				t.Fatalf("sluice cost --json gives %+v", got)
			}
			golden.Check(t, "cost/"+name+".json", got.stdout)
			var bill struct {
				USD   string
				Lines []struct{ USD, PriceFrom, How string }
			}
			if err := json.Unmarshal([]byte(got.stdout), &bill); err != nil || bill.USD == "" || len(bill.Lines) < 10 {
				t.Fatalf("the bill is %+v, %v", bill, err)
			}
			for i, l := range bill.Lines {
				if l.USD == "" || l.How == "" || !strings.Contains(l.PriceFrom, "https://") {
					t.Errorf("line %d of the bill lacks a field: %+v", i, l)
				}
			}
		})
	}
}

// costRow matches a command in a table or in the text of a page, and the result that the page gives for it.
var costRow = regexp.MustCompile("`sluice cost ([^`]+)` (?:\\| |comes to\\s\\**)([0-9][0-9,]*\\.[0-9]{2})")

// misquoted lists the results on a page that differ from those of the commands, and counts the quoted ones.
func misquoted(t *testing.T, page string) (wrong []string, quoted int) {
	t.Helper()
	for _, m := range costRow.FindAllStringSubmatch(page, -1) {
		quoted++
		if got := costTotal(t, append([]string{"cost"}, strings.Fields(m[1])...)...); got != m[2] {
			wrong = append(wrong, fmt.Sprintf("`sluice cost %s` gives %s, not %s", m[1], got, m[2]))
		}
	}
	return wrong, quoted
}

// Guarantees that the bills in README.md and docs/cost.md are those that the command prints.
func TestCostIsQuoted(t *testing.T) {
	t.Parallel()
	for file, least := range map[string]int{"README.md": 3, "docs/cost.md": 13} {
		page, err := os.ReadFile(filepath.Join("..", "..", file))
		if err != nil {
			t.Fatal(err)
		}
		wrong, quoted := misquoted(t, string(page))
		for _, w := range wrong {
			t.Errorf("%s: %s", file, w)
		}
		if quoted < least {
			t.Errorf("%s quotes %d bills, want %d", file, quoted, least)
		}
	}
}

// Guarantees that the test above can fail: a bill with a wrong number is found.
func TestCostMisquoted(t *testing.T) {
	right := costTotal(t, "cost", "--rps", "7")
	page := "| `sluice cost --rps 7` | " + right + " |\n| `sluice cost --rps 8` | " + right + " |\nand `sluice cost " +
		"--rps 9` comes to **1.00**"
	if wrong, quoted := misquoted(t, page); len(wrong) != 2 || quoted != 3 || !strings.Contains(wrong[0], "--rps "+
		"8") || !strings.Contains(wrong[1], "--rps 9") {
		t.Errorf("misquoted = %q, %d", wrong, quoted)
	}
}

// costTotal returns the printed total of a bill.
func costTotal(t *testing.T, args ...string) string {
	t.Helper()
	for line := range strings.Lines(sluice(t, "", args...).stdout) {
		if total, ok := strings.CutSuffix(strings.TrimSpace(line), "  paid for Sluice"); ok {
			return strings.TrimSpace(total)
		}
	}
	t.Fatalf("%q gives no total", args)
	return ""
}

// Guarantees that an impossible command line is refused in one line that names the flag, and prints no bill.
func TestCostRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		args string
		want string
	}{
		{"", "--rps is missing: give the requests per second, or 0 for an idle deployment"},
		{"--rps -1", "--rps is outside 0..1000000000"},
		{"--rps NaN", "--rps is outside 0..1000000000"},
		{"--rps many", `invalid argument "many" for "--rps" flag`},
		{"--rps 2000000000", "--rps is outside 0..1000000000"},
		{"--rps 50 --tenants 0", "--tenants is outside 1..10000000"},
		{"--rps 50 --cells 0", "--cells is outside 1..1000"},
		{"--rps 50 --cells -1", "--cells is outside 1..1000"},
		{"--rps 50 --cells two", `invalid argument "two" for "--cells" flag`},
		{"--rps 50 --region nowhere-1", `--region "nowhere-1" has no prices; there are eu-west-1, us-east-1. ` +
			`--json has the quantities, for prices of your own`},
		{"--rps 50 --profile medium", `invalid argument "medium" for "--profile" flag: want small or full`},
		{"--rps 50 --denied-share 2", "--denied-share is outside 0..1"},
		{"--rps 50 --denied-share x", `invalid argument "x" for "--denied-share" flag`},
		{"--rps 50 --peak 0.5", "--peak is outside 1..1000"},
		{"--rps 50 --peak x", `invalid argument "x" for "--peak" flag`},
		{"--rps 50 --duration -5ms", `invalid argument "-5ms" for "--duration" flag: want 0s or more`},
		{"--rps 50 --nat 1", "--quotas and nat are for --profile full"},
		{"--rps 50 --profile full --node cache.big", `--node "cache.big" has no price in us-east-1`},
		{"--rps 50 more", `unknown command "more" for "sluice cost"`},
	}
	for _, tt := range tests {
		got := sluice(t, "", append([]string{"cost"}, strings.Fields(tt.args)...)...)
		if got.code != exitUsage || got.stdout != "" || !strings.Contains(got.stderr, "sluice: "+tt.want) ||
			strings.Count(got.stderr, "\n") != 1 {
			t.Errorf("cost %s gives %+v; want exit %d and one line with %q", tt.args, got, exitUsage, tt.want)
		}
	}
}

// Guarantees that a bill of a deployment file is the bill of the flags that describe the same, that a flag replaces
// what the file says, and that a bill for cells of several kinds is refused, with the flag that chooses one.
func TestCostOfDeploymentFile(t *testing.T) {
	const two = `
control: { region: eu-west-1, audit: { anchors: true }, platformLogs: false, canaryMinutes: 15 }
dashboards: true
cells:
  - { id: eu-1, region: eu-west-1, profile: full, leases: false, waf: { rate: 2000 },
      cache: { node: cache.m7g.large }, network: { egress: nat, zones: 3 }, attach: [ { http: a } ] }
  - { id: eu-2, region: eu-west-1, profile: full, leases: false, waf: { rate: 1000 },
      cache: { node: cache.m7g.large }, network: { egress: nat, zones: 3 } }
`
	const mixed = `
control: { region: eu-west-1 }
cells:
  - { id: eu-1, region: eu-west-1, attach: [ { rest: a }, { webSocket: b } ] }
  - { id: us-1, region: us-east-1, profile: full }
`
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "deployment.yaml")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	for name, c := range map[string]struct{ with, as []string }{
		"the file of the repository": {[]string{"--deployment", "../../infra/deployment.yaml"},
			[]string{"--region", "eu-west-1", "--anchors"}},
		"every key": {[]string{"--deployment", file(two)}, []string{"--cells", "2", "--region", "eu-west-1",
			"--profile", "full", "--leases=false", "--node", "cache.m7g.large", "--nat", "3",
			"--anchors", "--platform-logs=false", "--canary", "15m", "--dashboard"}},
		"a flag beside it": {[]string{"--deployment", file(two), "--cells", "1", "--nat", "0"}, []string{"--region",
			"eu-west-1", "--profile", "full", "--leases=false", "--node", "cache.m7g.large",
			"--anchors", "--platform-logs=false", "--canary", "15m", "--dashboard"}},
		"cells that differ, with the flags that choose": {[]string{"--deployment", file(mixed), "--region", "us-east-1",
			"--profile", "small"}, []string{"--cells", "2"}},
	} {
		got := sluice(t, "", append([]string{"cost", "--rps", "50"}, c.with...)...)
		want := sluice(t, "", append([]string{"cost", "--rps", "50"}, c.as...)...)
		if got.code != 0 || want.code != 0 || got.stdout != want.stdout {
			t.Errorf("%s: exit code %d, %s, the bill\n%s\nwant %s\n%s", name, got.code, got.stderr, got.stdout,
				want.stderr, want.stdout)
		}
	}
	for name, c := range map[string]struct {
		text string
		says []string
	}{
		"cells that differ": {mixed, []string{"deployment.yaml:5:5: cells[1]: profile is full, and small in a cell " +
			"before", "so give --profile", "so give --region"}},
		"no cells":     {"control: { region: eu-west-1 }", []string{"cells is missing"}},
		"not a region": {"cells: [ { region: [] } ]", []string{"cells[0].region"}},
		"no file":      {"", []string{"it needs control and cells"}},
	} {
		got := sluice(t, "", "cost", "--rps", "50", "--deployment", file(c.text))
		for _, says := range c.says {
			if got.code != exitFailed || !strings.Contains(got.stderr, says) {
				t.Errorf("%s: exit code %d, %q, want %q", name, got.code, got.stderr, says)
			}
		}
	}
}
