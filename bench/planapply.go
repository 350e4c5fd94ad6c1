package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/cell/cellconfig/table"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/dynamo"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
)

// writePrice is that of a million write request units, $: DynamoDB on demand, standard tables, us-east-1, as AWS's pricing page had
// it on 2026-11-21. It scales a note; no figure depends on it.
const writePrice = 0.625

// applyTenantsCell is how many tenants are carried to a cell in DynamoDB, to see what that writes.
const applyTenantsCell = 2000

// putMeter is a client that adds up the write units that DynamoDB says its calls have used.
type putMeter struct {
	*sdk.Client
	mu    sync.Mutex
	units float64
	puts  int
}

// PutItem is the client's, counted.
func (m *putMeter) PutItem(ctx context.Context, in *sdk.PutItemInput, o ...func(*sdk.Options)) (*sdk.PutItemOutput, error) {
	in.ReturnConsumedCapacity = types.ReturnConsumedCapacityTotal
	out, err := m.Client.PutItem(ctx, in, o...)
	if err != nil {
		return out, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.puts++
	if out.ConsumedCapacity != nil && out.ConsumedCapacity.CapacityUnits != nil {
		m.units += *out.ConsumedCapacity.CapacityUnits
	}
	return out, nil
}

// transactionMeter is a client that adds up the write units of its transactions by DynamoDB's rule, two for each begun KB of each
// item. DynamoDB Local does not say so itself: it rounds up the sum of all items.
type transactionMeter struct {
	*sdk.Client
	mu    sync.Mutex
	units int
}

// TransactWriteItems is the client's, counted.
func (m *transactionMeter) TransactWriteItems(
	ctx context.Context, in *sdk.TransactWriteItemsInput, o ...func(*sdk.Options),
) (*sdk.TransactWriteItemsOutput, error) {
	out, err := m.Client.TransactWriteItems(ctx, in, o...)
	units := 0
	for i := range in.TransactItems {
		if put := in.TransactItems[i].Put; put != nil {
			units += 2 * ((dynamodbtest.ItemSize(put.Item) + 1023) / 1024)
		} else {
			units += 2 // the head's step: its item is some numbers
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.units += units // one that is refused costs as much
	return out, err
}

// planApply is what an apply of a new file did.
type planApply struct {
	tenants int
	took    time.Duration // comparing included
	calls   int
	again   time.Duration // of the same file once more
	units   float64       // written to the control tables
	carried int           // tenants that were carried to a cell,
	inCell  float64       // and the units that its table wrote for each
}

// unique is a name that no other run has.
func unique(name string) string {
	return fmt.Sprintf("%s-%d-%d", name, os.Getpid(), time.Now().UnixNano())
}

func runPlanApply(tenants, inCell int) (a planApply, err error) {
	endpoint, err := dynamodbtest.Endpoint()
	if err != nil {
		return a, err
	}
	connection, done := dynamodbtest.Connect(endpoint)
	defer done()
	ctx := context.Background()
	names := dynamo.Names(unique("bench") + "-")
	if err := dynamo.Create(ctx, connection, names); err != nil {
		return a, err
	}
	defer func() {
		for _, name := range names {
			_, e := connection.DeleteTable(ctx, &sdk.DeleteTableInput{TableName: &name})
			err = errors.Join(err, e)
		}
	}()
	m := &putMeter{Client: connection}
	tables, err := dynamo.New(m, names)
	if err != nil {
		return a, err
	}
	o, err := newOperator(tables)
	if err != nil {
		return a, err
	}
	defer o.server.Close()
	file, err := tenantsFile(tenants, 1)
	if err != nil {
		return a, err
	}
	began := time.Now()
	r, err := o.apply(file, tenants+1)
	if err != nil {
		return a, err
	}
	a = planApply{tenants: tenants, took: time.Since(began), calls: r.Calls, units: m.units, carried: inCell}
	// The plan, each tenant, and for the balancer one more item of each tenant that has a limit of its own.
	if want := 1 + tenants + tenants/everyOwn; m.puts != want || m.units < float64(m.puts) {
		return a, fmt.Errorf("%d items were put, for %.0f units, want %d for as many or more", m.puts, m.units, want)
	}
	if last, err := tables.Get(ctx, control.Tenants, tenantName(tenants-1)); err != nil || last.Version != 1 {
		return a, fmt.Errorf("the last tenant is at version %d, %w", last.Version, err)
	}
	puts, began := m.puts, time.Now()
	if _, err := o.apply(file, 0); err != nil {
		return a, err
	}
	a.again = time.Since(began)
	if m.puts != puts {
		return a, fmt.Errorf("the same file again put %d items", m.puts-puts)
	}
	a.inCell, err = unitsInCell(connection, inCell)
	return a, err
}

// unitsInCell is how many units a cell's table in DynamoDB writes for each tenant of an apply that the cell is told of.
func unitsInCell(connection *sdk.Client, tenants int) (units float64, err error) {
	p, err := newPlane(1, 1, true)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	ctx, name := context.Background(), unique("bench-cell")
	if err := table.Create(ctx, connection, name); err != nil {
		return 0, err
	}
	defer func() {
		_, e := connection.DeleteTable(ctx, &sdk.DeleteTableInput{TableName: &name})
		err = errors.Join(err, e)
	}()
	m := &transactionMeter{Client: connection}
	cell, err := table.New(table.Config{Client: m, Table: name})
	if err != nil {
		return 0, err
	}
	if err := errors.Join(p.add(cell), p.start()); err != nil {
		return 0, err
	}
	had, before := p.cells[0].changes.Load(), m.units // of what brought it up
	file, err := tenantsFile(tenants+1, 1)
	if err != nil {
		return 0, err
	}
	if _, err := p.operator.apply(file, tenants); err != nil {
		return 0, err
	}
	waiting, cancel := context.WithTimeout(ctx, 4*patient)
	defer cancel()
	for p.cells[0].changes.Load()-had < int64(tenants) {
		select {
		case <-waiting.Done():
			return 0, fmt.Errorf("%d of %d tenants are in the cell: %w", p.cells[0].changes.Load()-had, tenants, waiting.Err())
		case <-time.After(burstRequests):
		}
	}
	p.tenants = tenants + 1
	m.mu.Lock()
	units = float64(m.units-before) / float64(tenants)
	m.mu.Unlock()
	if units < 2 {
		return 0, fmt.Errorf("%.2f write units for a tenant, and a transaction takes two for an item", units)
	}
	return units, errors.Join(p.holds(1), p.kept())
}

var planApplyRun = [2]func() (planApply, error){
	sync.OnceValues(func() (planApply, error) { return runPlanApply(planeTenants, applyTenantsCell) }),
	sync.OnceValues(func() (planApply, error) { return runPlanApply(planeTenantsShort, planeTenantsShort) }),
}

// planApplyFigure is a value of an apply of many new tenants.
func planApplyFigure(of func(a *planApply, r *Result)) func(short bool) (Result, error) {
	return func(short bool) (r Result, err error) {
		run := planApplyRun[0]
		if short {
			run = planApplyRun[1]
		}
		a, err := run()
		if err != nil {
			return r, err
		}
		of(&a, &r)
		return r, nil
	}
}

func applyRate(a *planApply, r *Result) {
	r.Value = float64(a.tenants) / a.took.Seconds()
	r.note("%d new tenants on one plan, over HTTP and DynamoDB Local, in %.1f s and %d calls; the same file again in %.1f s, and no write",
		a.tenants, a.took.Seconds(), a.calls, a.again.Seconds())
}

func applyUnits(a *planApply, r *Result) {
	r.Value = a.units / float64(a.tenants)
	r.note("%d tenants and their plan in the control tables: %.0f units, which at $%g a million are $%.4f; each of the %d with a limit of "+
		"its own is two items", a.tenants, a.units, writePrice, a.units*writePrice/1e6, a.tenants/everyOwn)
}

func applyUnitsInCell(a *planApply, r *Result) {
	r.Value = a.inCell
	r.note("in the config table of each cell, by transactions: measured with %d tenants; for %d they are $%.4f a cell at $%g a million",
		a.carried, a.tenants, a.inCell*float64(a.tenants)*writePrice/1e6, writePrice)
}
