package main

import (
	"context"
	_ "embed"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/dev"
	"github.com/sluicelimits/sluice/internal/gateway"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

//go:embed example.yaml
var examplePlans []byte

// exampleName is the file name of the example plans in messages.
const exampleName = "example.yaml"

type devOptions struct {
	planFlags

	run      dev.Options
	logging  string
	livePage string
	storeMB  int64
}

func newDevCommand() *cobra.Command {
	var o devOptions
	c := &cobra.Command{
		Use:   "dev",
		Short: "Run all of Sluice in one process, in front of your service or a built-in echo",

		SuggestFor: []string{"start", "run", "up"},
		Long: `Runs an HTTP gateway that checks every request against its tenant's plan, and the
control plane of a deployment, in one process. Without flags, it starts with example plans, answers
requests with an echo, and prints commands to try. Plans files are watched. Operators' commands of the
same user find the process without flags; their changes stay until the entry of a plans file for that
item changes.

An API key identifies the caller (X-API-Key, or Authorization: Bearer); see 'sluice key'. So does a
JWT of --issuers. Without API keys and issuers, credentials are not looked at. See docs/try.md, and
docs/operate.md for the token of operators' calls.`,
		Example: "  sluice dev --plans plans.yaml --upstream http://localhost:3000\n" +
			"  sluice dev --data ./sluice-data --cells 3",
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return usage(err)
			}
			o.run.Out = c.OutOrStdout()
			return o.serve(c.Context(), logger(c.ErrOrStderr(), o.logging, "text"))
		},
	}
	f, run := c.Flags(), &o.run
	o.planFlags.flags(f, "plans `FILE`; may be repeated (default: the example plans)")
	f.StringVar(&run.Data, "data", "", "keep plans, tenants, keys, cells and the audit trail in `DIR`, which is "+
		"created if it does not exist (default: nothing is kept)")
	f.BoolVarP(&run.Confirmed, "yes", "y", false,
		"remove, weaken and replace what operators or other plans files wrote to the folder of --data")
	f.StringVar(&run.Cells, "cells", "", "run several cells that share the limits: `N`, or their names, such as "+
		"eu-1,us-1 (default: one cell that has all limits)")
	f.StringVar(&run.Listen, "listen", "127.0.0.1:8080", "`ADDRESS` to listen on; port 0 selects a free port")
	gatewayFlags(f, &run.Upstreams, &run.TrustedHops, " (default: a built-in echo)")
	issuersFlags(f, &run.Tokens)
	wordFlag(c, &o.livePage, "live-page", "loopback", "who may see the live page at /_sluice/: `WHO` is loopback, all "+
		"or off", "loopback", "all", "off")
	f.BoolVar(&run.Admin, "admin", true, "answer operators' commands at "+dev.AdminPath+"/")
	storeSizeFlag(f, &o.storeMB)
	storeFlags(f, &run.Stores, redis.DefaultDeadline)
	logLevelFlag(c, &o.logging)
	return c
}

// check checks the flags together without opening anything, and reads them. Its errors are usage errors.
func (o *devOptions) check() error {
	run := &o.run
	run.Plans, run.Stores.MaxBytes, run.Stores.MustAnswer = o.plans, o.storeMB<<20, true
	run.Example = configyaml.Source(exampleName, examplePlans)
	run.Audience = map[string]gateway.Audience{"all": gateway.All, "off": gateway.Off}[o.livePage]
	return run.Check()
}

// serve opens what the flags name, and runs the process.
func (o *devOptions) serve(ctx context.Context, log *slog.Logger) (err error) {
	run := &o.run
	run.Log = log
	if run.Peppers, err = o.peppers(); err != nil {
		return err
	}
	if run.NewKeys = identity.DevPepperID; len(o.pepperFiles) > 0 {
		run.NewKeys = o.pepperFiles[0].id
	}
	return dev.Run(ctx, *run)
}
