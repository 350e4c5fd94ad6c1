package telemetry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/slogtest"

	"github.com/sluicelimits/sluice/internal/telemetry"
)

// origin returns the ids that a request brings.
var origin = telemetry.Origin{RequestID: "c6af9ac6-7b61-11e6-9a41-93e8deadbeef", Trace: traceID}

func newLogger(level slog.Leveler) (*slog.Logger, *bytes.Buffer) {
	var out bytes.Buffer
	return slog.New(telemetry.NewHandler(&out, level)), &out
}

func decodeLine(t *testing.T, line []byte) map[string]any {
	t.Helper()
	var m map[string]any
	if err := strict(line, &m); err != nil {
		t.Fatalf("%v in %s", err, line)
	}
	return m
}

// Guarantees that the handler keeps slog's rules, with the context of a request and without one.
func TestHandlerIsAHandler(t *testing.T) {
	for _, ctx := range []context.Context{context.Background(), telemetry.WithOrigin(context.Background(), origin)} {
		var out bytes.Buffer
		slogtest.Run(t, func(*testing.T) slog.Handler {
			out.Reset()
			return inContext{telemetry.NewHandler(&out, nil), ctx}
		}, func(t *testing.T) map[string]any { return decodeLine(t, out.Bytes()) })
	}
}

// inContext is a handler that handles each record as if it were logged with ctx.
type inContext struct {
	slog.Handler
	ctx context.Context
}

func (h inContext) Handle(_ context.Context, r slog.Record) error { return h.Handler.Handle(h.ctx, r) }
func (h inContext) WithAttrs(a []slog.Attr) slog.Handler {
	return inContext{h.Handler.WithAttrs(a), h.ctx}
}
func (h inContext) WithGroup(n string) slog.Handler { return inContext{h.Handler.WithGroup(n), h.ctx} }

// Guarantees that each line of a request can be found by the request's ids, whichever logger wrote it. Within a group
// the ids would have another name, and a search would not find them.
func TestLinesNameTheirRequest(t *testing.T) {
	ctx := telemetry.WithOrigin(context.Background(), origin)
	log, out := newLogger(nil)
	for name, l := range map[string]*slog.Logger{
		"plain": log, "attributes": log.With("a", 1), "group": log.WithGroup("g"),
		"no group": slog.New(log.Handler().WithGroup("")),
		"all":      log.With("a", 1).WithGroup("g").With("b", 2).WithGroup("h"),
	} {
		out.Reset()
		l.InfoContext(ctx, "decided", "k", "v")
		m := decodeLine(t, out.Bytes())
		if m["request_id"] != origin.RequestID || m["trace_id"] != traceID || m["xray_trace_id"] != rootID ||
			m["msg"] != "decided" {
			t.Errorf("%s: %s", name, out)
		}
		inner := m
		for _, group := range []string{"g", "h"} {
			if g, ok := inner[group].(map[string]any); ok {
				inner = g
			}
		}
		if inner["k"] != "v" {
			t.Errorf("%s: the attribute k is not in its group: %s", name, out)
		}
	}

	for name, c := range map[string]struct {
		ctx  context.Context
		want []string
	}{
		"no request": {context.Background(), nil},
		"no trace": {telemetry.WithOrigin(context.Background(), telemetry.Origin{RequestID: "r"}),
			[]string{"request_id"}},
		"no id": {telemetry.WithOrigin(context.Background(), telemetry.Origin{Trace: origin.Trace}),
			[]string{"trace_id", "xray_trace_id"}},
	} {
		out.Reset()
		log.InfoContext(c.ctx, "decided")
		m := decodeLine(t, out.Bytes())
		for _, key := range c.want {
			if m[key] == nil {
				t.Errorf("%s: %s is missing: %s", name, key, out)
			}
		}
		if len(m) != 3+len(c.want) { // time, level, msg
			t.Errorf("%s: %s; want only %v besides time, level and msg", name, out, c.want)
		}
	}

	out.Reset()
	log.InfoContext(telemetry.WithOrigin(context.Background(),
		telemetry.Origin{RequestID: strings.Repeat("é\n", 1<<20)}), "decided")
	if id := decodeLine(t, out.Bytes())["request_id"].(string); len(id) < 100 || len(id) > 128 ||
		bytes.Count(out.Bytes(), []byte("\n")) != 1 {
		t.Errorf("a request id of 3 MB is logged in %d bytes, want one short line: %.200s", len(id), out)
	}
}

// Guarantees that two loggers that were derived from one logger do not write each other's attributes.
func TestLoggersOfOneOrigin(t *testing.T) {
	ctx := telemetry.WithOrigin(context.Background(), origin)
	log, out := newLogger(nil)
	parent := log.With("a", 1).WithGroup("g").With("b", 2)
	first, second := parent.With("first", 1), parent.With("second", 2)
	first.InfoContext(ctx, "m")
	second.InfoContext(ctx, "m")
	one, two, _ := bytes.Cut(out.Bytes(), []byte("\n"))
	for line, want := range map[string]string{string(one): "first", string(two): "second"} {
		if g := decodeLine(t, []byte(line))["g"].(map[string]any); g[want] == nil || len(g) != 2 {
			t.Errorf("the %s logger wrote %s", want, line)
		}
	}
}

func TestLevel(t *testing.T) {
	log, out := newLogger(slog.LevelWarn)
	log.Info("not this")
	log.Warn("this")
	if got := decodeLine(t, out.Bytes()); got["msg"] != "this" {
		t.Errorf("logged %s, want only the warning", out)
	}
}

const secret = "S3CR3T-eyJhbGciOi"

type credential struct {
	Tenant string
	Token  string `json:"access_token"`
	Nested []map[string]any
}

// valuer is a value that is logged as another value.
type valuer struct{ value slog.Value }

func (v valuer) LogValue() slog.Value { return v.value }

// writesItself is a value that writes its own JSON, and is also an error.
type writesItself struct{}

func (writesItself) Error() string { return "an error" }
func (writesItself) MarshalJSON() ([]byte, error) {
	return []byte(`{"n":12345678901234567890,"x":[{"api_key":"` + secret + `"}]}`), nil
}

// refuses is a value that cannot be encoded as JSON, with an error that contains a secret.
type refuses struct{}

func (refuses) MarshalJSON() ([]byte, error) { return nil, errors.New("cannot encode " + secret) }

// secretCarriers returns the ways in which a secret can come into a line under a key that names a secret.
func secretCarriers() map[string]func(*slog.Logger) {
	header := http.Header{"Authorization": {"Bearer " + secret}, "Accept": {"kept"}}
	carriers := map[string]func(*slog.Logger){
		"with":         func(l *slog.Logger) { l.With("authorization", secret).Info("m", "k", "kept") },
		"group":        func(l *slog.Logger) { l.Info("m", slog.Group("request", "cookie", secret, "k", "kept")) },
		"named group":  func(l *slog.Logger) { l.WithGroup("token").Info("m", "value", secret); l.Info("kept") },
		"inner group":  func(l *slog.Logger) { l.Info("m", slog.Group("cookies", "sid", secret), "k", "kept") },
		"header":       func(l *slog.Logger) { l.Info("m", "header", header) },
		"header group": func(l *slog.Logger) { l.WithGroup("g").Info("m", "header", header) },
		"map":          func(l *slog.Logger) { l.Info("m", "event", map[string]any{"headers": header}) },
		"struct":       func(l *slog.Logger) { l.Info("m", "c", credential{Tenant: "kept", Token: secret}) },
		"pointer":      func(l *slog.Logger) { l.Info("m", "c", &credential{Tenant: "kept", Token: secret}) },
		"deep": func(l *slog.Logger) {
			l.Info("m", "c", []any{credential{Tenant: "kept", Nested: []map[string]any{{"x-api-key": secret}}}})
		},
		"raw": func(l *slog.Logger) {
			l.Info("m", "body", json.RawMessage(`{"password":"`+secret+`","k":"kept"}`))
		},
		"own JSON": func(l *slog.Logger) { l.Info("m", "body", writesItself{}, "k", "kept") },
		"no JSON":  func(l *slog.Logger) { l.Info("m", "body", refuses{}, "k", "kept") },
		"a list":   func(l *slog.Logger) { l.Info("m", "token", []string{secret}, "k", "kept") },
		"bytes":    func(l *slog.Logger) { l.Info("m", "token", []byte(secret), "k", "kept") },
		"an error": func(l *slog.Logger) { l.Info("m", "token", errors.New(secret), "k", "kept") },
		"valuer":   func(l *slog.Logger) { l.Info("m", "token", valuer{slog.StringValue(secret)}, "k", "kept") },
		"valuer, group": func(l *slog.Logger) {
			l.Info("m", "v", valuer{slog.GroupValue(slog.String("token", secret))}, "k", "kept")
		},
		"valuer, map": func(l *slog.Logger) { l.Info("m", "v", valuer{slog.AnyValue(header)}) },
		"form": func(l *slog.Logger) {
			l.Info("m", "form", url.Values{"client_secret": {secret}, "k": {"kept"}})
		},
	}
	for _, key := range []string{
		"authorization", "Authorization", "proxy-authorization", "cookie", "Set-Cookie", "token", "id_token",
		"refreshToken", "X-Amz-Security-Token",
		"x-api-key", "X-API-Key", "x_api_key", "xApiKey", "apikey", "API KEY", "client_secret", "SecretString",
		"password", "db.password", "pepper",
		"credential", "private_key", "X-Amz-Signature", "jwt", "session-id", "X-Forwarded-For", "Forwarded",
		"remote_addr", "sourceIp", "client_ip", "X-Real-IP",
	} {
		carriers["key "+key] = func(l *slog.Logger) { l.Info("m", key, secret, "k", "kept") }
	}
	return carriers
}

// Guarantees that no secret under a key that names one is written into a line, in whatever form, and that other
// attributes beside it are kept. To show that the test can fail, it checks that slog's own handler writes each of these
// secrets.
func TestRedaction(t *testing.T) {
	ctx := telemetry.WithOrigin(context.Background(), origin)
	for name, write := range secretCarriers() {
		var plain bytes.Buffer
		write(slog.New(slog.NewJSONHandler(&plain, nil)))
		if !strings.Contains(plain.String(), secret) && name != "bytes" {
			t.Errorf("%s: slog's own handler writes no secret, so this case shows nothing: %s", name, plain.String())
		}
		for _, ctx := range []context.Context{context.Background(), ctx} {
			var out bytes.Buffer
			write(slog.New(inContext{telemetry.NewHandler(&out, nil), ctx}))
			if strings.Contains(out.String(), secret) || name == "bytes" && strings.Contains(out.String(), "UzNDUjNU") {
				t.Errorf("%s: the secret is in %s", name, out.String())
			}
			if !strings.Contains(out.String(), "kept") {
				t.Errorf("%s: an attribute that is no secret is missing: %s", name, out.String())
			}
			for line := range bytes.Lines(out.Bytes()) {
				decodeLine(t, line)
			}
		}
	}
}

// Guarantees that attributes that are not secret are written as slog writes them.
func TestNothingElseIsRedacted(t *testing.T) {
	write := func(l *slog.Logger) {
		l.Info("the store did not decide", "error", fmt.Errorf("spend 1: %w", errors.New("timeout")), "store", "redis",
			"failures", 3,
			"tenant", "acme", "key_id", "k1", "n", json.RawMessage(`{"b":12345678901234567890,"a":1.50}`), "nil", nil,
			"struct", struct{ B, A int }{1, 2}, "list", []string{"<x>"}, "ip_limits", 2, "outcome", "ip_limited")
	}
	drop := func(s string) string { _, rest, _ := strings.Cut(s, `"level"`); return rest }
	var plain bytes.Buffer
	write(slog.New(slog.NewJSONHandler(&plain, nil)))
	log, out := newLogger(nil)
	write(log)
	if drop(out.String()) != drop(plain.String()) || drop(out.String()) == "" {
		t.Errorf("logged\n%swant\n%s", out, plain.String())
	}
	var numbers bytes.Buffer
	slog.New(telemetry.NewHandler(&numbers, nil)).Info("m", "v", writesItself{})
	if !strings.Contains(numbers.String(), `"n":12345678901234567890`) {
		t.Errorf("a number beside a secret is changed: %s", numbers.String())
	}
}
