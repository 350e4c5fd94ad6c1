package functiontest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sluicelimits/sluice/internal/aws/grants"
)

// Role stands between a function and DynamoDB, and does what IAM does: it refuses each call that package grants does
// not allow the function. A refused call fails the test.
type Role struct {
	URL string // the endpoint of DynamoDB that the function must use

	t      testing.TB
	of     grants.Function
	env    map[string]string
	tables map[string]grants.Resource // by name

	mu   sync.Mutex
	used map[call]bool
}

// call is an action of a request on one table.
type call struct {
	on     grants.Resource
	action string
	key    string // partition key; "" if the request has none
}

// NewRole returns the role of a function. name is the name of the function, env has its environment variables, and
// target is the URL of DynamoDB.
func NewRole(t testing.TB, name string, env map[string]string, target string) *Role {
	t.Helper()
	of, ok := grants.Of(name)
	if !ok {
		t.Fatalf("package grants has no function %q", name)
	}
	to, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	r := &Role{t: t, of: of, env: env, tables: map[string]grants.Resource{}, used: map[call]bool{}}
	for variable, on := range map[string]grants.Resource{
		"SLUICE_PLANS_TABLE": grants.Plans, "SLUICE_TENANTS_TABLE": grants.Tenants, "SLUICE_KEYS_TABLE": grants.Keys,
		"SLUICE_CELLS_TABLE":      grants.Cells,
		"SLUICE_OPERATIONS_TABLE": grants.Operations, "SLUICE_CONFIG_TABLE": grants.Config,
		"SLUICE_COUNTERS_TABLE": grants.Counters,
	} {
		if env[variable] != "" {
			r.tables[env[variable]] = on
		}
	}
	for _, variable := range []string{"SLUICE_CANARY_CELLS", "SLUICE_STATUS_CELLS"} {
		for one := range strings.SplitSeq(env[variable], ",") {
			if _, table, ok := strings.Cut(one, "="); ok {
				r.tables[table] = grants.AllConfig
			}
		}
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(to) }}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if refused := r.refuse(q.Header.Get("X-Amz-Target"), body); refused != "" {
			t.Errorf("the role of the %s: %s", name, refused)
			w.Header().Set("Content-Type", "application/x-amz-json-1.0")
			w.WriteHeader(http.StatusBadRequest)
			_ = json.NewEncoder(w).Encode(map[string]string{"__type": "com.amazon.coral.service#AccessDeniedException",
				"message": refused})
			return
		}
		q.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(w, q)
	}))
	t.Cleanup(s.Close)
	r.URL = s.URL
	return r
}

// refuse returns the reason why a request is refused, or "" if it is allowed.
func (r *Role) refuse(target string, body []byte) string {
	calls, err := r.calls(target, body)
	if err != nil {
		return err.Error()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range calls {
		if !r.allows(c) {
			return fmt.Sprintf("may not %s on %s, key %q", c.action, c.on, c.key)
		}
		c.key = ""
		r.used[c] = true
	}
	return ""
}

// request holds the parts of DynamoDB's requests that say which items they concern.
type request struct {
	TableName     string
	Key, Item     map[string]json.RawMessage
	RequestItems  map[string]json.RawMessage
	TransactItems []map[string]struct {
		TableName string
		Key, Item map[string]json.RawMessage
	}
}

// calls returns the actions of a request for which IAM checks the permissions. A transaction has those of its parts.
func (r *Role) calls(target string, body []byte) ([]call, error) {
	_, action, _ := strings.Cut(target, ".")
	var q request
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, fmt.Errorf("%s cannot be read: %w", target, err)
	}
	var out []call
	add := func(table, action, key string) error {
		on, ok := r.tables[table]
		if !ok {
			return fmt.Errorf("%s of table %q, which no variable names", action, table)
		}
		out = append(out, call{on, "dynamodb:" + action, key})
		return nil
	}
	if q.TableName != "" {
		var id struct{ S string } // the key of an item of a control table
		if key := cmp.Or(string(q.Key["id"]), string(q.Item["id"])); key != "" {
			if err := json.Unmarshal([]byte(key), &id); err != nil {
				return nil, fmt.Errorf("%s: its key cannot be read: %w", target, err)
			}
		}
		if err := add(q.TableName, action, id.S); err != nil {
			return nil, err
		}
	}
	for table := range q.RequestItems {
		if err := add(table, action, ""); err != nil {
			return nil, err
		}
	}
	for _, parts := range q.TransactItems {
		for kind, part := range parts {
			if err := add(part.TableName, map[string]string{"ConditionCheck": "ConditionCheckItem", "Put": "PutItem",
				"Update": "UpdateItem", "Delete": "DeleteItem"}[kind], ""); err != nil {
				return nil, err
			}
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s names no table", target)
	}
	return out, nil
}

// allows reports whether a grant covers the call.
func (r *Role) allows(c call) bool {
	return slices.ContainsFunc(r.of.Grants, func(g grants.Grant) bool {
		keys := g.LeadingKeys(r.env["SLUICE_CELL"])
		return g.On == c.on && r.has(&g) && slices.Contains(g.Actions, c.action) &&
			(len(keys) == 0 || slices.ContainsFunc(keys, func(k string) bool {
				begin, open := strings.CutSuffix(k, "*")
				return c.key != "" && (c.key == k || open && strings.HasPrefix(c.key, begin))
			}))
	})
}

// has reports whether the function has the grant, which may depend on its environment variables.
func (r *Role) has(g *grants.Grant) bool {
	name, value, bound := strings.Cut(g.With, "=")
	return name == "" || r.env[name] != "" && (!bound || r.env[name] == value)
}

// Unused returns the actions on tables that are granted and that the function has not used, each with its table. If a
// test of everything that the function does never uses a grant, the grant is not needed or the test is incomplete.
func (r *Role) Unused() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for i := range r.of.Grants {
		g := &r.of.Grants[i]
		if !r.has(g) || !slices.Contains(slices.Collect(maps.Values(r.tables)), g.On) {
			continue
		}
		for _, a := range g.Actions {
			if what := a + " on " + string(g.On); !r.used[call{on: g.On, action: a}] && !slices.Contains(out, what) {
				out = append(out, what)
			}
		}
	}
	return out
}
