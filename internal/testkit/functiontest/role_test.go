package functiontest_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/internal/testkit/functiontest"
)

// recorder is a test that is expected to fail.
type recorder struct {
	testing.TB
	failed []string
}

func (r *recorder) Errorf(format string, args ...any) {
	r.failed = append(r.failed, fmt.Sprintf(format, args...))
}

// Guarantees that the stand-in for IAM permits what is granted, and refuses everything else and fails the test for it:
// an action, a table, a key, a part of a transaction.
func TestRole(t *testing.T) {
	behind := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_,
			_ = io.WriteString(w, "{}")
	}))
	t.Cleanup(behind.Close)
	env := map[string]string{"SLUICE_CELL": "eu-1", "SLUICE_CONFIG_TABLE": "config", "SLUICE_CELLS_TABLE": "cells"}
	alone := map[string]string{"SLUICE_CELL": "eu-1", "SLUICE_CONFIG_TABLE": "config"}
	for _, tt := range []struct {
		name, function string
		env            map[string]string
		action, body   string
		refused        string
	}{
		{"granted", "applier", env, "GetItem", `{"TableName":"config","Key":{"pk":{"S":"head"},"sk":{"S":"head"}}}`,
			""},
		{"a transaction", "applier", env, "TransactWriteItems",
			`{"TransactItems":[{"Put":{"TableName":"config","Item":{}}},{"Update":{"TableName":"config","Key":{}}}]}`,
			""},
		{"several items", "applier", env, "BatchGetItem", `{"RequestItems":{"config":{"Keys":[]}}}`, ""},
		{"its own key", "applier", env, "PutItem", `{"TableName":"cells","Item":{"id":{"S":"` + shares.AckKey("eu-1") +
			`"}}}`, ""},
		{"a key's beginning", "balancer", env, "PutItem", `{"TableName":"cells","Item":{"id":{"S":"placed.x"}}}`, ""},
		{"an action", "applier", env, "DeleteItem", `{"TableName":"config","Key":{"pk":{"S":"head"}}}`,
			"may not dynamodb:DeleteItem on the config table"},
		{"a part of a transaction", "applier", env, "TransactWriteItems",
			`{"TransactItems":[{"Put":{"TableName":"config","Item":{}}},{"Delete":{"TableName":"config","Key":{}}}]}`,
			"DeleteItem"},
		{"another table", "applier", env, "GetItem", `{"TableName":"plans","Key":{"id":{"S":"pro"}}}`,
			"which no variable names"},
		{"another cell's key", "applier", env, "PutItem", `{"TableName":"cells","Item":{"id":{"S":"` +
			shares.AckKey("us-1") + `"}}}`, "may not dynamodb:PutItem on the cells table"},
		{"no key", "applier", env, "PutItem", `{"TableName":"cells","Item":{}}`, "may not dynamodb:PutItem"},
		{"without its variable", "applier", alone, "Scan", `{"TableName":"cells"}`, "which no variable names"},
		{"nothing", "applier", env, "ListTables", `{}`, "names no table"},
		{"no JSON", "applier", env, "GetItem", `{`, "cannot be read"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &recorder{TB: t}
			role := functiontest.NewRole(r, tt.function, tt.env, behind.URL)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, role.URL, strings.NewReader(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-Amz-Target", "DynamoDB_20120810."+tt.action)
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(res.Body)
			if closed := res.Body.Close(); err != nil || closed != nil {
				t.Fatal(err, closed)
			}
			passed := res.StatusCode == http.StatusOK && len(r.failed) == 0
			denied := strings.Contains(string(body), "AccessDeniedException") && len(r.failed) == 1 &&
				strings.Contains(r.failed[0], tt.refused)
			if tt.refused == "" && !passed || tt.refused != "" && !denied {
				t.Errorf("%s: status %d, body %s, and the test failed with %q; want a refusal for %q", tt.action,
					res.StatusCode,
					body, r.failed, tt.refused)
			}
		})
	}
}

// Guarantees that a grant that was not needed is reported.
func TestUnusedGrants(t *testing.T) {
	role := functiontest.NewRole(t, "canary", map[string]string{"SLUICE_PLANS_TABLE": "plans"}, "http://127.0.0.1:9")
	if got := strings.Join(role.Unused(), ", "); got != "dynamodb:GetItem on the plans table, dynamodb:PutItem on "+
		"the plans table" {
		t.Errorf("not needed were %s", got)
	}
}
