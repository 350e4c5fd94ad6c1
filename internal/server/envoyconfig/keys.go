package envoyconfig

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/sluicelimits/sluice/internal/configfile"
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

// keysOf lists the keys that have a meaning at each place. A file may have each of these keys at any place, because
// envoyproxy/ratelimit ignores a key at a place where it has no meaning. The exception is extensionKey, which that
// program does not know: at a place where it has no meaning, it is an error.
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

// UnknownKeyError is a key that a file must not have.
type UnknownKeyError struct {
	File, Key string
	Line      int

	hint string // what to do, or ""
}

// Error returns the words of envoyproxy/ratelimit, which do not say where the key is.
func (e *UnknownKeyError) Error() string {
	return fmt.Sprintf("%s: config error, unknown key '%s'", e.File, e.Key)
}

// Detail returns what follows these words for an operator: the line, and perhaps what to do.
func (e *UnknownKeyError) Detail() string {
	text := fmt.Sprintf(", line %d", e.Line)
	if e.hint != "" {
		text += ": " + e.hint
	}
	return text
}

// ValueError is a value that a file must not have.
type ValueError struct {
	File, Key, Value string
	Line             int
}

// Error returns the words of envoyproxy/ratelimit (its function validateYamlKeys), which do not say where the value is.
func (e *ValueError) Error() string { return e.File + ": error checking config" }

// Detail returns what follows these words for an operator: the place, and what to do.
func (e *ValueError) Detail() string {
	return fmt.Sprintf(", line %d: %s is %s, and no value of these files is a number with a fraction or too large: if "+
		"a text is meant, write %s: \"%s\"", e.Line, e.Key, e.Value, e.Key, e.Value)
}

// planKeys are the keys at the root of a plans file, which is easily given to the wrong flag.
var planKeys = []string{"plans", "slas", "tenants", "ipLimits", "ipv6Prefix", "anonymousPlan", "routes", "keys"}

// hint returns what is probably wrong with an unknown key, or "".
func hint(key string, at place) string {
	if key == extensionKey {
		return "it belongs into a descriptor, or to the root of the file"
	}
	if at == atRoot && slices.Contains(planKeys, key) {
		return "this is a key of a plans file, which --plans wants; --config wants a file with domain and descriptors"
	}
	if near := configfile.Nearest(key, keysOf[at]); near != "" {
		return fmt.Sprintf("did you mean '%s'?", near)
	}
	return ""
}

func known(key string) bool {
	return slices.ContainsFunc(keysOf[:], func(keys []string) bool { return slices.Contains(keys, key) })
}

// treeReader checks the keys that a file has, and the kinds of its values as far as envoyproxy/ratelimit does before it
// decodes them. That program uses another package for YAML. Where that package reads something else than ours,
// treeReader changes the nodes accordingly.
type treeReader struct {
	*loader

	// seen holds the mappings that were checked. Each is checked once, because aliases can repeat a mapping
	// exponentially often.
	seen map[*yaml.Node]bool
}

func (t *treeReader) checkRoot(n *yaml.Node) error {
	switch n = resolve(n); {
	case n.Kind == yaml.MappingNode:
		return t.checkMapping(n, atRoot)
	case n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null":
		return nil
	}
	return t.errorf("error loading config file: yaml: unmarshal errors:\n  line %d: cannot unmarshal %s into a mapping",
		n.Line, describe(n))
}

// checkMapping checks the keys of a mapping, and its values. Of a key that is there twice, only the last value stays,
// as in envoyproxy/ratelimit.
func (t *treeReader) checkMapping(n *yaml.Node, at place) error {
	if t.seen[n] {
		return nil
	}
	t.seen[n] = true
	if err := t.keepLast(n); err != nil {
		return err
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], resolve(n.Content[i+1])
		if key.ShortTag() == "!!merge" {
			if err := t.checkMerged(value, at); err != nil {
				return err
			}
			continue
		}
		if err := t.checkKey(resolve(key), at); err != nil {
			return err
		}
		if err := t.checkValue(resolve(key).Value, value); err != nil {
			return err
		}
	}
	return nil
}

// keepLast removes each pair whose key is repeated later in the mapping.
func (t *treeReader) keepLast(n *yaml.Node) error {
	last := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		if key := resolve(n.Content[i]); key.Kind != yaml.ScalarNode {
			return t.errorf("config error, key is not of type string: %v", decoded(key))
		}
		last[resolve(n.Content[i]).Value] = i
	}
	if len(last) == len(n.Content)/2 {
		return nil
	}
	var kept []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := resolve(n.Content[i])
		if of := last[key.Value]; of != i {
			t.warn(key.Line, "%s is ignored, because the key is there again in line %d", key.Value, n.Content[of].Line)
			continue
		}
		kept = append(kept, n.Content[i], n.Content[i+1])
	}
	n.Content = kept
	return nil
}

// checkMerged checks the mappings that the key "<<" merges into a mapping.
func (t *treeReader) checkMerged(n *yaml.Node, at place) error {
	if n.Kind == yaml.MappingNode {
		return t.checkMapping(n, at)
	}
	for _, one := range n.Content {
		if one = resolve(one); one.Kind == yaml.MappingNode {
			if err := t.checkMapping(one, at); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *treeReader) checkKey(key *yaml.Node, at place) error {
	switch {
	case key.ShortTag() != "!!str" && key.ShortTag() != "!!timestamp", isBool11(key):
		return t.errorf("config error, key is not of type string: %v", decoded(key))
	case !known(key.Value), key.Value == extensionKey && at != inDescriptor && at != atRoot:
		return &UnknownKeyError{File: t.file, Key: key.Value, Line: key.Line, hint: hint(key.Value, at)}
	case !slices.Contains(keysOf[at], key.Value) && at != elsewhere:
		t.warn(key.Line, "%s has no effect in %s", key.Value, placeNames[at])
	}
	return nil
}

func (t *treeReader) checkValue(key string, n *yaml.Node) error {
	switch {
	case key == extensionKey:
		return nil // loader.extension and loader.mapping check the keys below it
	case key == "metadata": // its value may be anything, also at a place where it has no effect
		t.readAsVersion11(n)
		return nil
	}
	switch n.Kind {
	case yaml.SequenceNode:
		if key == "descriptors" {
			t.warnOfConfusable(n.Content)
		}
		for _, item := range n.Content {
			if item = resolve(item); item.Kind != yaml.MappingNode {
				return t.errorf("config error, yaml file contains list of type other than map: %v", decoded(item))
			}
			if err := t.checkMapping(item, itemPlace(key)); err != nil {
				return err
			}
		}
	case yaml.MappingNode:
		if key == "rate_limit" {
			t.warnOfMissingNumber(n)
			return t.checkMapping(n, inRateLimit)
		}
		return t.checkMapping(n, elsewhere)
	default:
		switch decoded(n).(type) {
		case string, int, bool, time.Time, nil:
		default: // a number with a fraction, for example
			return &ValueError{File: t.file, Key: key, Value: n.Value, Line: n.Line}
		}
	}
	return nil
}

// warnOfMissingNumber warns of a rate_limit that denies everything because it has a unit and no number.
func (t *treeReader) warnOfMissingNumber(n *yaml.Node) {
	var unit *yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		switch key := n.Content[i]; {
		case key.Value == "requests_per_unit", key.ShortTag() == "!!merge":
			return
		case key.Value == "unit":
			unit = key
		}
	}
	if unit != nil {
		t.warn(unit.Line, "rate_limit has a unit and no requests_per_unit, so it denies every request: add the "+
			"number, or write requests_per_unit: 0 if that is meant")
	}
}

// warnOfConfusable warns of descriptors of one list whose keys and values can give the same text when they are joined
// by "_", as envoyproxy/ratelimit compares them: a request user=tier_gold gets the rule of user_tier=gold.
func (t *treeReader) warnOfConfusable(items []*yaml.Node) {
	keys := map[string]int{} // the lines, by key
	for _, item := range items {
		if key := valueOf(resolve(item), "key"); key != nil && keys[key.Value] == 0 {
			keys[key.Value] = key.Line
		}
	}
	for _, long := range slices.Sorted(maps.Keys(keys)) {
		for i := range long {
			short := long[:i]
			line, there := keys[short]
			if long[i] != '_' || !there {
				continue
			}
			rest := long[i+1:]
			t.warn(keys[long], "descriptors with the keys %s and %s (line %d) can be confused, as in "+
				"envoyproxy/ratelimit: a request with %s=%s_x gets the rule of %s=x. Rename one of the keys if "+
				"clients choose the value of %s", long, short, line, short, rest, long, short)
		}
	}
}

// valueOf returns the value of a key of a mapping, or nil.
func valueOf(n *yaml.Node, key string) *yaml.Node {
	if n.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == key {
				return resolve(n.Content[i+1])
			}
		}
	}
	return nil
}

// readAsVersion11 changes values in metadata to those that envoyproxy/ratelimit reads, whose package for YAML follows
// version 1.1: yes, no, on and off become booleans, and a date becomes a text.
func (t *treeReader) readAsVersion11(n *yaml.Node) {
	if n = resolve(n); t.seen[n] {
		return
	}
	t.seen[n] = true
	switch {
	case n.ShortTag() == "!!timestamp" && n.Kind == yaml.ScalarNode:
		n.Tag = "!!str"
	case isBool11(n):
		value, _ := decoded(n).(bool)
		n.Tag, n.Value = "!!bool", strconv.FormatBool(value)
	}
	for i, child := range n.Content {
		if isKey := n.Kind == yaml.MappingNode && i%2 == 0; !isKey {
			t.readAsVersion11(child)
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
