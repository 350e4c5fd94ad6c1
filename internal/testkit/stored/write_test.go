package stored

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/cellconfig"
	"github.com/sluicelimits/sluice/internal/cell/cellconfig/table"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/audit"
	"github.com/sluicelimits/sluice/internal/control/dynamo"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
	"github.com/sluicelimits/sluice/streams/acknowledge"
	"github.com/sluicelimits/sluice/streams/applier"
	"github.com/sluicelimits/sluice/streams/archiver"
	"github.com/sluicelimits/sluice/streams/balancer"
	"github.com/sluicelimits/sluice/streams/delivery"
	"github.com/sluicelimits/sluice/streams/publisher"
	"github.com/sluicelimits/sluice/streams/streamstest"
)

var write = flag.String("write", "", "write testdata/`COMMIT`, which must not be there")

const (
	ann = "arn:aws:iam::123456789012:user/ann"
	bob = "arn:aws:sts::123456789012:assumed-role/operators/bob"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

const plans = `
plans:
  - id: free
    limits: [ { id: burst, algorithm: token_bucket, rate: 10, period: 1s, burst: 20 } ]
  - id: pro
    limits:
      - { id: burst, algorithm: token_bucket, rate: 100, period: 1s, burst: 200 }
      - { id: put-product, per: endpoint, match: { methods: [PUT], pathPattern: "/v1/organizations/{orgId}/product/*" },
          tiers: [ { period: 1s, threshold: 20 }, { period: 10s, threshold: 100 } ], align: tenant }
      - { id: person, per: subject, algorithm: sliding_window, tiers: [ { period: 1m, threshold: 60 } ], mode: shadow }
      - { id: steps, algorithm: sliding_buckets, tiers: [ { period: 1h, threshold: 5000 } ], onStoreFailure: closed }
      - { id: search, algorithm: leaky_bucket, rate: 50, period: 1s, match: { pathPattern: "/search/**" },
          cost: { trustedHeader: x-query-cost, max: 20, default: 2 } }
      - { id: monthly, quota: { units: 1000000, every: month, timezone: Europe/Paris, anchorDay: 15 } }
tenants:
  - { id: acme, plan: pro, overrides: [ { id: burst, rate: 500 } ],
      boosts: [ { id: burst, factor: 2, until: 2026-12-01T00:00:00Z } ] }
  - { id: "b & <c>", plan: free }
  - { id: gone, plan: free }
ipLimits:
  - { id: per-address, algorithm: token_bucket, rate: 50, period: 1s, burst: 100 }
anonymousPlan: free
routes: [ { pathPattern: "/v1/**" }, { methods: [GET], pathPattern: "/search/**" } ]
`

// writer has every change that goes through it archived, published, and applied in each cell.
type writer struct {
	*dynamo.Tables
	t         *testing.T
	archiver  *archiver.Archiver
	publisher *publisher.Publisher
	messages  []string
	cells     []*applier.Applier
	acks      []*acknowledge.Acknowledger
}

func (w *writer) Put(ctx context.Context, c control.Change) (control.Item, error) {
	r := &control.Record{}
	if before, err := w.Get(ctx, c.Table, c.Key); err == nil {
		r.Old = &before
	} else if !errors.Is(err, control.ErrNotFound) {
		return control.Item{}, err
	}
	var err error
	if r.New, err = w.Tables.Put(ctx, c); err != nil || r.Old != nil && r.Old.Version == r.New.Version {
		return r.New, err
	}
	all := []control.Delivery{{Sequence: "1", Record: r}}
	if _, err := w.archiver.Handle(ctx, all); err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.publisher.Handle(ctx, all); err != nil {
		w.t.Fatal(err)
	}
	return r.New, nil
}

// Publish implements [publisher.Topic].
func (w *writer) Publish(ctx context.Context, messages []publisher.Message) []error {
	for i := range messages {
		w.messages = append(w.messages, string(messages[i].Body))
		for _, cell := range w.cells {
			if _, err := cell.Handle(ctx, []delivery.Message{{ID: "1", Body: messages[i].Body}}); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	return nil
}

// TestWrite makes the folder of a commit, with -write. Without it there is nothing to do.
func TestWrite(t *testing.T) {
	if *write == "" {
		return // nothing is to be made
	}
	dir := filepath.Join("testdata", *write)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatalf("%v: what was stored never changes", err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, clock := t.Context(), noon
	now := func() time.Time { clock = clock.Add(time.Millisecond); return clock }
	quiet, meter, keeper := slog.New(slog.DiscardHandler), &streamstest.Meter{}, &streamstest.Keeper{}
	client, done := dynamodbtest.Connect(os.Getenv("SLUICE_DYNAMODB"))
	defer done()
	prefix := fmt.Sprintf("stored-%d-", os.Getpid())
	must(dynamo.Create(ctx, client, dynamo.Names(prefix)))
	must(table.Create(ctx, client, prefix+"cell"))
	w := &writer{t: t}
	var err error
	w.Tables, err = dynamo.New(client, dynamo.Names(prefix))
	must(err)
	archive, err := audit.NewFolder(dir)
	must(err)
	w.archiver = archiver.New(archiver.Config{Archive: archive, Meter: meter, Log: quiet, Now: now})
	w.publisher = publisher.New(publisher.Config{Topic: w, Keep: keeper, Meter: meter, Log: quiet, Now: now})
	eu := table.New(table.Config{Client: client, Table: prefix + "cell"})
	us := cellconfig.NewMemory(0)
	for cell, store := range map[string]cellconfig.Store{"eu-1": eu, "us-1": us} {
		a := applier.New(applier.Config{
			Cell: cell, Tables: w, Store: store, Keep: keeper, Meter: meter, Log: quiet, Now: now,
		})
		k := acknowledge.New(acknowledge.Config{Cell: cell, Tables: w, Store: store, Now: now})
		w.cells, w.acks = append(w.cells, a), append(w.acks, k)
	}
	b := balancer.New(balancer.Config{Tables: w, Meter: meter, Log: quiet, Now: now})
	s := operate.NewControl(operate.ControlConfig{Tables: w, Log: quiet, Now: now, Hash: func(_ context.Context,
		key string) (string,
		string, error) {
		return "p1", identity.HashKey([]byte("a pepper of 16 bytes"), key), nil
	}})
	balance := func() {
		t.Helper()
		for range 100 {
			r, err := b.Run(ctx)
			must(err)
			if r.Phase == shares.Steady && !r.Changed {
				return
			}
			for _, k := range w.acks {
				_, err := k.Run(ctx)
				must(err)
			}
			clock = clock.Add(10 * time.Second)
		}
		t.Fatal("the shares do not settle")
	}

	_, err = s.AddCell(ctx, ann, &operate.AddCellRequest{Cell: "eu-1", Weight: 2,
		Ops: "https://abc123.execute-api.eu-west-1.amazonaws.com/v1/", Reason: "the first cell"})
	must(err)
	balance()
	documents, err := plan.Split(noon, configyaml.Source("plans.yaml", []byte(plans)))
	must(err)
	seed := &operate.ApplyRequest{Reason: "launch", AcceptLosses: true}
	for _, d := range documents {
		t, key := operate.Place(d)
		seed.Changes = append(seed.Changes, operate.Change{Table: t, Key: key, Body: d.Body})
	}
	_, err = s.Apply(ctx, ann, seed)
	must(err)
	_, err = s.AddCell(ctx, ann, &operate.AddCellRequest{Cell: "us-1", Reason: "nearer to them"})
	must(err)
	balance()
	expires := noon.AddDate(1, 0, 0)
	for _, k := range []operate.CreateKeyRequest{
		{ID: "k1", Tenant: "acme", Subject: "ci", Hash: strings.Repeat("1", 64), Pepper: "p1",
			Reason: "for their pipeline"},
		{ID: "k2", Tenant: "b & <c>", Hash: strings.Repeat("2", 64), Pepper: "p1", Expires: &expires,
			Reason: "a trial"},
	} {
		_, err = s.CreateKey(ctx, bob, &k)
		must(err)
	}
	_, err = s.RevokeKey(ctx, bob, &operate.KeyRequest{ID: "k1", Reason: "it was in a log"})
	must(err)
	_, err = s.Suspend(ctx, bob, &operate.TenantRequest{Tenant: "b & <c>", Reason: "unpaid"})
	must(err)
	_, err = s.Apply(ctx, ann, &operate.ApplyRequest{Reason: "they left", AcceptLosses: true,
		Changes: []operate.Change{{Table: control.Tenants, Key: "gone", Expect: 1, Delete: true}}})
	must(err)
	_, err = w.Put(ctx, control.Change{Table: control.Plans, Key: events.CanaryKey,
		Body:  []byte(`{"at":"2026-11-21T12:00:00.000000Z"}`),
		Actor: "sluice canary", Reason: "canary: how long a change takes", Now: now()})
	must(err)
	memories, err := memory.New(memory.Config{})
	must(err)
	set, err := plan.Parse(configyaml.Source("plans.yaml", []byte(plans)))
	must(err)
	o := operate.NewCell(operate.CellConfig{Cell: "eu-1", Store: memories, Tables: w, Log: quiet, Now: now,
		Tenant: func(_ context.Context, id string) (*plan.Tenant, error) {
			tenant, _ := set.Tenant(id)
			return tenant, nil
		}})
	_, err = o.Reset(ctx, ann, &operate.Counters{Tenant: "acme", Limit: "monthly", Reason: "their loop is mended"})
	must(err)
	_, err = s.SetTenant(ctx, ann, &operate.SetTenantRequest{Tenant: "acme", Cells: &[]string{"us-1"},
		Reason: "they moved", Yes: true})
	must(err)
	balance()
	// The last transition is under way in each of the tables.
	_, err = s.SetTenant(ctx, ann, &operate.SetTenantRequest{Tenant: "acme", Cells: &[]string{"eu-1"},
		Reason: "and back",
		Yes:    true})
	must(err)
	r, err := b.Run(ctx)
	must(err)
	if r.Phase != shares.Shrink {
		t.Fatalf("no transition is under way: %+v", r)
	}
	_, err = w.acks[0].Run(ctx)
	must(err)

	scan := func(name string) []dynamodbtest.Item {
		out, err := client.Scan(ctx, &dynamodb.ScanInput{TableName: aws.String(prefix + name)})
		must(err)
		slices.SortFunc(out.Items, func(a, b map[string]types.AttributeValue) int {
			return strings.Compare(keyOf(a),
				keyOf(b))
		})
		items := make([]dynamodbtest.Item, len(out.Items))
		for i := range out.Items {
			items[i] = dynamodbtest.ItemOf(out.Items[i])
		}
		return items
	}
	var items []controlItem
	for _, table := range events.AllTables() {
		for _, item := range scan(string(table)) {
			items = append(items, controlItem{table, item})
		}
	}
	must(os.WriteFile(filepath.Join(dir, "control.json"), limittest.StoredLines(t, items), 0o644))
	must(os.WriteFile(filepath.Join(dir, "cell.json"), limittest.StoredLines(t, scan("cell")), 0o644))
	must(os.WriteFile(filepath.Join(dir, "messages.json"), limittest.StoredLines(t, w.messages), 0o644))
}

// controlItem is an entry of control.json.
type controlItem struct {
	Table control.Table     `json:"table"`
	Item  dynamodbtest.Item `json:"item"`
}

// keyOf is the whole key of an item, of whatever table.
func keyOf(item map[string]types.AttributeValue) (key string) {
	for _, name := range []string{"id", "pk", "sk"} {
		if v, ok := item[name].(*types.AttributeValueMemberS); ok {
			key += v.Value + "\x00"
		}
	}
	return key
}
