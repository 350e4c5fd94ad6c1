// Command ops is the Lambda function behind a cell's REST API for operations on the cell's counters.
//
// The methods of the API have AWS_IAM authorization. The function refuses an event without the caller's identity, and
// an event of another API. It has the settings of the cell's authorizer. It writes each operation to the control table
// of operations before it does anything.
package main

import (
	"log/slog"
	"os"

	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/cell"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/dynamo"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/function"
	"github.com/sluicelimits/sluice/internal/request/identity/token"
)

func main() {
	function.Main(func(variables []string) (*environ.Ops, error) {
		return environ.ParseOps(variables, os.DirFS(os.Getenv("LAMBDA_TASK_ROOT")), new(token.Issuers))
	}, start)
}

func start(process *function.Process, s *environ.Ops) (function.Handler, error) {
	counters, err := cell.NewCounters(cell.Config{Settings: s.Settings, Env: os.Getenv, Log: slog.Default()})
	if err != nil {
		return nil, err
	}
	tables := dynamo.New(process.DynamoDB(function.Region(s.Operations)),
		map[control.Table]string{control.Operations: s.Operations})
	service := operate.NewCell(operate.CellConfig{Cell: s.Cell, Store: counters.Store, Tables: tables,
		Tenant: counters.Tenant,
		Log:    process.Log})
	return operate.Lambda(service.Mux(), s.API).Invoke, nil
}
