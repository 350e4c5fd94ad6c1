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
	"github.com/sluicelimits/sluice/internal/testkit/tokentest"
)

// configured is a cell whose configuration is a table.
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
	var err error
	if c.documents, err = table.New(table.Config{Client: client, Table: name}); err != nil {
		t.Fatal(err)
	}
	c.write(plans)
	return c
}

// write puts plans into the table. On return they are in force for whoever reads it.
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

// unread is how often an environment could not read the table in time, and so went on with what it had.
func (c *configured) unread() (n int) {
	for _, l := range c.output() {
		if strings.Contains(l, "the cell configuration cannot be read") {
			n++
		}
	}
	return n
}

// held is what a client saw after a change: what came back to requests that were sent later than the copy of an
// environment may be old.
type held struct {
	before, after, late int
}

// enforced makes a change while three clients send requests, and counts those that still passed: a copy of the
// configuration that is older than cellconfig.Fresh is renewed in front of a decision, so none that is sent later may.
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
			// a document that changed could not be read again in time
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

// end closes the world, with which all metrics are written, and sees that they tell of callers that could not be
// identified in time where answers did. A line is for a second, not for a call.
func (c *configured) end() {
	c.t.Helper()
	c.close()
	if told := strings.Contains(strings.Join(c.output(), "\n"), `"outcome":"unidentified"`); !told &&
		c.unidentified > 0 {
		c.t.Errorf("%d answers say that a document could not be read in time, and no metric", c.unidentified)
	}
}

const wide = `
plans:
  - { id: pro, limits: [ { id: burst, tiers: [ { period: ` + year + `, threshold: 1000000 } ] } ] }
tenants:
  - { id: acme, plan: pro }
  - { id: globex, plan: pro }
`

// limited is wide with another limit.
func limited(n int) string {
	return strings.Replace(wide, "threshold: 1000000", fmt.Sprint("threshold: ", n), 1)
}

// Guarantees that a key which is revoked in the cell's table is refused by every environment from two seconds after the
// write on, none restarted, frozen between their calls; a key of the same tenant and another one go on.
func TestRevokedKeyStops(t *testing.T) {
	t.Parallel()
	c := newConfigured(t, wide, "acme", "globex")
	c.start(3)
	a := c.serve(restAnswered(t), c.function(open))
	a.comes(200, "GET", "/product/1", c.key("acme")...)
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
		// An environment that cannot read the table goes on with what it has: that is told, and then nothing is held
		// here.
		if unread := c.unread() - before; unread == 0 || tries > 5 {
			t.Fatalf("%d requests passed that were sent later than %s after the write, and the table was read in "+
				"time but for %d polls", h.late, cellconfig.Fresh, unread)
		}
		tries++
		c.entries = strings.Replace(c.entries, ", revoked: true", "", 1)
		c.write(wide)
		a.comes(200, "GET", "/product/1", c.key("acme")...)
	}
	a.comes(200, "GET", "/product/1", c.key("globex")...)
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
// restart, and that what was consumed under it before stays consumed: a limit below that denies at once, one above it
// lets the rest pass.
func TestPlanChangeIsEnforced(t *testing.T) {
	t.Parallel()
	c := newConfigured(t, limited(1_000_000), "acme")
	c.start(3)
	a := c.serve(restAnswered(t), c.function(open))
	tries := 0
	for {
		before := c.unread()
		// more than that is spent
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
		wait(t, func() error {
			if got := a.send("GET", "/product/1", c.key("acme")...); got.status != http.StatusOK {
				return fmt.Errorf("%s", got)
			}
			return nil
		})
	}
	got := a.is(429, "GET", "/product/1", c.key("acme")...)
	wantDenial(t, got)
	if got.header.Get("X-Ratelimit-Limit") != "20" {
		t.Errorf("the denial's limit: %s", got)
	}
	c.write(limited(2_000_000))
	wait(t, func() error {
		if got := a.send("GET", "/product/1", c.key("acme")...); got.status != http.StatusOK {
			return fmt.Errorf("the raised limit: %s", got)
		}
		return nil
	})
	c.end()
}

// Guarantees that a table which is slow for good, but within the deadline that was set for it, is read: a poll that no
// answer is quick enough for would never renew the copy.
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
	a.comes(200, "GET", "/product/1", c.key("acme")...)
	c.write(limited(1))
	wait(t, func() error {
		got := a.send("GET", "/product/1", c.key("acme")...)
		if got.status != 429 || got.header.Get("X-Ratelimit-Limit") != "1" {
			return fmt.Errorf("%s, want a denial by the new limit", got)
		}
		return nil
	})
}

// Guarantees that an issuer which announces a key before it signs with it costs nobody a 401 in the middle of a load,
// however many environments and tokens there are, and is asked once by each.
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
	if s := a.is(200, "GET", "/product/1", tokens[second][0]...).seen(t); s.Tenant != "globex" ||
		s.Subject != "user-0" || s.KeyID != "" {
		t.Errorf("the backend saw %+v", s)
	}
}

// user is the header of a token for one of globex's users.
func user(s *tokentest.Signer, i int) []string {
	return bearer(s.Sign(tokentest.Claims(time.Now(), tokentest.With("tenant_id", "globex", "sub",
		fmt.Sprint("user-", i), "jti", fmt.Sprint(i)))))
}

// Guarantees that a key which is signed with at once, unannounced, is accepted at the next look at the issuer, that one
// which the issuer took back is refused from then on, and that all the tokens in between, each with a key that nobody
// knows, make no further looks.
func TestUnannouncedKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t, wide)
	w.redis()
	first, second := newSigner("first"), newSigner("second")
	authority := w.issuer(first)
	w.start(1)
	a := w.serve(restLambda, w.function(open))
	a.is(200, "GET", "/product/1", user(first, 1)...)
	authority.Set(tokentest.Answer(http.StatusOK, tokentest.Document(second)))
	refused, header := 0, user(second, 2)
	wait(t, func() error {
		got := a.send("GET", "/product/1", header...)
		if got.status == http.StatusOK {
			return nil
		}
		if refused++; got.status != http.StatusUnauthorized {
			t.Fatalf("%s, want 200 or 401", got)
		}
		return fmt.Errorf("the new key is not accepted: %s", got)
	})
	a.is(401, "GET", "/product/1", user(first, 3)...)
	if n := authority.Fetches(); n != 2 {
		t.Errorf("the issuer was asked %d times, with %d tokens of an unknown key between; want twice", n, refused)
	}
}
