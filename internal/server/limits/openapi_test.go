package limits_test

import (
	"maps"
	"reflect"
	"slices"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/sluicelimits/sluice/internal/server/limits"
)

// Guarantees that openapi.yaml has exactly the messages of the API, each with exactly its fields, under the names and
// with the types of their JSON form.
func TestOpenAPI(t *testing.T) {
	var page struct {
		Paths      map[string]any
		Components struct {
			Schemas map[string]struct{ Properties map[string]struct{ Type any } }
		}
	}
	if err := yaml.Unmarshal(limits.OpenAPI, &page); err != nil {
		t.Fatal(err)
	}
	if want := []string{"/v1/check", "/v1/check-batch", "/v1/peek",
		"/v1/refund"}; !slices.Equal(slices.Sorted(maps.Keys(page.Paths)), want) {
		t.Errorf("paths %v, want %v", slices.Sorted(maps.Keys(page.Paths)), want)
	}
	types := map[reflect.Kind]string{reflect.String: "string", reflect.Bool: "boolean", reflect.Int: "integer",
		reflect.Int64: "integer", reflect.Map: "object", reflect.Slice: "array"}
	messages := []any{limits.Call{}, limits.CheckRequest{}, limits.CheckResponse{}, limits.CheckBatchRequest{},
		limits.CheckBatchResponse{}, limits.Decision{}, limits.Limit{}, limits.RefundRequest{}, limits.RefundResponse{},
		limits.Error{}}
	for _, m := range messages {
		of := reflect.TypeOf(m)
		schema, ok := page.Components.Schemas[of.Name()]
		if !ok {
			t.Errorf("no schema %s", of.Name())
			continue
		}
		var names []string
		for i := range of.NumField() {
			f := of.Field(i)
			if !f.IsExported() {
				continue
			}
			name, want := f.Tag.Get("json"), types[f.Type.Kind()]
			names = append(names, name)
			switch f.Type {
			case reflect.TypeFor[limits.Duration](), reflect.TypeFor[*limits.Duration]():
				want = "string"
			case reflect.TypeFor[*limits.Call](), reflect.TypeFor[*limits.Decision]():
				continue // a reference
			}
			got := schema.Properties[name].Type
			if list, several := got.([]any); several {
				got = list[0]
			}
			if got != want {
				t.Errorf("%s.%s has the type %v, want %s", of.Name(), name, got, want)
			}
		}
		slices.Sort(names)
		if got := slices.Sorted(maps.Keys(schema.Properties)); !slices.Equal(got, names) {
			t.Errorf("%s has %v, want %v", of.Name(), got, names)
		}
	}
	if got := len(page.Components.Schemas); got != len(messages) {
		t.Errorf("%d schemas, want %d", got, len(messages))
	}
}
