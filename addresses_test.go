package sluice_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicelimits/sluice"
	"github.com/sluicelimits/sluice/dynamodbstore"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
	"github.com/sluicelimits/sluice/redisstore"
)

// childEnv is the environment variable that makes the test binary a process that asks for two addresses, or, for
// TestPlacesOfProcesses, serves calls. Its value is
// "redis ADDRESS", "dynamodb URL NAMESPACE" or "places ADDRESS NAME".
const childEnv = "SLUICE_TEST_CHILD"

const addressTable = "sluice-library" // shared by all tests; each has a namespace of its own

// addressPlans limit an address before authentication to 4 requests, and each address of a tenant to 3.
const addressPlans = "plans: [ { id: p, limits: [ { id: each, per: ip, tiers: [ { period: 24h, threshold: 3 } ] } ] " +
	"} ]\ntenants: [ { id: acme, plan: p }, { id: globex, plan: p }, { id: umbrella, plan: p } ]\n" +
	"ipLimits: [ { id: all, tiers: [ { period: 24h, threshold: 4 } ] } ]\n"

// child prints how many requests of each of two addresses were admitted: of one that asks for three tenants, and of one
// that asks for acme alone.
func child(args string) int {
	if rest, ok := strings.CutPrefix(args, "places "); ok {
		if err := serveCalls(strings.Fields(rest)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
	first, second, err := askAddresses(strings.Fields(args))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintln(os.Stdout, first, second)
	return 0
}

func askAddresses(args []string) (first, second int, err error) {
	ctx := context.Background()
	var store sluice.Store
	if args[0] == "redis" {
		s, err := redisstore.New(ctx, redisstore.Config{Addrs: args[1:], Deadline: patient})
		if err != nil {
			return 0, 0, err
		}
		defer func() { _ = s.Close() }()
		store = s
	} else {
		client, done := dynamodbtest.Connect(args[1])
		defer done()
		if store, err = dynamodbstore.New(dynamodbstore.Config{Client: client, Table: addressTable, Namespace: args[2],
			Timeout: patient, IPLimits: true}); err != nil {
			return 0, 0, err
		}
	}
	l, err := sluice.New(sluice.Config{PlansData: []byte(addressPlans), Store: store, NoLeases: true, MaxInstances: 3})
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = l.Close(ctx) }()
	ask := func(tenant, address string) (admitted int) {
		d := l.Decide(ctx, sluice.Identity{Tenant: tenant}, sluice.Request{Peer: address})
		if d.StoreFailed || !d.Allowed && d.Reason != sluice.Limited && d.Reason != sluice.AddressLimited {
			err = fmt.Errorf("%s of %s: %+v", address, tenant, d)
		}
		if d.Allowed {
			admitted = 1
		}
		return admitted
	}
	for _, tenant := range []string{"acme", "globex", "umbrella"} {
		first += ask(tenant, "192.0.2.1:4711")
		second += ask("acme", "[2001:db8:1:2::"+strconv.Itoa(len(tenant))+"]:4711") // one network, so one address
	}
	return first, second, err
}

// Guarantees that processes which share a store have one counter for each address, though three of them start at the
// same moment, when the store has no key yet that names addresses, and a fourth one starts later.
func TestProcessesShareAddresses(t *testing.T) {
	for name, store := range map[string]func(t *testing.T) string{
		"Redis": func(t *testing.T) string {
			server := redistest.Start(t)
			t.Cleanup(func() { refuseAddresses(t, server) })
			return "redis " + server.Addr
		},
		"DynamoDB": func(t *testing.T) string {
			url := dynamodbtest.Need(t)
			client, done := dynamodbtest.Connect(url)
			defer done()
			if err := dynamodbstore.Create(t.Context(), client, addressTable); err != nil {
				t.Fatal(err)
			}
			return fmt.Sprintf("dynamodb %s addresses-%d", url, time.Now().UnixNano())
		},
	} {
		t.Run(name, func(t *testing.T) {
			args := store(t)
			var mu sync.Mutex
			var first, second int
			start := func() {
				cmd := exec.CommandContext(t.Context(), os.Args[0])
				var log bytes.Buffer
				cmd.Env, cmd.Stderr = append(os.Environ(), childEnv+"="+args), &log
				out, err := cmd.Output()
				mu.Lock()
				defer mu.Unlock()
				refuseAddress(t, "the log", log.String())
				var a, b int
				if _, bad := fmt.Sscan(string(out), &a, &b); err != nil || bad != nil {
					t.Errorf("a process ended with %v and printed %q", err, out)
				}
				first, second = first+a, second+b
			}
			var three sync.WaitGroup
			for range 3 {
				three.Go(start)
			}
			three.Wait()
			start()
			if first != 4 || second != 3 {
				t.Errorf("four processes admitted %d and %d requests of two addresses, want 4 and 3", first, second)
			}
		})
	}
}

// refuseAddresses fails if a Redis has one of the addresses that were sent.
func refuseAddresses(t *testing.T, server *redistest.Server) {
	t.Helper()
	client := server.Client(t)
	keys := client.Keys(context.Background(), "*").Val()
	if len(keys) < 4 { // of two addresses, a tenant, and the key that names addresses
		t.Errorf("Redis has the keys %q only", keys)
	}
	for _, key := range keys {
		refuseAddress(t, "Redis", key)
		refuseAddress(t, key, client.Get(context.Background(), key).Val())
	}
}

func refuseAddress(t *testing.T, where, text string) {
	t.Helper()
	for _, address := range []string{"192.0.2.1", "2001:db8", "4711"} {
		if strings.Contains(text, address) {
			t.Errorf("%s has the address %s: %q", where, address, text)
		}
	}
}
