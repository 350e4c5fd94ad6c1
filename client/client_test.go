package client_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/client"
	"github.com/sluicelimits/sluice/client/limitsv1"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/server/limits"
)

const plans = "plans: [ { id: p, limits: [ { id: yearly, algorithm: fixed_window, threshold: 3, " +
	"period: 8784h } ] } ]\n" +
	"tenants: [ { id: acme, plan: p }, { id: globex, plan: p } ]\n"

// serve starts a service that decides by the plans.
func serve() (address string, stop func(), err error) {
	parsed, err := plan.Parse(configyaml.Source("plans", []byte(plans)))
	if err != nil {
		return "", nil, err
	}
	keys, err := identity.NewKeys(nil, nil)
	if err != nil {
		return "", nil, err
	}
	store, err := memory.New(memory.Config{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return "", nil, err
	}
	decides, err := authorizer.New(authorizer.Config{Store: store, Source: authorizer.Current(
		func() *authorizer.Snapshot { return &authorizer.Snapshot{Config: parsed, Keys: keys} })})
	if err != nil {
		return "", nil, err
	}
	service, err := limits.New(limits.Config{Plans: decides, Store: store})
	if err != nil {
		return "", nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	s := grpc.NewServer()
	limitsv1.RegisterLimitsServer(s, service)
	go func() { _ = s.Serve(listener) }() // until stop
	return listener.Addr().String(), s.Stop, nil
}

func Example() {
	address, stop, err := serve() // in place of: sluice serve --config map.yaml --plans plans.yaml
	if err != nil {
		panic(err)
	}
	defer stop()

	limits, err := client.New(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err)
	}
	defer func() { _ = limits.Close() }()
	ctx := context.Background()
	call := &limitsv1.Call{Tenant: "acme", Method: "GET", Path: "/items/1", Cost: 2}

	d, err := limits.Check(ctx, call)
	fmt.Println(d.GetAllowed(), d.GetLimits()[0].GetPolicy(), d.GetLimits()[0].GetRemaining(), err)

	denied, err := limits.Check(ctx, call)
	fmt.Println(denied.GetAllowed(), denied.GetReason(), denied.GetStatus(), err)

	back, err := limits.Refund(ctx, d.GetReceipt(), 0) // the work failed
	fmt.Println(back.GetUnits(), err)
	// Output:
	// true yearly 1 <nil>
	// false limited 429 <nil>
	// 2 <nil>
}

// Guarantees what each method charges, gives back and answers.
func TestClient(t *testing.T) {
	address, stop, err := serve()
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	c, err := client.New(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	ctx := t.Context()
	call := func(tenant string) *limitsv1.Call { return &limitsv1.Call{Tenant: tenant} }
	left := func(tenant string, want int64) {
		t.Helper()
		d, err := c.Peek(ctx, call(tenant))
		if err != nil || d.GetLimits()[0].GetRemaining() != want || d.GetReceipt() != "" {
			t.Errorf("%s: %v, %v; want %d left", tenant, d, err, want)
		}
	}
	left("acme", 3)
	all, err := c.CheckAll(ctx, call("globex"), call("acme"), call("unknown"), call("acme"))
	if err != nil || len(all) != 3 || all[2].GetAllowed() || all[2].GetReason() != "unknown_tenant" {
		t.Errorf("CheckAll: %v, %v", all, err)
	}
	left("acme", 3)
	each, err := c.CheckEach(ctx, call("acme"), call("unknown"), call("acme"))
	if err != nil || len(each) != 3 || !each[0].GetAllowed() || each[1].GetAllowed() || !each[2].GetAllowed() {
		t.Errorf("CheckEach: %v, %v", each, err)
	}
	left("acme", 1)
	for i, want := range []int64{1, 0} {
		back, err := c.Refund(ctx, each[0].GetReceipt(), 1)
		if err != nil || back.GetUnits() != want || back.GetRepeated() != (i == 1) {
			t.Errorf("refund %d: %v, %v", i, back, err)
		}
	}
	left("acme", 2)
	if _, err := c.Refund(ctx, "unknown", 0); status.Code(err) != codes.NotFound {
		t.Errorf("an unknown receipt: %v", err)
	}
	if d, err := c.Check(ctx, &limitsv1.Call{Tenant: "acme", Cost: -1}); d != nil ||
		status.Code(err) != codes.InvalidArgument {
		t.Errorf("a cost below 0: %v, %v", d, err)
	}
	if _, err := client.New(address); err == nil {
		t.Error("a client without credentials is made")
	}
	stop()
	if d, err := c.Check(ctx, call("acme")); d != nil || status.Code(err) != codes.Unavailable {
		t.Errorf("a service that has ended: %v, %v", d, err)
	}
}
