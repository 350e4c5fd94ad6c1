//go:build unix

package endtoend_test

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/cellconfig"
	"github.com/sluicelimits/sluice/internal/cell/cellconfig/table"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
	"github.com/sluicelimits/sluice/internal/testkit/tokentest"
)

// configured is a cell whose configuration is in a table.
type configured struct {
	*world
	documents    *table.Table
	version      int64
	unidentified int // answers that say so
}

func newConfigured(t *testing.T, plans string, tenants ...string) *configured {
	t.Helper()
	c := &configured{world: newWorld(t, plans, tenants...)}
	client, done := dynamodbtest.Connect(c.dynamodb())
	t.Cleanup(done)
	name := "endtoend-config-" + strings.ToLower(rand.Text())
	delete(c.env, "SLUICE_CONFIG_FILE")
	c.env["SLUICE_CONFIG_TABLE"], c.env["SLUICE_ALONE"] = name, "true"
	if err := table.Create(t.Context(), client, name); err != nil {
		t.Fatal(err)
	}
	c.documents = table.New(table.Config{Client: client, Table: name})
	c.write(plans)
	return c
}

// write writes plans to the table. When it returns, a reader of the table gets them.
func (c *configured) write(plans string) {
	c.t.Helper()
	c.version++
	split, err := plan.Split(time.Now(), configyaml.Source("plans.yaml", []byte(c.plans(plans))))
	if err != nil {
		c.t.Fatal(err)
	}
	var all []cellconfig.Document
	for _, d := range split {
		all = append(all, cellconfig.Document{Ref: cellconfig.Ref{Kind: d.Kind, ID: d.ID}, Version: c.version,
			Body: d.Body})
	}
	if _, err := c.documents.Apply(c.t.Context(), all); err != nil {
		c.t.Fatal(err)
	}
}

// unread counts how often an environment could not read the table in time, and used its earlier copy.
func (c *configured) unread() (n int) {
	for _, l := range c.output() {
		if strings.Contains(l, "the cell configuration cannot be read") {
			n++
		}
	}
	return n
}

// held holds the answers that clients got after a change: those to requests that were sent later than the copy of an
// environment may be old.
type held struct {
	before, after, late int
}

// enforced makes a change while three clients send requests, and counts the requests that were still admitted. A copy
// of the configuration that is older than cellconfig.Fresh is renewed before a decision, so no later request may be.
func (c *configured) enforced(a *api, tenant string, change func(), refused int) (h held) {
	t := c.t
	t.Helper()
	const clients = 3
	var written time.Time // set once, before the clients look
	done := make(chan struct{})
	l := a.begin(clients, func(int, int) (string, []string) { return "/product/1", c.key(tenant) },
		func(r *reply) string {
			select {
			case <-done:
			default:
				return "before"
			}
			switch late := r.sent.After(written.Add(cellconfig.Fresh)); {
			// a changed document could not be read again in time
			case strings.Contains(r.body, "#caller-not-identified"):
				return "unread"
			case r.status == refused && late:
				return "refused late"
			case r.status == refused:
				return "refused"
			case r.status == http.StatusOK && late:
				return "late"
			case r.status == http.StatusOK:
				return "after"
			}
			return fmt.Sprint(r.status)
		})
	l.until(t, "before the change", func(n map[string]int) bool { return n["before"] >= 50 })
	change()
	written = time.Now()
	close(done)
	l.until(t, "after the change", func(n map[string]int) bool { return n["refused late"] >= 50 })
	counts, _, err := l.end()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%v", counts)
	for what := range counts {
		switch what {
		case "before", "after", "late", "refused", "refused late":
		case "unread":
			c.unidentified += counts[what]
		default:
			t.Errorf("an answer of status %s", what)
		}
	}
	return held{counts["before"], counts["after"], counts["late"]}
}

// end closes the world, so that all metrics are written. It checks that the metrics report callers that could not be
// identified in time if answers did. A line of metrics is for a second, not for a request.
func (c *configured) end() {
	c.t.Helper()
	c.close()
	if told := strings.Contains(strings.Join(c.output(), "\n"), `"outcome":"unidentified"`); !told &&
		c.unidentified > 0 {
		c.t.Errorf("%d answers say that a document could not be read in time, but no metric does", c.unidentified)
	}
}

const wide = `
plans:
  - { id: pro, limits: [ { id: burst, tiers: [ { period: ` + year + `, threshold: 1000000 } ] } ] }
tenants:
  - { id: acme, plan: pro }
  - { id: globex, plan: pro }
`

// limited returns the plans with another value of the limit wide.
func limited(n int) string {
	return strings.Replace(wide, "threshold: 1000000", fmt.Sprint("threshold: ", n), 1)
}

// Guarantees that a key that is revoked in the cell's table is refused by every environment from two seconds after the
// write on, without a restart, also if the environment was frozen; other keys are still accepted.
func TestRevokedKeyStops(t *testing.T) {
	t.Parallel()
	c := newConfigured(t, wide, "acme", "globex")
	c.start(3)
	a := c.serve(restAnswered(t), c.function(open))
	a.callUntilStatus(200, "GET", "/product/1", c.key("acme")...)
	tries := 0
	for {
		before := c.unread()
		h := c.enforced(a, "acme", func() {
			c.entries = strings.Replace(c.entries, `tenant: "acme",`, `tenant: "acme", revoked: true,`, 1)
			c.write(wide)
		}, http.StatusUnauthorized)
		if h.late == 0 {
			break
		}
		// An environment that cannot read the table uses its earlier copy. That is reported, and then nothing is
		// checked here.
		if unread := c.unread() - before; unread == 0 || tries > 5 {
			t.Fatalf("%d requests passed that were sent later than %s after the write, and the table was read in "+
				"time but for %d polls", h.late, cellconfig.Fresh, unread)
		}
		tries++
		c.entries = strings.Replace(c.entries, ", revoked: true", "", 1)
		c.write(wide)
		a.callUntilStatus(200, "GET", "/product/1", c.key("acme")...)
	}
	a.callUntilStatus(200, "GET", "/product/1", c.key("globex")...)
	c.end()
	found := false
	for _, l := range c.output() {
		found = found || strings.Contains(l, "propagation_seconds")
	}
	if !found {
		t.Error("no metric says how long the change took")
	}
}

// Guarantees that a plan that changes in the table is enforced within two seconds, in every environment and without a
// restart. What was used stays used: a new limit below it denies at once, and a new limit above it admits the rest.
func TestPlanChangeIsEnforced(t *testing.T) {
	t.Parallel()
	c := newConfigured(t, limited(1_000_000), "acme")
	c.start(3)
	a := c.serve(restAnswered(t), c.function(open))
	tries := 0
	for {
		before := c.unread()
		// more than that is already used
		h := c.enforced(a, "acme", func() { c.write(limited(20)) }, http.StatusTooManyRequests)
		if h.late == 0 {
			break
		}
		if unread := c.unread() - before; unread == 0 || tries > 5 {
			t.Fatalf("%d requests passed that were sent later than %s after the write, and the table was read in "+
				"time but for %d polls", h.late, cellconfig.Fresh, unread)
		}
		tries++
		c.write(limited(1_000_000))
		mustFinish(t, func() error {
			if got := a.send("GET", "/product/1", c.key("acme")...); got.status != http.StatusOK {
				return fmt.Errorf("%s", got)
			}
			return nil
		})
	}
	got := a.wantStatus(429, "GET", "/product/1", c.key("acme")...)
	wantDenial(t, got)
	if got.header.Get("X-Ratelimit-Limit") != "20" {
		t.Errorf("the denial's limit: %s", got)
	}
	c.write(limited(2_000_000))
	mustFinish(t, func() error {
		if got := a.send("GET", "/product/1", c.key("acme")...); got.status != http.StatusOK {
			return fmt.Errorf("the raised limit: %s", got)
		}
		return nil
	})
	c.end()
}

// Guarantees that a table that is always slow, but within the configured deadline, can be read. If the poll had a
// shorter deadline, the copy would never be renewed.
func TestSlowTableIsRead(t *testing.T) {
	t.Parallel()
	c := newConfigured(t, limited(1_000_000), "acme")
	c.env["AWS_ENDPOINT_URL_DYNAMODB"] = proxy(t, c.env["AWS_ENDPOINT_URL_DYNAMODB"], func(r *http.Request) {
		select {
		case <-time.After(250 * time.Millisecond):
		case <-r.Context().Done():
		}
	})
	c.start(1)
	a := c.serve(restAnswered(t), c.function(open))
	a.callUntilStatus(200, "GET", "/product/1", c.key("acme")...)
	c.write(limited(1))
	mustFinish(t, func() error {
		got := a.send("GET", "/product/1", c.key("acme")...)
		if got.status != 429 || got.header.Get("X-Ratelimit-Limit") != "1" {
			return fmt.Errorf("%s, want a denial by the new limit", got)
		}
		return nil
	})
}

// Guarantees that an issuer that publishes a key before it signs with it causes no 401 under load, however many
// environments and tokens there are, and gets one request for it.
func TestKeyRotationUnderLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(t, wide)
	w.redis()
	first, second := newSigner("first"), newSigner("second")
	authority := w.issuer(first, second)
	const environments = 3
	w.start(environments)
	a := w.serve(restLambda, w.function(behind))
	tokens := make(map[*tokentest.Signer][][]string)
	for _, s := range []*tokentest.Signer{first, second} {
		for i := range 20 {
			tokens[s] = append(tokens[s], user(s, i))
		}
	}
	sending := func(s *tokentest.Signer) *load {
		return a.begin(environments, func(client, n int) (string, []string) {
			return "/product/1",
				tokens[s][(client+n)%20]
		},
			func(r *reply) string { return fmt.Sprint(r.status) })
	}
	old := sending(first)
	old.until(t, "the first key", func(n map[string]int) bool { return n["200"] >= 60 })
	fresh := sending(second)
	fresh.until(t, "the second key", func(n map[string]int) bool { return n["200"] >= 100 })
	for name, l := range map[string]*load{"first": old, "second": fresh} {
		counts, _, err := l.end()
		if err != nil || len(counts) != 1 || counts["200"] == 0 {
			t.Errorf("tokens of the %s key: %v, %v; want 200s only", name, counts, err)
		}
	}
	if n := authority.Fetches(); n > environments {
		t.Errorf("the issuer was asked %d times by %d environments", n, environments)
	}
	if s := a.wantStatus(200, "GET", "/product/1", tokens[second][0]...).seen(t); s.Tenant != "globex" ||
		s.Subject != "user-0" || s.KeyID != "" {
		t.Errorf("the backend saw %+v", s)
	}
}

// user returns the header with a token of one of globex's users.
func user(s *tokentest.Signer, i int) []string {
	return bearer(s.Sign(tokentest.Claims(time.Now(), tokentest.With("tenant_id", "globex", "sub",
		fmt.Sprint("user-", i), "jti", fmt.Sprint(i)))))
}

// Guarantees that a key that signs without being published before is accepted after the next request to the issuer,
// that a key that the issuer withdrew is refused from then on, and that tokens with unknown keys in between cause no
// further requests.
func TestUnannouncedKey(t *testing.T) {
	soak.SkipInQuick(t) // half a minute
	t.Parallel()
	w := newWorld(t, wide)
	w.redis()
	first, second := newSigner("first"), newSigner("second")
	authority := w.issuer(first)
	w.start(1)
	a := w.serve(restLambda, w.function(open))
	a.wantStatus(200, "GET", "/product/1", user(first, 1)...)
	authority.Set(tokentest.Answer(http.StatusOK, tokentest.Document(second)))
	refused, header := 0, user(second, 2)
	mustFinish(t, func() error {
		got := a.send("GET", "/product/1", header...)
		if got.status == http.StatusOK {
			return nil
		}
		if refused++; got.status != http.StatusUnauthorized {
			t.Fatalf("%s, want 200 or 401", got)
		}
		return fmt.Errorf("the new key is not accepted: %s", got)
	})
	a.wantStatus(401, "GET", "/product/1", user(first, 3)...)
	if n := authority.Fetches(); n != 2 {
		t.Errorf("the issuer was asked %d times, with %d tokens of an unknown key between; want twice", n, refused)
	}
}
