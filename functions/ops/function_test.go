//go:build unix

package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/dynamotable"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/dynamo"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/testkit/built"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
	"github.com/sluicelimits/sluice/internal/testkit/functiontest"
	"github.com/sluicelimits/sluice/internal/testkit/lambdahost"
	"github.com/sluicelimits/sluice/internal/testkit/secretstest"
)

const patient = 60 * time.Second

// deployed is a deployed function.
type deployed struct {
	t    *testing.T
	host *lambdahost.Host
}

// deploy builds a function and starts it in a stand-in for Lambda.
func deploy(t *testing.T, name string, env map[string]string) *deployed {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "bootstrap")
	if err := built.Function(binary, "../"+name); err != nil {
		t.Fatal(err)
	}
	host, err := lambdahost.Start(t.Context(),
		lambdahost.Config{Binary: binary, Name: name, Env: env, InitTimeout: patient, Timeout: patient,
			Output: func(l lambdahost.Line) {
				if strings.Contains(l.Text, "not-to-be-seen") || strings.Contains(l.Text, "slk_") {
					t.Errorf("%s wrote a secret: %s", name, l.Text)
				}
			}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patient)
		defer cancel()
		if err := host.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return &deployed{t, host}
}

// post calls an operation as API Gateway does for the caller ann, and reads the answer.
func (f *deployed) post(path, body string, status int, into any) {
	f.t.Helper()
	event, err := json.Marshal(map[string]any{
		"httpMethod": "POST", "path": "/any/base" + path,
		"pathParameters": map[string]string{"proxy": strings.TrimPrefix(path, "/")},
		"headers":        map[string]string{"content-type": "application/json"}, "body": body,
		"requestContext": map[string]any{
			"apiId": "abc123", "stage": "v1", "requestId": "00000000-0000-0000-0000-000000000000",
			"identity": map[string]string{"accountId": "123456789012", "caller": "AIDAEXAMPLE", "userArn": ann},
		},
	})
	if err != nil {
		f.t.Fatal(err)
	}
	out, err := f.host.Invoke(f.t.Context(), event)
	if err != nil {
		f.t.Fatalf("%s: %v", path, err)
	}
	var answer struct {
		StatusCode int
		Body       string
	}
	if err := json.Unmarshal(out, &answer); err != nil || answer.StatusCode != status {
		f.t.Fatalf("%s gives %s, want status %d", path, out, status)
	}
	if err := json.Unmarshal([]byte(answer.Body), into); err != nil {
		f.t.Fatal(err)
	}
}

const ann = "arn:aws:iam::123456789012:user/ann"

// Guarantees that the two operators' functions work over DynamoDB as they are deployed: a plan and a key are written in
// the name of the signed caller, and a counter of the cell is shown and reset, with a record of it.
func TestOperatorsFunctions(t *testing.T) {
	url := dynamodbtest.Need(t)
	client, done := dynamodbtest.Connect(url)
	t.Cleanup(done)
	prefix := fmt.Sprintf("operators-%d-%d-", os.Getpid(), time.Now().UnixNano())
	names := dynamo.Names(prefix)
	for _, name := range names {
		dynamodbtest.CreateControlTable(t, client, name)
	}
	dynamodbtest.CreateConfigTable(t, client, prefix+"config")
	if err := dynamodb.Create(t.Context(), client, prefix+"counters"); err != nil {
		t.Fatal(err)
	}
	manager := &secretstest.Manager{}
	secrets, stop, err := manager.Listen()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stop() })
	pepper := []byte("not-to-be-seen-pepper")
	manager.Set("sluice", `{"peppers":{"p1":"`+base64.StdEncoding.EncodeToString(pepper)+`"}}`)
	roles := map[string]*functiontest.Role{}
	env := func(name string, more map[string]string) map[string]string {
		all := map[string]string{"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "not-to-be-seen-key",
			"AWS_ENDPOINT_URL_SECRETS_MANAGER": secrets, "SLUICE_SECRET": "sluice",
			"SLUICE_API": "abc123/v1"}
		maps.Copy(all, more)
		roles[name] = functiontest.NewRole(t, name, all, url)
		all["AWS_ENDPOINT_URL_DYNAMODB"] = roles[name].URL
		return all
	}
	admin := deploy(t, "admin", env("admin",
		map[string]string{"SLUICE_PLANS_TABLE": names[control.Plans], "SLUICE_TENANTS_TABLE": names[control.Tenants],
			"SLUICE_KEYS_TABLE": names[control.Keys], "SLUICE_CELLS_TABLE": names[control.Cells],
			"SLUICE_KEY_PEPPER":   "p1",
			"SLUICE_STATUS_CELLS": "eu-1=" + prefix + "config"}))
	ops := deploy(t, "ops", env("ops", map[string]string{"SLUICE_CELL": "eu-1", "SLUICE_CONFIG_TABLE": prefix +
		"config", "SLUICE_COUNTERS_TABLE": prefix + "counters",
		"SLUICE_MAX_INSTANCES": "10", "SLUICE_OPERATIONS_TABLE": names[control.Operations]}))

	const pro = `{"id":"pro","limits":[{"algorithm":"token_bucket","burst":100,"id":"burst","period":"24h","rate":1},` +
		`{"algorithm":"leaky_bucket","id":"client","per":"ip","period":"24h","rate":100}]}`
	const acme = `{"id":"acme","plan":"pro"}`
	var applied struct{ Written int }
	admin.post("/apply", `{"reason":"first","changes":[{"table":"plans","key":"pro","expect":0,"body":`+pro+
		`},{"table":"tenants","key":"acme","expect":0,"body":`+acme+`}]}`, 200, &applied)
	var key struct {
		Key  string
		Item struct {
			Actor string
			Body  struct{ Hash string }
		}
	}
	admin.post("/keys/create", `{"tenant":"acme","reason":"pipeline"}`, 200, &key)
	if applied.Written != 2 || key.Item.Actor != ann || key.Item.Body.Hash != identity.HashKey(pepper, key.Key) {
		t.Fatalf("applied %+v, created %+v", applied, key)
	}
	var status struct {
		Cells []struct{ Behind, Drifted int }
	}
	admin.post("/config/status", `{}`, 200, &status)
	if len(status.Cells) != 1 || status.Cells[0].Behind != 3 || status.Cells[0].Drifted != 0 {
		t.Errorf("the status is %+v, want 3 documents behind", status)
	}

	config := dynamotable.New(dynamotable.Config{Client: client, Table: prefix + "config"})
	if _, err := config.Apply(t.Context(), []table.Document{
		{Ref: table.Ref{Kind: plan.KindPlan, ID: "pro"}, Version: 1, Body: []byte(pro)},
		{Ref: table.Ref{Kind: plan.KindTenant, ID: "acme"}, Version: 1, Body: []byte(acme)},
	}); err != nil {
		t.Fatal(err)
	}
	spend(t, url, prefix+"counters", pro)
	var counters struct {
		Operation string
		Counters  []struct{ Capacity, Used, Remaining int64 }
	}
	ops.post("/counters/peek", `{"tenant":"acme"}`, 200, &counters)
	if len(counters.Counters) != 1 || counters.Counters[0].Used != 70 { // without a path, the counters per tenant
		t.Fatalf("peek gives %+v, want 70 used", counters)
	}
	ops.post("/counters/reset", `{"tenant":"acme","limit":"burst","reason":"their loop is fixed"}`, 200, &counters)
	if counters.Counters[0].Used != 0 || counters.Counters[0].Remaining != 100 {
		t.Errorf("reset gives %+v", counters)
	}
	tables := dynamo.New(client, names)
	item, err := tables.Get(t.Context(), control.Operations, counters.Operation)
	if err != nil || item.Version != 2 || item.Actor != ann || item.Reason != "their loop is fixed" ||
		!strings.Contains(string(item.Body), `"state":"done"`) {
		t.Errorf("the record is %+v, %v", item, err)
	}

	var refused struct{ Error struct{ Message string } }
	ops.post("/counters/peek", `{"tenant":"acme","limit":"client","path":"/"}`, 400, &refused)
	if !strings.Contains(refused.Error.Message, "is per address") {
		t.Errorf("a peek at a limit per address: %+v", refused)
	}
	if _, err := config.Apply(t.Context(),
		[]table.Document{{Ref: table.Ref{Kind: plan.KindPlan, ID: "pro"}, Version: 2,
			Body: []byte(strings.Replace(pro, `"burst":100`, `"burst":200`, 1))}}); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(patient); counters.Counters[0].Capacity != 200; { // it looks once per second
		ops.post("/counters/peek", `{"tenant":"acme"}`, 200, &counters)
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("a change of the plan is not followed: %+v", counters)
		}
	}
	var cells struct{ Cells []struct{ ID string } }
	admin.post("/cells/add", `{"cell":"eu-1","reason":"first"}`, 200, new(json.RawMessage))
	if admin.post("/cells/list", `{}`, 200, &cells); len(cells.Cells) != 1 {
		t.Errorf("the cells are %+v", cells)
	}
	for name, role := range roles {
		if unused := role.Unused(); len(unused) > 0 {
			t.Errorf("granted to %s, but not needed: %q", name, unused)
		}
	}
}

// spend uses 70 units of the limit, as the cell's authorizer would.
func spend(t *testing.T, url, counters, pro string) {
	t.Helper()
	c, done := dynamodbtest.Connect(url)
	t.Cleanup(done)
	store, err := dynamodb.New(dynamodb.Config{Client: c, Table: counters, Timeout: patient})
	if err != nil {
		t.Fatal(err)
	}
	p, err := plan.CompilePlan(plan.Document{Kind: plan.KindPlan, ID: "pro", Body: []byte(pro)})
	if err != nil {
		t.Fatal(err)
	}
	var d limit.Decision
	spend := &limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: "acme"},
		Charges: []limit.Charge{{Limit: p.Set().Limits[0].Limit, Cost: 70}}}
	if err := store.Decide(t.Context(), spend, time.Now(), &d); err != nil || !d.Allowed {
		t.Fatalf("spend: %v, allowed %v", err, d.Allowed)
	}
}
