package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	configtable "github.com/sluicelimits/sluice/internal/cell/dynamotable"
	celltable "github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
	"github.com/sluicelimits/sluice/internal/testkit/killswitchtest"
)

// configTableOf makes a config table, and a configuration file that maps to it. If units is above 0, the tenant acme
// has a limit of that many a year.
func configTableOf(t *testing.T, endpoint string, units int) (documents *configtable.Table, name, file string) {
	t.Helper()
	client, done := dynamodbtest.Connect(endpoint)
	t.Cleanup(done)
	name = tableName(t)
	dynamodbtest.CreateConfigTable(t, client, name)
	documents = configtable.New(configtable.Config{Client: client, Table: name})
	file = filepath.Join(t.TempDir(), "limits.yaml")
	if err := os.WriteFile(file, []byte("domain: api\nsluice: {mapping: {tenant: tenant}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if units > 0 {
		writePlan(t, documents, 1, units)
		writeDocument(t, documents, 1, plan.KindTenant, "acme", `{"id":"acme","plan":"p"}`)
	}
	return documents, name, file
}

func writeDocument(
	t *testing.T, documents *configtable.Table, version int64, kind celltable.Kind, id, body string,
) {
	t.Helper()
	if _, err := celltable.Apply(t.Context(), documents, []celltable.Document{{
		Ref: celltable.Ref{Kind: kind, ID: id}, Version: version, Body: []byte(body)}}, time.Now); err != nil {
		t.Fatal(err)
	}
}

func writePlan(t *testing.T, documents *configtable.Table, version int64, units int) {
	t.Helper()
	writeDocument(t, documents, version, plan.KindPlan, "p", fmt.Sprintf(
		`{"id":"p","limits":[{"id":"all","tiers":[{"period":"8784h","threshold":%d}]}]}`, units))
}

// Guarantees that the service decides by the config table of a cell, that a change of the table is in force without a
// restart and without a request, that counters survive the change, and that a cell without a share grants nothing.
func TestServeConfigTable(t *testing.T) {
	endpoint := dynamodbtest.Need(t)
	documents, name, file := configTableOf(t, endpoint, 0)
	flags := []string{"--config", file, "--dynamodb", endpoint, "--dynamodb-table", tableName(t), "--dynamodb-deadline",
		"10s", "--config-table", name}
	if got := sluice(t, "", append([]string{"serve"}, flags...)...); got.code != exitFailed ||
		!strings.Contains(got.stderr, "the cell configuration is empty") {
		t.Errorf("an empty config table: exit %d, %s", got.code, got.stderr)
	}
	writePlan(t, documents, 1, 2)
	writeDocument(t, documents, 1, plan.KindTenant, "acme", `{"id":"acme","plan":"p"}`)
	s := startServe(t, flags...)
	for i, want := range []rlsv3.RateLimitResponse_Code{1, 1, 2} {
		if got := s.ask(t, "tenant", "acme"); got != want {
			t.Errorf("request %d: %s, want %s", i, got, want)
		}
	}
	if got := s.ask(t, "tenant", "globex"); got != rlsv3.RateLimitResponse_OVER_LIMIT {
		t.Errorf("an unknown tenant: %s", got)
	}
	writePlan(t, documents, 2, 3)
	waitWithin(t, "the changed plan is in force", func() error {
		if got := s.ask(t, "tenant", "acme"); got != rlsv3.RateLimitResponse_OK {
			return fmt.Errorf("the answer is still %s", got)
		}
		return nil
	})
	if got := s.ask(t, "tenant", "acme"); got != rlsv3.RateLimitResponse_OVER_LIMIT {
		t.Errorf("the counter did not survive the change: %s", got)
	}
	writeDocument(t, documents, 1, plan.KindTenant, "globex", `{"id":"globex","plan":"p"}`)
	waitWithin(t, "the new tenant is known", func() error {
		if got := s.ask(t, "tenant", "globex"); got != rlsv3.RateLimitResponse_OK {
			return fmt.Errorf("the answer is still %s", got)
		}
		return nil
	})
	// A cell without shares in the table grants nothing, unless it is the only cell.
	if got := sluice(t, "", append([]string{"serve", "--cell", "one"}, flags...)...); got.code != exitFailed {
		t.Errorf("a cell without a share: exit %d, %s", got.code, got.stderr)
	}
	alone := startServe(t, append(flags, "--cell", "one", "--alone")...)
	if got := alone.ask(t, "tenant", "globex"); got != rlsv3.RateLimitResponse_OK {
		t.Errorf("the only cell: %s", got)
	}
}

// Guarantees that services of two cells together grant a quota once: the cell that is not its home leases it from the
// home's counters table, which --home names, and without that flag grants nothing.
func TestServeHomes(t *testing.T) {
	const units = 6
	endpoint := dynamodbtest.Need(t)
	documents, name, file := configTableOf(t, endpoint, 0)
	writeDocument(t, documents, 1, plan.KindPlan, "p", fmt.Sprintf(
		`{"id":"p","limits":[{"id":"all","quota":{"units":%d,"every":"year"}}]}`, units))
	writeDocument(t, documents, 1, plan.KindTenant, "acme", `{"id":"acme","plan":"p"}`)
	writeDocument(t, documents, 1, celltable.KindShares, celltable.SharesID,
		`{"version":2,"epoch":1,"phase":"steady","skew_us":0,"members":[{"cell":"eu-1","state":"active","weight":1},`+
			`{"cell":"us-1","state":"active","weight":1}],"generations":[{"epoch":1,"from":1,"cells":[`+
			`{"cell":"eu-1","weight":1},{"cell":"us-1","weight":1}]}]}`)
	tables := map[string]string{"eu-1": tableName(t) + "-eu", "us-1": tableName(t) + "-us"}
	start := func(cell string, flags ...string) *serving {
		return startServe(t, append([]string{"--config", file, "--dynamodb", endpoint, "--dynamodb-table", tables[cell],
			"--dynamodb-deadline", "10s", "--config-table", name, "--cell", cell}, flags...)...)
	}
	homes := []string{"--home", "eu-1=" + tables["eu-1"], "--home", "us-1=" + tables["us-1"], "--home-deadline", "10s",
		"--leases=false"}
	eu, us := start("eu-1", homes...), start("us-1", homes...)
	admitted := 0
	for range units {
		for _, s := range []*serving{eu, us} {
			if s.ask(t, "tenant", "acme") == rlsv3.RateLimitResponse_OK {
				admitted++
			}
		}
	}
	if admitted != units {
		t.Errorf("two cells admitted %d of %d units together", admitted, units)
	}
	lost := 0
	for cell := range tables {
		s := start(cell)
		s.ask(t, "tenant", "acme")
		if strings.Contains(s.stderr.String(), `home=`) {
			lost++
		}
	}
	if lost != 1 {
		t.Errorf("%d of 2 services without --home named the home that they cannot reach, want the one that is not it",
			lost)
	}
}

// Guarantees that with --kill-switch the plans follow the kill switch of a cell: in the mode shadow they deny nobody,
// and in the mode off no limit is counted. A change is in force without a restart. A service that starts in shadow does
// not deny its first request. An invalid document changes nothing. The metrics show the mode and the failed polls.
// Unknown tenants and other descriptors are denied in every mode.
func TestServeKillSwitch(t *testing.T) {
	appConfig := &killswitchtest.AppConfig{Interval: time.Second}
	url, stop, err := appConfig.Listen()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stop() })
	for name, value := range map[string]string{"AWS_ENDPOINT_URL_APPCONFIGDATA": url, "AWS_REGION": "eu-west-1",
		"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key"} {
		t.Setenv(name, value)
	}
	dir := t.TempDir()
	file, plans := filepath.Join(dir, "limits.yaml"), filepath.Join(dir, "plans.yaml")
	for name, text := range map[string]string{
		file: "domain: api\nsluice: {mapping: {tenant: tenant}}\n" +
			"descriptors: [{key: other, rate_limit: {unit: year, requests_per_unit: 1}}]\n",
		plans: "plans: [ { id: p, limits: [ { id: l, algorithm: fixed_window, threshold: 1, period: 8784h } ] } ]\n" +
			"tenants: [ { id: acme, plan: p } ]\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	flags := []string{"--config", file, "--plans", plans, "--kill-switch", killswitchtest.Setting}
	appConfig.Set(`{"mode":"enforce"}`)
	s := startServe(t, flags...)
	becomes := func(mode, key, value string, want rlsv3.RateLimitResponse_Code) {
		t.Helper()
		waitWithin(t, mode+" is in force", func() error {
			if got := s.ask(t, key, value); got != want {
				return fmt.Errorf("%s %s gets %s", key, value, got)
			}
			return nil
		})
	}
	for i, want := range []rlsv3.RateLimitResponse_Code{1, 2} {
		if got := s.ask(t, "tenant", "acme"); got != want {
			t.Errorf("request %d: %s, want %s", i, got, want)
		}
	}
	for _, mode := range []string{"shadow", "off"} {
		appConfig.Set(`{"mode":"enforce"}`)
		becomes("enforce", "tenant", "acme", rlsv3.RateLimitResponse_OVER_LIMIT)
		appConfig.Set(`{"mode":"` + mode + `"}`)
		becomes(mode, "tenant", "acme", rlsv3.RateLimitResponse_OK)
		becomes(mode, "other", "x", rlsv3.RateLimitResponse_OVER_LIMIT)
		if got := s.ask(t, "tenant", "unknown"); got != rlsv3.RateLimitResponse_OVER_LIMIT {
			t.Errorf("an unknown tenant in %s: %s", mode, got)
		}
	}
	appConfig.Set(`{"mode":"none"}`)
	s.waitFor(t, "the kill switch's document cannot be used")
	_, _, text := get(t, s.debug+"/metrics", "")
	for _, want := range []string{"\nsluice_kill_switch 2\n", "\nsluice_kill_switch_failed_polls_total "} {
		if !strings.Contains(text, want) || strings.Contains(text, want+"0\n") {
			t.Errorf("no %q, or 0, in\n%s", want, text)
		}
	}
	if got := s.ask(t, "tenant", "acme"); got != rlsv3.RateLimitResponse_OK {
		t.Errorf("after a document that is not valid: %s", got)
	}
	appConfig.Set(`{"mode":"shadow"}`)
	second := startServe(t, flags...)
	for i := range 2 {
		if got := second.ask(t, "tenant", "acme"); got != rlsv3.RateLimitResponse_OK {
			t.Errorf("request %d to a service that starts in shadow: %s", i, got)
		}
	}
}
