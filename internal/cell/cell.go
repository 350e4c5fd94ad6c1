// Package cell assembles the deployed authorizer of a cell from its settings: clients, stores, secrets, configuration,
// and the handler that answers API Gateway.
//
// Nothing waits for the network while the function starts. Calls begin at the start, and the first request waits for
// their answers for a bounded time.
//
// The packages below it are the parts that a cell reads while it answers requests: its configuration (config),
// plans files that are watched (planfile), its secrets (secrets), and the kill switch (killswitch).
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
	"github.com/sluicelimits/sluice/internal/cell/config"
	"github.com/sluicelimits/sluice/internal/cell/dynamotable"
	"github.com/sluicelimits/sluice/internal/cell/killswitch"
	"github.com/sluicelimits/sluice/internal/cell/secrets"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/request/apigw"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/request/identity/token"
	"github.com/sluicelimits/sluice/internal/telemetry"
)

// How long the first request waits for what began with the function. After that time it is decided as if the service
// were unavailable, and what arrives later serves later requests.
const (
	secretWithin = 500 * time.Millisecond // for the secret, so that addresses are named as by other instances
	storesWithin = 100 * time.Millisecond // for connections to the stores, which may take longer than a decision waits
)

// Config says what an authorizer is made of.
type Config struct {
	Settings *environ.Settings
	Issuers  []token.Issuer      // as they were read with the settings; if empty, no JWT is accepted
	Env      func(string) string // environment variables, which include AWS's own; required
	Bundle   fs.FS               // the folder with the function's code
	Output   io.Writer           // receives metrics; each line is one Write
	Log      *slog.Logger

	// InvocationID returns the id of the call that a context belongs to. It may be nil.
	InvocationID func(context.Context) string
}

// Function is a Lambda function's handler. Make it with [New].
type Function struct {
	handler  *authorizer.Handler
	recorder *telemetry.Recorder
	stores   *stores
	secret   *secrets.Cache
	tokens   *token.Verifier // nil if no issuers are configured
	gauges   gauges
	kill     *killswitch.Switch // nil: limits are always enforced

	stop            context.CancelFunc // ends the calls that began with the function
	secretIn, ready *warming
}

// New makes the authorizer. It begins to read the secret, the issuers' keys and the configuration, and to connect to
// the stores, and waits for none of these. It sets the memory limit of the whole process. The error says what is wrong
// in the environment or in a file of the bundle.
func New(c Config) (*Function, error) {
	s := c.Settings
	a, err := newAWSClients(c.Env)
	if err != nil {
		return nil, err
	}
	m := divide(c.Env("AWS_LAMBDA_FUNCTION_MEMORY_SIZE"))
	m.setLimits()
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
	if len(c.Issuers) > 0 {
		if f.tokens, err = token.New(token.Config{Issuers: c.Issuers, Claims: s.Claims, Log: c.Log}); err != nil {
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

// Bounds of the time limit of a read of the configuration. Between them, the limit is that of a decision in DynamoDB. A
// limit below leastRead could always be too short for the table, and the copy would then never be renewed.
const (
	leastRead = 100 * time.Millisecond
	mostRead  = time.Second
)

// source makes the source of the configuration, and returns prepare, which loads it while the Lambda function starts.
func (f *Function) source(
	c *Config, m memory, a *awsClients,
) (_ authorizer.Source, prepare func(context.Context), err error) {
	if name := c.Settings.ConfigFile; name != "" {
		s, err := readFile(c.Bundle, name, f.stores.chain, f.secret, c.Log)
		if err != nil {
			return nil, nil, err
		}
		return s, s.prepare, nil
	}
	documents := dynamotable.New(dynamotable.Config{Client: a.dynamodb(), Table: c.Settings.ConfigTable})
	reader, err := config.New(config.Config{
		Table: documents, Cell: c.Settings.Cell, Alone: c.Settings.Alone,
		Accepts: f.stores.chain.Accepts, MaxBytes: m.documents, Log: c.Log,
		Reaches: reaches(c.Settings.Homes), Timeout: min(max(c.Settings.DynamoDBDeadline, leastRead), mostRead),
		Hashes: func(ctx context.Context, now time.Time, presented string) ([]identity.KeyHash, error) {
			return hashes(ctx, f.secret, now, presented)
		},
		OnApply: func(e table.Entry, now time.Time) { f.recorder.Propagated(now, now.Sub(e.At)) },
	})
	if err != nil {
		return nil, nil, err
	}
	f.gauges.grants = reader.Grants
	return reader, func(ctx context.Context) {
		_ = reader.Load(ctx, time.Now()) // the first request waits for the load and reports its error
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
		beside = []func(context.Context, time.Time){f.kill.Poll, f.runStoreTasks}
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

// runStoreTasks runs the background tasks of the stores. It does nothing while the kill switch's mode is off, because
// the stores must then not be asked; units that are leased then expire.
func (f *Function) runStoreTasks(ctx context.Context, now time.Time) {
	if f.kill.Mode() != limit.Off {
		f.stores.chain.RunBackgroundTasks(ctx, now)
	}
}

// totals returns the counts for the metrics.
func (f *Function) totals() telemetry.Totals {
	t := f.stores.totals()
	if f.kill != nil {
		t.KillSwitchFailures = f.kill.Failures()
	}
	return t
}

// warm begins what the first request would otherwise have to wait for.
func (f *Function) warm(prepare func(context.Context), log *slog.Logger) {
	ctx, stop := context.WithCancel(context.Background())
	f.stop = stop
	now := time.Now()
	if f.tokens != nil {
		f.tokens.Warm(now)
	}
	f.secret.Warm(now)
	// An error is not lost: each request that needs the secret reads it and returns the error.
	f.secretIn = begin(secretWithin, func() { _, _ = f.secret.Get(ctx, now) })
	f.ready = begin(storesWithin, func() { f.stores.warm(ctx, log) })
	go prepare(ctx)
}

// Invoke implements aws-lambda-go's Handler. See [authorizer.Handler.Invoke].
func (f *Function) Invoke(ctx context.Context, payload []byte) ([]byte, error) {
	if f.kill != nil {
		f.kill.Begin(time.Now()) // reads the mode while the first call waits for the secret and the stores
	}
	f.secretIn.wait(ctx)
	f.ready.wait(ctx)
	return f.handler.Invoke(ctx, payload)
}

// Close gives back leased units, as far as possible before ctx ends, writes the last metrics and closes connections.
func (f *Function) Close(ctx context.Context) error {
	f.stop()
	// Flush first, since a store that does not answer may take all the time, and Lambda kills the process soon after
	// ctx ends. Writing the metrics has no bound of its own: it waits for no other machine, and on a busy one it may
	// take longer than ctx allows.
	flush := context.WithoutCancel(ctx)
	errs := []error{f.recorder.Flush(flush), f.stores.chain.Close(ctx), f.recorder.Flush(flush)}
	if f.stores.redis != nil {
		errs = append(errs, f.stores.redis.Close())
	}
	if f.kill != nil {
		f.kill.Close()
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("the function did not shut down cleanly: %w", err)
	}
	return nil
}
