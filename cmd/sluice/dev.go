package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/planfile"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/dev/devcells"
	"github.com/sluicelimits/sluice/internal/dev/gateway/front"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/limiter/store/router"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

//go:embed example.yaml
var examplePlans []byte

// exampleName is what the example is called in messages.
const exampleName = "example.yaml"

// grace is how long requests in flight may take once a stop was asked for.
const grace = 15 * time.Second

type devOptions struct {
	plans, pepperFiles                  []string
	listen, upstream, livePage, logging string
	data, cells, tokenFile              string
	admin                               bool
	hops, jitter                        int
	maxBody, storeMB                    int64
	bodyTimeout                         time.Duration
	stores                              storeOptions
	api                                 apiOptions
}

func newDevCommand() *cobra.Command {
	var o devOptions
	c := &cobra.Command{
		Use:   "dev",
		Short: "Run the whole of Sluice in this process, in front of an upstream or a built-in echo",
		Long: `Runs an HTTP gateway that checks every request against its tenant's plan, all in this process. Without flags it starts
on an example plan, answers with an echo, and prints what to try.

The plans files are watched (SIGHUP rereads them, too). A change is in force within a second and counters survive it; a
file with anything wrong is reported and the last good one stays.

Behind the gateway runs the control plane that is deployed: a change is a version of an item in the control tables, with
who made it and why, and goes by events to the cell. 'sluice plan apply', 'tenant set', 'key create' and the other
operators' commands find a dev on this machine by themselves, and what they change is enforced at once. A plans file
writes an item when what the file says of it changes: an operator's change stays until then, also over a restart with the
same file, and what the file never named is the operators' alone. What a file drops is deleted, and a key revoked.

Each call of an operator carries a token. Every dev makes one of its own and keeps it, until it ends, in a file that only
its user can read: dev-ADDRESS-PORT.token in $XDG_STATE_HOME/sluice or ~/.local/state/sluice (on macOS and Windows in the
folder of programs' settings). Commands of the same user find it by themselves. Where they do not share
that folder, --token-file names the file, both here and in the commands. --admin=false turns the operators' API off.

With --data everything but counters outlives the process: plans, tenants, keys, cells, and the audit trail, which 'sluice
audit show' and 'verify' read while it runs and afterwards. Without --plans, what is there is then in force.

With --cells there are several cells, each with a port and counters of its own, that share each tenant's limits; 'sluice
cell add', 'drain' and 'remove' move the shares while they run. A quota is counted whole in the tenant's home cell,
and the other cells lease from there. Cells that --data has from before are there again, whichever --cells names; without
--cells none of them runs, and one cell has all limits. Every
minute a change of the canary is sent through all of them, and every 15 minutes each is compared with the control tables,
as in AWS; the live page shows what came of it, and /_sluice/metrics what all functions have counted.

Who calls is told by an API key (X-API-Key, or Authorization: Bearer), see 'sluice key'. Backends get X-Sluice-Tenant,
X-Sluice-Subject, X-Sluice-Plan and X-Sluice-Key-Id, percent-encoded; the same headers from clients are dropped, and so
is the credential. As long as there is no key at all, credentials are the upstream's own: they are not looked at, and
the upstream gets them. Calls then get the anonymousPlan; where there are no plans and no tenants either, only ipLimits
limit them.

With --api the requests go through what stands for AWS's API Gateway instead: routes, authorizer, gateway responses and
mappings as described, so that each answer is what a client would get there; the headers that backends get are those that
the mappings hand on. With --function the authorizer is the real Lambda binary, configured by --function-env; without, it
is this process, on the plans and stores of the other flags. A function behind a route needs a binary.`,
		Example: "  sluice dev\n  sluice dev --plans plans.yaml --upstream http://localhost:3000\n  sluice dev " +
			"--listen :0\n" + "  sluice dev --data ./sluice-data --cells 3\n" +
			"  sluice dev --api rest\n  sluice dev --api api.yaml --function ./bootstrap --function-env " +
			"SLUICE_CELL=local --function-env …",
		Args: usageArgs(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			d, err := o.parse()
			if err != nil {
				return &usageError{c.CommandPath(), err}
			}
			return d.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	f := c.Flags()
	f.StringArrayVar(&o.plans, "plans", nil, "plans `FILE`; may be repeated (default: the example plan)")
	f.StringVar(&o.data, "data", "", "keep plans, tenants, keys, cells and the audit trail in `DIR`, which is made "+
		"if need be (default: nothing is kept)")
	f.StringVar(&o.cells, "cells", "", "run several cells that share the limits: `N`, or their names as in "+
		"eu-1,us-1 (default: one that has them alone)")
	f.StringVar(&o.listen, "listen", "127.0.0.1:8080", "`ADDRESS` to listen on; port 0 takes a free one")
	f.StringVar(&o.upstream, "upstream", "", "`URL` of the service behind the gateway (default: a built-in echo)")
	f.IntVar(&o.hops, "trusted-hops", 0, "`N` proxies of your own in front: the client is the Nth X-Forwarded-For "+
		"entry from the right")
	f.StringArrayVar(&o.pepperFiles, "pepper", nil, "pepper of API keys, as `ID=FILE`; may be repeated (\"dev\" is "+
		"built in)")
	f.StringVar(&o.livePage, "live-page", "loopback", "who may see the live page at /_sluice/, `WHO`: loopback, all "+
		"or off")
	f.BoolVar(&o.admin, "admin", true, "answer operators' commands at "+adminPath+"/")
	f.StringVar(&o.tokenFile, "token-file", "",
		"keep the token of operators' calls in `FILE` (default: "+tokenFileVariable+", or a file that commands find)")
	f.IntVar(&o.jitter, "retry-jitter", 0, "lengthen Retry-After by a random share of up to `PERCENT`, 0..100")
	f.Int64Var(&o.maxBody, "max-body", front.DefaultMaxBodyBytes, "largest request body, `BYTES`; 0 is no bound")
	f.DurationVar(&o.bodyTimeout, "body-timeout", front.DefaultBodyTimeout,
		"how long a request body may keep the gateway waiting, `DURATION`; "+
			"each KiB that arrives gives a second back; 0 is no bound")
	f.Int64Var(&o.storeMB, "store-mb", memory.DefaultMaxBytes>>20, "memory for counters, `MiB`")
	o.stores.flags(f)
	o.api.flags(f)
	f.StringVar(&o.logging, "log-level", "info", "`LEVEL`: debug (each denial), info, warn or error")
	_ = c.MarkFlagFilename("plans", planExtensions...) // fails only for a flag that does not exist
	for flag, words := range map[string][]string{
		"live-page": {"loopback", "all", "off"}, "log-level": {"debug", "info", "warn", "error"},
	} {
		// the same
		_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	}
	return c
}

// dev is the options, checked.
type dev struct {
	devOptions
	level    slog.Level
	audience front.Audience // of what is below /_sluice/: operators' calls, and the live page
	pageOff  bool           // nobody may see the live page
	peppers  []pepperFlag
	names    []string   // of several cells
	served   *servedAPI // nil: the authorizer is asked without an API Gateway in between
}

// parse checks what can be checked without touching anything; its errors are wrong command lines.
func (o devOptions) parse() (*dev, error) {
	d := &dev{devOptions: o}
	if err := d.level.UnmarshalText([]byte(o.logging)); err != nil {
		return nil, fmt.Errorf("--log-level %q is not debug, info, warn or error", o.logging)
	}
	if err := errors.Join(d.parseAudience(), o.checkAdmin()); err != nil {
		return nil, err
	}
	if err := o.checkNumbers(); err != nil {
		return nil, err
	}
	if d.maxBody == 0 {
		d.maxBody = -1
	}
	if d.bodyTimeout == 0 {
		d.bodyTimeout = -1
	}
	var err error
	if d.names, err = o.parseCells(); err != nil {
		return nil, err
	}
	if err := o.stores.check(); err != nil {
		return nil, err
	}
	for _, p := range o.plans {
		if p == "" || p == "-" {
			return nil, fmt.Errorf("--plans %q is not a file that can be watched", p)
		}
	}
	for _, s := range o.pepperFiles {
		p, err := parsePepper(s)
		if err != nil {
			return nil, err
		}
		d.peppers = append(d.peppers, p)
	}
	d.served, err = o.api.parse()
	return d, err
}

// checkNumbers refuses what is outside its range.
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

// parseAudience reads who may see what. Without the live page operators are still to be answered, who call from this
// machine.
func (d *dev) parseAudience() error {
	who, err := front.ParseAudience(d.livePage)
	if err != nil {
		return fmt.Errorf("--live-page %w", err)
	}
	if d.audience = who; who == front.Off {
		d.audience, d.pageOff = front.Loopback, true
	}
	return nil
}

// run serves until the context ends, and then until what is in flight is done.
func (d *dev) run(ctx context.Context, stdout, stderr io.Writer) error {
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: d.level}))
	if d.served != nil {
		if err := d.served.start(ctx, log); err != nil {
			return err
		}
		defer d.served.close(log)
		if d.served.remote {
			return d.runRemote(ctx, stdout, log)
		}
	}
	upstream, err := d.parseUpstream()
	if err != nil {
		return err
	}
	counters, err := d.stores.open(ctx, d.storeMB<<20, log)
	if err != nil {
		return err
	}
	operators, err := d.newOperators(log)
	if err != nil {
		counters.close(log)
		return err
	}
	defer operators.forgetAll()
	f := &fleet{dev: d, upstream: upstream, log: log, operators: operators, homes: map[string]*memory.Store{},
		away:  map[string]*router.Store{},
		cells: map[string]*servedCell{}, failed: make(chan error, 1)}
	if err := f.openPlane(ctx, counters.tenants); err != nil {
		counters.close(log)
		return err
	}
	err = f.run(ctx, stdout, counters)
	return errors.Join(err, f.plane.Close())
}

// several reports whether there are cells that share the limits.
func (d *dev) several() bool { return len(d.names) > 0 }

// parseCells reads a number of cells, or their names; none where there is to be one that is alone.
func (o *devOptions) parseCells() ([]string, error) {
	text := o.cells
	switch {
	case text == "":
		return nil, nil
	case o.stores.redis != "" || o.stores.dynamodb != "" || o.api.api != "":
		return nil, errors.New("--cells goes without --redis, --dynamodb and --api: each cell counts in memory, " +
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
			return nil, fmt.Errorf("--cells %.80q: want a number or names of 1 to 64 of A-Z a-z 0-9 . _ -, each "+
				"once, at most %d", text, shares.MaxCells)
		}
		names = append(names, name)
	}
	return names, nil
}

// serve serves until the context ends, and then until what is in flight is done. begun is called once requests are
// served.
func (d *dev) serve(
	ctx context.Context, listener net.Listener, handler http.Handler, log *slog.Logger, begun func(),
) error {
	server := front.NewServer(handler, d.bodyTimeout, log)
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	begun()
	select {
	case err := <-failed:
		return fmt.Errorf("serve %s: %w", listener.Addr(), err)
	case <-ctx.Done():
		return stop(server, log)
	}
}

// openPlane opens the control plane and brings the plans files into it.
func (f *fleet) openPlane(ctx context.Context, store limit.Store) error {
	peppers, newKeys := map[string][]byte{identity.DevPepperID: identity.DevPepper()}, identity.DevPepperID
	for i, p := range f.peppers {
		secret, err := p.read()
		if err != nil {
			return err
		}
		if peppers[p.id] = secret; i == 0 {
			newKeys = p.id
		}
	}
	var err error
	f.plane, err = devcells.Open(devcells.Config{Folder: f.data, Peppers: peppers, NewKeys: newKeys,
		Several: f.several(), Accepts: store.Accepts, AcceptsPlan: planAccepter(store), Reaches: f.reaches,
		Shadow: f.shadows, Log: f.log, Now: f.clock.Now})
	if errors.Is(err, devcells.ErrInUse) {
		return fmt.Errorf("--data %s: another sluice dev uses it: %w", f.data, err)
	}
	if err != nil {
		return err
	}
	if err = f.openPlans(ctx, peppers, store); err != nil {
		return errors.Join(err, f.plane.Close())
	}
	return nil
}

func planAccepter(s limit.Store) func(all []*limit.Limit, together ...[]*limit.Limit) error {
	return func(all []*limit.Limit, together ...[]*limit.Limit) error {
		return limit.AcceptsPlan(s, all, together...)
	}
}

// openPlans reads the plans files; without any the example, unless something is kept from before.
func (f *fleet) openPlans(ctx context.Context, peppers map[string][]byte, store limit.Store) error {
	if f.several() { // tenants may be pinned to them
		if _, err := f.plane.Join(ctx, f.names); err != nil {
			return err
		}
	}
	if len(f.dev.plans) == 0 {
		kept, _, err := f.plane.Tables().List(ctx, control.Plans, "", 1)
		if err != nil || len(kept) > 0 {
			return err
		}
	}
	name := strings.Join(f.dev.plans, ", ")
	if name == "" {
		name = exampleName
	}
	var err error
	f.plans, err = planfile.Open(planfile.Config{Files: f.dev.plans, Source: configyaml.Source(exampleName,
		examplePlans),
		Peppers: peppers, Accepts: store.Accepts, AcceptsPlan: planAccepter(store), Log: f.log, Now: f.clock.Now,
		Apply: func(sources []plan.Source) error {
			_, err := f.plane.ApplyFiles(context.WithoutCancel(ctx), name, sources)
			return err
		}})
	return err
}

// run serves the cells until the context ends, and then until what is in flight is done.
func (f *fleet) run(ctx context.Context, stdout io.Writer, counters *counters) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if err := f.begin(ctx, counters); err != nil {
		stop()
		f.serving.Wait()
		return err
	}
	background := sync.WaitGroup{}
	defer background.Wait()
	defer stop()
	if f.several() {
		background.Go(func() { f.plane.Balance(ctx, func(names []string) { f.follow(ctx, names) }) })
	}
	if f.plans != nil {
		f.watch(ctx)
	}
	if err := f.sayWhereItAnswers(); err != nil {
		f.log.Warn("'sluice audit verify' has to wait until this process has ended", "error", err)
	}
	f.greet(stdout)
	select {
	case <-ctx.Done():
	case err := <-f.failed:
		stop()
		f.serving.Wait()
		return err
	}
	f.serving.Wait()
	select {
	case err := <-f.failed:
		return err
	default:
		return nil
	}
}

// begin starts the cells.
func (f *fleet) begin(ctx context.Context, counters *counters) error {
	if f.several() {
		names, err := f.plane.Join(ctx, f.names)
		if err == nil {
			if !slices.Equal(names, slices.Sorted(slices.Values(f.names))) {
				f.log.Warn("the cells of the data folder run, not those of --cells", "cells", strings.Join(names, " "))
			}
			err = f.plane.Divide(ctx)
		}
		for _, name := range names {
			if err == nil {
				err = f.startCell(ctx, name)
			}
		}
		return err
	}
	if err := f.warnOfCells(ctx); err != nil {
		counters.close(f.log)
		return err
	}
	listener, err := f.open()
	if err != nil {
		counters.close(f.log)
		return err
	}
	c, err := f.add(ctx, aloneCell, counters, listener)
	if err != nil {
		counters.close(f.log)
		return err
	}
	f.serve(ctx, c)
	return nil
}

func (d *dev) parseUpstream() (*url.URL, error) {
	if d.upstream == "" {
		return nil, nil //nolint:nilnil // no upstream is the echo
	}
	u, err := url.Parse(d.upstream)
	if err != nil {
		return nil, fmt.Errorf("upstream: %w", err)
	}
	return u, front.CheckUpstream(u)
}

func (d *dev) open() (net.Listener, error) {
	listener, err := net.Listen("tcp", d.listen)
	switch {
	case err == nil:
		return listener, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("listen on %s: another program uses that port; choose another with --listen", d.listen)
	}
	return nil, fmt.Errorf("listen on %q: %w", d.listen, err)
}

// watch reloads the plans when they change or on SIGHUP, in a goroutine that ends with the context.
func (f *fleet) watch(ctx context.Context) {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	go func() {
		defer signal.Stop(hangup)
		if err := f.plans.Watch(ctx, hangup, nil); err != nil {
			f.log.Warn("changes of the plans are not seen; restart to load them", "error", err)
		}
	}()
}

// stop lets what is in flight finish, for a while. A second signal ends the wait.
func stop(server *http.Server, log *slog.Logger) error {
	again := make(chan os.Signal, 1)
	signal.Notify(again, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(again)
	log.Info("stopping: no new connections, requests in flight may finish", "grace", grace)
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- server.Shutdown(ctx) }()
	select {
	case err := <-done:
		if err != nil {
			_ = server.Close() // the wait is over; the error that matters is the one below
			return fmt.Errorf("requests were still in flight after %s and were cut off", grace)
		}
		return nil
	case <-again:
		_ = server.Close() // as above
		return errors.New("stopped at once by a second signal; requests in flight were cut off")
	}
}
