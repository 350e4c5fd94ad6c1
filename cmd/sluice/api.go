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

// apiOptions say which API is served as API Gateway serves it, and what its functions are.
type apiOptions struct {
	api, id, stage       string
	functions, variables []string
	targets              []string
	environments         int
	passDenials          bool
}

func (o *apiOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.api, "api", "", "serve the API described in `FILE` as API Gateway would, or in a template of cdk "+
		"synth, or a built-in one: "+strings.Join(stage.Builtin(), ", "))
	f.StringVar(&o.id, "api-id", "", "of a template with several APIs the one of this logical `ID`")
	f.StringVar(&o.stage, "api-stage", "", "of a template's API with several stages the one of this `NAME`")
	f.StringArrayVar(&o.targets, "target", nil, "where a template's integrations lead here, `FROM=URL`: FROM is "+
		"what their URLs begin with; may be repeated. Others are shown, or go to --upstream")
	f.StringArrayVar(&o.functions, "function", nil, "a Lambda binary for the API's authorizer, `BOOTSTRAP`, or "+
		"NAME=BOOTSTRAP for the function with a name; may be repeated")
	f.StringArrayVar(&o.variables, "function-env", nil, "a variable of those binaries, `NAME=VALUE`; may be repeated")
	f.IntVar(&o.environments, "environments", 4, "most processes of each binary, `N`")
	f.BoolVar(&o.passDenials, "pass-denials", false, "on an HTTP or WebSocket API, let denials through to a backend "+
		"with Sluice's middleware, which answers them")
}

// servedAPI is an API that is described, and the binaries of its functions.
type servedAPI struct {
	o           apiOptions
	description *stage.Description
	binaries    map[string]string // by name of the function
	variables   map[string]string
	targets     map[string]string // of a template's integrations, by what their URLs begin with
	remote      bool              // the authorizer is a binary
	hosts       map[string]*lambdahost.Host
	signers     map[string]stage.Credential // who may sign, where routes have AWS_IAM
}

// parse reads what can be read without starting anything; nil without --api. A file with anything wrong is no wrong
// command line, so that its problems are not followed by how to call for help; start reads it.
func (o *apiOptions) parse() (*servedAPI, error) {
	switch {
	case o.api == "" && (len(o.functions) > 0 || len(o.variables) > 0 || o.passDenials || o.id != "" ||
		o.stage != "" || len(o.targets) > 0):
		return nil, errors.New("--function, --function-env, --pass-denials, --api-id, --api-stage and --target need " +
			"--api")
	case o.environments < 1 || o.environments > 1000:
		return nil, fmt.Errorf("--environments %d is outside 1..1000", o.environments)
	case o.api == "":
		return nil, nil //nolint:nilnil // no API is the gateway without one
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
		if !ok { // what stands there may be a secret without its name
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
			return fmt.Errorf("--api: %w; built in are %s", err, strings.Join(stage.Builtin(), ", "))
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
			return fmt.Errorf("--function %s: the API has %d functions for authorizers; say which as NAME=BOOTSTRAP",
				binary, len(authorizers))
		}
		if _, twice := s.binaries[authorizers[0]]; twice {
			return fmt.Errorf("--function: there are two for %s", authorizers[0])
		}
		s.binaries[authorizers[0]] = binary
		delete(s.binaries, "")
	}
	for _, name := range integrations {
		if s.binaries[name] == "" {
			return fmt.Errorf("the API has the function %s behind a route: name its binary with --function %s=BOOTSTRAP", name, name)
		}
	}
	named := 0
	for _, name := range authorizers {
		if s.binaries[name] != "" {
			named++
		}
	}
	if s.remote = named > 0; s.remote && named < len(authorizers) {
		return fmt.Errorf("--function: of the authorizers' functions %s only %d have a binary; name all or none",
			strings.Join(authorizers, ", "), named)
	}
	if s.remote && s.o.passDenials {
		return errors.New("--pass-denials is for the authorizer in this process; a binary has its own setting")
	}
	return s.startHosts(ctx, append(authorizers, integrations...), log)
}

// readSigner takes the AWS credentials of the environment for those of whoever may call routes with AWS_IAM: what signs
// with them on this machine is let through, as a user whom no account has.
func (s *servedAPI) readSigner() error {
	at := slices.IndexFunc(s.description.Routes, func(r stage.Route) bool { return r.Authorization == stage.AWSIAM })
	if at < 0 {
		return nil
	}
	key, secret := os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY")
	if key == "" || secret == "" {
		return fmt.Errorf("the API's route %s is for callers who sign (%s): set AWS_ACCESS_KEY_ID and "+
			"AWS_SECRET_ACCESS_KEY here to those that they sign with; any will do",
			s.description.Routes[at].Key, stage.AWSIAM)
	}
	account := s.description.Account
	s.signers = map[string]stage.Credential{key: {
		Secret: secret, SessionToken: os.Getenv("AWS_SESSION_TOKEN"), Account: account, Caller: "AIDALOCAL",
		UserARN: "arn:aws:iam::" + account + ":user/local",
	}}
	return nil
}

// describe reads a description, or a template.
func (s *servedAPI) describe(name string, data []byte) (err error) {
	if template.Is(data) {
		s.description, err = template.Parse(name, data, template.Options{API: s.o.id, Stage: s.o.stage,
			Targets: s.targets})
		return err
	}
	if s.o.id != "" || s.o.stage != "" || len(s.targets) > 0 {
		return fmt.Errorf("--api-id, --api-stage and --target are for a template, and %s is a description", name)
	}
	s.description, err = stage.Parse(name, data)
	return err
}

func (s *servedAPI) startHosts(ctx context.Context, known []string, log *slog.Logger) error {
	s.hosts = make(map[string]*lambdahost.Host)
	for _, name := range slices.Sorted(maps.Keys(s.binaries)) {
		if !slices.Contains(known, name) {
			return fmt.Errorf("--function %s=…: the API has no function of that name", name)
		}
		// Not under ctx: at a stop, requests in flight still need their functions. close ends them.
		host, err := lambdahost.Start(context.WithoutCancel(ctx), lambdahost.Config{Binary: s.binaries[name],
			Name: name, Env: s.variables,
			Environments: s.o.environments, Queue: queued, Timeout: functionTimeout, Log: log})
		if err != nil {
			s.close(log)
			return fmt.Errorf("--function %s: %w", s.binaries[name], err)
		}
		s.hosts[name] = host
	}
	return nil
}

const (
	queued          = 1000             // calls that wait for a process; Lambda would start more of them
	functionTimeout = 30 * time.Second // the gateway's own are shorter
	closeWithin     = 10 * time.Second
)

// close ends the binaries.
func (s *servedAPI) close(log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
	defer cancel()
	for _, h := range s.hosts {
		if err := h.Close(ctx); err != nil {
			log.Warn("a function was not ended in order", "error", err)
		}
	}
}

// String says what is served.
func (s *servedAPI) String() string {
	return fmt.Sprintf("%s API of %s, stage %s: answers as API Gateway's", s.description.Kind, s.o.api,
		s.description.Stage)
}

// adapt makes what to try fit the API's kind: a WebSocket's handshake, and the 403 that other kinds than REST have for
// a denial.
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

// handler is the stage, with the authorizer in this process where none is a binary.
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
		own, err := authorizer.NewHandler(hc)
		if err != nil {
			return nil, err
		}
		authorizers, _ := s.description.Functions()
		for _, name := range authorizers {
			c.Functions[name] = own
		}
	}
	return stage.New(c)
}

// stageConfig is what the flags of every gateway say. page and recorder may be nil.
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

// observation is what the live page counts of an authorizer's answer: what the context tells, as API Gateway hands it
// on. Counts of single limits it does not tell.
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

// denied is what the context tells of a denial. The binding limit is named as in the headers: "burst",
// "put-product/10s", "ip:login".
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

// runRemote serves an API whose authorizer is a binary: plans and stores are that binary's affair.
func (d *dev) runRemote(ctx context.Context, stdout io.Writer, log *slog.Logger) error {
	for _, f := range []struct {
		flag string
		set  bool
	}{
		{"--plans", len(d.plans) > 0}, {"--pepper", len(d.pepperFiles) > 0}, {"--redis", d.stores.redis != ""},
		{"--dynamodb", d.stores.dynamodb != ""}, {"--data", d.data != ""}, {"--trusted-hops", d.hops != 0},
		{"--retry-jitter", d.jitter != 0},
	} {
		if f.set {
			return fmt.Errorf("%s is for the authorizer in this process; a binary has its settings from --function-env", f.flag)
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
		_, _ = io.WriteString(stdout, b.String()) // nobody reads it: no reason not to serve
	})
}
