package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	goredis "github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// Guarantees that instances which have never reached their Redis are not healthy and decide nothing, so that together
// they admit no more than the limit; and that they become ready when it answers. With --start-without-store, each
// admits its part meanwhile.
func TestServeNotReadyWithoutItsRedis(t *testing.T) {
	redis := redistest.Start(t)
	redis.Kill()
	flags := []string{"--config", limitsFile(t, 5), "--redis", redis.Addr, "--redis-deadline", "5s"}
	var instances []*serving
	for range 3 {
		instances = append(instances, startServe(t, flags...))
	}
	request := &rlsv3.RateLimitRequest{Domain: "api", Descriptors: []*ratelimitv3.RateLimitDescriptor{
		{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "tenant", Value: "acme"}}}}}
	for i, s := range instances {
		if _, err := s.client.ShouldRateLimit(t.Context(), request, grpc.WaitForReady(true)); status.Code(err) !=
			codes.Unavailable || !strings.Contains(err.Error(), "has not answered since it started") {
			t.Errorf("instance %d decides before Redis has answered: %v", i, err)
		}
		health, err := healthv1.NewHealthClient(s.conn).Check(t.Context(),
			&healthv1.HealthCheckRequest{Service: "ratelimit"})
		if err != nil || health.GetStatus() != healthv1.HealthCheckResponse_NOT_SERVING {
			t.Errorf("health of instance %d over gRPC: %v, %v", i, health.GetStatus(), err)
		}
		if code, _, text := get(t, s.http+"/healthcheck", ""); code != http.StatusInternalServerError ||
			!strings.Contains(text, "has not answered") {
			t.Errorf("health of instance %d over HTTP: status %d, %s", i, code, text)
		}
		resp, err := http.Post(s.http+"/json", "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		if _ = resp.Body.Close(); resp.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("/json of instance %d: status %d", i, resp.StatusCode)
		}
	}
	part := startServe(t, append(flags, "--start-without-store", "--max-instances", "5", "--redis-deadline", "50ms")...)
	if first, second := part.ask(t, "tenant", "acme"), part.ask(t, "tenant", "acme"); first != 1 || second != 2 {
		t.Errorf("with --start-without-store, a fifth of 5: %s, %s, want OK, OVER_LIMIT", first, second)
	}
	part.stop()
	if err := redis.Start(); err != nil {
		t.Fatal(err)
	}
	admitted := 0
	for _, s := range instances {
		s.waitFor(t, "every store has answered")
		waitWithin(t, "the instance is healthy", func() error {
			if code, _, text := get(t, s.http+"/healthcheck", ""); code != http.StatusOK || text != "OK" {
				return fmt.Errorf("status %d, %s", code, text)
			}
			return nil
		})
		for range 5 {
			if s.ask(t, "tenant", "acme") == rlsv3.RateLimitResponse_OK {
				admitted++
			}
		}
	}
	if admitted > 5 || admitted == 0 {
		t.Errorf("three instances admitted %d of 5", admitted)
	}
}

// Guarantees that the command ends, names the flag and says what is wrong, if Redis answers that it does not serve this
// client, and that no text shows the password.
func TestServeRefusedByRedis(t *testing.T) {
	secured, authority := securedRedis(t)
	open := redistest.Start(t)
	closed := redistest.Start(t)
	admin := closed.Client(t)
	for _, args := range [][]any{
		{"ACL", "SETUSER", "reader", "on", ">hunter2", "~*", "+get", "+role"},
		{"CONFIG", "SET", "requirepass", "secret"}, // new connections need it
	} {
		if err := admin.Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	strict := redistest.Start(t, "--tls-port", fmt.Sprint(redistest.FreePort(t)), "--tls-cert-file", authority,
		"--tls-key-file", filepath.Join(filepath.Dir(authority), "key.pem"), "--tls-ca-cert-file", authority,
		"--tls-auth-clients", "yes")
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("hunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cluster := redistest.Addrs(redistest.StartCluster(t))
	for name, c := range map[string]struct{ flags, want string }{
		"a wrong password":         {"--redis " + closed.Addr + " --redis-password-file " + password, "WRONGPASS"},
		"a wrong password, by URL": {"--redis redis://default:hunter2@" + closed.Addr + "/0", "WRONGPASS"},
		"an unknown user":          {"--redis redis://ann:hunter2@" + closed.Addr, "WRONGPASS"},
		"no password":              {"--redis " + closed.Addr, "NOAUTH"},
		"a user without rights":    {"--redis redis://reader:hunter2@" + closed.Addr, "NOPERM"},
		"no such database":         {"--redis redis://" + open.Addr + "/99", "DB index is out of range"},
		"another authority":        {"--redis rediss://sluice:hunter2@" + secured.TLS, "certificate"},
		"no client certificate": {"--redis " + strict.TLS + " --redis-tls --redis-ca " + authority,
			"certificate of the client"},
		"a cluster":  {"--redis " + cluster[0], "add --redis-cluster"},
		"no cluster": {"--redis " + open.Addr + " --redis-cluster", "cluster support disabled"},
	} {
		t.Run(name, func(t *testing.T) {
			flags := append([]string{"serve", "--config", limitsFile(t, 5), "--grpc", "127.0.0.1:0", "--http=",
				"--debug=", "--redis-deadline", "5s"}, strings.Fields(c.flags)...)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			got := sluiceUntil(ctx, "", flags...)
			if got.code != exitFailed || !strings.Contains(got.stderr, "--redis") ||
				!strings.Contains(got.stderr, c.want) {
				t.Errorf("exit %d, %s\nwant the flag and %q", got.code, got.stderr, c.want)
			}
			if strings.Contains(got.stderr, "hunter2") {
				t.Errorf("the password is shown: %s", got.stderr)
			}
		})
	}
}

// Guarantees that --redis takes the URLs that every tool takes: a user, a password and a database, and TLS.
func TestServeRedisURL(t *testing.T) {
	plain := redistest.Start(t)
	admin := plain.Client(t)
	if err := admin.Do(t.Context(), "ACL", "SETUSER", "ann", "on", ">p@ss,w/rd", "~{rl:*", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	secured, authority := securedRedis(t)
	for name, flags := range map[string][]string{
		"plain": {"--redis", "redis://ann:p%40ss,w%2Frd@" + plain.Addr + "/3"},
		"TLS":   {"--redis", "rediss://sluice:secret@" + secured.TLS, "--redis-ca", authority},
	} {
		s := startServe(t, append(flags, "--config", limitsFile(t, 1), "--redis-deadline", "5s", "--leases=false")...)
		for i, want := range []rlsv3.RateLimitResponse_Code{1, 2} {
			if got := s.ask(t, "tenant", "acme"); got != want {
				t.Errorf("%s: request %d: %s, want %s", name, i, got, want)
			}
		}
		if log := s.stderr.String(); strings.Contains(log, "did not decide") || strings.Contains(log, "p@ss") ||
			strings.Contains(log, "secret") {
			t.Errorf("%s: the store was not used, or the log shows the password:\n%s", name, log)
		}
	}
	third := goredis.NewClient(&goredis.Options{Addr: plain.Addr, DB: 3})
	defer func() { _ = third.Close() }()
	if n, err := third.DBSize(t.Context()).Result(); err != nil || n == 0 {
		t.Errorf("database 3 has %d keys, %v", n, err)
	}
	for _, bad := range []string{"redis://h:1?dial_timeout=1s", "redis://ann:hunter2@h:x", "unix:///tmp/hunter2",
		"http://h:1", "redis://ann:hunter2@h:1/x"} {
		got := sluice(t, "", "serve", "--config", "x", "--redis", bad)
		if got.code != exitUsage || !strings.Contains(got.stderr, "--redis") ||
			strings.Contains(got.stderr, "hunter2") {
			t.Errorf("%s: exit %d, %s", bad, got.code, got.stderr)
		}
	}
}
