package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// addressPlans limit an address before authentication to 4 requests, and each address of a tenant to 3.
const addressPlans = `
plans:
  - { id: pro, limits: [ { id: each-ip, per: ip, tiers: [ { period: 24h, threshold: 3 } ] } ] }
tenants: [ { id: acme, plan: pro }, { id: globex, plan: pro }, { id: umbrella, plan: pro } ]
ipLimits: [ { id: per-address, tiers: [ { period: 24h, threshold: 4 } ] } ]
`

const addressMapping = "domain: api\n" +
	"sluice: {mapping: {tenant: tenant, method: method, path: path, address: remote_address}}\n"

// written writes a file into a folder of the test and returns its name.
func written(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Guarantees that processes which share a store have one counter for each address, also after a restart: whoever the
// processes are (sluice serve or sluice dev), whatever the store, with leases and without, and whether the store keeps
// the key that names addresses or a flag gives it.
func TestProcessesShareAddresses(t *testing.T) {
	redis := func(t *testing.T) []string {
		return []string{"--redis", redistest.Start(t).Addr, "--redis-deadline", "10s"}
	}
	dynamo := func(t *testing.T) []string {
		return []string{"--dynamodb", dynamodbtest.Need(t), "--dynamodb-table", tableName(t),
			"--dynamodb-deadline", "10s"}
	}
	key := func(t *testing.T) []string {
		return append(redis(t), "--address-key", written(t, "key", strings.Repeat("k", 32)+"\n"))
	}
	for _, c := range []struct {
		name, command string
		store         func(*testing.T) []string
		leases        bool
	}{
		{"serve, Redis", "serve", redis, false},
		{"serve, Redis, leases", "serve", redis, true},
		{"serve, DynamoDB", "serve", dynamo, false},
		{"serve, Redis and DynamoDB", "serve", func(t *testing.T) []string {
			return append(redis(t), dynamo(t)...)
		}, false},
		{"serve, a given key", "serve", key, false},
		{"dev, Redis", "dev", redis, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			flags := append(c.store(t), "--plans", written(t, "plans.yaml", addressPlans),
				fmt.Sprintf("--leases=%t", c.leases), "--max-instances", "3")
			start := func() *devProcess { return startProcess(t, append(flags, "--trusted-hops", "1")...) }
			ask := askDev
			if c.command == "serve" {
				flags = append(flags, "--config", written(t, "map.yaml", addressMapping))
				start = func() *devProcess {
					p := startSluice(t, `server=HTTP address=(\S+)`, append([]string{"serve", "--grpc", "",
						"--http", "127.0.0.1:0", "--debug", ""}, flags...)...)
					untilReady("http://" + p.base)
					return p
				}
				ask = askServe
			}
			three := []*devProcess{start(), start(), start()}
			tenants := []string{"acme", "globex", "umbrella"}
			admitted := func(address string, want int, tenant func(i int) string) {
				t.Helper()
				n, i := 0, 0
				round := func() {
					for _, p := range three {
						for range 2 {
							// The last number of an IPv6 address changes nothing, because the customer can use the
							// whole network.
							if ask(t, p.base, tenant(i), strings.ReplaceAll(address, "HOST", fmt.Sprint(i+1))) {
								n++
							}
							i++
						}
					}
				}
				round()
				three[0].kill()
				three[0] = start()
				round()
				if n > want || n == 0 || !c.leases && n < want {
					t.Errorf("%s: three processes and one more after a restart admitted %d requests, want %d",
						address, n, want)
				}
			}
			admitted("192.0.2.1", 4, func(i int) string { return tenants[i%3] })
			admitted("2001:db8:1:2::HOST", 4, func(i int) string { return tenants[i%3] })
			if c.command == "serve" { // requests to dev carry no credential
				admitted("192.0.2.2", 3, func(int) string { return "acme" })
			}
		})
	}
}

// askServe asks a sluice serve whether a request of a tenant from an address may pass.
func askServe(t *testing.T, base, tenant, address string) bool {
	t.Helper()
	body := `{"domain": "api", "descriptors": [{"entries": [`
	for _, entry := range [][2]string{{"tenant", tenant}, {"method", "GET"}, {"path", "/x"},
		{"remote_address", address}} {
		body += fmt.Sprintf(`{"key": %q, "value": %q},`, entry[0], entry[1])
	}
	body = strings.TrimSuffix(body, ",") + "]}]}"
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+base+"/json",
		strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	return passes(t, req)
}

// askDev calls a sluice dev from an address, without a credential, and reports whether the limits of addresses let the
// call pass.
func askDev(t *testing.T, base, _, address string) bool {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/x", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Forwarded-For", address)
	return passes(t, req)
}

func passes(t *testing.T, req *http.Request) bool {
	t.Helper()
	code, _, body, err := send(req)
	if err != nil || code != http.StatusOK && code != http.StatusUnauthorized && code != http.StatusTooManyRequests {
		t.Fatalf("status %d, error %v: %s", code, err, body)
	}
	return code != http.StatusTooManyRequests
}
