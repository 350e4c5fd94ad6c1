package main

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/dev"
	"github.com/sluicelimits/sluice/internal/dev/gateway"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
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
	plans, pepperFiles                  []string
	listen, upstream, livePage, logging string
	methods, claims                     []string
	data, cells, issuers                string
	admin, yes                          bool
	hops, jitter                        int
	maxBody, storeMB                    int64
	bodyTimeout                         time.Duration
	stores                              storeOptions
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
			run, peppers, err := o.parse(c.ErrOrStderr())
			if err != nil {
				return &usageError{c.CommandPath(), err}
			}
			run.Out = c.OutOrStdout()
			return o.run(c.Context(), run, peppers)
		},
	}
	f := c.Flags()
	f.StringArrayVar(&o.plans, "plans", nil, "plans `FILE`; may be repeated (default: the example plans)")
	f.StringVar(&o.data, "data", "", "keep plans, tenants, keys, cells and the audit trail in `DIR`, which is created "+
		"if it does not exist (default: nothing is kept)")
	f.BoolVarP(&o.yes, "yes", "y", false,
		"remove, weaken and replace what operators or other plans files wrote to the folder of --data")
	f.StringVar(&o.cells, "cells", "", "run several cells that share the limits: `N`, or their names, such as "+
		"eu-1,us-1 (default: one cell that has all limits)")
	f.StringVar(&o.listen, "listen", "127.0.0.1:8080", "`ADDRESS` to listen on; port 0 selects a free port")
	f.StringVar(&o.upstream, "upstream", "", "`URL` of the service behind the gateway (default: a built-in echo)")
	f.IntVar(&o.hops, "trusted-hops", 0, "take the client's address from the `N`th X-Forwarded-For entry from the "+
		"right, because N proxies of yours are in front; 0 takes the address of the connection")
	f.StringArrayVar(&o.pepperFiles, "pepper", nil, "pepper of API keys, as `ID=FILE`; may be repeated (\"dev\" is "+
		"built in)")
	f.StringVar(&o.issuers, "issuers", "", "accept JWTs of the issuers in `FILE`, a JSON array as in "+
		"docs/authorizer.md")
	f.StringSliceVar(&o.claims, "claims", nil, "`LIST` of the claims of JWTs that limits name in per: claim:NAME")
	f.StringVar(&o.livePage, "live-page", "loopback", "who may see the live page at /_sluice/: `WHO` is loopback, all "+
		"or off")
	f.BoolVar(&o.admin, "admin", true, "answer operators' commands at "+dev.AdminPath+"/")
	f.IntVar(&o.jitter, "retry-jitter", 0, "lengthen Retry-After by a random share of up to `PERCENT`, 0..100")
	f.Int64Var(&o.maxBody, "max-body", gateway.DefaultMaxBodyBytes, "largest request body, in `BYTES`; 0: no limit")
	f.StringSliceVar(&o.methods, "methods", route.UsualMethods(), "serve only the methods of `LIST`, and answer "+
		"others with 400; any: every method")
	durationFlag(f, &o.bodyTimeout, "body-timeout", gateway.DefaultBodyTimeout,
		"longest time that the gateway waits for a request body, `DURATION`; "+
			"each KiB that arrives adds a second; 0: no limit")
	f.Int64Var(&o.storeMB, "store-mb", memory.DefaultMaxBytes>>20, "most memory for counters, in `MiB`")
	o.stores.flags(f, redis.DefaultDeadline)
	f.StringVar(&o.logging, "log-level", "info", "`LEVEL` is debug (logs each denial), info, warn or error")
	_ = c.MarkFlagFilename("plans", planExtensions...) // fails only for a flag that does not exist
	_ = c.MarkFlagFilename("issuers", "json")          // likewise
	for flag, words := range map[string][]string{
		"live-page": {"loopback", "all", "off"}, "log-level": {"debug", "info", "warn", "error"},
	} {
		// fails only for a flag that does not exist
		_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	}
	return c
}

// parse checks the flags without opening anything, and returns what they say of the process, which logs to stderr. Its
// errors are usage errors.
func (o *devOptions) parse(stderr io.Writer) (run dev.Options, peppers []pepperFlag, err error) {
	run = dev.Options{Plans: o.plans, Example: configyaml.Source(exampleName, examplePlans), Data: o.data,
		Confirmed: o.yes, Listen: o.listen, TrustedHops: o.hops, Jitter: o.jitter, MaxBodyBytes: o.maxBody,
		BodyTimeout: o.bodyTimeout, StoreBytes: o.storeMB << 20, Admin: o.admin, Hangups: hangups}
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.logging)); err != nil {
		return run, nil, fmt.Errorf("--log-level %q is not debug, info, warn or error", o.logging)
	}
	run.Log = slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
	if run.Audience, err = gateway.ParseAudience(o.livePage); err != nil {
		return run, nil, fmt.Errorf("--live-page %w", err)
	}
	if err := server.CheckAddress("--listen", o.listen, server.EveryAddress); err != nil {
		return run, nil, err
	}
	if err := cmp.Or(o.checkNumbers(), o.checkClaims()); err != nil {
		return run, nil, err
	}
	if run.MaxBodyBytes == 0 {
		run.MaxBodyBytes = -1
	}
	if run.BodyTimeout == 0 {
		run.BodyTimeout = -1
	}
	if run.Methods, err = parseMethods(o.methods); err != nil {
		return run, nil, err
	}
	if run.Cells, err = o.parseCells(); err != nil {
		return run, nil, err
	}
	if err := o.stores.check(); err != nil {
		return run, nil, err
	}
	for _, p := range o.plans {
		if p == "" || p == "-" {
			return run, nil, fmt.Errorf("--plans %q: want the name of a file, which is watched for changes", p)
		}
	}
	for _, s := range o.pepperFiles {
		p, err := parsePepper(s)
		if err != nil {
			return run, nil, err
		}
		peppers = append(peppers, p)
	}
	return run, peppers, nil
}

// run reads the peppers, and runs the process.
func (o *devOptions) run(ctx context.Context, run dev.Options, peppers []pepperFlag) error {
	var err error
	if run.Upstream, err = o.parseUpstream(); err != nil {
		return err
	}
	if o.issuers != "" {
		tokens, err := o.openTokens(run.Log)
		if err != nil {
			return err
		}
		defer tokens.Close()
		run.Tokens = tokens
	}
	run.Peppers, run.NewKeys = map[string][]byte{identity.DevPepperID: identity.DevPepper()}, identity.DevPepperID
	for i, p := range peppers {
		if run.Peppers[p.id], err = p.read(); err != nil {
			return err
		}
		if i == 0 {
			run.NewKeys = p.id
		}
	}
	run.Counters = func(ctx context.Context) (*dev.Counters, error) {
		c, err := o.stores.open(ctx, &storeUse{maxBytes: run.StoreBytes, mustAnswer: true}, run.Log)
		if err != nil {
			return nil, err
		}
		return &c.Counters, nil
	}
	err = dev.Run(ctx, run)
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

func (o *devOptions) checkNumbers() error {
	switch {
	case o.hops < 0 || o.hops > identity.MaxHops:
		return fmt.Errorf("--trusted-hops %d is outside 0..%d", o.hops, identity.MaxHops)
	case o.jitter < 0 || o.jitter > 100:
		return fmt.Errorf("--retry-jitter %d is outside 0..100", o.jitter)
	case o.maxBody < 0:
		return fmt.Errorf("--max-body %d is negative", o.maxBody)
	case o.bodyTimeout < 0:
		return fmt.Errorf("--body-timeout %s is negative", o.bodyTimeout)
	case o.storeMB < 1 || o.storeMB > 1<<20:
		return fmt.Errorf("--store-mb %d is outside 1..%d", o.storeMB, 1<<20)
	}
	return nil
}

// checkClaims returns an error if --claims has an empty name, or no issuers whose tokens have claims.
func (o *devOptions) checkClaims() error {
	if len(o.claims) > 0 && o.issuers == "" || slices.Contains(o.claims, "") {
		return fmt.Errorf("--claims %q: want names of claims, separated by commas, together with --issuers",
			strings.Join(o.claims, ","))
	}
	return nil
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
