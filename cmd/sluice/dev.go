package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/dev"
	"github.com/sluicelimits/sluice/internal/dev/gateway"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/route"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/request/identity/token"
	"github.com/sluicelimits/sluice/internal/server"
)

//go:embed example.yaml
var examplePlans []byte

// exampleName is the file name of the example plans in messages.
const exampleName = "example.yaml"

type devOptions struct {
	planFlags

	run               dev.Options
	upstream, logging string
	livePage          string
	methods, claims   []string
	cells, issuers    string
	storeMB           int64
	stores            storeOptions
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
	f.StringVar(&o.cells, "cells", "", "run several cells that share the limits: `N`, or their names, such as "+
		"eu-1,us-1 (default: one cell that has all limits)")
	f.StringVar(&run.Listen, "listen", "127.0.0.1:8080", "`ADDRESS` to listen on; port 0 selects a free port")
	f.StringVar(&o.upstream, "upstream", "", "`URL` of the service behind the gateway (default: a built-in echo)")
	numberFlag(f, &run.TrustedHops, "trusted-hops", 0, 0, identity.MaxHops, "take the client's address from the "+
		"`N`th X-Forwarded-For entry from the right, because N proxies of yours are in front; 0 takes the address of "+
		"the connection")
	f.StringVar(&o.issuers, "issuers", "", "accept JWTs of the issuers in `FILE`, a JSON array as in "+
		"docs/authorizer.md")
	f.StringSliceVar(&o.claims, "claims", nil, "`LIST` of the claims of JWTs that limits name in per: claim:NAME")
	wordFlag(c, &o.livePage, "live-page", "loopback", "who may see the live page at /_sluice/: `WHO` is loopback, all "+
		"or off", "loopback", "all", "off")
	f.BoolVar(&run.Admin, "admin", true, "answer operators' commands at "+dev.AdminPath+"/")
	numberFlag(f, &run.Jitter, "retry-jitter", 0, 0, 100, "lengthen Retry-After by a random share of up to `PERCENT`")
	numberFlag(f, &run.MaxBodyBytes, "max-body", gateway.DefaultMaxBodyBytes, 0, math.MaxInt64,
		"largest request body, in `BYTES`; 0: no limit")
	f.StringSliceVar(&o.methods, "methods", route.UsualMethods(), "serve only the methods of `LIST`, and answer "+
		"others with 400; any: every method")
	durationFlag(f, &run.BodyTimeout, "body-timeout", gateway.DefaultBodyTimeout, 0,
		"longest time that the gateway waits for a request body, `DURATION`; "+
			"each KiB that arrives adds a second; 0: no limit")
	storeSizeFlag(f, &o.storeMB)
	o.stores.flags(f, redis.DefaultDeadline)
	logLevelFlag(c, &o.logging)
	return c
}

// check checks the flags together without opening anything, and reads them. Its errors are usage errors.
func (o *devOptions) check() (err error) {
	run := &o.run
	run.Plans, run.StoreBytes, run.Hangups = o.plans, o.storeMB<<20, hangups
	run.Example = configyaml.Source(exampleName, examplePlans)
	run.Audience = map[string]gateway.Audience{"all": gateway.All, "off": gateway.Off}[o.livePage]
	if err := server.CheckAddress("--listen", run.Listen, server.EveryAddress); err != nil {
		return err
	}
	if len(o.claims) > 0 && o.issuers == "" || slices.Contains(o.claims, "") {
		return fmt.Errorf("--claims %q: want names of claims, separated by commas, together with --issuers",
			strings.Join(o.claims, ","))
	}
	if run.MaxBodyBytes == 0 {
		run.MaxBodyBytes = -1
	}
	if run.BodyTimeout == 0 {
		run.BodyTimeout = -1
	}
	if run.Methods, err = parseMethods(o.methods); err != nil {
		return err
	}
	if run.Cells, err = o.parseCells(); err != nil {
		return err
	}
	return o.stores.check()
}

// serve opens what the flags name, and runs the process.
func (o *devOptions) serve(ctx context.Context, log *slog.Logger) (err error) {
	run := &o.run
	run.Log = log
	if run.Upstream, err = o.parseUpstream(); err != nil {
		return err
	}
	if o.issuers != "" {
		tokens, err := o.openTokens(log)
		if err != nil {
			return err
		}
		defer tokens.Close()
		run.Tokens = tokens
	}
	if run.Peppers, err = o.peppers(); err != nil {
		return err
	}
	if run.NewKeys = identity.DevPepperID; len(o.pepperFiles) > 0 {
		run.NewKeys = o.pepperFiles[0].id
	}
	run.Counters = func(ctx context.Context) (*dev.Counters, error) {
		c, err := o.stores.open(ctx, &storeUse{maxBytes: run.StoreBytes, mustAnswer: true}, log)
		if err != nil {
			return nil, err
		}
		return &c.Counters, nil
	}
	err = dev.Run(ctx, *run)
	if bad := new(plan.Error); errors.As(err, &bad) {
		return inFilesOf("--plans", err)
	}
	return err
}

// openTokens reads the issuers of --issuers. Their keys are fetched when the first token of each arrives.
func (o *devOptions) openTokens(log *slog.Logger) (*token.Verifier, error) {
	f, err := os.Open(o.issuers)
	if err != nil {
		return nil, fmt.Errorf("--issuers %s: %w", o.issuers, configfile.Advise(err))
	}
	defer func() { _ = f.Close() }() // the file is only read
	issuers, err := token.ReadIssuers(f)
	if err != nil {
		return nil, fmt.Errorf("--issuers %s %w", o.issuers, err)
	}
	tokens, err := token.New(token.Config{Issuers: issuers, Claims: o.claims, Log: log})
	if err != nil {
		return nil, fmt.Errorf("--issuers %s: %w", o.issuers, err)
	}
	return tokens, nil
}

// parseMethods returns the methods of --methods in upper case; none if every method is served.
func parseMethods(list []string) ([]string, error) {
	methods := make([]string, 0, len(list))
	for _, m := range list {
		m = route.CanonicalMethod(m)
		if m == "" || strings.Trim(m, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") != "" {
			return nil, fmt.Errorf("--methods: %q is not a method; want a list such as GET,HEAD,POST, or any", m)
		}
		methods = append(methods, m)
	}
	switch {
	case len(methods) == 0:
		return nil, errors.New("--methods is empty; want a list such as GET,HEAD,POST, or any")
	case slices.Contains(methods, "ANY"):
		return []string{}, nil
	}
	return methods, nil
}

// parseCells parses --cells, and returns the names of the cells: none if --cells is not given.
func (o *devOptions) parseCells() ([]string, error) {
	text := o.cells
	switch {
	case text == "":
		return nil, nil
	case o.stores.redis != "" || o.stores.dynamodb != "":
		return nil, errors.New("--cells cannot be combined with --redis or --dynamodb: each cell counts in memory, " +
			"behind a gateway of its own")
	}
	var names []string
	if n, err := strconv.Atoi(text); err == nil {
		if n < 1 || n > shares.MaxCells {
			return nil, fmt.Errorf("--cells %d is outside 1..%d", n, shares.MaxCells)
		}
		for i := range n {
			names = append(names, fmt.Sprintf("cell-%d", i+1))
		}
		return names, nil
	}
	for name := range strings.SplitSeq(text, ",") {
		if events.CheckKey(events.Cells, name) != nil || shares.Reserved(name) || slices.Contains(names, name) ||
			len(names) == shares.MaxCells {
			return nil, fmt.Errorf("--cells %.80q: want a number, or at most %d different names, each of 1 to 64 "+
				"characters A-Z a-z 0-9 . _ -", text, shares.MaxCells)
		}
		names = append(names, name)
	}
	return names, nil
}

func (o *devOptions) parseUpstream() (*url.URL, error) {
	if o.upstream == "" {
		return nil, nil //nolint:nilnil // nil selects the echo
	}
	u, err := url.Parse(o.upstream)
	if _, _, bad := net.SplitHostPort(o.upstream); bad == nil && !strings.Contains(o.upstream, "//") {
		return nil, fmt.Errorf("--upstream %q is not a URL: want http://HOST or https://HOST, such as http://%[1]s",
			o.upstream)
	}
	if err != nil {
		return nil, fmt.Errorf("--upstream: %w", err)
	}
	return u, gateway.CheckUpstream(u)
}
