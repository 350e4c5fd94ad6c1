// Package cell puts the deployed authorizer of a cell together, from its settings: clients, stores, secrets,
// configuration, and the handler that answers API Gateway.
//
// Nothing waits for the network while the function starts. What has to be fetched begins then, and the first request
// waits for it, for a bounded time.
//
// Below it are the parts of a cell that are read while requests are answered: its configuration (cellconfig), plans
// files that are watched (planfile), its secrets (secrets), and the kill switch (killswitch).
package cell

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/cell/cellconfig"
	"github.com/sluicelimits/sluice/internal/cell/cellconfig/table"
	"github.com/sluicelimits/sluice/internal/cell/killswitch"
	"github.com/sluicelimits/sluice/internal/cell/secrets"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/request/apigw"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/request/identity/token"
	"github.com/sluicelimits/sluice/internal/telemetry"
)

// How long the first request waits for what began with the function. Afterwards it is decided as it would be if the
// service were away, and what comes later serves the requests after it.
const (
	secretWithin = 500 * time.Millisecond // to name addresses as other instances do
	storesWithin = 100 * time.Millisecond // for connections, which may take longer than a decision waits
)

// Config is what an authorizer is made of.
type Config struct {
	Settings *environ.Settings
	Env      func(string) string // variables that are AWS's own; required
	Bundle   fs.FS               // the folder of the function's code
	Output   io.Writer           // of metrics; each line is one Write
	Log      *slog.Logger

	// InvocationID is the id of the call that a context belongs to; nil where there is none.
	InvocationID func(context.Context) string
}

// Function is a Lambda function's handler. Make it with [New].
type Function struct {
	handler  *authorizer.Handler
	recorder *telemetry.Recorder
	stores   *stores
	secret   *secrets.Cache
	tokens   *token.Verifier // nil without issuers
	gauges   gauges
	kill     *killswitch.Switch // nil: limits are enforced

	stop            context.CancelFunc // what warms up
	secretIn, ready *warming
}

// New makes the authorizer, and begins to read the secret, the issuers' keys and the configuration, and to connect to
// the stores; it waits for none of these. It bounds the memory of the whole process. The error says what in the
// environment, or in a file of the bundle, is wrong.
func New(c Config) (*Function, error) {
	s := c.Settings
	a, err := newAmazon(c.Env)
	if err != nil {
		return nil, err
	}
	m := divide(c.Env("AWS_LAMBDA_FUNCTION_MEMORY_SIZE"))
	m.hold()
	f := &Function{}
	if f.secret, err = secrets.New(secrets.Config{Client: a.secretsManager(), ID: s.Secret, Log: c.Log}); err != nil {
		return nil, err
	}
	if f.stores, err = newStores(s, m, a, f.secret, func() *telemetry.Recorder { return f.recorder },
		c.Log); err != nil {
		return nil, err
	}
	f.gauges.chargedBack = f.stores.chain.TakeFullest
	if f.kill, err = newKillSwitch(s.KillSwitch, a, c.Log); err != nil {
		return nil, err
	}
	if f.recorder, err = telemetry.New(telemetry.Config{
		Writer: c.Output, Namespace: s.MetricsNamespace, Cell: s.Cell, Function: c.Env("AWS_LAMBDA_FUNCTION_NAME"),
		Totals: f.totals,
		Gauges: f.gauges.at,
	}); err != nil {
		return nil, err
	}
	if len(s.Issuers) > 0 {
		if f.tokens, err = token.New(token.Config{Issuers: s.Issuers, Claims: s.Claims, Log: c.Log}); err != nil {
			return nil, err
		}
	}
	source, prepare, err := f.source(&c, m, a)
	if err != nil {
		return nil, err
	}
	if f.handler, err = f.newHandler(&c, m, source); err != nil {
		return nil, err
	}
	f.warm(prepare, c.Log)
	return f, nil
}

// A read of the configuration may take as long as a decision waits for DynamoDB, within these: where the table is
// slower than that for good, the copy would never be renewed.
const (
	leastRead = 100 * time.Millisecond
	mostRead  = time.Second
)

// source is the configuration, and what prepares it beside the start.
func (f *Function) source(
	c *Config, m memory, a *amazon,
) (_ authorizer.Source, prepare func(context.Context), err error) {
	accepts := f.stores.chain.Accepts
	if name := c.Settings.ConfigFile; name != "" {
		s, err := readFile(c.Bundle, name, accepts, f.secret, c.Log)
		if err != nil {
			return nil, nil, err
		}
		return s, s.prepare, nil
	}
	documents, err := table.New(table.Config{Client: a.dynamodb(), Table: c.Settings.ConfigTable})
	if err != nil {
		return nil, nil, err
	}
	reader, err := cellconfig.New(cellconfig.Config{
		Table: documents, Cell: c.Settings.Cell, Alone: c.Settings.Alone, Accepts: accepts, MaxBytes: m.documents,
		Log:     c.Log,
		Reaches: reaches(c.Settings.Homes), Timeout: min(max(c.Settings.DynamoDBDeadline, leastRead), mostRead),
		Hashes: func(ctx context.Context, now time.Time, presented string) ([]identity.KeyHash, error) {
			return hashes(ctx, f.secret, now, presented)
		},
		OnApply: func(e cellconfig.Entry, now time.Time) { f.recorder.Propagated(now, now.Sub(e.At)) },
	})
	if err != nil {
		return nil, nil, err
	}
	f.gauges.grants = reader.Grants
	return reader, func(ctx context.Context) {
		_ = reader.Load(ctx, time.Now()) // the first request waits for it, and says what is wrong
	}, nil
}

func (f *Function) newHandler(c *Config, m memory, source authorizer.Source) (*authorizer.Handler, error) {
	s := c.Settings
	of := authorizer.Config{
		Source: &renewing{source, f.secret}, Store: f.stores.chain.Fallback, Addresses: f.stores.addresses, Log: c.Log,
		TrustedHops: s.TrustedHops,
		Jitter:      s.RetryJitter, Sources: f.secret, Measure: true, BackstopBytes: m.backstop,
	}
	if f.tokens != nil {
		of.Tokens = f.tokens
	}
	beside := []func(context.Context, time.Time){f.stores.chain.RunBackgroundTasks}
	if f.kill != nil {
		of.Mode = f.kill.Mode
		beside = []func(context.Context, time.Time){f.kill.Poll, f.beat}
	}
	decides, err := authorizer.New(of)
	if err != nil {
		return nil, err
	}
	return authorizer.NewHandler(authorizer.HandlerConfig{
		Authorizer: decides, Encoder: apigw.Encoder{PassDenials: s.PassDenials}, Recorder: f.recorder, Log: c.Log,
		Cell:         s.Cell,
		InvocationID: c.InvocationID, BackgroundTasks: beside,
	})
}

// beat has the stores told that this instance runs, but where they are not to be asked. What is leased meanwhile ends
// by itself.
func (f *Function) beat(ctx context.Context, now time.Time) {
	if f.kill.Mode() != limit.Off {
		f.stores.chain.RunBackgroundTasks(ctx, now)
	}
}

// totals are what has been counted, for the metrics.
func (f *Function) totals() telemetry.Totals {
	t := f.stores.totals()
	if f.kill != nil {
		t.KillSwitchFailures = f.kill.Failures()
	}
	return t
}

// warm begins what the first request would have to wait for.
func (f *Function) warm(prepare func(context.Context), log *slog.Logger) {
	ctx, stop := context.WithCancel(context.Background())
	f.stop = stop
	now := time.Now()
	if f.tokens != nil {
		f.tokens.Warm(now)
	}
	f.secret.Warm(now)
	f.secretIn = begin(secretWithin, func() { _, _ = f.secret.Get(ctx, now) }) // who needs it gets the error
	f.ready = begin(storesWithin, func() { f.stores.warm(ctx, log) })
	go prepare(ctx)
}

// Invoke implements aws-lambda-go's Handler. See [authorizer.Handler.Invoke].
func (f *Function) Invoke(ctx context.Context, payload []byte) ([]byte, error) {
	if f.kill != nil {
		f.kill.Begin(time.Now()) // so that the first call hears it while it waits for other things
	}
	f.secretIn.wait(ctx)
	f.ready.wait(ctx)
	return f.handler.Invoke(ctx, payload)
}

// Close gives back what was leased, writes the last metrics and ends connections, as far as that is done before ctx
// ends.
func (f *Function) Close(ctx context.Context) error {
	f.stop()
	// First what is known: a store that is away may take all the time there is, and then the metrics that tell of it
	// would be lost.
	errs := []error{f.recorder.Flush(ctx), f.stores.chain.Close(ctx), f.recorder.Flush(ctx)}
	if f.stores.redis != nil {
		errs = append(errs, f.stores.redis.Close())
	}
	if f.kill != nil {
		f.kill.Close()
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("not everything ended in order: %w", err)
	}
	return nil
}
