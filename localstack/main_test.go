package localstack_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/localstack/stand"
)

const (
	patience = 90 * time.Second // for what must come, on a machine that does much else
	pace     = 200 * time.Millisecond
)

// deployment is the one that all tests of a run share.
var deployment struct {
	once  sync.Once
	stand *stand.Stand
	err   error
}

func TestMain(m *testing.M) {
	if os.Getenv(loadClient) != "" {
		os.Exit(beClient())
	}
	code := m.Run()
	if deployment.stand != nil {
		deployment.stand.Close()
	}
	os.Exit(code)
}

// open is the deployed stand, with its cells joined. Without a LocalStack the test is skipped, or fails where
// REQUIRE_LOCALSTACK is set.
func open(t *testing.T) *stand.Stand {
	t.Helper()
	endpoint := os.Getenv("SLUICE_LOCALSTACK")
	if endpoint == "" {
		const message = "no LocalStack: make integration brings one up (or SLUICE_LOCALSTACK=ENDPOINT, and " +
			"SLUICE_LOCALSTACK_REDIS)"
		if os.Getenv("REQUIRE_LOCALSTACK") != "" {
			t.Fatal(message)
		}
		t.Skip(message)
	}
	deployment.once.Do(func() {
		ctx := context.Background() // not of the test that comes first
		deployment.stand, deployment.err = stand.Open(ctx, stand.Options{
			Endpoint: endpoint, Redis: os.Getenv("SLUICE_LOCALSTACK_REDIS"), Root: "..", Log: os.Stderr,
		})
		if deployment.err == nil {
			deployment.err = settle(ctx, deployment.stand)
		}
	})
	if deployment.err != nil {
		t.Fatal(deployment.err)
	}
	return deployment.stand
}

// settle deploys, and has each cell join.
func settle(ctx context.Context, s *stand.Stand) error {
	began := time.Now()
	deploy := s.Deploy
	if os.Getenv("SLUICE_LOCALSTACK_DEPLOYED") != "" { // for whoever works on these tests
		deploy = s.Attach
	}
	if err := deploy(ctx); err != nil {
		return err
	}
	if err := s.Join(ctx); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "deployed: %.0f s\n", time.Since(began).Seconds())
	return nil
}

// apply applies a plans file.
func apply(t *testing.T, s *stand.Stand, plans string) {
	t.Helper()
	if err := s.Apply(t.Context(), plans); err != nil {
		t.Fatal(err)
	}
}

// key makes an API key of a tenant.
func key(t *testing.T, s *stand.Stand, tenant string) string {
	t.Helper()
	made, err := s.Key(t.Context(), tenant)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// sluice runs the operator's command.
func sluice(t *testing.T, s *stand.Stand, args ...string) string {
	t.Helper()
	out, err := s.Sluice(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// call is one request.
func call(t *testing.T, s *stand.Stand, cell, request, key string) *stand.Answer {
	t.Helper()
	a, err := s.Call(t.Context(), cell, request, key)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// within waits until something is so.
func within(t *testing.T, is func(context.Context) error) {
	t.Helper()
	if err := stand.Until(t.Context(), patience, pace, is); err != nil {
		t.Fatal(err)
	}
}

// known waits until a cell's API knows a key and what it stands for: keys and tenants come to it as changes do.
func known(t *testing.T, s *stand.Stand, cell, key string) {
	t.Helper()
	within(t, func(ctx context.Context) error {
		a, err := s.Call(ctx, cell, "GET /orders", key)
		if err == nil && a.Status != 200 {
			err = errors.New("GET /orders: " + fmt.Sprint(a.Status) + " " + strings.TrimSpace(a.Body))
		}
		return err
	})
}

// period is one of windows whose present one began a moment ago, and goes on for half an hour at least: a test's own,
// with the shares of now, as what grows in a change of shares counts from the next window on. The moment is longer than
// the difference of clocks that shares reckon with, before which the shares of the window before count.
func period() time.Duration {
	const least, most, moment = 1800, 7200, 10 // seconds
	began := time.Now().Unix() - moment
	best := int64(least)
	for p := best; p <= most; p++ {
		if began%p < began%best {
			best = p
		}
	}
	return time.Duration(best) * time.Second
}

// figure prints one of the figures that make figures reads: name, value, unit and goal.
func figure(name, format string, value float64) {
	fmt.Fprintf(os.Stdout, "figure %s "+format+"\n", name, value)
}
