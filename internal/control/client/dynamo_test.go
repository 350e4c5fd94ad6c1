package client_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"sync"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/client"
	"github.com/sluicelimits/sluice/internal/control/dynamo"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
)

// writes is a client of DynamoDB that adds up what writes cost: one unit for each KB of the item or part of one.
type writes struct {
	*sdk.Client
	mu    sync.Mutex
	units float64
	calls int
}

func (w *writes) PutItem(
	ctx context.Context, in *sdk.PutItemInput, o ...func(*sdk.Options),
) (*sdk.PutItemOutput, error) {
	out, err := w.Client.PutItem(ctx, in, o...)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls++
	w.units += math.Ceil(float64(dynamodbtest.ItemSize(in.Item)) / 1024)
	return out, err
}

// direct is a service that is called without HTTP.
type direct struct{ *operate.Control }

func (d direct) List(ctx context.Context, r *operate.ListRequest) (*operate.ListResponse, error) {
	return d.Control.List(ctx, "ann", r)
}

func (d direct) Preview(ctx context.Context, r *operate.PreviewRequest) (*operate.ApplyResponse, error) {
	return d.Control.Preview(ctx, "ann", r)
}

func (d direct) Apply(ctx context.Context, r *operate.ApplyRequest) (*operate.ApplyResponse, error) {
	return d.Control.Apply(ctx, "ann", r)
}

// Guarantees the cost of an apply of many tenants in DynamoDB: one write unit for each, one more for each that has an
// override, once, and none when the apply is repeated.
func TestWriteUnitsOfAnApply(t *testing.T) {
	url := dynamodbtest.Need(t)
	connection, done := dynamodbtest.Connect(url)
	t.Cleanup(done)
	names := dynamo.Names(fmt.Sprintf("apply-%d-%d-", os.Getpid(), time.Now().UnixNano()))
	for _, name := range names {
		dynamodbtest.CreateControlTable(t, connection, name)
	}
	metered := &writes{Client: connection}
	tables := dynamo.New(metered, names)
	s := operate.NewControl(operate.ControlConfig{Tables: tables, Log: slog.New(slog.DiscardHandler)})
	const n = 200
	all := 1 + n + int(pins(n))
	draft, err := plan.ReadDraft(time.Now(), configyaml.Source("plans.yaml", []byte(many(n, 100))))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{n + 1, 0} {
		d, err := client.Compare(t.Context(), direct{s}, draft)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		r, err := d.Apply(t.Context(), direct{s}, "why", true)
		if err != nil || r.Written != want || metered.calls != all || metered.units != float64(all) {
			t.Fatalf("apply %d: got %+v, error %v; %d writes of %g units; want one write of one unit for each item",
				i+1, r, err, metered.calls, metered.units)
		}
		t.Logf("apply %d: %d written in %s", i+1, r.Written, time.Since(began).Round(time.Millisecond))
	}
	if item, err := tables.Get(t.Context(), control.Tenants, "tenant-00000"); err != nil || item.Version != 1 {
		t.Errorf("got %+v, error %v; want version 1", item, err)
	}
}
