package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// sentAddresses are the addresses from which the run below sends requests, as texts that could appear somewhere.
var sentAddresses = []string{"198.51.100.77", "2001:db8:77:88:"}

// Guarantees what the table of personal data in docs/threat-model.md says of sluice serve and sluice dev: after a run
// with descriptors, plans, good and bad credentials, refunds and denials, neither Redis, DynamoDB, the log at its most
// detailed level nor the metrics contain an address or a credential that was sent. Statistics contain an address only
// if a rule asks for it by detailed_metric.
func TestStoresHoldNoAddress(t *testing.T) {
	key := identity.ExampleKey("acme")
	plans := written(t, "plans.yaml", addressPlans+"keys: [ { id: k1, tenant: acme, pepper: dev, hash: "+
		identity.HashKey(identity.DevPepper(), key)+" } ]\n")
	redis := redistest.Start(t)
	endpoint, table := dynamodbtest.Need(t), tableName(t)
	limits := written(t, "limits.yaml", `
domain: envoy
descriptors:
  - {key: remote_address, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: masked_remote_address, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: tenant, rate_limit: {unit: hour, requests_per_unit: 3}, descriptors: [
      {key: remote_address, rate_limit: {unit: hour, requests_per_unit: 3}}]}
`)
	for _, store := range [][]string{
		{"--redis", redis.Addr, "--redis-deadline", "10s"},
		{"--dynamodb", endpoint, "--dynamodb-table", table, "--dynamodb-deadline", "10s"},
		{},
	} {
		serving := startServe(t, append(store, "--config", limits, "--config", written(t, "map.yaml", addressMapping),
			"--plans", plans, "--log-level", "debug")...)
		for _, address := range []string{sentAddresses[0], sentAddresses[1] + ":9"} {
			masked := "198.51.100.77/32"
			if strings.Contains(address, ":") {
				masked = sentAddresses[1] + ":9/128"
			}
			for _, entries := range [][][2]string{
				{{"remote_address", address}}, {{"masked_remote_address", masked}},
				{{"tenant", "acme"}, {"remote_address", address}},
			} {
				for range 5 {
					post(t, serving.http+"/json", "envoy", entries)
				}
			}
			for range 5 {
				post(t, serving.http+"/json", "api", [][2]string{{"tenant", "acme"}, {"method", "GET"},
					{"path", "/client"}, {"remote_address", address}})
			}
		}
		for _, page := range []string{"/metrics", "/stats", "/rlconfig"} {
			_, _, text := get(t, serving.debug+page, "")
			refuseSent(t, "serve's "+page, text, key)
		}
		serving.stop()
		if err := <-serving.done; err != nil {
			t.Errorf("serve ended with %v", err)
		}
		refuseSent(t, "serve's log", serving.stderr.String(), key)

		dev := startDev(t, append(store, "--plans", plans, "--trusted-hops", "1", "--log-level", "debug")...)
		for _, credential := range []string{key, "", "slk_" + strings.Repeat("x", 49)} {
			for _, address := range []string{sentAddresses[0], sentAddresses[1] + ":9"} {
				for range 4 {
					req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, dev.base+"/client", nil)
					if err != nil {
						t.Fatal(err)
					}
					req.Header.Set("X-Forwarded-For", address)
					if credential != "" {
						req.Header.Set("X-Api-Key", credential)
					}
					if code, _, body, err := send(req); err != nil || code >= 500 {
						t.Fatalf("status %d, %v: %s", code, err, body)
					}
				}
			}
		}
		_, _, text := get(t, dev.base+"/_sluice/metrics", "")
		refuseSent(t, "dev's /_sluice/metrics", text, key)
	}
	all := dumpRedis(t, redis)
	refuseSent(t, "Redis", all, key)
	items := dumpDynamoDB(t, endpoint, table)
	refuseSent(t, "DynamoDB", items, key)
	for name, text := range map[string]string{"Redis": all, "DynamoDB": items} {
		// the run did reach the stores: the kinds of its owners are there (a descriptor's name is a hash with an
		// address as its kind), and the key that names addresses
		for _, want := range []string{"acme", "a23:#", "addresskey"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s has nothing of %q: %.2000q", name, want, text)
			}
		}
	}
}

// refuseSent fails if the text has an address or a credential that was sent.
func refuseSent(t *testing.T, where, text, key string) {
	t.Helper()
	for _, secret := range append(slices.Clone(sentAddresses), key, strings.Repeat("x", 49), "4d:77", "198.51.100") {
		if i := strings.Index(text, secret); i >= 0 {
			t.Errorf("%s has %q: %q", where, secret, text[max(0, i-100):min(len(text), i+100)])
		}
	}
}

func post(t *testing.T, url, domain string, entries [][2]string) {
	t.Helper()
	var list []string
	for _, e := range entries {
		list = append(list, fmt.Sprintf(`{"key": %q, "value": %q}`, e[0], e[1]))
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(fmt.Sprintf(
		`{"domain": %q, "descriptors": [{"entries": [%s]}]}`, domain, strings.Join(list, ", "))))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	passes(t, req)
}

// dumpRedis returns all keys of a server, and what they hold.
func dumpRedis(t *testing.T, s *redistest.Server) string {
	t.Helper()
	client, ctx := s.Client(t), t.Context()
	var b strings.Builder
	for _, key := range client.Keys(ctx, "*").Val() {
		b.WriteString(key + "\n")
		switch client.Type(ctx, key).Val() {
		case "string":
			b.WriteString(client.Get(ctx, key).Val())
		case "zset":
			b.WriteString(strings.Join(client.ZRange(ctx, key, 0, -1).Val(), "\n"))
		default:
			t.Errorf("%s is a %s, which this test cannot read", key, client.Type(ctx, key).Val())
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// dumpDynamoDB returns all items of a table as text.
func dumpDynamoDB(t *testing.T, endpoint, table string) string {
	t.Helper()
	client, done := dynamodbtest.Connect(endpoint)
	defer done()
	var b strings.Builder
	var from map[string]types.AttributeValue
	for {
		page, err := client.Scan(t.Context(), &dynamodb.ScanInput{TableName: &table, ExclusiveStartKey: from})
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range page.Items {
			dumpItem(&b, item)
		}
		if from = page.LastEvaluatedKey; from == nil {
			return b.String()
		}
	}
}

func dumpItem(b *strings.Builder, item map[string]types.AttributeValue) {
	for name, value := range item {
		b.WriteString(name + " ")
		switch v := value.(type) {
		case *types.AttributeValueMemberB:
			b.Write(v.Value)
		case *types.AttributeValueMemberM:
			dumpItem(b, v.Value)
		default:
			fmt.Fprintf(b, "%v", v)
		}
		b.WriteByte('\n')
	}
}

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

func passes(t *testing.T, req *http.Request) bool {
	t.Helper()
	code, _, body, err := send(req)
	if err != nil || code != http.StatusOK && code != http.StatusUnauthorized && code != http.StatusTooManyRequests {
		t.Fatalf("status %d, error %v: %s", code, err, body)
	}
	return code != http.StatusTooManyRequests
}
