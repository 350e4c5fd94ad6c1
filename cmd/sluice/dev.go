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
	"path/filepath"
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
	"github.com/sluicelimits/sluice/internal/control/call"
	"github.com/sluicelimits/sluice/internal/dev/devcells"
	"github.com/sluicelimits/sluice/internal/dev/gateway/front"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/metrics"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/limiter/store/router"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/route"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/server"
)

//go:embed example.yaml
var examplePlans []byte

// exampleName is the file name of the example plans in messages.
const exampleName = "example.yaml"

// grace is how long requests in flight may take after a signal has asked the process to stop.
const grace = 15 * time.Second

type devOptions struct {
	plans, pepperFiles                  []string
	listen, upstream, livePage, logging string
	methods                             []string
	data, cells, tokenFile              string
	admin, yes                          bool
	hops, jitter                        int
	maxBody, storeMB                    int64
	bodyTimeout                         time.Duration
	otlp                                otlpOptions
	stores                              storeOptions
}

func newDevCommand() *cobra.Command {
	var o devOptions
	c := &cobra.Command{
		Use:   "dev",
		Short: "Run all of Sluice in one process, in front of your service or a built-in echo",

		SuggestFor: []string{"start", "run", "up"},
		Long: `Runs an HTTP gateway that checks every request against its tenant's plan. Everything
runs in this process. Without flags, the gateway starts with example plans, answers requests with an
echo, and prints commands to try.

Plans files are watched, and read again on SIGHUP. A change takes effect within a second, and
counters keep their values. If a file has a problem, the problem is logged and the last good version
stays in force.

The process also runs the control plane of a deployment. Every change is a version of an item in the
control tables, with its author and reason, and travels to the cell as an event. 'sluice plan
apply', 'tenant set', 'key create' and the other operators' commands find a 'sluice dev' on this
machine without flags, and their changes take effect at once. A plans file writes an item only when
the file's entry for that item changes. Until then an operator's change stays, also after a restart
with the same file. Items that no plans file named are changed by operators only. If an entry is
removed from the file, its item is deleted; an API key is revoked. A start on a --data folder with
another plans file deletes what only the earlier file named. Such a start, and one that would
replace an operator's change, is refused until --yes confirms it: the error lists what would be
removed, weakened or replaced, and nothing is written.

Operators' calls need a token. Each 'sluice dev' makes a new token, and keeps it until it ends in a
file that only its user can read: dev-ADDRESS-PORT.token in $XDG_STATE_HOME/sluice or
~/.local/state/sluice, on macOS and Windows in the user's folder for settings. Commands of the same
user find that file without flags. If the commands cannot see that folder, name the file with
--token-file, for this command and for theirs. --admin=false turns the operators' API off.

With --data, everything but counters is kept after the process ends: plans, tenants, keys, cells and
the audit trail. 'sluice audit show' and 'sluice audit verify' can read the trail at any time, also
while the process runs. If --plans is not given, the kept plans are in force.

With --cells, several cells run, each with a port and counters of its own. They share each tenant's
limits, and 'sluice cell add', 'drain' and 'remove' change the shares while they run. A tenant's
home cell counts the tenant's quotas as a whole, and the other cells lease units from it. If --data
has cells of an earlier run, those cells run again, not the ones of --cells. Without --cells, one
cell has all limits, and kept cells do not run. As in AWS, a change of the canary is sent through
all cells every minute, and every 15 minutes each cell is compared with the control tables. The live
page shows the results, and /_sluice/metrics shows the metrics of all functions.

An API key identifies the caller (X-API-Key, or Authorization: Bearer); see 'sluice key'. Your
service gets the headers X-Sluice-Tenant, X-Sluice-Subject, X-Sluice-Plan and X-Sluice-Key-Id,
percent-encoded. These headers, and the key, are removed from what clients send. While there are no
API keys at all, Sluice does not look at credentials and passes them on to your service. All calls
then get the anonymousPlan; if there are no plans and no tenants either, only ipLimits limit them.`,
		Example: "  sluice dev\n" +
			"  sluice dev --plans plans.yaml --upstream http://localhost:3000\n" +
			"  sluice dev --listen :0\n" +
			"  sluice dev --data ./sluice-data --cells 3",
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
	f.StringVar(&o.livePage, "live-page", "loopback", "who may see the live page at /_sluice/: `WHO` is loopback, all "+
		"or off")
	f.BoolVar(&o.admin, "admin", true, "answer operators' commands at "+adminPath+"/")
	f.StringVar(&o.tokenFile, "token-file", "",
		"keep the token for operators' calls in `FILE` (default: "+tokenFileVariable+", or a file that commands find)")
	f.IntVar(&o.jitter, "retry-jitter", 0, "lengthen Retry-After by a random share of up to `PERCENT`, 0..100")
	f.Int64Var(&o.maxBody, "max-body", front.DefaultMaxBodyBytes, "largest request body, in `BYTES`; 0: no limit")
	f.StringSliceVar(&o.methods, "methods", route.UsualMethods(), "serve only the methods of `LIST`, and answer "+
		"others with 400; any: every method")
	f.DurationVar(&o.bodyTimeout, "body-timeout", front.DefaultBodyTimeout,
		"longest time that the gateway waits for a request body, `DURATION`; "+
			"each KiB that arrives adds a second; 0: no limit")
	f.Int64Var(&o.storeMB, "store-mb", memory.DefaultMaxBytes>>20, "most memory for counters, in `MiB`")
	o.otlp.flags(f)
	o.stores.flags(f, redis.DefaultDeadline)
	f.StringVar(&o.logging, "log-level", "info", "`LEVEL` is debug (logs each denial), info, warn or error")
	_ = c.MarkFlagFilename("plans", planExtensions...) // fails only for a flag that does not exist
	for flag, words := range map[string][]string{
		"live-page": {"loopback", "all", "off"}, "log-level": {"debug", "info", "warn", "error"},
	} {
		// fails only for a flag that does not exist
		_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	}
	return c
}

// dev holds the options after they were checked.
type dev struct {
	devOptions
	level    slog.Level
	audience front.Audience // who may call paths below /_sluice/: the operators' API and the live page
	pageOff  bool           // nobody may see the live page
	peppers  []pepperFlag
	names    []string // of the cells of --cells; none without --cells
}

// parse checks the flags without opening anything. Its errors are usage errors.
func (o devOptions) parse() (*dev, error) {
	d := &dev{devOptions: o}
	if err := d.level.UnmarshalText([]byte(o.logging)); err != nil {
		return nil, fmt.Errorf("--log-level %q is not debug, info, warn or error", o.logging)
	}
	if err := errors.Join(d.parseAudience(), o.checkAdmin()); err != nil {
		return nil, err
	}
	if err := server.CheckAddress("--listen", o.listen, server.EveryAddress); err != nil {
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
	if d.methods, err = parseMethods(o.methods); err != nil {
		return nil, err
	}
	if d.names, err = o.parseCells(); err != nil {
		return nil, err
	}
	if err := o.stores.check(); err != nil {
		return nil, err
	}
	for _, p := range o.plans {
		if p == "" || p == "-" {
			return nil, fmt.Errorf("--plans %q: want the name of a file, which is watched for changes", p)
		}
	}
	for _, s := range o.pepperFiles {
		p, err := parsePepper(s)
		if err != nil {
			return nil, err
		}
		d.peppers = append(d.peppers, p)
	}
	return d, nil
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
	return o.otlp.check()
}

// parseAudience parses --live-page. If the live page is off, operators' calls from this machine are still answered.
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

// run serves until the context ends and the requests in flight are done.
func (d *dev) run(ctx context.Context, stdout, stderr io.Writer) error {
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: d.level}))
	upstream, err := d.parseUpstream()
	if err != nil {
		return err
	}
	var f *fleet
	exporter, err := d.otlp.open(func() []metrics.Metric { return f.gather() }, log)
	if err != nil {
		return err
	}
	listener, err := d.open() // before anything else begins, which would log that it is interrupted
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }() // for a start that fails; a second close does nothing
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
	f = &fleet{dev: d, upstream: upstream, log: log, operators: operators, first: listener,
		homes: map[string]*memory.Store{}, away: map[string]*router.Store{}, cells: map[string]*servedCell{},
		addressNames: counters.names, failed: make(chan error, 1)}
	if err := f.openPlane(ctx, counters.tenants); err != nil {
		counters.close(log)
		return err
	}
	endExport := export(ctx, exporter)
	err = f.run(ctx, stdout, counters)
	endExport()
	return errors.Join(err, f.plane.Close())
}

// several reports whether --cells is given, so that cells share the limits.
func (d *dev) several() bool { return len(d.names) > 0 }

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

// serve serves until the context ends and the requests in flight are done.
func (d *dev) serve(ctx context.Context, listener net.Listener, handler http.Handler, log *slog.Logger) error {
	serving := front.NewServer(handler, d.bodyTimeout, log)
	failed := make(chan error, 1)
	go func() { failed <- serving.Serve(listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve %s: %w", listener.Addr(), err)
	case <-ctx.Done():
		return stop(serving, log)
	}
}

// openPlane opens the control plane and applies the plans files to it.
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

// openPlans reads the plans files. If there are none, it reads the example plans, unless the data folder has plans.
func (f *fleet) openPlans(ctx context.Context, peppers map[string][]byte, store limit.Store) error {
	if f.several() { // the cells must exist first, since the files may pin tenants to them
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
	name := namesOf(f.dev.plans)
	confirmed := f.yes // after the start, changes of the files need no confirmation
	var err error
	f.plans, err = planfile.Open(planfile.Config{Files: f.dev.plans, Source: configyaml.Source(exampleName,
		examplePlans), Peppers: peppers, Accepts: store.Accepts, AcceptsPlan: planAccepter(store), Log: f.log,
		Now: f.clock.Now,
		Apply: func(sources []plan.Source) error {
			ctx := context.WithoutCancel(ctx)
			if !confirmed {
				if err := f.confirmPlans(ctx, name, sources); err != nil {
					return err
				}
				confirmed = true
			}
			_, err := f.plane.ApplyFiles(ctx, name, sources)
			return err
		}})
	return inFilesOf("--plans", err)
}

// namesOf returns names for the audit trail, which tell files of different folders apart.
func namesOf(files []string) string {
	if len(files) == 0 {
		return exampleName
	}
	var all []string
	for _, file := range files {
		if path, err := filepath.Abs(file); err == nil { // fails if the working folder no longer exists
			file = path
		}
		all = append(all, file)
	}
	return strings.Join(all, ", ")
}

// confirmPlans refuses plans files that would displace what others wrote to the data folder.
func (f *fleet) confirmPlans(ctx context.Context, name string, sources []plan.Source) error {
	lines, err := f.plane.Displaced(ctx, name, sources)
	if err != nil || len(lines) == 0 {
		return err
	}
	refused := call.Refuse(call.Confirm, "--data %s: operators or other plans files wrote what this start would "+
		"remove, weaken or replace. Nothing was written. Name another folder with --data, leave out --plans to run "+
		"what is kept, or confirm with --yes", f.data)
	if refused.Problems = lines; len(lines) > mostShown {
		refused.Problems = append(lines[:mostShown:mostShown], fmt.Sprintf("and %d more", len(lines)-mostShown))
	}
	return refused
}

// run serves the cells until the context ends and the requests in flight are done.
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
		f.log.Warn("'sluice audit verify' cannot read this data folder until this process has ended", "error", err)
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
				f.log.Warn("the cells of the data folder run, not the cells of --cells", "cells",
					strings.Join(names, " "))
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
	c, err := f.add(ctx, aloneCell, counters, f.first)
	if err != nil {
		counters.close(f.log)
		return err
	}
	f.serve(ctx, c)
	return nil
}

func (d *dev) parseUpstream() (*url.URL, error) {
	if d.upstream == "" {
		return nil, nil //nolint:nilnil // nil selects the echo
	}
	u, err := url.Parse(d.upstream)
	if _, _, bad := net.SplitHostPort(d.upstream); bad == nil && !strings.Contains(d.upstream, "//") {
		return nil, fmt.Errorf("--upstream %q is not a URL: want http://HOST or https://HOST, such as http://%[1]s",
			d.upstream)
	}
	if err != nil {
		return nil, fmt.Errorf("--upstream: %w", err)
	}
	return u, front.CheckUpstream(u)
}

// open listens at the address of --listen.
func (d *dev) open() (net.Listener, error) {
	return server.ListenTCP("--listen", d.listen)
}

// watch reloads the plans when they change or on SIGHUP, in a goroutine that ends with the context.
func (f *fleet) watch(ctx context.Context) {
	hangup := hangups(ctx)
	go func() {
		if err := f.plans.Watch(ctx, hangup, nil); err != nil {
			f.log.Warn("plans files are no longer watched: restart to load changes", "error", err)
		}
	}()
}

// stop waits until the requests in flight are done, for at most grace. A second signal ends the wait.
func stop(serving *http.Server, log *slog.Logger) error {
	again := make(chan os.Signal, 1)
	signal.Notify(again, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(again)
	log.Info("stopping: no new connections, requests in flight may finish", "grace", grace)
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- serving.Shutdown(ctx) }()
	select {
	case err := <-done:
		if err != nil {
			_ = serving.Close() // the error below matters more
			return fmt.Errorf("requests were still in flight after %s and were cut off", grace)
		}
		return nil
	case <-again:
		_ = serving.Close() // the error below matters more
		return errors.New("stopped at once by a second signal; requests in flight were cut off")
	}
}
