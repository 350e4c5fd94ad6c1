package envoyconfig_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/server/envoyconfig"
)

func loadMapping(text string, allowed bool) (*envoyconfig.Config, error) {
	return envoyconfig.Load([]envoyconfig.File{{Name: "f", Data: []byte(text)}}, envoyconfig.Options{Mapping: allowed,
		MergeDomains: true})
}

// Guarantees that a descriptor is mapped if all its entries have keys of the mapping, and that each value gets to its
// field.
func TestMapping(t *testing.T) {
	c, err := loadMapping("domain: d\nsluice:\n  mapping: {tenant: t, subject: s, method: m, path: p, address: a}\n",
		true)
	if err != nil {
		t.Fatal(err)
	}
	if c.Mapping("e") != nil || !slices.Equal(c.Domains(), []string{"d"}) {
		t.Error("a domain without a mapping has the mapping of another domain")
	}
	for _, tt := range []struct {
		entries []envoyconfig.Entry
		want    envoyconfig.Call
		mapped  bool
	}{
		{entries("t=acme", "p=/x", "m=GET", "s=u", "a=10.0.0.1"), envoyconfig.Call{Tenant: "acme", Subject: "u",
			Method: "GET", Path: "/x", Address: "10.0.0.1"}, true},
		{entries("a=10.0.0.1"), envoyconfig.Call{Address: "10.0.0.1"}, true},
		{entries("t="), envoyconfig.Call{}, true},
		{entries("t=acme", "x=y"), envoyconfig.Call{}, false},
		{entries("t=acme", "t=globex"), envoyconfig.Call{}, false},
		{entries("t=", "t=globex"), envoyconfig.Call{}, false},
		{nil, envoyconfig.Call{}, false},
	} {
		if got, mapped := c.Mapping("d").Read(tt.entries); got != tt.want || mapped != tt.mapped {
			t.Errorf("%v: %+v, %v; want %+v, %v", tt.entries, got, mapped, tt.want, tt.mapped)
		}
	}
}

// Guarantees that an invalid mapping is refused with an error that names the mistake.
func TestMappingErrors(t *testing.T) {
	for _, c := range []struct {
		sluice, want string
		allowed      bool
	}{
		{"1", "want a mapping with the key mapping", true},
		{"{mapping: {tenant: t}, x: y}", "and no other", true},
		{"{mapping: [t]}", "mapping: ", true},
		{"{mapping: {tenants: t}}", `"tenants" is not tenant, subject, method, path or address`, true},
		{"{mapping: {tenant: ''}}", "is empty", true},
		{"{mapping: {tenant: t, path: t}}", "is empty, or another name has it, too", true},
		{"{mapping: {path: p}}", "tenant and address are missing", true},
		{"{mapping: {tenant: t}}", "start the service with --plans", false},
	} {
		if _, err := loadMapping("domain: d\nsluice: "+c.sluice+"\n", c.allowed); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", c.sluice, err, c.want)
		}
	}
	one := envoyconfig.File{Name: "f", Data: []byte("domain: d\nsluice: {mapping: {tenant: t}}\n")}
	if _, err := envoyconfig.Load([]envoyconfig.File{one, one}, envoyconfig.Options{Mapping: true,
		MergeDomains: true}); err == nil ||
		!strings.Contains(err.Error(), "has a mapping in another file") {
		t.Errorf("two mappings: %v", err)
	}
}
