package operate_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/plan/shares"
)

// fieldCase is an operation: a valid call, and bad values for each member. The bad value "" stands for an absent
// member.
type fieldCase struct {
	request any // a value of the operation's request type
	good    string
	bad     map[string][]string
	says    map[string]string // member → a word of the error, if that is not the member's name
}

const (
	absent   = ""
	huge     = `9007199254740993000`
	badNames = 130 // characters
)

var (
	longText    = `"` + strings.Repeat("x", 600) + `"`
	longName    = `"` + strings.Repeat("x", badNames) + `"`
	notText     = []string{`1`, `true`, `[]`, `{}`}
	notInteger  = []string{`"1"`, `1.5`, `true`, `[]`, `{}`, huge, `1e3`, `-0`}
	notBool     = []string{`"true"`, `1`, `[]`, `{}`}
	notTime     = []string{`1`, `"tomorrow"`, `"2027-13-01T00:00:00Z"`, `"2027-01-01"`, `[]`, `{}`, `true`}
	notList     = []string{`1`, `"a"`, `{}`, `true`}
	badReason   = slices.Concat(notText, []string{absent, `null`, `""`, `" "`, `"a\nb"`, `"a\u0000"`, longText})
	badTenant   = slices.Concat(notText, []string{absent, `null`, `""`, `"nobody"`, `"a\u0000"`, longName})
	badExpected = slices.Concat(notInteger, []string{`-1`, `99`})
	badCell     = slices.Concat(notText, []string{absent, `null`, `""`, `"a b"`, `"pin.x"`, `"placed.x"`, `"ack.x"`,
		`"pace.x"`,
		`"@shares"`, `"a/b"`, longName})
	badPaceName = slices.Concat(notText, []string{absent, `null`, `""`, `"a b"`, `"a/b"`, longName})
	badTable    = slices.Concat(notText, []string{absent, `null`, `""`, `"users"`, `"Tenants"`})
)

// fieldCases returns all operations. The tests of the operations check how members depend on each other.
func fieldCases() map[string]fieldCase {
	cell := fieldCase{operate.CellRequest{}, `{"cell":"eu-1","reason":"x","expect":1}`, map[string][]string{
		"cell": append(slices.Clone(badCell), `"us-1"`), "reason": badReason, "expect": badExpected,
		"force": append(slices.Clone(notBool), `true`),
	}, map[string]string{"expect": "version"}}
	remove := cell
	remove.good = `{"cell":"eu-1","reason":"x","expect":1,"force":true}`
	remove.bad = maps.Clone(cell.bad)
	remove.bad["force"] = append(slices.Clone(notBool), `false`, absent)
	remove.says = map[string]string{"expect": "version", "force": "force"}
	tenant := fieldCase{operate.TenantRequest{}, `{"tenant":"acme","reason":"x","expect":1}`,
		map[string][]string{"tenant": badTenant, "reason": badReason, "expect": badExpected},
		map[string]string{"expect": "version"}}
	hash := `"` + strings.Repeat("ab", 32) + `"`
	return map[string]fieldCase{
		"/documents/get": {operate.GetRequest{}, `{"table":"tenants","key":"acme"}`, map[string][]string{
			"table": badTable, "key": slices.Concat(notText, []string{absent, `null`, `""`, `"a\u0000"`, `"nobody"`,
				longText}),
		}, map[string]string{"key": "there is no"}},
		"/documents/list": {operate.ListRequest{}, `{"table":"tenants","after":"","most":2}`, map[string][]string{
			"table": badTable, "after": notText, "most": slices.Concat(notInteger, []string{`-1`, `1001`}),
		}, map[string]string{"most": "items"}},
		"/apply": {
			operate.ApplyRequest{}, `{"reason":"x","changes":[{"table":"tenants","key":"new","body":{"id":"new",` +
				`"plan":"pro"}}],"yes":false,"accept_losses":false}`,
			map[string][]string{
				"reason": badReason, "yes": notBool, "accept_losses": notBool,
				"changes": slices.Concat(notList, []string{absent, `null`, `[]`, `[null]`, `[1]`, `[{}]`, `[[]]`}),
			}, nil,
		},
		"/documents/preview": {
			operate.PreviewRequest{}, `{"changes":[{"table":"tenants","key":"new","body":{"id":"new","plan":"pro"}}]}`,
			map[string][]string{
				"changes": slices.Concat(notList, []string{absent, `null`, `[]`, `[null]`, `[1]`, `[{}]`, `[[]]`}),
			}, nil,
		},
		"/tenants/set": {
			operate.SetTenantRequest{},
			`{"tenant":"acme","reason":"x","expect":1,"create":false,"plan":"pro","cells":["eu-1"],` +
				`"overrides":[{"id":"burst","rate":7}],"drop":["burst"],"yes":true}`,
			map[string][]string{
				"tenant": badTenant, "reason": badReason, "expect": badExpected, "create": notBool, "yes": notBool,
				"plan": slices.Concat(notText, []string{`""`, `"none"`, `"a b"`, longName}),
				"cells": slices.Concat(notList, []string{`[1]`, `[""]`, `["a b"]`, `["us-1"]`, `["eu-1","eu-1"]`,
					`[null]`}),
				"overrides": slices.Concat(notList, []string{`[1]`, `[null]`, `[[]]`, `[{}]`,
					`[{"id":"none","rate":1}]`, `[{"id":"burst"}]`, `[{"id":"burst","rate":0}]`,
					`[{"id":"burst","rate":-1}]`, `[{"id":"burst","rate":"1"}]`, `[{"id":"burst","rate":` + huge +
						`}]`, `[{"id":"burst","rate":1,"colour":1}]`}),
				"drop": slices.Concat(notList, []string{`[1]`, `["none"]`, `[""]`, `["burst","burst"]`}),
			},
			map[string]string{"expect": "version", "overrides": "limit", "drop": "override", "cells": "cell"},
		},
		"/tenants/suspend": tenant,
		"/tenants/resume":  tenant,
		"/boosts/add": {
			operate.BoostRequest{},
			`{"tenant":"acme","limit":"burst","factor":2,"from":"2026-11-21T13:00:00Z",` +
				`"until":"2026-11-22T12:00:00Z","reason":"x","expect":1}`,
			map[string][]string{
				"tenant": badTenant, "reason": badReason, "expect": badExpected,
				"limit": slices.Concat(notText, []string{absent, `null`, `""`, `"none"`, `"a b"`}),
				"factor": {absent, `null`, `""`, `"two"`, `true`, `[]`, `{}`, `0`, `1`, `-2`, `1.0001`, `100.001`,
					`1e1`, huge},
				"from": append(slices.Clone(notTime), `"2026-11-23T12:00:00Z"`),
				"until": slices.Concat(notTime, []string{absent, `null`, `"2026-11-21T12:00:00Z"`,
					`"2029-01-01T00:00:00Z"`}),
			},
			map[string]string{"expect": "version", "limit": "boosts[0].id", "from": "boosts[0]"},
		},
		"/boosts/remove": {
			operate.RemoveBoostRequest{}, `{"tenant":"raised","limit":"burst","reason":"x","expect":1}`,
			map[string][]string{
				"tenant": badTenant, "reason": badReason, "expect": badExpected,
				"limit": slices.Concat(notText, []string{absent, `null`, `""`, `"none"`}),
			}, map[string]string{"expect": "version"},
		},
		"/limits/promote": {
			operate.PromoteRequest{}, `{"plan":"pro","limit":"writes","reason":"x","expect":1}`,
			map[string][]string{
				"plan": slices.Concat(notText, []string{absent, `null`, `""`, `"none"`, `"a b"`, `"@settings"`,
					longName}),
				"limit":  slices.Concat(notText, []string{absent, `null`, `""`, `"none"`, `"burst"`}),
				"reason": badReason, "expect": badExpected,
			}, map[string]string{"expect": "version"},
		},
		"/keys/create": {
			operate.CreateKeyRequest{},
			`{"tenant":"acme","subject":"ci","id":"k1","expires":"2027-01-01T00:00:00Z","hash":` + hash +
				`,"pepper":"p1","reason":"x"}`,
			map[string][]string{
				"tenant": badTenant, "reason": badReason, "subject": slices.Concat(notText,
					[]string{`"a\u0000"`, longName}),
				"id":      slices.Concat(notText, []string{`"a b"`, `"k0"`, longName}),
				"expires": append(slices.Clone(notTime), `"2026-11-21T12:00:00Z"`),
				"hash": slices.Concat(notText, []string{absent, `null`, `""`, `"ab"`,
					`"` + strings.Repeat("zz", 32) + `"`, longText}),
				"pepper": slices.Concat(notText, []string{absent, `null`, `""`, longName}),
			},
			map[string]string{"id": "key"},
		},
		"/keys/revoke": {operate.KeyRequest{}, `{"id":"k0","reason":"x","expect":1,` +
			`"after":"2027-01-01T00:00:00Z"}`, map[string][]string{
			"after": append(slices.Clone(notTime), `"2026-11-21T12:00:00Z"`),
			"id":    slices.Concat(notText, []string{absent, `null`, `""`, `"none"`, `"a b"`}), "reason": badReason,
			"expect": badExpected,
		}, map[string]string{"id": "key", "expect": "version"}},
		"/cells/add": {operate.AddCellRequest{}, `{"cell":"eu-1","weight":2,"ops":"` + opsURL +
			`","yes":true,"reason":"x","expect":1}`, map[string][]string{
			"cell": badCell, "weight": slices.Concat(notInteger, []string{`-1`, fmt.Sprint(shares.MaxWeight + 1)}),
			"ops": slices.Concat(notText, []string{`"ops"`, `"https://example.com/v1"`, `"` + opsURL + `?a=b"`,
				`"https://` + strings.Repeat("x", 1100) + `"`}),
			"yes":    notBool,
			"reason": badReason, "expect": badExpected,
		}, map[string]string{"expect": "version"}},
		"/cells/drain":  cell,
		"/cells/remove": remove,
		"/cells/list": {operate.CellsRequest{}, `{"tenant":"acme"}`,
			map[string][]string{"tenant": slices.Concat(notText, []string{`"a\u0000"`, longName})}, nil},
		"/config/status": {operate.StatusRequest{}, `{"cell":"eu-1"}`,
			map[string][]string{"cell": append(slices.Clone(notText), `"us-1"`, longName)}, nil},
		"/pace/set": {
			operate.PacePlanRequest{}, `{"name":"provider","total":500,"period":"1s","instances":96,` +
				`"from":"2026-11-21T13:00:00Z","reason":"x","expect":1}`,
			map[string][]string{
				"name": badPaceName, "reason": badReason, "expect": badExpected,
				"total": slices.Concat(notInteger, []string{absent, `null`, `0`, `-1`, `1099511627777`}),
				"period": slices.Concat(notText, []string{absent, `null`, `""`, `"1"`, `"second"`, `"0s"`, `"-1s"`,
					`"999us"`, `"8785h"`, `"1m"`}),
				"instances": slices.Concat(notInteger, []string{absent, `null`, `0`, `-1`, `1048577`}),
				"from": slices.Concat(notTime, []string{`"2026-11-21T11:59:59Z"`, `"2026-11-21T12:00:31Z"`,
					`"2028-01-01T00:00:00Z"`}),
			}, map[string]string{"expect": "version"},
		},
		"/pace/get": {operate.PaceNameRequest{}, `{"name":"provider"}`,
			map[string][]string{"name": append(slices.Clone(badPaceName), `"none"`)}, map[string]string{
				"name": "pace plan"}},
		"/pace/remove": {operate.RemovePacePlanRequest{}, `{"name":"provider","yes":true,"reason":"x","expect":1}`,
			map[string][]string{
				"name": append(slices.Clone(badPaceName), `"none"`), "reason": badReason, "expect": badExpected,
				"yes": append(slices.Clone(notBool), `false`, absent),
			}, map[string]string{"name": "pace plan", "expect": "version"}},
	}
}

// fieldWorld returns the tables that the calls of fieldCases refer to.
func fieldWorld(t *testing.T) (*world, http.Handler) {
	w := newWorld(t)
	memory := table.NewMemory(0)
	w.config.CellTables = map[string]operate.CellTable{"eu-1": memory}
	w.remake()
	w.seed(plans + `  - { id: raised, plan: pro, boosts: [ { id: burst, factor: 2, until: 2026-12-01T00:00:00Z } ] }
keys: [ { id: k0, tenant: acme, hash: "` + strings.Repeat("cd", 32) + `", pepper: p1 } ]
`)
	if _, err := w.AddCell(t.Context(), ann, &operate.AddCellRequest{Cell: "eu-1", Reason: "x"}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.SetPacePlan(t.Context(), ann, &operate.PacePlanRequest{Name: "provider", Total: 1000, Period: "1s",
		Instances: 96, Reason: "x"}); err != nil {
		t.Fatal(err)
	}
	w.tables.puts = 0
	return w, operate.Local(w.Control.Mux(), "ann@local")
}

// Guarantees that every member of every operation's call is refused if it has another type, is absent although
// required, is out of bounds, or names something that does not exist. The error must be the caller's, name the member,
// and nothing may be written. The call must succeed without the bad value. No operation and no member may be left out.
func TestEveryFieldOfEveryCall(t *testing.T) {
	w, h := fieldWorld(t)
	cases := fieldCases()
	var paths []string
	for _, o := range operate.ControlOperations() {
		paths = append(paths, o.Path)
	}
	if slices.Sort(paths); !slices.Equal(paths, slices.Sorted(maps.Keys(cases))) {
		t.Fatalf("got the operations %v, want those of the cases, %v", paths, slices.Sorted(maps.Keys(cases)))
	}
	for path, c := range cases {
		t.Run(path, func(t *testing.T) {
			request := reflect.TypeOf(c.request)
			for i := range request.NumField() {
				name, _, _ := strings.Cut(request.Field(i).Tag.Get("json"), ",")
				if len(c.bad[name]) == 0 {
					t.Errorf("there are no bad values for %s, want some", name)
				}
			}
			if len(c.bad) != request.NumField() {
				t.Errorf("there are bad values for %d of %d members, want all", len(c.bad), request.NumField())
			}
			var members map[string]json.RawMessage
			if err := json.Unmarshal([]byte(c.good), &members); err != nil {
				t.Fatal(err)
			}
			for name, values := range c.bad {
				// This number could be read in two ways.
				words := []string{name, "call is not a json object: byte "}
				if other, ok := c.says[name]; ok {
					words = append(words, other)
				}
				for _, value := range values {
					bad := maps.Clone(members)
					if delete(bad, name); value != absent {
						bad[name] = json.RawMessage(value)
					}
					refusedCall(t, w, h, path, object(bad), words...)
				}
				alias := maps.Clone(members)
				alias[strings.ToUpper(name)] = json.RawMessage(`1`)
				refusedCall(t, w, h, path, object(alias), "no such member")
				refusedCall(t, w, h, path, strings.Replace(object(members), "{", `{"`+name+`":1,"`+name+`":1,`, 1),
					"twice")
			}
		})
	}
	for path, c := range cases {
		t.Run("good "+path, func(t *testing.T) {
			_, h := fieldWorld(t)
			answer := httptest.NewRecorder()
			if h.ServeHTTP(answer, local(t, path, c.good)); answer.Code != http.StatusOK {
				t.Errorf("the valid call: got %d %s, want 200", answer.Code, answer.Body)
			}
		})
	}
}

// object writes members as an object, whatever their content.
func object(members map[string]json.RawMessage) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(members)) {
		fmt.Fprintf(&b, ",%q:%s", name, members[name])
	}
	return "{" + strings.TrimPrefix(b.String(), ",") + "}"
}

// refusedCall fails unless the call is refused as the caller's mistake with one of the words, and nothing is written.
func refusedCall(t *testing.T, w *world, h http.Handler, path, body string, words ...string) {
	t.Helper()
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, local(t, path, body))
	var out struct{ Error *operate.Error }
	err := json.Unmarshal(answer.Body.Bytes(), &out)
	switch {
	case err != nil || out.Error == nil || answer.Code < 400 || answer.Code >= 500:
		t.Errorf("%s %.200s gives %d %.200s, want a refusal", path, body, answer.Code, answer.Body)
	case !slices.ContainsFunc(words, func(word string) bool {
		return strings.Contains(strings.ToLower(out.Error.Error()), word)
	}):
		t.Errorf("%s %.200s: got the error %q, want one of %q in it", path, body, out.Error.Error(), words)
	}
	if w.tables.puts > 0 {
		t.Errorf("%s %.200s: got the writes %+v, want none", path, body, w.tables.changes)
		w.tables.puts = 0
	}
}

// Guarantees the same for the members of a change in an apply.
func TestEveryFieldOfAChange(t *testing.T) {
	w, h := fieldWorld(t)
	bad := map[string][]string{
		"table":  append(slices.Clone(badTable), `"cells"`, `"operations"`),
		"key":    slices.Concat(notText, []string{absent, `null`, `""`, `"a\u0000"`, `"other"`, longName}),
		"expect": slices.Concat(notInteger, []string{`-1`, `1`, `9007199254740992`}),
		"body": {absent, `null`, `1`, `"{}"`, `[]`, `{}`, `{"id":"new","plan":"none"}`,
			`{"id":"new","plan":"pro","colour":1}`, `{"id":"other","plan":"pro"}`, `{"id":"new","plan":1}`},
		"delete": append(slices.Clone(notBool), `true`),
	}
	change := reflect.TypeFor[operate.Change]()
	for i := range change.NumField() {
		name, _, _ := strings.Cut(change.Field(i).Tag.Get("json"), ",")
		if len(bad[name]) == 0 {
			t.Errorf("there are no bad values for %s, want some", name)
		}
		for _, value := range bad[name] {
			members := map[string]json.RawMessage{"table": []byte(`"tenants"`), "key": []byte(`"new"`),
				"expect": []byte(`0`), "body": []byte(`{"id":"new","plan":"pro"}`)}
			if delete(members, name); value != absent {
				members[name] = json.RawMessage(value)
			}
			refusedCall(t, w, h, "/apply", `{"reason":"x","changes":[`+object(members)+`]}`, name,
				"call is not a json object: byte ", "not a plan, a tenant or a key", "version", "plan", "document",
				"colour", "id is missing")
		}
	}
	if _, err := w.tables.Get(t.Context(), control.Tenants, "new"); err == nil {
		t.Error("got the tenant of a refused call, want no tenant")
	}
}
