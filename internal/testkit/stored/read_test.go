package stored

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/cellconfig"
	"github.com/sluicelimits/sluice/internal/cell/cellconfig/table"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/audit"
	"github.com/sluicelimits/sluice/internal/control/dynamo"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
	"github.com/sluicelimits/sluice/streams/applier"
	"github.com/sluicelimits/sluice/streams/balancer"
	"github.com/sluicelimits/sluice/streams/delivery"
	"github.com/sluicelimits/sluice/streams/streamstest"
)

const commit = "5d6f231"

// read reads a file of testdata.
func read(tb testing.TB, name string, into any) {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", commit, name))
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// frozen is DynamoDB with stored items in it, by table. Nothing is written to it.
type frozen map[string][]map[string]types.AttributeValue

var errFrozen = errors.New("what is stored never changes")

func open(tb testing.TB) frozen {
	tb.Helper()
	f := frozen{}
	var cell []dynamodbtest.Item
	read(tb, "cell.json", &cell)
	for _, i := range cell {
		f["cell"] = append(f["cell"], i.Attributes())
	}
	var items []controlItem
	read(tb, "control.json", &items)
	for _, i := range items {
		f[string(i.Table)] = append(f[string(i.Table)], i.Item.Attributes())
	}
	return f
}

// find returns the items with this key; some of its attributes select several.
func (f frozen) find(table string, key map[string]types.AttributeValue) (found []map[string]types.AttributeValue) {
	for _, item := range f[table] {
		if strings.HasPrefix(keyOf(item), keyOf(key)) {
			found = append(found, item)
		}
	}
	return found
}

func (f frozen) GetItem(_ context.Context, in *dynamodb.GetItemInput,
	_ ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error) {
	out := &dynamodb.GetItemOutput{}
	if found := f.find(*in.TableName, in.Key); len(found) > 0 {
		out.Item = found[0]
	}
	return out, nil
}

func (f frozen) BatchGetItem(_ context.Context, in *dynamodb.BatchGetItemInput,
	_ ...func(*dynamodb.Options)) (*dynamodb.BatchGetItemOutput, error) {
	out := &dynamodb.BatchGetItemOutput{Responses: map[string][]map[string]types.AttributeValue{}}
	for name, keys := range in.RequestItems {
		for _, key := range keys.Keys {
			out.Responses[name] = append(out.Responses[name], f.find(name, key)...)
		}
	}
	return out, nil
}

func (f frozen) Query(_ context.Context, in *dynamodb.QueryInput,
	_ ...func(*dynamodb.Options)) (*dynamodb.QueryOutput, error) {
	out := &dynamodb.QueryOutput{}
	text := func(name string) string {
		s, _ := in.ExpressionAttributeValues[name].(*types.AttributeValueMemberS)
		if s == nil {
			return ""
		}
		return s.Value
	}
	for _, item := range f.find(*in.TableName,
		map[string]types.AttributeValue{"pk": in.ExpressionAttributeValues[":p"]}) {
		sk := item["sk"].(*types.AttributeValueMemberS).Value
		if text(":b") == "" || sk >= text(":a") && sk <= text(":b") {
			out.Items = append(out.Items, item)
		}
	}
	return out, nil
}

func (f frozen) Scan(_ context.Context, in *dynamodb.ScanInput, _ ...func(*dynamodb.Options)) (*dynamodb.ScanOutput,
	error) {
	return &dynamodb.ScanOutput{Items: f[*in.TableName]}, nil
}

func (f frozen) PutItem(context.Context, *dynamodb.PutItemInput, ...func(*dynamodb.Options)) (*dynamodb.PutItemOutput,
	error) {
	return nil, errFrozen
}

func (f frozen) TransactWriteItems(context.Context, *dynamodb.TransactWriteItemsInput,
	...func(*dynamodb.Options)) (*dynamodb.TransactWriteItemsOutput, error) {
	return nil, errFrozen
}

func (f frozen) tables(tb testing.TB) *dynamo.Tables {
	tb.Helper()
	t, err := dynamo.New(f, dynamo.Names(""))
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

func (f frozen) cell(tb testing.TB) *table.Table {
	tb.Helper()
	return table.New(table.Config{Client: f, Table: "cell"})
}

// body reads the stored body of an item of the control tables.
func body[T any](t *testing.T, tables *dynamo.Tables, table control.Table, key string, read func([]byte) (T, error)) T {
	t.Helper()
	item, err := tables.Get(t.Context(), table, key)
	if err != nil {
		t.Fatal(err)
	}
	out, err := read(item.Body)
	if err != nil {
		t.Fatalf("%s/%s: %v", table, key, err)
	}
	return out
}

// Guarantees that the control tables that an earlier commit wrote are read: every item with the hash that its writer
// computed, the documents of plans and tenants by package plan, and those of cells by their own readers.
func TestControlItems(t *testing.T) {
	tables := open(t).tables(t)
	acme, _ := strings.CutPrefix(shares.PlacementKey("acme"), shares.PlacementPrefix)
	var got []string
	for _, table := range events.AllTables() {
		for item, err := range control.All(t.Context(), tables, table) {
			if err != nil {
				t.Fatal(err)
			}
			if err := item.Verify(); err != nil {
				t.Error(err)
			}
			deleted := ""
			if item.Deleted {
				deleted = " deleted"
			}
			key := item.Key
			if table == control.Operations {
				key = "of " + item.ChangedAt.Format(time.RFC3339)
			}
			got = append(got, fmt.Sprintf("%s/%s %d%s by %s because %s", table, key, item.Version, deleted,
				item.Actor[strings.LastIndexByte(item.Actor, '/')+1:], item.Reason))
		}
	}
	slices.Sort(got)
	want := []string{
		"cells/@shares 10 by sluice balancer because epoch 4, shrink",
		"cells/ack.18096509425781a9a1103c7354c6d05deb6a9a6e 4 by sluice cell us-1 because epoch 3, grow",
		"cells/ack.a8ddeaba6ab6b4b31286462dacb0abc602a22c9c 5 by sluice cell eu-1 because epoch 4, shrink",
		"cells/eu-1 1 by ann because the first cell",
		"cells/pin." + acme + " 3 by ann because and back",
		"cells/placed." + acme + " 1 by sluice balancer because epoch 3",
		"cells/us-1 1 by ann because nearer to them",
		"keys/k1 2 by bob because it was in a log",
		"keys/k2 1 by bob because a trial",
		"operations/of 2026-11-21T12:01:00Z 2 by ann because their loop is mended",
		"plans/@canary 1 by sluice canary because canary: how long a change takes",
		"plans/@settings 1 by ann because launch",
		"plans/free 1 by ann because launch",
		"plans/pro 1 by ann because launch",
		"tenants/acme 3 by ann because and back",
		"tenants/b & <c> 2 by bob because unpaid",
		"tenants/gone 2 deleted by ann because they left",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the items are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	state := body(t, tables, control.Cells, events.SharesKey, shares.DecodeState)
	if state.Epoch != 4 || state.Phase != shares.Shrink || len(state.Members) != 2 ||
		state.Members[0] != (shares.Member{Cell: "eu-1", State: shares.Active, Weight: 2}) ||
		!slices.Equal(state.Awaited(), []string{"eu-1", "us-1"}) || len(state.Generations) != 2 ||
		len(state.Transition.Placements) != 1 {
		t.Errorf("the state of the shares is %+v", state)
	}
	placed := body(t, tables, control.Cells, shares.PlacementKey("acme"), shares.DecodePlacement)
	if placed.Tenant != "acme" || len(placed.Generations) != 2 || !slices.Equal(placed.Generations[1].Cells,
		[]string{"us-1"}) ||
		placed.Generations[1].Epoch != 3 || placed.Generations[1].From != 1795262490187000 {
		t.Errorf("the placement is %+v", placed)
	}
	cell := body(t, tables, control.Cells, "eu-1", operate.ReadCell)
	if cell.ID != "eu-1" || cell.Ops != "https://abc123.execute-api.eu-west-1.amazonaws.com/v1/" ||
		cell.Request.Kind != shares.Join || cell.Request.Weight != 2 {
		t.Errorf("the cell is %+v", cell)
	}
	pin := body(t, tables, control.Cells, operate.PinKey("acme"), operate.ReadCell)
	if pin.Request.Kind != shares.Place || pin.Request.Tenant != "acme" || !slices.Equal(pin.Request.Cells,
		[]string{"eu-1"}) {
		t.Errorf("the pin is %+v", pin)
	}
	ack := body(t, tables, control.Cells, shares.AckKey("eu-1"), func(text []byte) (a balancer.Ack, err error) {
		err = json.Unmarshal(text, &a)
		return a, err
	})
	if ack != (balancer.Ack{Cell: "eu-1", Epoch: 4, Phase: shares.Shrink, AtUS: 1795262520231000}) {
		t.Errorf("the acknowledgement is %+v", ack)
	}
}

// readConfiguration reads the stored configuration of the cell eu-1, as its authorizers do.
func readConfiguration(t *testing.T, now time.Time) (authorizer.Configuration, *cellconfig.Reader) {
	t.Helper()
	r, err := cellconfig.New(cellconfig.Config{
		Table: open(t).cell(t), Cell: "eu-1", Reaches: func(home string) bool { return home == "us-1" },
		Log:     slog.New(slog.DiscardHandler),
		Timeout: 10 * time.Second, FirstTimeout: 10 * time.Second,
		Hashes: func(_ context.Context, _ time.Time, presented string) ([]identity.KeyHash, error) {
			h := identity.KeyHash{Pepper: "p1"}
			_, err := hex.Decode(h.Hash[:], []byte(strings.Repeat(presented, 64)))
			return []identity.KeyHash{h}, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Load(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	c, _ := r.Begin(t.Context(), now)
	return c, r
}

// Guarantees that a cell's configuration that an earlier commit stored is in force in today's code: tenants with their
// limits, what of these the cell grants, keys and settings.
func TestCell(t *testing.T) {
	now := noon.Add(2 * time.Minute)
	c, r := readConfiguration(t, now)
	if epoch, phase := r.Shares(); epoch != 4 || phase != shares.Shrink || c.Stale() {
		t.Errorf("the shares are of epoch %d, phase %s", epoch, phase)
	}
	var got []string
	for _, id := range []string{"acme", "b & <c>", "gone"} {
		tenant, err := c.Tenant(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if tenant == nil {
			got = append(got, id+": none")
			continue
		}
		got = append(got, fmt.Sprintf("%s: plan %s, suspended %t, cells %q", id, tenant.Plan, tenant.Suspended,
			tenant.Cells))
		for _, e := range tenant.Limits(now).Limits {
			l, share := e.Limit, ""
			if s := e.Share(); s != nil {
				share = ", all of it"
				if s.Limit == nil {
					share = ", nothing of it"
				}
				share = ", " + s.Why + share
			}
			first := &l.Tiers[0]
			got = append(got, fmt.Sprintf("%s/%s: %d tiers, the first %s of %d, burst %d, per %s %s, %s, %s, cost "+
				"at most %d, home %q%s", id, l.ID, len(l.Tiers),
				first.Algorithm, first.Threshold, first.Burst, l.Per, first.Period, l.Mode, l.OnStoreFailure,
				l.MaxCost, l.Home, share))
		}
	}
	want := []string{ // acme moves from us-1 to eu-1: neither grants anything of it before both have heard
		`acme: plan pro, suspended false, cells ["eu-1"]`,
		`acme/burst: 1 tiers, the first token_bucket of 1000, burst 400, per tenant 1s, enforce, backstop, cost at ` +
			`most 1, home "", share 2/2 of cell eu-1, epoch 4, nothing of it`,
		`acme/put-product: 2 tiers, the first fixed_window of 20, burst 0, per endpoint 1s, enforce, backstop, cost ` +
			`at most 1, home "", share 2/2 of cell eu-1, epoch 4, nothing of it`,
		`acme/person: 1 tiers, the first sliding_window of 60, burst 0, per subject 1m0s, shadow, backstop, cost at ` +
			`most 1, home "", share 2/2 of cell eu-1, epoch 4, nothing of it`,
		`acme/steps: 1 tiers, the first sliding_buckets of 5000, burst 0, per tenant 1h0m0s, enforce, closed, cost ` +
			`at most 1, home "", share 2/2 of cell eu-1, epoch 4, nothing of it`,
		`acme/search: 1 tiers, the first leaky_bucket of 50, burst 0, per tenant 1s, enforce, backstop, cost at ` +
			`most 20, home "", share 2/2 of cell eu-1, epoch 4, nothing of it`,
		`acme/monthly: 1 tiers, the first quota of 1000000, burst 0, per tenant 0s, enforce, backstop, cost at most ` +
			`1, home ""`,
		`b & <c>: plan free, suspended true, cells []`,
		`b & <c>/burst: 1 tiers, the first token_bucket of 7, burst 13, per tenant 1s, enforce, backstop, cost at ` +
			`most 1, home "", share 2/3 of cell eu-1, epoch 4, all of it`,
		`gone: none`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("in force is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// A quota changes its home with its period only.
	next := time.Date(2026, 12, 15, 0, 0, 0, 0, time.UTC)
	acme, err := c.Tenant(t.Context(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	if last := acme.Limits(next).Limits[5].Limit; last.ID != "monthly" || last.Home != "us-1" {
		t.Errorf("in the next month the quota %s is kept in %q, want us-1", last.ID, last.Home)
	}
	if _, err := c.Key(t.Context(), "1", now); !errors.Is(err, identity.ErrRevokedKey) {
		t.Errorf("the revoked key: %v", err)
	}
	if k, err := c.Key(t.Context(), "2", now); err != nil || k.ID != "k2" || k.Tenant != "b & <c>" ||
		!k.ExpiresAt.Equal(noon.AddDate(1, 0, 0)) {
		t.Errorf("the key of a trial is %+v, %v", k, err)
	}
	if id, set, err := c.Anonymous(t.Context()); err != nil || id != "free" || len(set.Limits) != 1 {
		t.Errorf("the anonymous plan is %q, %v", id, err)
	}
	if set := c.IPLimits(); len(set.Limits) != 1 || set.Limits[0].Limit.ID != "per-address" ||
		set.Limits[0].Limit.Tiers[0].Burst != 100 {
		t.Errorf("the limits before authentication are %+v", set.Limits)
	}
}

// Guarantees that the change log of an earlier commit is read, and that each document is at the version that its last
// entry names.
func TestCellLog(t *testing.T) {
	cell := open(t).cell(t)
	head, err := cell.Head(t.Context())
	if err != nil || head.Seq != 25 || head.Incarnation == "" || head.Retention != 24*time.Hour {
		t.Fatalf("the head is %+v, %v", head, err)
	}
	log, err := cell.Log(t.Context(), 0, head.Seq)
	if err != nil || len(log) != int(head.Seq) {
		t.Fatalf("the log has %d entries, %v", len(log), err)
	}
	last := map[cellconfig.Ref]cellconfig.Change{}
	for i, e := range log {
		if e.Seq != int64(i)+1 || e.At.Before(noon) || len(e.Changes) == 0 {
			t.Errorf("entry %d is %+v", i+1, e)
		}
		for _, c := range e.Changes {
			last[c.Ref] = c
		}
	}
	for ref, want := range last {
		d, err := cell.Get(t.Context(), ref)
		if err != nil || d[0].Version != want.Version || d[0].Deleted != want.Deleted ||
			json.Valid(d[0].Body) == want.Deleted {
			t.Errorf("%+v is %+v, %v; the log says %+v", ref, d, err, want)
		}
	}
}

// Guarantees that the messages of an earlier commit are applied, in whatever order they come: the cell then has the
// documents that the applier of that commit stored.
func TestMessages(t *testing.T) {
	var texts []string
	read(t, "messages.json", &texts)
	types := map[events.Type]int{}
	var messages []delivery.Message
	for i, text := range texts {
		e, err := events.Decode([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		types[e.Header().Type]++
		messages = append(messages, delivery.Message{ID: strconv.Itoa(i), Body: []byte(text)})
	}
	want := map[events.Type]int{events.PlanChanged: 2, events.SettingsChanged: 1, events.TenantChanged: 7,
		events.KeyChanged: 3, events.SharesChanged: 11, events.Canary: 1}
	if !maps.Equal(types, want) {
		t.Errorf("the messages are %v, want %v", types, want)
	}
	rand.Shuffle(len(messages), func(i, j int) { messages[i], messages[j] = messages[j], messages[i] })
	store := cellconfig.NewMemory(0)
	keeper := &streamstest.Keeper{}
	a := applier.New(applier.Config{
		Cell: "eu-1", Tables: open(t).tables(t), Store: store, Keep: keeper, Meter: &streamstest.Meter{},
	})
	if failed, err := a.Handle(t.Context(), messages); err != nil || len(failed) > 0 {
		t.Fatalf("%d messages failed: %v", len(failed), err)
	}
	if kept := keeper.Items(); len(kept) > 0 {
		t.Errorf("messages were put aside: %+v", kept)
	}
	cell, documents := open(t).cell(t), 0
	for _, table := range []control.Table{control.Plans, control.Tenants, control.Keys, control.Cells} {
		for _, kind := range cellconfig.KindsOf(table) {
			for d, err := range cell.List(t.Context(), kind) {
				if err != nil {
					t.Fatal(err)
				}
				got, err := store.Get(t.Context(), d.Ref)
				if err != nil || got[0].Version != d.Version || got[0].Deleted != d.Deleted ||
					!bytes.Equal(got[0].Body, d.Body) {
					t.Errorf("%s %s is %+v, %v; want %+v", d.Kind, d.ID, got, err, d)
				}
				documents++
			}
		}
	}
	if documents != 11 {
		t.Errorf("the cell has %d documents, want 11", documents)
	}
}

// Guarantees that the audit trail of an earlier commit still holds by its own live tables, and is shown.
func TestAudit(t *testing.T) {
	archive, err := audit.NewFolder(filepath.Join("testdata", commit))
	if err != nil {
		t.Fatal(err)
	}
	tables := open(t).tables(t)
	report, err := audit.Verify(t.Context(), audit.VerifyConfig{Archive: archive, Tables: tables, Grace: -1})
	if err != nil {
		t.Fatal(err)
	}
	if n := report.Notices; len(n) != 2 || n[0].Kind != audit.NoPutTimes || n[1].Kind != audit.NoAnchors {
		t.Errorf("it notices %+v, want that nothing is known of when its files were put, and that it has no anchors", n)
	}
	if !report.OK() || report.Objects != 41 || report.Items != 17 || report.Rejected != 0 {
		t.Errorf("the report is %+v", report)
	}
	if from, to := report.From.Format(time.RFC3339), report.To.Format(time.RFC3339); from != "2026-11-21T12:00:00Z" ||
		to != "2026-11-21T12:02:00Z" {
		t.Errorf("the trail is from %s to %s", from, to)
	}
}
