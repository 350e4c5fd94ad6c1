package envoyconfig

import (
	"fmt"

	"go.yaml.in/yaml/v3"
)

// Mapping says which entries of a request's descriptors tell who calls, and what. It stands beside the domain of a
// file:
//
//	domain: api
//	sluice:
//	  mapping: {tenant: tenant, subject: user, method: method, path: path, address: remote_address}
//
// Each value is the key of an entry; a name that is left out is not told. A descriptor all of whose entries have keys
// of the mapping is decided by the plan of its tenant, and not by the descriptors of the file.
type Mapping struct {
	Tenant, Subject, Method, Path, Address string
}

// Call is what the entries of a mapped descriptor tell; "" where they tell nothing.
type Call struct {
	Tenant, Subject, Method, Path, Address string
}

// field returns where the value of an entry with the key goes, or nil if the mapping does not name the key.
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

// Read reads a descriptor. It reports false if the descriptor is not mapped: it has no entry, or one with a key that
// the mapping does not name, or two with the same key.
func (m *Mapping) Read(entries []Entry) (c Call, mapped bool) {
	for i := range entries {
		field := m.field(&c, entries[i].Key)
		if field == nil || *field != "" {
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

// mapping reads the value of the key "sluice" beside a domain.
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
			return bad("mapping: the key %q of %s is empty, or is that of something else, too", key, name)
		}
		seen[key], *field = true, key
	}
	if m.Tenant == "" && m.Address == "" {
		return bad("mapping: give it the key of tenant or of address, or nothing can be counted")
	}
	if !l.options.Mapping {
		return bad("mapping: there are no plans: start the service with --plans or --config-table")
	}
	return m, nil
}
