package dynamodb_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
)

// childEnv is the environment variable that makes the test binary a process that charges a counter. Its value is the
// namespace.
const childEnv = "SLUICE_TEST_CHILD"

const (
	processes   = 4
	perProcess  = 300 // decisions per process
	processesIn = 8   // goroutines per process
)

// shared returns the limits that the processes charge in one decision. The tightest has 500 units.
func shared() ([]limit.Charge, error) {
	var charges []limit.Charge
	for _, l := range []limit.Limit{
		{ID: "window", Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: 500, Period: time.Hour}}},
		{ID: "bucket", Tiers: []limit.Tier{{Algorithm: limit.TokenBucket, Threshold: 1, Burst: 600,
			Period: time.Hour}}},
		{ID: "month", Tiers: []limit.Tier{{Algorithm: limit.Quota, Threshold: 1000,
			Calendar: &limit.Calendar{Every: limit.Month, Location: time.UTC}}}},
		{ID: "buckets", Tiers: []limit.Tier{{Algorithm: limit.SlidingBuckets, Threshold: 550, Period: time.Hour}}},
		{ID: "sliding", Tiers: []limit.Tier{{Algorithm: limit.SlidingWindow, Threshold: 560, Period: time.Hour}}},
	} {
		built, err := limit.New(l)
		if err != nil {
			return nil, err
		}
		charges = append(charges, limit.Charge{Limit: built, Cost: 1})
	}
	return charges, nil
}

// child prints how many decisions of this process were admitted.
func child() int {
	charges, err := shared()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	s, err := dynamodb.New(dynamodb.Config{
		Client: connect(nil, os.Getenv("SLUICE_DYNAMODB")), Table: table, CallerClock: true, Timeout: time.Minute,
		Namespace: os.Getenv(childEnv),
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	admitted := 0
	for range processesIn {
		wg.Go(func() {
			for range perProcess / processesIn {
				var d limit.Decision
				err := s.Decide(context.Background(), &limit.Request{Owner: acme, Charges: charges}, noon, &d)
				mu.Lock()
				switch {
				case err != nil && !errors.Is(err, dynamodb.ErrUndecided):
					fmt.Fprintln(os.Stderr, err)
				case err == nil && d.Allowed:
					admitted++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	fmt.Fprintln(os.Stdout, admitted)
	return 0
}

// Guarantees that four operating system processes, which share nothing but the table, together admit exactly what a
// limit allows.
func TestProcesses(t *testing.T) {
	client := server(t)
	c := config(client)
	total := 0
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range processes {
		wg.Go(func() {
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), childEnv+"="+c.Namespace, "SLUICE_DYNAMODB="+dynamodbtest.Need(t))
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			n, convErr := strconv.Atoi(string(bytes.TrimSpace(out)))
			if err != nil || convErr != nil || stderr.Len() > 0 {
				t.Errorf("a process ended with %v, printed %q, and on its standard error %q", err, out, stderr.String())
			}
			mu.Lock()
			defer mu.Unlock()
			total += n
		})
	}
	wg.Wait()
	if total != 500 {
		t.Errorf("%d processes admitted %d, want 500: the tightest limit's units", processes, total)
	}
	charges, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	var d limit.Decision
	if err := open(t, c).Peek(t.Context(), &limit.Request{Owner: acme, Charges: charges}, noon, &d); err != nil {
		t.Fatal(err)
	}
	for i, want := range []int64{0, 100, 500, 50, 60} {
		if got := d.Results[i].Remaining(); got != want {
			t.Errorf("limit %s: %d remain, want %d", d.Results[i].Limit().ID, got, want)
		}
	}
}
