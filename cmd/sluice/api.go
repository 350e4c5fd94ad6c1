package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/dev/gateway/front"
	"github.com/sluicelimits/sluice/internal/dev/gateway/stage"
	"github.com/sluicelimits/sluice/internal/dev/gateway/template"
	"github.com/sluicelimits/sluice/internal/dev/lambdahost"
	"github.com/sluicelimits/sluice/internal/dev/livepage"
	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/apigw"
)

// apiOptions are the flags of 'sluice dev' that select an API to serve as API Gateway would, and its functions.
type apiOptions struct {
	api, id, stage       string
	functions, variables []string
	targets              []string
	environments         int
	passDenials          bool
}

func (o *apiOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.api, "api", "", "serve an API as API Gateway would: `FILE` is a description, a template from cdk "+
		"synth, or a built-in API ("+strings.Join(stage.Builtin(), ", ")+")")
	f.StringVar(&o.id, "api-id", "", "logical `ID` of the API to serve, if the template has several")
	f.StringVar(&o.stage, "api-stage", "", "`NAME` of the stage to serve, if the template's API has several")
	f.StringArrayVar(&o.targets, "target", nil, "send the template's integrations whose URLs begin with FROM to URL "+
		"instead, `FROM=URL`; may be repeated. Other integrations go to --upstream, or to the echo")
	f.StringArrayVar(&o.functions, "function", nil, "Lambda binary of the API's authorizer, `BOOTSTRAP`, or of the "+
		"function NAME, as NAME=BOOTSTRAP; may be repeated")
	f.StringArrayVar(&o.variables, "function-env", nil, "environment variable of the binaries of --function, "+
		"`NAME=VALUE`; may be repeated")
	f.IntVar(&o.environments, "environments", 4, "run at most `N` processes of each binary")
	f.BoolVar(&o.passDenials, "pass-denials", false, "on an HTTP or WebSocket API, let denials through to a backend "+
		"with Sluice's middleware, which answers them")
}

// servedAPI is the API of --api, and the binaries of its functions.
type servedAPI struct {
	o           apiOptions
	description *stage.Description
	binaries    map[string]string // name of a function → file of its binary
	variables   map[string]string // environment of the binaries
	targets     map[string]string // prefix of the URL of a template's integration → URL to call instead
	remote      bool              // the authorizer is a binary, not this process
	hosts       map[string]*lambdahost.Host
	signers     map[string]stage.Credential // access key id → credential that may sign calls of routes with AWS_IAM
}

// parse checks the flags; it returns nil if --api is not given. It does not read the file of --api, which start does:
// problems in that file are not usage errors.
func (o *apiOptions) parse() (*servedAPI, error) {
	switch {
	case o.api == "" && (len(o.functions) > 0 || len(o.variables) > 0 || o.passDenials || o.id != "" ||
		o.stage != "" || len(o.targets) > 0):
		return nil, errors.New("--function, --function-env, --pass-denials, --api-id, --api-stage and --target need " +
			"--api")
	case o.environments < 1 || o.environments > 1000:
		return nil, fmt.Errorf("--environments %d is outside 1..1000", o.environments)
	case o.api == "":
		return nil, nil //nolint:nilnil // nil selects the gateway without an API
	case len(o.variables) > 0 && len(o.functions) == 0:
		return nil, errors.New("--function-env is for --function; without it the authorizer is this process")
	}
	s := &servedAPI{o: *o, binaries: make(map[string]string), variables: make(map[string]string),
		targets: make(map[string]string)}
	if err := s.parseFunctions(); err != nil {
		return nil, err
	}
	if err := s.parseTargets(); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *servedAPI) parseTargets() error {
	for _, text := range s.o.targets {
		from, to, ok := strings.Cut(text, "=")
		u, err := url.Parse(to)
		if err == nil {
			err = front.CheckUpstream(u)
		}
		if _, twice := s.targets[from]; !ok || from == "" || twice || err != nil {
			return errors.New("--target: want FROM=URL, each FROM once, and an http or https URL")
		}
		s.targets[from] = to
	}
	return nil
}

func (s *servedAPI) parseFunctions() error {
	for _, text := range s.o.functions {
		name, binary, named := strings.Cut(text, "=")
		if !named {
			name, binary = "", text
		}
		if _, twice := s.binaries[name]; twice || binary == "" || named && name == "" {
			return fmt.Errorf("--function %q: want BOOTSTRAP or NAME=BOOTSTRAP, each once", text)
		}
		s.binaries[name] = binary
	}
	for _, text := range s.o.variables {
		name, value, ok := strings.Cut(text, "=")
		if !ok { // the text is not shown: it may be a secret value without a name
			return errors.New("--function-env: want NAME=VALUE")
		}
		if _, twice := s.variables[name]; name == "" || twice {
			return fmt.Errorf("--function-env %q: want NAME=VALUE, each name once", name)
		}
		s.variables[name] = value
	}
	return nil
}

// start reads the description and makes a host for each binary. No process runs before the first call.
func (s *servedAPI) start(ctx context.Context, log *slog.Logger) error {
	name, data := "--api "+s.o.api, []byte(nil)
	var builtin bool
	if data, builtin = stage.ReadBuiltin(s.o.api); !builtin {
		var err error
		name = s.o.api
		if data, err = os.ReadFile(name); err != nil {
			return fmt.Errorf("--api: %w; the built-in APIs are %s", err, strings.Join(stage.Builtin(), ", "))
		}
	}
	if err := s.describe(name, data); err != nil {
		return err
	}
	if err := s.readSigner(); err != nil {
		return err
	}
	authorizers, integrations := s.description.Functions()
	if binary, ok := s.binaries[""]; ok {
		if len(authorizers) != 1 {
			return fmt.Errorf("--function %s: the API's authorizers have %d functions; name one of them with "+
				"--function NAME=BOOTSTRAP", binary, len(authorizers))
		}
		if _, twice := s.binaries[authorizers[0]]; twice {
			return fmt.Errorf("--function names two binaries for the function %s; name one", authorizers[0])
		}
		s.binaries[authorizers[0]] = binary
		delete(s.binaries, "")
	}
	for _, name := range integrations {
		if s.binaries[name] == "" {
			return fmt.Errorf("a route of the API calls the function %s: name its binary with --function "+
				"%s=BOOTSTRAP", name, name)
		}
	}
	named := 0
	for _, name := range authorizers {
		if s.binaries[name] != "" {
			named++
		}
	}
	if s.remote = named > 0; s.remote && named < len(authorizers) {
		return fmt.Errorf("--function names binaries for only %d of the authorizers' functions %s; name all or none",
			named, strings.Join(authorizers, ", "))
	}
	if s.remote && s.o.passDenials {
		return errors.New("--pass-denials sets the authorizer in this process, and --function replaces that one by a " +
			"binary: set SLUICE_PASS_DENIALS of the binary with --function-env")
	}
	return s.startHosts(ctx, append(authorizers, integrations...), log)
}

// readSigner makes the AWS credentials of the environment the ones that may sign calls of routes with AWS_IAM. Such
// calls are admitted as a made-up user named local.
func (s *servedAPI) readSigner() error {
	at := slices.IndexFunc(s.description.Routes, func(r stage.Route) bool { return r.Authorization == stage.AWSIAM })
	if at < 0 {
		return nil
	}
	key, secret := os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY")
	if key == "" || secret == "" {
		return fmt.Errorf("the API's route %s takes signed calls only (%s): set AWS_ACCESS_KEY_ID and "+
			"AWS_SECRET_ACCESS_KEY for this command to the values that callers sign with; any values will do",
			s.description.Routes[at].Key, stage.AWSIAM)
	}
	account := s.description.Account
	s.signers = map[string]stage.Credential{key: {
		Secret: secret, SessionToken: os.Getenv("AWS_SESSION_TOKEN"), Account: account, Caller: "AIDALOCAL",
		UserARN: "arn:aws:iam::" + account + ":user/local",
	}}
	return nil
}

// describe parses a description of an API, or a CloudFormation template.
func (s *servedAPI) describe(name string, data []byte) (err error) {
	if template.Is(data) {
		s.description, err = template.Parse(name, data, template.Options{API: s.o.id, Stage: s.o.stage,
			Targets: s.targets})
		return err
	}
	if s.o.id != "" || s.o.stage != "" || len(s.targets) > 0 {
		return fmt.Errorf("--api-id, --api-stage and --target need a template, and %s is a description", name)
	}
	s.description, err = stage.Parse(name, data)
	return err
}

func (s *servedAPI) startHosts(ctx context.Context, known []string, log *slog.Logger) error {
	s.hosts = make(map[string]*lambdahost.Host)
	for _, name := range slices.Sorted(maps.Keys(s.binaries)) {
		if !slices.Contains(known, name) {
			return fmt.Errorf("--function %s=…: the API has no function of that name; it has %s", name,
				strings.Join(known, ", "))
		}
		// The host outlives ctx: requests in flight still need the function after ctx ends. close stops the host.
		host, err := lambdahost.Start(context.WithoutCancel(ctx), lambdahost.Config{Binary: s.binaries[name],
			Name: name, Env: s.variables, Environments: s.o.environments, Queue: queued, Timeout: functionTimeout,
			Log: log})
		if err != nil {
			s.close(log)
			return fmt.Errorf("--function %s: %w", s.binaries[name], err)
		}
		s.hosts[name] = host
	}
	return nil
}

const (
	queued          = 1000             // most calls that wait for a process; Lambda would start more processes instead
	functionTimeout = 30 * time.Second // longer than API Gateway waits for any function
	closeWithin     = 10 * time.Second // how long close waits for processes to end
)

// close stops the processes of the binaries.
func (s *servedAPI) close(log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
	defer cancel()
	for _, h := range s.hosts {
		if err := h.Close(ctx); err != nil {
			log.Warn("the processes of a function did not end in time", "error", err)
		}
	}
}

// String describes the API in one line.
func (s *servedAPI) String() string {
	origin := "described by " + s.o.api
	if slices.Contains(stage.Builtin(), s.o.api) {
		origin = "built in"
	}
	return fmt.Sprintf("%s API (%s), stage %s of its URLs: answered as API Gateway would", s.description.Kind, origin,
		s.description.Stage)
}

// adapt fits the example commands to the kind of the API: a WebSocket API needs the headers of a handshake, and every
// kind but REST answers a denial with 403.
func (s *servedAPI) adapt(lines attempts) {
	if s.description.Kind == stage.REST {
		return
	}
	for i := range lines {
		l := &lines[i]
		if !s.o.passDenials {
			l.about = strings.Replace(l.about, "429s", "403s", 1)
		}
		if s.description.Kind == stage.HTTP && !s.o.passDenials {
			l.about = strings.Replace(l.about, "no key: 401", "no key: 403", 1)
		}
		if s.description.Kind == stage.WebSocket {
			l.about = strings.Replace(l.about, "200s", "101s", 1)
			l.command = strings.Replace(l.command, "curl ",
				`curl -H "Connection: Upgrade" -H "Upgrade: websocket" -H "Sec-WebSocket-Version: 13" -H `+
					`"Sec-WebSocket-Key: c2x1aWNlLXNsdWljZS1zbA==" `, 1)
			l.command = strings.Replace(l.command, "/product/1", "", 1)
		}
	}
}

// handler returns the stage of the API. z is the authorizer in this process; nil if the authorizers are binaries.
func (s *servedAPI) handler(z *authorizer.Authorizer, c stage.Config) (http.Handler, error) {
	c.Description, c.Functions, c.Credentials = s.description, make(map[string]stage.Function), s.signers
	for name, h := range s.hosts {
		c.Functions[name] = h
	}
	if z != nil {
		hc := authorizer.HandlerConfig{Authorizer: z, Log: c.Log}
		if s.o.passDenials {
			hc.Encoder = apigw.Encoder{PassDenials: []string{s.description.API}}
		}
		function, err := authorizer.NewHandler(hc)
		if err != nil {
			return nil, err
		}
		authorizers, _ := s.description.Functions()
		for _, name := range authorizers {
			c.Functions[name] = function
		}
	}
	return stage.New(c)
}

// stageConfig returns the part of the stage's configuration that comes from flags. page and recorder may be nil.
func (d *dev) stageConfig(
	recorder *livepage.Recorder, page http.Handler, upstream *url.URL, now func() time.Time, log *slog.Logger,
) stage.Config {
	c := stage.Config{Upstream: upstream, LivePage: page, Audience: d.audience, MaxBodyBytes: d.maxBody, Now: now,
		Log: log}
	if recorder != nil {
		c.Observe = func(o stage.Observation) { recorder.Observe(observation(&o)) }
	}
	return c
}

// observation converts an authorizer's answer for the live page, from the context that API Gateway would pass on. The
// context does not contain the counts of single limits.
func observation(o *stage.Observation) *livepage.Observation {
	out := &livepage.Observation{At: o.At, Method: o.Method, Path: o.Path, Outcome: livepage.Forbidden}
	if name, err := url.PathUnescape(o.Context[apigw.ContextTenant]); err == nil {
		out.Tenant = name
	}
	switch decision := o.Context[apigw.ContextDecision]; {
	case decision == answer.Allowed.String():
		out.Outcome = livepage.Allowed
	case decision == answer.IPLimited.String():
		out.Outcome, out.Denied = livepage.IPLimited, denied(o)
	case decision == answer.Limited.String(), decision == answer.NeverFits.String(),
		decision == answer.NotHere.String():
		out.Outcome, out.Denied = livepage.Limited, denied(o)
	case decision == answer.NoRoute.String():
		out.Outcome = livepage.NotFound
	case decision == answer.Unavailable.String(), decision == answer.Unidentified.String():
		out.Outcome = livepage.StoreFailed
	case o.Status == http.StatusUnauthorized:
		out.Outcome = livepage.Unauthorized
	case o.Status >= http.StatusInternalServerError:
		out.Outcome = livepage.StoreFailed
	}
	return out
}

// denied reads a denial from the authorizer's context. The context names the binding limit like the RateLimit headers
// do: "burst", "put-product/10s", "ip:login".
func denied(o *stage.Observation) (d livepage.Denied) {
	binding := strings.TrimPrefix(o.Context[apigw.ContextBinding], "ip:")
	d.Limit, d.Tier, _ = strings.Cut(binding, "/")
	if seconds, err := strconv.ParseInt(o.Context[apigw.ContextRetryAfter], 10, 32); err == nil {
		d.Wait = time.Duration(seconds) * time.Second
	}
	switch o.Context[apigw.ContextDecision] {
	case answer.NotHere.String():
		d.Reason = livepage.NotGranted
	case answer.NeverFits.String():
		if d.Never = true; d.Limit == "" {
			d.Reason = livepage.Uncountable
		}
	}
	return d
}

// runRemote serves an API whose authorizer is a binary. The binary opens plans and stores itself, so the flags for
// them are refused.
func (d *dev) runRemote(ctx context.Context, stdout io.Writer, log *slog.Logger) error {
	if d.otlp.endpoint != "" {
		return errors.New("--otlp has no use with --function: the binary writes its metrics to its log, which is " +
			"printed here")
	}
	for _, f := range []struct {
		flag string
		set  bool
	}{
		{"--plans", len(d.plans) > 0}, {"--pepper", len(d.pepperFiles) > 0}, {"--redis", d.stores.redis != ""},
		{"--dynamodb", d.stores.dynamodb != ""}, {"--data", d.data != ""}, {"--trusted-hops", d.hops != 0},
		{"--retry-jitter", d.jitter != 0},
	} {
		if f.set {
			return fmt.Errorf("%s sets the authorizer in this process, and --function replaces that one by a "+
				"binary: give the binary its settings with --function-env", f.flag)
		}
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
	handler, err := d.served.handler(nil, d.stageConfig(nil, nil, upstream, nil, log))
	if err != nil {
		return err
	}
	return d.serve(ctx, listener, handler, log, func() {
		base := baseURL(listener.Addr())
		var b strings.Builder
		fmt.Fprintf(&b, "Sluice listens on %s\n  API        %s\n", base, d.served)
		for _, name := range slices.Sorted(maps.Keys(d.served.binaries)) {
			fmt.Fprintf(&b, "  function   %s is %s, at most %d processes\n", name, d.served.binaries[name],
				d.served.o.environments)
		}
		fmt.Fprintf(&b, "\nTry:\n\n  # put a tenant's key into KEY\n  curl -i -H \"X-API-Key: $KEY\" %s%s/product/1\n",
			base, d.served.description.Prefix())
		_, _ = io.WriteString(stdout, b.String()) // a closed standard output is no reason not to serve
	})
}
