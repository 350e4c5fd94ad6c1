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
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/clock"
	"github.com/sluicelimits/sluice/internal/gateway"
	"github.com/sluicelimits/sluice/internal/gateway/front"
	"github.com/sluicelimits/sluice/internal/identity"
	"github.com/sluicelimits/sluice/internal/livepage"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/planfile"
	"github.com/sluicelimits/sluice/internal/store/memory"
)

//go:embed example.yaml
var examplePlans []byte

// grace is how long requests in flight may take once a stop was asked for.
const grace = 15 * time.Second

type devOptions struct {
	plans, pepperFiles                  []string
	listen, upstream, livePage, logging string
	hops, jitter                        int
	maxBody, storeMB                    int64
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

Who calls is told by an API key (X-API-Key, or Authorization: Bearer), see 'sluice key'. Backends get X-Sluice-Tenant,
X-Sluice-Subject, X-Sluice-Plan and X-Sluice-Key-Id, percent-encoded; the same headers from clients are dropped, and so
is the credential.

With --api the requests go through what stands for AWS's API Gateway instead: routes, authorizer, gateway responses and
mappings as described, so that each answer is what a client would get there. With --function the authorizer is the real
Lambda binary, configured by --function-env; without, it is this process, on the plans and stores of the other flags.`,
		Example: "  sluice dev\n  sluice dev --plans plans.yaml --upstream http://localhost:3000\n  sluice dev --listen :0\n" +
			"  sluice dev --api rest\n  sluice dev --api api.yaml --function ./bootstrap --function-env SLUICE_CELL=local --function-env …",
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
	f.StringVar(&o.listen, "listen", "127.0.0.1:8080", "`ADDRESS` to listen on; port 0 takes a free one")
	f.StringVar(&o.upstream, "upstream", "", "`URL` of the service behind the gateway (default: a built-in echo)")
	f.IntVar(&o.hops, "trusted-hops", 0, "`N` proxies of your own in front: the client is the Nth X-Forwarded-For entry from the right")
	f.StringArrayVar(&o.pepperFiles, "pepper", nil, "pepper of API keys, as `ID=FILE`; may be repeated (\"dev\" is built in)")
	f.StringVar(&o.livePage, "live-page", "loopback", "who may see the live page at /_sluice/, `WHO`: loopback, all or off")
	f.IntVar(&o.jitter, "retry-jitter", 0, "lengthen Retry-After by a random share of up to `PERCENT`, 0..100")
	f.Int64Var(&o.maxBody, "max-body", front.DefaultMaxBodyBytes, "largest request body, `BYTES`; 0 is no bound")
	f.Int64Var(&o.storeMB, "store-mb", memory.DefaultMaxBytes>>20, "memory for counters, `MiB`")
	o.stores.flags(f)
	o.api.flags(f)
	f.StringVar(&o.logging, "log-level", "info", "`LEVEL`: debug (each denial), info, warn or error")
	return c
}

// dev is the options, checked.
type dev struct {
	devOptions
	level    slog.Level
	audience front.Audience
	peppers  []pepperFlag
	served   *servedAPI // nil: the authorizer is asked without an API Gateway in between
}

// parse checks what can be checked without touching anything; its errors are wrong command lines.
func (o devOptions) parse() (*dev, error) {
	d := &dev{devOptions: o}
	if err := d.level.UnmarshalText([]byte(o.logging)); err != nil {
		return nil, fmt.Errorf("--log-level %q is not debug, info, warn or error", o.logging)
	}
	var err error
	if d.audience, err = front.ParseAudience(o.livePage); err != nil {
		return nil, fmt.Errorf("--live-page %w", err)
	}
	switch {
	case o.hops < 0 || o.hops > identity.MaxHops:
		return nil, fmt.Errorf("--trusted-hops %d is outside 0..%d", o.hops, identity.MaxHops)
	case o.jitter < 0 || o.jitter > 100:
		return nil, fmt.Errorf("--retry-jitter %d is outside 0..100", o.jitter)
	case o.maxBody < 0:
		return nil, fmt.Errorf("--max-body %d is negative", o.maxBody)
	case o.stores.maxInstances < 1:
		return nil, fmt.Errorf("--max-instances %d is below 1", o.stores.maxInstances)
	case o.storeMB < 1 || o.storeMB > 1<<20:
		return nil, fmt.Errorf("--store-mb %d is outside 1..%d", o.storeMB, 1<<20)
	}
	if d.maxBody == 0 {
		d.maxBody = -1
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
	counters, err := d.stores.open(ctx, d.storeMB<<20, log)
	if err != nil {
		return err
	}
	defer counters.close(log)
	ctx, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	plans, err := d.openPlans(counters, log)
	if err != nil {
		return err
	}
	upstream, err := d.parseUpstream()
	if err != nil {
		return err
	}
	listener, err := d.open()
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }() // a second close does nothing
	base := baseURL(listener.Addr())
	if d.served != nil {
		base += d.served.description.Prefix()
	}
	lines := tryLines(plans.Current().Config, base)
	if d.served != nil {
		d.served.adapt(lines)
	}
	handler, err := d.handler(counters, plans, upstream, listener.Addr().String(), lines.commands(), log)
	if err != nil {
		return err
	}
	return serve(ctx, listener, handler, log, func() {
		d.watch(ctx, plans, log)
		d.greet(stdout, plans, upstream, listener.Addr(), lines)
	})
}

// serve serves until the context ends, and then until what is in flight is done. begun is called once requests are served.
func serve(ctx context.Context, listener net.Listener, handler http.Handler, log *slog.Logger, begun func()) error {
	server := front.NewServer(handler, log)
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

func (d *dev) openPlans(counters *counters, log *slog.Logger) (*planfile.Plans, error) {
	peppers := map[string][]byte{identity.DevPepperID: identity.DevPepper()}
	for _, p := range d.peppers {
		secret, err := p.read()
		if err != nil {
			return nil, err
		}
		peppers[p.id] = secret
	}
	return planfile.Open(planfile.Config{Files: d.plans, Source: plan.Source{Name: "example.yaml", Data: examplePlans},
		Peppers: peppers, Accepts: counters.tenants.Accepts, Log: log})
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

// handler wires the parts: plans, counters, authorizer, gateway, live page.
func (d *dev) handler(counters *counters, plans *planfile.Plans, upstream *url.URL, listen string, try []string, log *slog.Logger) (http.Handler, error) {
	var now clock.Clock
	z, err := authorizer.New(authorizer.Config{Source: authorizer.Current(plans.Current), Store: counters.tenants, Addresses: counters.addresses,
		Now: now.Now, Log: log, TrustedHops: d.hops, Jitter: d.jitter})
	if err != nil {
		return nil, err
	}
	recorder := livepage.NewRecorder()
	status := &gateway.StatusSource{Plans: plans, Store: counters.tenants, Ladder: counters.ladder, Bytes: counters.bytes, Upstream: upstream, Listen: listen, Try: try, Now: now.Now}
	if d.served != nil {
		return d.served.handler(z, d.stageConfig(recorder, livepage.Handler(recorder, status.Status), upstream, now.Now, log))
	}
	return gateway.New(gateway.Config{Authorizer: z, Upstream: upstream, TrustedHops: d.hops, Recorder: recorder,
		LivePage: livepage.Handler(recorder, status.Status), Audience: d.audience, MaxBodyBytes: d.maxBody, Log: log})
}

// watch reloads the plans when they change or on SIGHUP, in a goroutine that ends with the context.
func (d *dev) watch(ctx context.Context, plans *planfile.Plans, log *slog.Logger) {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	go func() {
		defer signal.Stop(hangup)
		if err := plans.Watch(ctx, hangup, nil); err != nil {
			log.Warn("changes of the plans are not seen; restart to load them", "error", err)
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
