package cell

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/cell/secrets"
	"github.com/sluicelimits/sluice/internal/configfile/configfiletest"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	memstore "github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/testkit/secretstest"
)

// env returns the environment of a Lambda function, changed by pairs of names and values.
func env(changes ...string) func(string) string {
	m := map[string]string{"AWS_REGION": "eu-west-1", "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key",
		"AWS_SESSION_TOKEN": "token"}
	for i := 0; i < len(changes); i += 2 {
		m[changes[i]] = changes[i+1]
	}
	return func(name string) string { return m[name] }
}

// Guarantees that the first request waits for the work that began with the function, no longer than its bound, and
// that later requests do not wait.
func TestWarming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waits := func(w *warming, ctx context.Context) time.Duration {
			began := time.Now()
			w.wait(ctx)
			return time.Since(began)
		}
		soon := begin(time.Second, func() { <-time.After(300 * time.Millisecond) })
		if got := waits(soon, t.Context()); got != 300*time.Millisecond {
			t.Errorf("the first request waited %s for work that took 300ms, want 300ms", got)
		}
		never := begin(time.Second, func() { <-t.Context().Done() })
		if first, second := waits(never, t.Context()), waits(never, t.Context()); first != time.Second || second != 0 {
			t.Errorf("two requests waited %s and %s for work that does not end, want 1s and 0s", first, second)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if got := waits(begin(time.Second, func() { <-t.Context().Done() }), ctx); got != 100*time.Millisecond {
			t.Errorf("a request with a context of 100ms waited %s, want 100ms", got)
		}
	})
}

const (
	one = "pepper-number-one"
	two = "pepper-number-two"
)

// secret returns a cache of a secret with these peppers, by id and value as pairs, and a function that changes the
// secret.
func secret(t *testing.T, cooldown time.Duration, peppers ...string) (*secrets.Cache, func(peppers ...string)) {
	t.Helper()
	m := &secretstest.Manager{}
	url, stop, err := m.Listen()
	if err != nil {
		t.Fatal(err)
	}
	set := func(peppers ...string) {
		var all []string
		for i := 0; i < len(peppers); i += 2 {
			all = append(all, fmt.Sprintf("%q:%q", peppers[i], base64.StdEncoding.EncodeToString([]byte(peppers[i+1]))))
		}
		m.Set("s", `{"peppers":{`+strings.Join(all, ",")+`}}`)
	}
	set(peppers...)
	a, err := newAWSClients(env("AWS_ENDPOINT_URL", url))
	if err != nil {
		t.Fatal(err)
	}
	c, err := secrets.New(secrets.Config{Client: a.secretsManager(), ID: "s", Cooldown: cooldown,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		_ = stop()
	})
	return c, set
}

// keeps is a store that is only asked what it can keep. It has two errors to answer with.
type keeps struct {
	limit.Store
	limit, plan error
}

func (k keeps) Accepts(*limit.Limit) error                          { return k.limit }
func (k keeps) AcceptsPlan([]*limit.Limit, ...[]*limit.Limit) error { return k.plan }

var acceptAny = keeps{}

// withKeys returns a plans file with these keys, each in YAML.
func withKeys(t *testing.T, keys ...string) fstest.MapFS {
	t.Helper()
	return fstest.MapFS{"plans.json": {Data: configfiletest.JSON(t, `
plans: [ { id: pro, limits: [ { id: l, tiers: [ { period: 1s, threshold: 5 } ] } ] } ]
tenants: [ { id: acme, plan: pro } ]
keys: [`+strings.Join(keys, ", ")+"]\n")}}
}

func key(id, pepper, value, presented string) string {
	return fmt.Sprintf("{ id: %s, tenant: acme, pepper: %s, hash: %q }", id, pepper, identity.HashKey([]byte(value),
		presented))
}

// Guarantees that a key is found only by its hash under the pepper that it names, and that expired and revoked keys
// are refused.
func TestKeysOfAFile(t *testing.T) {
	cache, _ := secret(t, 0, "p1", one, "p2", two)
	keys := make([]string, 5)
	for i := range keys {
		keys[i] = identity.NewKey()
	}
	late := strings.Replace(key("k3", "p1", one, keys[2]), " }", ", expires: 2030-01-01T00:00:00Z }", 1)
	gone := strings.Replace(key("k4", "p1", one, keys[3]), " }", ", revoked: true }", 1)
	f, err := readFile(withKeys(t, key("k1", "p1", one, keys[0]), key("k2", "p2", two, keys[1]), late, gone,
		key("k5", "p1", two, keys[4])),
		"plans.json", acceptAny, cache, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2029, 12, 31, 23, 59, 59, 0, time.UTC)
	for i, want := range []error{nil, nil, nil, identity.ErrRevokedKey, identity.ErrUnknownKey} {
		k, err := f.Key(t.Context(), keys[i], now)
		if !errors.Is(err, want) || err == nil && k.ID != fmt.Sprint("k", i+1) {
			t.Errorf("k%d: %+v, %v; want %v", i+1, k, err, want)
		}
	}
	if _, err := f.Key(t.Context(), keys[2], now.Add(time.Second)); !errors.Is(err, identity.ErrExpiredKey) {
		t.Errorf("the key k3 after its expiry: %v, want ErrExpiredKey", err)
	}
	if _, err := f.Key(t.Context(), "not a key", now); !errors.Is(err, identity.ErrMalformedKey) {
		t.Errorf("a malformed key: %v, want ErrMalformedKey", err)
	}
}

// Guarantees that a key is accepted as soon as its pepper is in the secret, and that unknown keys cause at most one
// read of the secret per cooldown.
func TestNewPepper(t *testing.T) {
	const cooldown = time.Minute
	cache, set := secret(t, cooldown, "p1", one)
	fresh, unknown := identity.NewKey(), identity.NewKey()
	f, err := readFile(withKeys(t, key("k1", "p1", one, identity.NewKey()), key("k2", "p2", two, fresh)), "plans.json",
		acceptAny, cache, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	source := &renewing{f, cache}
	now := time.Now()
	ask := func(presented string, now time.Time) error {
		c, _ := source.Begin(t.Context(), now)
		_, err := c.Key(t.Context(), presented, now)
		return err
	}
	if err := ask(fresh, now); !errors.Is(err, identity.ErrUnknownKey) {
		t.Fatalf("a key whose pepper is not in the secret: %v, want ErrUnknownKey", err)
	}
	set("p1", one, "p2", two)
	for range 100 {
		if err := ask(unknown, now.Add(cooldown/2)); !errors.Is(err, identity.ErrUnknownKey) {
			t.Fatal(err)
		}
	}
	if n := cache.Stats().Reads; n != 1 {
		t.Errorf("%d reads of the secret in its cooldown, want 1", n)
	}
	if err := ask(fresh, now.Add(2*cooldown)); err != nil {
		t.Errorf("a key whose pepper was added to the secret: %v, want no error", err)
	}
	if n := cache.Stats().Reads; n != 2 {
		t.Errorf("%d reads of the secret, want 2", n)
	}
}

// Guarantees that a secret that cannot be read is not reported as an unknown key, since the client's key may be valid.
func TestKeyWithoutSecret(t *testing.T) {
	cache, _ := secret(t, 0, "p1", one)
	cache.Close()
	f, err := readFile(withKeys(t), "plans.json", acceptAny, cache, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c, _ := (&renewing{f, cache}).Begin(ctx, time.Now())
	if _, err := c.Key(ctx, identity.NewKey(), time.Now()); !errors.Is(err, authorizer.ErrNotLoaded) {
		t.Errorf("%v, want ErrNotLoaded", err)
	}
}

// Guarantees that a file with errors is refused with all errors and their places, and that a valid file is loaded with
// its warnings logged.
func TestFile(t *testing.T) {
	cache, _ := secret(t, 0, "p1", one)
	same := identity.NewKey()
	for _, tt := range []struct {
		name   string
		bundle fstest.MapFS
		store  limit.Store
		want   []string
	}{
		{"no file", fstest.MapFS{}, acceptAny, []string{"plans.json", "not exist"}},
		{"too large", fstest.MapFS{"plans.json": {Data: make([]byte, plan.MaxFileBytes+1)}}, acceptAny,
			[]string{"plans.json"}},
		{"mistakes", fstest.MapFS{"plans.json": {Data: []byte("{\"plan\": 1,\n\"tenant\": 2}")}}, acceptAny,
			[]string{"plans.json:1:2", "plans.json:2:1"}},
		{"YAML", fstest.MapFS{"plans.json": {Data: []byte("plans: []\n")}}, acceptAny,
			[]string{"plans.json", "make lambdas PLANS="}},
		{"YAML in braces", fstest.MapFS{"plans.json": {Data: []byte("{plans: []}\n")}}, acceptAny,
			[]string{"make lambdas PLANS="}},
		{"a limit that the store cannot keep", withKeys(t), keeps{limit: errors.New("limit l cannot be kept")},
			[]string{"plan pro", "limit l cannot be kept"}},
		{"a plan that the store cannot decide", withKeys(t), keeps{plan: errors.New("too many limits")},
			[]string{"plan pro", "too many limits"}},
		{"one key twice", withKeys(t, key("a", "p1", one, same), key("b", "p1", one, same)), acceptAny,
			[]string{"keys[1].hash", `"a"`}},
		{"the dev pepper", withKeys(t, key("a", "dev", one, same)), acceptAny, []string{`"a"`, "which is public"}},
	} {
		_, err := readFile(tt.bundle, "plans.json", tt.store, cache, slog.New(slog.DiscardHandler))
		for _, want := range tt.want {
			if !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("%s: %v, want an error with %q", tt.name, err, want)
			}
		}
	}
	var log bytes.Buffer
	useless := fstest.MapFS{"plans.json": {Data: configfiletest.JSON(t,
		"plans: [ { id: pro, limits: [ { id: l, tiers: [ { period: 1s, threshold: 5 }, { period: 1m, threshold: "+
			"1000 } ] } ] } ]\n")}}
	if _, err := readFile(useless, "plans.json", acceptAny, cache,
		slog.New(slog.NewTextHandler(&log, nil))); err != nil || !strings.Contains(log.String(), "plans.json:1:") {
		t.Errorf("error %v, log %q; want no error, and a warning about the tier without an effect", err, log.String())
	}
}

// Guarantees that the log names the keys whose pepper is missing, and no others.
func TestMissingPepperIsTold(t *testing.T) {
	cache, _ := secret(t, 0, "p1", one)
	var log bytes.Buffer
	f, err := readFile(withKeys(t, key("a", "p1", one, "key-a"), key("b", "p9", two, "key-b")), "plans.json", acceptAny,
		cache, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	f.prepare(t.Context())
	if said := log.String(); strings.Count(said, "level=ERROR") != 1 || !strings.Contains(said, "pepper=p9") {
		t.Errorf("logged %q, want one line about p9", said)
	}
}

// Guarantees that everything that grows with the users of a function stays within half of its memory.
func TestMemory(t *testing.T) {
	for _, mb := range []string{"", "none", "-1", "0", "128", "129", "512", "10240", "999999999999999999999"} {
		m := divide(mb)
		if sum := m.documents + m.addresses + 2*m.backstop + int64(m.leases)*leaseBytes; sum > m.all/2 ||
			m.all < leastMemory {
			t.Errorf("memory of %q MB is divided as %+v, %d bytes in all; want at most half of it", mb, m, sum)
		}
		if m.documents < 1<<20 || m.addresses < 1<<20 || m.backstop < 1<<20 || m.leases < 10_000 {
			t.Errorf("memory of %q MB is divided as %+v, which is less than the minimum", mb, m)
		}
	}
	if small, large := divide("128"), divide("1024"); large.documents != mostDocuments ||
		small.documents >= large.documents {
		t.Errorf("a small function has %+v and a large one %+v, want more in the large one", small, large)
	}
}

// Guarantees that an authorizer with a plans file and without issuers ignores credentials if the file has no keys, and
// only then.
func TestFileWithoutKeys(t *testing.T) {
	cache, _ := secret(t, 0, "p1", one)
	store, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	const pro = "plans: [ { id: pro, limits: [] } ]\n"
	for _, c := range []struct {
		name   string
		bundle fstest.MapFS
		want   answer.Kind
	}{
		{"addresses only", fstest.MapFS{"plans.json": {Data: configfiletest.JSON(t,
			"ipLimits: [ { id: a, algorithm: token_bucket, rate: 1, period: 1s, burst: 9 } ]\n")}}, answer.Allowed},
		{"an anonymousPlan", fstest.MapFS{"plans.json": {Data: configfiletest.JSON(t, pro+"anonymousPlan: pro\n")}},
			answer.Allowed},
		{"tenants, whom nothing identifies", withKeys(t), answer.NoCredential},
		{"a key", withKeys(t, key("k1", "p1", one, identity.NewKey())), answer.BadCredential},
	} {
		f, err := readFile(c.bundle, "plans.json", acceptAny, cache, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		z, err := authorizer.New(authorizer.Config{Source: &renewing{f, cache}, Store: store,
			Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		a := z.Authorize(t.Context(), &authorizer.Request{Method: "GET", Path: "/", Peer: "192.0.2.1",
			Header: map[string][]string{"Authorization": {"Bearer the-hosts-own-token"}}})
		if a.Kind != c.want {
			t.Errorf("%s: %s, want %s", c.name, a.Kind, c.want)
		}
		a.Release()
	}
}
