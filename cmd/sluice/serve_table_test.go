package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sluicelimits/sluice/internal/cell/cellconfig"
	configtable "github.com/sluicelimits/sluice/internal/cell/cellconfig/table"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// configTableOf makes a config table, and a configuration file that maps to it. With units above 0, the tenant acme has
// so many in a year.
func configTableOf(t *testing.T, endpoint string, units int) (documents *configtable.Table, name, file string) {
	t.Helper()
	client, done := dynamodbtest.Connect(endpoint)
	t.Cleanup(done)
	name = tableName(t)
	if err := configtable.Create(t.Context(), client, name); err != nil {
		t.Fatal(err)
	}
	documents, err := configtable.New(configtable.Config{Client: client, Table: name})
	if err != nil {
		t.Fatal(err)
	}
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
	t *testing.T, documents *configtable.Table, version int64, kind cellconfig.Kind, id, body string,
) {
	t.Helper()
	if _, err := cellconfig.Apply(t.Context(), documents, []cellconfig.Document{{
		Ref: cellconfig.Ref{Kind: kind, ID: id}, Version: version, Body: []byte(body)}}, time.Now); err != nil {
		t.Fatal(err)
	}
}

func writePlan(t *testing.T, documents *configtable.Table, version int64, units int) {
	t.Helper()
	writeDocument(t, documents, version, plan.KindPlan, "p", fmt.Sprintf(
		`{"id":"p","limits":[{"id":"all","tiers":[{"period":"8784h","threshold":%d}]}]}`, units))
}

// Guarantees that the service decides by the config table of a cell, that a change of the table is in force without a
// restart and without a request that asks for it, that counters survive the change, and that a cell
// that has no share grants nothing.
func TestServeConfigTable(t *testing.T) {
	endpoint := dynamoDB(t)
	documents, name, file := configTableOf(t, endpoint, 0)
	flags := []string{"--config", file, "--dynamodb", endpoint, "--dynamodb-table", tableName(t), "--dynamodb-deadline",
		"10s", "--config-table", name}
	if got := sluice(t, "", append([]string{"serve"}, flags...)...); got.code != exitFailed ||
		!strings.Contains(got.stderr, "the cell configuration is empty") {
		t.Errorf("an empty table: exit %d, %s", got.code, got.stderr)
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
	within(t, "the changed plan is in force", func() error {
		if got := s.ask(t, "tenant", "acme"); got != rlsv3.RateLimitResponse_OK {
			return fmt.Errorf("it is %s", got)
		}
		return nil
	})
	if got := s.ask(t, "tenant", "acme"); got != rlsv3.RateLimitResponse_OVER_LIMIT {
		t.Errorf("the counter did not survive the change: %s", got)
	}
	writeDocument(t, documents, 1, plan.KindTenant, "globex", `{"id":"globex","plan":"p"}`)
	within(t, "the new tenant is known", func() error {
		if got := s.ask(t, "tenant", "globex"); got != rlsv3.RateLimitResponse_OK {
			return fmt.Errorf("it is %s", got)
		}
		return nil
	})
	// A cell that the table has no shares for grants nothing, unless it is the only one.
	if got := sluice(t, "", append([]string{"serve", "--cell", "one"}, flags...)...); got.code != exitFailed {
		t.Errorf("a cell without a share: exit %d, %s", got.code, got.stderr)
	}
	alone := startServe(t, append(flags, "--cell", "one", "--alone")...)
	if got := alone.ask(t, "tenant", "globex"); got != rlsv3.RateLimitResponse_OK {
		t.Errorf("the only cell: %s", got)
	}
}

// Guarantees that the service goes on with its copy while the table does not answer.
func TestServeConfigTableAway(t *testing.T) {
	endpoint := dynamoDB(t)
	target, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	var away atomic.Bool
	var refused atomic.Int64
	forward := httputil.NewSingleHostReverseProxy(target)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if away.Load() {
			refused.Add(1)
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		r.Host = target.Host
		forward.ServeHTTP(w, r)
	}))
	defer proxy.Close()
	_, name, file := configTableOf(t, endpoint, 5)
	s := startServe(t, "--config", file, "--redis", redistest.Start(t).Addr, "--redis-deadline", "10s", "--dynamodb",
		proxy.URL, "--dynamodb-table", tableName(t), "--dynamodb-deadline", "10s", "--config-table", name)
	if got := s.ask(t, "tenant", "acme"); got != rlsv3.RateLimitResponse_OK {
		t.Errorf("before: %s", got)
	}
	away.Store(true)
	within(t, "the table was asked in vain", func() error {
		if refused.Load() == 0 {
			return errors.New("it was not asked")
		}
		return nil
	})
	for i, want := range []rlsv3.RateLimitResponse_Code{1, 1, 1, 1, 2} {
		if got := s.ask(t, "tenant", "acme"); got != want {
			t.Errorf("request %d while the table is away: %s, want %s", i, got, want)
		}
	}
	for flags, want := range map[string]string{
		"--config-table t --plans p":    "both say what the plans are",
		"--cell c":                      "--cell has no use without --config-table",
		"--config-table t --alone":      "--alone has no use without --cell",
		"--config-table t --pepper a=b": "--pepper",
	} {
		got := sluice(t, "", append([]string{"serve", "--config", "x"}, strings.Fields(flags)...)...)
		if got.code != exitUsage || !strings.Contains(got.stderr, want) {
			t.Errorf("%s: exit %d, %s", flags, got.code, got.stderr)
		}
	}
}
