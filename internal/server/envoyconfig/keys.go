package envoyconfig

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// extensionKey is the key of a descriptor, or of a file, that holds the settings that envoyproxy/ratelimit does not
// have.
const extensionKey = "sluice"

// place says where in a file a mapping is.
type place uint8

const (
	atRoot place = iota
	inDescriptor
	inRateLimit
	inReplaces
	elsewhere // under a key whose value should not be a mapping; decoding refuses it
)

// keysOf lists the keys that have a meaning at each place. A file may have each of these keys at any place:
// envoyproxy/ratelimit ignores a key at a place where it has no meaning.
var keysOf = [...][]string{
	atRoot: {"domain", "descriptors", extensionKey},
	inDescriptor: {
		"key", "value", "rate_limit", "descriptors", "shadow_mode", "quota_mode", "detailed_metric", "value_to_metric",
		"share_threshold", "metadata", extensionKey,
	},
	inRateLimit: {"unit", "requests_per_unit", "unlimited", "name", "replaces"},
	inReplaces:  {"name"},
	elsewhere:   nil,
}

var placeNames = [...]string{"the file itself", "a descriptor", "rate_limit", "replaces", "this place"}

func known(key string) bool {
	return slices.ContainsFunc(keysOf[:], func(keys []string) bool { return slices.Contains(keys, key) })
}

// keyChecker checks the keys of a file, and the kinds of its values as far as envoyproxy/ratelimit does before it
// decodes them.
type keyChecker struct {
	*loader

	// seen holds the mappings that were checked. Each is checked once, because aliases can repeat a mapping
	// exponentially often.
	seen map[*yaml.Node]bool
}

func (k *keyChecker) root(n *yaml.Node) error {
	switch n = resolve(n); {
	case n.Kind == yaml.MappingNode:
		return k.mapping(n, atRoot)
	case n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null":
		return nil
	}
	return k.errorf("error loading config file: yaml: unmarshal errors:\n  line %d: cannot unmarshal %s into a mapping",
		n.Line, describe(n))
}

// mapping checks the keys of a mapping, and its values. Of a key that is there twice, only the last value stays, as in
// envoyproxy/ratelimit.
func (k *keyChecker) mapping(n *yaml.Node, at place) error {
	if k.seen[n] {
		return nil
	}
	k.seen[n] = true
	if err := k.keepLast(n); err != nil {
		return err
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], resolve(n.Content[i+1])
		if key.ShortTag() == "!!merge" {
			if err := k.merged(value, at); err != nil {
				return err
			}
			continue
		}
		if err := k.key(resolve(key), at); err != nil {
			return err
		}
		if err := k.value(resolve(key).Value, value, at); err != nil {
			return err
		}
	}
	return nil
}

// keepLast removes each pair whose key is repeated later in the mapping.
func (k *keyChecker) keepLast(n *yaml.Node) error {
	last := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		if key := resolve(n.Content[i]); key.Kind != yaml.ScalarNode {
			return k.errorf("config error, key is not of type string: %v", decoded(key))
		}
		last[resolve(n.Content[i]).Value] = i
	}
	if len(last) == len(n.Content)/2 {
		return nil
	}
	var kept []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		if last[resolve(n.Content[i]).Value] == i {
			kept = append(kept, n.Content[i], n.Content[i+1])
		}
	}
	n.Content = kept
	return nil
}

// merged checks the mappings that the key "<<" merges into a mapping.
func (k *keyChecker) merged(n *yaml.Node, at place) error {
	if n.Kind == yaml.MappingNode {
		return k.mapping(n, at)
	}
	for _, one := range n.Content {
		if one = resolve(one); one.Kind == yaml.MappingNode {
			if err := k.mapping(one, at); err != nil {
				return err
			}
		}
	}
	return nil
}

func (k *keyChecker) key(key *yaml.Node, at place) error {
	switch {
	case key.ShortTag() != "!!str" && key.ShortTag() != "!!timestamp", isBool11(key):
		return k.errorf("config error, key is not of type string: %v", decoded(key))
	case !known(key.Value), key.Value == extensionKey && at != inDescriptor && at != atRoot:
		return k.errorf("config error, unknown key '%s'", key.Value)
	case !slices.Contains(keysOf[at], key.Value) && at != elsewhere:
		k.config.warnings = append(k.config.warnings, fmt.Sprintf("%s:%d: %s has no effect in %s", k.file, key.Line,
			key.Value, placeNames[at]))
	}
	return nil
}

func (k *keyChecker) value(key string, n *yaml.Node, at place) error {
	switch {
	case key == extensionKey:
		return nil // extension and mapping check their own keys
	case at == inDescriptor && key == "metadata": // its value may be anything
		k.readAsVersion11(n)
		return nil
	}
	switch n.Kind {
	case yaml.SequenceNode:
		for _, item := range n.Content {
			if item = resolve(item); item.Kind != yaml.MappingNode {
				return k.errorf("config error, yaml file contains list of type other than map: %v", decoded(item))
			}
			if err := k.mapping(item, itemPlace(key)); err != nil {
				return err
			}
		}
	case yaml.MappingNode:
		if key == "rate_limit" {
			return k.mapping(n, inRateLimit)
		}
		return k.mapping(n, elsewhere)
	default:
		switch decoded(n).(type) {
		case string, int, bool, time.Time, nil:
		default:
			return k.errorf("error checking config")
		}
	}
	return nil
}

// readAsVersion11 changes values in metadata to those that envoyproxy/ratelimit reads, whose package for YAML follows
// version 1.1: yes, no, on and off become booleans, and a date becomes a text.
func (k *keyChecker) readAsVersion11(n *yaml.Node) {
	if n = resolve(n); k.seen[n] {
		return
	}
	k.seen[n] = true
	switch {
	case n.ShortTag() == "!!timestamp" && n.Kind == yaml.ScalarNode:
		n.Tag = "!!str"
	case isBool11(n):
		value, _ := decoded(n).(bool)
		n.Tag, n.Value = "!!bool", strconv.FormatBool(value)
	}
	for i, child := range n.Content {
		if isKey := n.Kind == yaml.MappingNode && i%2 == 0; !isKey {
			k.readAsVersion11(child)
		}
	}
}

// isBool11 reports whether a scalar is a boolean in version 1.1 of YAML, but a text in version 1.2.
func isBool11(n *yaml.Node) bool {
	if n.Kind != yaml.ScalarNode || n.Style != 0 || n.ShortTag() != "!!str" {
		return false
	}
	switch n.Value {
	case "y", "Y", "yes", "Yes", "YES", "on", "On", "ON", "n", "N", "no", "No", "NO", "off", "Off", "OFF":
		return true
	}
	return false
}

// itemPlace returns the place of the mappings in the list that is the value of the key.
func itemPlace(key string) place {
	switch key {
	case "descriptors":
		return inDescriptor
	case "replaces":
		return inReplaces
	}
	return elsewhere
}

// resolve returns the node that an alias stands for, or else n itself.
func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// decoded returns the Go value of a node, or its text if it has none.
func decoded(n *yaml.Node) any {
	var v any
	if isBool11(n) {
		var value bool
		if n.Decode(&value) == nil {
			return value
		}
	}
	if n.Decode(&v) != nil {
		return n.Value
	}
	return v
}

// describe returns the words for a node that the errors of package yaml use.
func describe(n *yaml.Node) string {
	if n.Kind == yaml.ScalarNode {
		return n.ShortTag() + " `" + n.Value + "`"
	}
	return n.ShortTag()
}

// plainTypes returns the text of a decoding error, with plain words in place of the names of Go types.
func plainTypes(err error) string {
	return strings.NewReplacer(
		"[]envoyconfig.descriptorYAML", "a list of descriptors", "envoyconfig.descriptorYAML", "a descriptor",
		"envoyconfig.rateLimitYAML", "a rate_limit", "[]envoyconfig.replacesYAML", "a list of names",
		"envoyconfig.replacesYAML", "a name", "map[string]interface {}", "a mapping", "map[string]any", "a mapping",
	).Replace(err.Error())
}
