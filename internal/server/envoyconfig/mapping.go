package envoyconfig

import (
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"
)

// Mapping says which entries of a request's descriptor hold the tenant, subject, method, path and address of a call. A
// file has it beside its domain:
//
//	domain: api
//	sluice:
//	  mapping: {tenant: tenant, subject: user, method: method, path: path, address: remote_address}
//
// Each value is the key of an entry. Names may be left out. If all entries of a descriptor have keys of the mapping,
// the plan of the tenant decides the descriptor, and the descriptors of the file do not apply.
type Mapping struct {
	Tenant, Subject, Method, Path, Address string
}

// Call holds the values of a mapped descriptor. A value without an entry is "".
type Call struct {
	Tenant, Subject, Method, Path, Address string
}

// field returns the field of c for the value of an entry with the key, or nil if the mapping does not name the key.
func (m *Mapping) field(c *Call, key string) *string {
	switch key {
	case "":
		return nil
	case m.Tenant:
		return &c.Tenant
	case m.Subject:
		return &c.Subject
	case m.Method:
		return &c.Method
	case m.Path:
		return &c.Path
	case m.Address:
		return &c.Address
	}
	return nil
}

// Read returns the call that a descriptor describes. It reports false if the descriptor is not mapped: it has no
// entries, an entry whose key the mapping does not name, or two entries with the same key.
func (m *Mapping) Read(entries []Entry) (c Call, mapped bool) {
	for i := range entries {
		field := m.field(&c, entries[i].Key)
		twice := slices.ContainsFunc(entries[:i], func(e Entry) bool { return e.Key == entries[i].Key })
		if field == nil || twice {
			return Call{}, false
		}
		*field = entries[i].Value
	}
	return c, len(entries) > 0
}

// Mapping returns the mapping of a domain, or nil.
func (c *Config) Mapping(domain string) *Mapping {
	if d := c.domains[domain]; d != nil {
		return d.mapping
	}
	return nil
}

// mapping reads the value of the key "sluice" of a file.
func (l *loader) mapping(n *yaml.Node) (*Mapping, error) {
	var root struct {
		Mapping map[string]string `yaml:"mapping"`
	}
	bad := func(format string, args ...any) (*Mapping, error) {
		return nil, l.errorf("sluice: line %d: %s", n.Line, fmt.Sprintf(format, args...))
	}
	if n = resolve(n); n.Kind != yaml.MappingNode || len(n.Content) != 2 || n.Content[0].Value != "mapping" {
		return bad("want a mapping with the key mapping, and no other")
	}
	if err := n.Decode(&root); err != nil {
		return bad("mapping: %s", plainTypes(err))
	}
	m, seen := new(Mapping), map[string]bool{}
	fields := map[string]*string{
		"tenant": &m.Tenant, "subject": &m.Subject, "method": &m.Method, "path": &m.Path, "address": &m.Address,
	}
	for name, key := range root.Mapping {
		field := fields[name]
		if field == nil {
			return bad("mapping: %q is not tenant, subject, method, path or address", name)
		}
		if key == "" || seen[key] {
			return bad("mapping: the key %q of %s is empty, or another name has it, too", key, name)
		}
		seen[key], *field = true, key
	}
	if m.Tenant == "" && m.Address == "" {
		return bad("mapping: tenant and address are missing: without one of them nothing can be counted")
	}
	if !l.options.Mapping {
		return bad("mapping: there are no plans: start the service with --plans or --config-table")
	}
	return m, nil
}
