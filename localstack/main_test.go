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
	patience = 90 * time.Second // for what must happen, on a machine that is busy
	pace     = 200 * time.Millisecond
)

// deployment is the deployment that all tests of a run share.
var deployment struct {
	once  sync.Once
	stand *stand.Stand
	err   error
}

func TestMain(m *testing.M) {
	if os.Getenv(loadClient) != "" {
		os.Exit(runClient())
	}
	code := m.Run()
	if deployment.stand != nil {
		deployment.stand.Close()
	}
	os.Exit(code)
}

// options returns the options of a stand on the running LocalStack. Without one the test is skipped, or fails if
// REQUIRE_LOCALSTACK is set.
func options(t *testing.T) stand.Options {
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
	return stand.Options{Endpoint: endpoint, Redis: os.Getenv("SLUICE_LOCALSTACK_REDIS"), Root: "..", Log: os.Stderr}
}

// open returns the deployed stand, whose cells have joined.
func open(t *testing.T) *stand.Stand {
	t.Helper()
	o := options(t)
	deployment.once.Do(func() {
		ctx := context.Background() // not the context of the first test
		deployment.stand, deployment.err = stand.Open(ctx, o)
		if deployment.err == nil {
			deployment.err = deployAndJoin(ctx, deployment.stand)
		}
	})
	if deployment.err != nil {
		t.Fatal(deployment.err)
	}
	return deployment.stand
}

// deployAndJoin deploys the control plane and the cells, and waits until each cell has joined.
func deployAndJoin(ctx context.Context, s *stand.Stand) error {
	began := time.Now()
	deploy := s.Deploy
	if os.Getenv("SLUICE_LOCALSTACK_DEPLOYED") != "" { // for developers of these tests
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

// call sends one request.
func call(t *testing.T, s *stand.Stand, cell, request, key string) *stand.Answer {
	t.Helper()
	a, err := s.Call(t.Context(), cell, request, key)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// waitFor repeats a check until it succeeds, or fails the test after patience.
func waitFor(t *testing.T, is func(context.Context) error) {
	t.Helper()
	if err := stand.Until(t.Context(), patience, pace, is); err != nil {
		t.Fatal(err)
	}
}

// waitUntilKeyIsKnown waits until the API of a cell knows a key and its tenant, which reach the cell as changes do.
func waitUntilKeyIsKnown(t *testing.T, s *stand.Stand, cell, key string) {
	t.Helper()
	waitFor(t, func(ctx context.Context) error {
		a, err := s.Call(ctx, cell, "GET /orders", key)
		if err == nil && a.Status != 200 {
			err = errors.New("GET /orders: " + fmt.Sprint(a.Status) + " " + strings.TrimSpace(a.Body))
		}
		return err
	})
}

// period returns the length of windows whose present one began at least ten seconds ago and lasts for at least half an
// hour more. So a test has a window for itself, with the present shares, since a share that grows counts from the next
// window on. The ten seconds are more than the difference of clocks that the division into shares allows for.
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
