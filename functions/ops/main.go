// Command ops is the Lambda behind a cell's REST API for operators: what touches the cell's counters.
//
// Its methods have AWS_IAM authorization, and an event without the caller's identity is refused, as is an event of
// another API. It has the settings of the cell's authorizer and the control table of operations,
// which it writes to before it does anything.
package main

import (
	"log/slog"
	"os"

	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/aws/function"
	"github.com/sluicelimits/sluice/internal/cell"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/call"
	"github.com/sluicelimits/sluice/internal/control/dynamo"
	"github.com/sluicelimits/sluice/internal/control/ops"
	"github.com/sluicelimits/sluice/streams/awsio"
)

func main() {
	function.Main(func(variables []string) (*environ.Ops, error) {
		return environ.ParseOps(variables, os.DirFS(os.Getenv("LAMBDA_TASK_ROOT")))
	}, start)
}

func start(process *function.Process, s *environ.Ops) (function.Handler, error) {
	of := cell.Config{Settings: s.Settings, Env: os.Getenv, Log: slog.Default()}
	counters, err := cell.NewCounters(of)
	if err != nil {
		return nil, err
	}
	names, err := cell.NewAddressNames(of)
	if err != nil {
		return nil, err
	}
	tables, err := dynamo.New(process.DynamoDB(awsio.Region(s.Operations)), map[control.Table]string{control.Operations: s.Operations})
	if err != nil {
		return nil, err
	}
	c := ops.Config{Cell: s.Cell, Store: counters.Store, Tables: tables, Tenant: counters.Tenant, NameAddress: names.Name,
		IPv6Prefix: counters.IPv6Prefix, Log: process.Log}
	if s.Redis != nil { // else instances count addresses in their own memory
		c.IPLimits, c.Addresses = counters.IPLimits, counters.Store
	}
	service, err := ops.New(c)
	if err != nil {
		return nil, err
	}
	return call.Lambda(ops.NewMux(service), s.API).Invoke, nil
}
