package limitsv1_test

import (
	"maps"
	"slices"
	"testing"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sluicelimits/sluice/client/limitsv1"
)

// Guarantees that openapi.yaml has exactly the messages of limits.proto, each with exactly its fields, under the names
// and with the types of their JSON form.
func TestOpenAPI(t *testing.T) {
	var page struct {
		Paths      map[string]any
		Components struct {
			Schemas map[string]struct{ Properties map[string]struct{ Type any } }
		}
	}
	if err := yaml.Unmarshal(limitsv1.OpenAPI, &page); err != nil {
		t.Fatal(err)
	}
	if want := []string{"/v1/check", "/v1/check-batch", "/v1/peek",
		"/v1/refund"}; !slices.Equal(slices.Sorted(maps.Keys(page.Paths)), want) {
		t.Errorf("paths %v, want %v", slices.Sorted(maps.Keys(page.Paths)), want)
	}
	types := map[protoreflect.Kind]string{protoreflect.StringKind: "string", protoreflect.BoolKind: "boolean",
		protoreflect.Int32Kind: "integer", protoreflect.Int64Kind: "string"}
	messages := limitsv1.File_client_limitsv1_limits_proto.Messages()
	for i := range messages.Len() {
		m := messages.Get(i)
		schema, ok := page.Components.Schemas[string(m.Name())]
		if !ok {
			t.Errorf("no schema %s", m.Name())
			continue
		}
		var names []string
		for j := range m.Fields().Len() {
			f := m.Fields().Get(j)
			names = append(names, f.JSONName())
			want := types[f.Kind()]
			switch {
			case f.IsMap():
				want = "object"
			case f.IsList():
				want = "array"
			case f.Kind() == protoreflect.MessageKind && f.Message().FullName() == "google.protobuf.Duration":
				want = "string"
			case f.Kind() == protoreflect.MessageKind:
				continue // a reference
			}
			got := schema.Properties[f.JSONName()].Type
			if list, several := got.([]any); several {
				got = list[0]
			}
			if got != want {
				t.Errorf("%s.%s has the type %v, want %s", m.Name(), f.JSONName(), got, want)
			}
		}
		slices.Sort(names)
		if got := slices.Sorted(maps.Keys(schema.Properties)); !slices.Equal(got, names) {
			t.Errorf("%s has %v, want %v", m.Name(), got, names)
		}
	}
	if got := len(page.Components.Schemas); got != messages.Len() {
		t.Errorf("%d schemas, want %d", got, messages.Len())
	}
}
