package operate_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/embedded"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory/memorytest"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

const cellPlans = `
plans:
  - id: pro
    limits:
      - { id: fixed, tiers: [ { period: 24h, threshold: 1000 } ] }
      - { id: sliding, algorithm: sliding_window, threshold: 1000, period: 24h }
      - { id: buckets, algorithm: sliding_buckets, threshold: 1000, period: 24h }
      - { id: bucket, algorithm: token_bucket, rate: 1, period: 24h, burst: 1000 }
      - { id: long, quota: { units: 1000, every: year } }
      - { id: leaky, algorithm: leaky_bucket, rate: 1000, period: 24h }
      - { id: log, algorithm: sliding_log, threshold: 1000, period: 24h }
      - { id: silent, algorithm: sliding_window, threshold: 1000, period: 24h, mode: shadow }
      - { id: person, per: subject, tiers: [ { period: 24h, threshold: 1000 } ] }
      - { id: puts, match: { methods: [PUT], pathPattern: /things/* }, per: endpoint,
          tiers: [ { period: 24h, threshold: 1000 } ] }
      - { id: client, per: ip, tiers: [ { period: 24h, threshold: 1000 } ] }
tenants: [ { id: acme, plan: pro }, { id: other, plan: pro } ]
ipLimits: [ { id: per-address, algorithm: token_bucket, rate: 1, period: 24h, burst: 1000 } ]
`

// cellWorld is a cell with its operators.
type cellWorld struct {
	*testing.T
	store  limit.Store
	tables *embedded.Tables
	config *plan.Config
	now    func() time.Time
	s      *operate.Cell
	logged *bytes.Buffer
}

func newCellWorld(t *testing.T, store limit.Store) *cellWorld {
	t.Helper()
	config, err := plan.Parse(configyaml.Source("plans.yaml", []byte(cellPlans)))
	if err != nil {
		t.Fatal(err)
	}
	tables, err := embedded.Open(filepath.Join(t.TempDir(), "control"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tables.Close() })
	w := &cellWorld{T: t, store: store, tables: tables, config: config, now: time.Now,
		logged: new(bytes.Buffer)}
	w.s = w.service(store, tables)
	return w
}

func (w *cellWorld) service(store limit.Store, tables control.Tables) *operate.Cell {
	s := operate.NewCell(w.settings(store, tables))
	return s
}

func (w *cellWorld) settings(store limit.Store, tables control.Tables) operate.CellConfig {
	return operate.CellConfig{Cell: "eu-1", Store: store, Tables: tables, Now: w.now,
		Log: slog.New(slog.NewTextHandler(w.logged, nil)),
		Tenant: func(_ context.Context, id string) (*plan.Tenant, error) {
			t, _ := w.config.Tenant(id)
			return t, nil
		},
	}
}

// spend charges units of one limit of a tenant.
func (w *cellWorld) spend(tenant, id string, units int64) bool {
	w.Helper()
	t, _ := w.config.Tenant(tenant)
	return w.decide(limit.Owner{Kind: limit.Tenant, Name: tenant}, t.Limits(w.now()), id,
		limit.LeaseRequest{Need: units}, units).Allowed
}

// decide charges units of one limit of a set, and leases.
func (w *cellWorld) decide(o limit.Owner, set *plan.Set, id string, a limit.LeaseRequest, units int64) *limit.Decision {
	w.Helper()
	for _, e := range set.Limits {
		if e.Limit.ID != id {
			continue
		}
		charge := limit.Charge{Limit: e.Limit, Cost: max(units, 1)}
		switch id {
		case "person":
			charge.Value = limit.ValueOf("ann")
		case "client":
			charge.Value = limit.ValueOf("an address")
		}
		req := &limit.Request{Owner: o, Charges: []limit.Charge{charge}}
		if a != (limit.LeaseRequest{Need: units}) {
			req.Leases = []limit.LeaseRequest{a}
		}
		d := new(limit.Decision)
		if err := w.store.Decide(w.Context(), req, w.now(), d); err != nil {
			w.Fatal(err)
		}
		return d
	}
	w.Fatalf("no limit %s", id)
	return nil
}

// accepted returns those of the limits that the store accepts.
func (w *cellWorld) accepted(ids ...string) []string {
	t, _ := w.config.Tenant("acme")
	return slices.DeleteFunc(ids, func(id string) bool {
		return !slices.ContainsFunc(t.Limits(w.now()).Limits, func(e *plan.Effective) bool {
			return e.Limit.ID == id &&
				w.store.Accepts(e.Limit) == nil
		})
	})
}

// record returns what an operation has recorded, version by version.
func (w *cellWorld) record(id string) (versions []string) {
	w.Helper()
	after := ""
	for {
		deliveries, err := w.tables.Read(w.Context(), after, control.MaxPage)
		if err != nil {
			w.Fatal(err)
		}
		for _, d := range deliveries {
			if d.Record.New.Key == id {
				var body struct{ State string }
				if err := json.Unmarshal(d.Record.New.Body, &body); err != nil {
					w.Fatal(err)
				}
				versions = append(versions, fmt.Sprintf("%d %s by %s: %s", d.Record.New.Version, body.State,
					d.Record.New.Actor, d.Record.New.Reason))
			}
			after = d.Sequence
		}
		if len(deliveries) == 0 {
			return versions
		}
	}
}

// eachStore runs a test on every store.
func eachStore(t *testing.T, f func(t *testing.T, store limit.Store)) {
	t.Helper()
	missing := func(t *testing.T, name, why string) {
		t.Helper()
		if slices.Contains(strings.Split(os.Getenv("REQUIRE_STORES"), ","), name) {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	t.Run("memory", func(t *testing.T) {
		store := memorytest.New(t)
		f(t, store)
	})
	t.Run("redis", func(t *testing.T) {
		if _, err := redistest.Find(); err != nil {
			missing(t, "redis", err.Error())
		}
		store, err := redis.New(t.Context(), redis.Config{Addrs: []string{redistest.Start(t).Addr},
			Deadline: 20 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = store.Close() })
		f(t, store)
	})
	t.Run("dynamodb", func(t *testing.T) {
		url := os.Getenv("SLUICE_DYNAMODB")
		if url == "" {
			missing(t, "dynamodb", "no DynamoDB: set SLUICE_DYNAMODB=$(scripts/dynamodb-local.sh)")
		}
		client, done := dynamodbtest.Connect(url)
		t.Cleanup(done)
		name := fmt.Sprintf("ops-%d-%d", os.Getpid(), time.Now().UnixNano())
		if err := dynamodb.Create(t.Context(), client, name); err != nil {
			t.Fatal(err)
		}
		store, err := dynamodb.New(dynamodb.Config{Client: client, Table: name, Timeout: 20 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		f(t, store)
	})
}
