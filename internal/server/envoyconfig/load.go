package envoyconfig

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// MaxFileBytes is the largest size of a file.
const MaxFileBytes = 16 << 20

// File holds the name and the content of a configuration file. Each error begins with the name.
type File struct {
	Name string
	Data []byte
}

// Options control how files are read.
type Options struct {
	// MergeDomains lets several files configure one domain. Otherwise that is an error.
	MergeDomains bool

	// Mapping allows files to map descriptors to tenants, see [Mapping].
	Mapping bool

	// Accepts returns an error if the store cannot keep the counters of a descriptor's limits, or cannot decide them
	// together. If nil, every limit is accepted.
	Accepts func(together []*limit.Limit) error
}

// Load reads the files. An error begins with the name of the file. It is the first error that envoyproxy/ratelimit
// would report, in its words, or says what is wrong under a key "sluice". The same files always give the same error.
func Load(files []File, o Options) (*Config, error) {
	l := &loader{options: o, config: &Config{domains: map[string]*node{}}}
	roots := make([]*rootYAML, len(files))
	for i := range files {
		l.file = files[i].Name
		var err error
		if roots[i], err = l.read(files[i].Data); err != nil {
			return nil, err
		}
	}
	for i, root := range roots {
		l.file = files[i].Name
		if err := l.addFile(root); err != nil {
			return nil, err
		}
	}
	return l.config, nil
}

// The shape of a file.
type (
	rootYAML struct {
		Domain      string           `yaml:"domain"`
		Descriptors []descriptorYAML `yaml:"descriptors"`
		Sluice      yaml.Node        `yaml:"sluice"`
	}
	descriptorYAML struct {
		Key            string           `yaml:"key"`
		Value          string           `yaml:"value"`
		RateLimit      *rateLimitYAML   `yaml:"rate_limit"`
		Descriptors    []descriptorYAML `yaml:"descriptors"`
		ShadowMode     bool             `yaml:"shadow_mode"`
		QuotaMode      bool             `yaml:"quota_mode"`
		DetailedMetric bool             `yaml:"detailed_metric"`
		ValueToMetric  bool             `yaml:"value_to_metric"`
		ShareThreshold bool             `yaml:"share_threshold"`
		Metadata       map[string]any   `yaml:"metadata"`
		Sluice         yaml.Node        `yaml:"sluice"`
	}
	rateLimitYAML struct {
		RequestsPerUnit uint32         `yaml:"requests_per_unit"`
		Unit            string         `yaml:"unit"`
		Unlimited       bool           `yaml:"unlimited"`
		Name            string         `yaml:"name"`
		Replaces        []replacesYAML `yaml:"replaces"`
	}
	replacesYAML struct {
		Name string `yaml:"name"`
	}
)

// loader reads the files of one configuration.
type loader struct {
	options Options
	config  *Config
	file    string // the name of the file that is being read
	domain  string // the domain of that file
}

func (l *loader) errorf(format string, args ...any) error {
	return fmt.Errorf("%s: "+format, append([]any{l.file}, args...)...)
}

// warn adds a warning about a line of the file.
func (l *loader) warn(line int, format string, args ...any) {
	l.config.warnings = append(l.config.warnings, fmt.Sprintf("%s:%d: ", l.file, line)+fmt.Sprintf(format, args...))
}

// read parses a file and checks its keys.
func (l *loader) read(data []byte) (*rootYAML, error) {
	if len(data) > MaxFileBytes {
		return nil, l.errorf("error loading config file: the file is larger than %d MiB", MaxFileBytes>>20)
	}
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil {
		return nil, l.errorf("error loading config file: %w%s", err, tabHint(data))
	}
	l.warnOfSecondDocument(data)
	root := new(rootYAML)
	if document.Kind == 0 { // an empty file
		return root, nil
	}
	tree := treeReader{loader: l, seen: map[*yaml.Node]bool{}}
	if err := tree.checkRoot(document.Content[0]); err != nil {
		return nil, err
	}
	if err := document.Decode(root); err != nil {
		return nil, l.errorf("error loading config file: %s", plainTypes(err))
	}
	return root, nil
}

// warnOfSecondDocument warns if a file has more than one YAML document: only the first one is read, as by
// envoyproxy/ratelimit.
func (l *loader) warnOfSecondDocument(data []byte) {
	documents := yaml.NewDecoder(bytes.NewReader(data))
	var first, second yaml.Node
	if documents.Decode(&first) != nil {
		return
	}
	if err := documents.Decode(&second); err != nil && !errors.Is(err, io.EOF) {
		second.Line, second.Kind = 2+bytes.Count(data[:max(bytes.LastIndex(data, []byte("\n---")), 0)], []byte("\n")),
			yaml.DocumentNode
	}
	if second.Kind != 0 && !(len(second.Content) == 1 && second.Content[0].ShortTag() == "!!null") {
		l.warn(second.Line, "a second YAML document begins here, and is ignored: put it into a file of its own")
	}
}

// tabHint names the first line that a tab indents, for the error of a file that is not YAML: the parser's own text does
// not mention the tab.
func tabHint(data []byte) string {
	number := 0
	for line := range bytes.Lines(data) {
		number++
		if bytes.ContainsRune(line[:len(line)-len(bytes.TrimLeft(line, " \t"))], '\t') {
			return fmt.Sprintf(": a tab indents line %d: indent it by spaces, as YAML wants", number)
		}
	}
	return ""
}

// addFile adds the content of a file to the configuration.
func (l *loader) addFile(root *rootYAML) error {
	if root.Domain == "" {
		return l.errorf("config file cannot have empty domain")
	}
	d := l.config.domains[root.Domain]
	if d != nil && !l.options.MergeDomains {
		return l.errorf("duplicate domain '%s' in config file", root.Domain)
	}
	if d == nil {
		d = &node{path: root.Domain, children: map[string]*node{}}
		l.config.domains[root.Domain] = d
	}
	if !root.Sluice.IsZero() {
		if d.mapping != nil {
			return l.errorf("the domain '%s' has a mapping in another file", root.Domain)
		}
		var err error
		if d.mapping, err = l.mapping(&root.Sluice); err != nil {
			return err
		}
	}
	l.domain = root.Domain
	return l.descriptors(d, root.Descriptors)
}

func (l *loader) descriptors(to *node, list []descriptorYAML) error {
	for i := range list {
		if err := l.descriptor(to, &list[i]); err != nil {
			return err
		}
	}
	return nil
}

func (l *loader) descriptor(to *node, d *descriptorYAML) error {
	if d.Key == "" {
		return l.errorf("descriptor has empty key")
	}
	n := &node{
		key: d.Key, children: map[string]*node{}, valueToMetric: d.ValueToMetric, shareThreshold: d.ShareThreshold,
	}
	if d.Value != "" {
		n.key += "_" + d.Value
	}
	n.path = to.path + "." + n.key
	if to.children[n.key] != nil {
		return l.errorf("duplicate descriptor composite key '%s'", n.path)
	}
	if err := l.rule(n, d); err != nil {
		return err
	}
	isWildcard := strings.Contains(n.key, "*")
	if d.ShareThreshold && !isWildcard {
		return l.errorf("share_threshold can only be used with wildcard values (containing '*'), but found key '%s'",
			n.key)
	}
	metadata, err := metadataOf(d.Metadata)
	if err != nil {
		return l.errorf("error parsing metadata: %s", err)
	}
	if n.rule != nil {
		n.rule.Metadata = metadata
	}
	if err := l.descriptors(n, d.Descriptors); err != nil {
		return err
	}
	to.children[n.key] = n
	to.order = append(to.order, n)
	if isWildcard {
		to.wildcards = append(to.wildcards, wildcard{parts: strings.Split(n.key, "*"), node: n})
	}
	return nil
}

// rule sets n.rule from the keys rate_limit and sluice of a descriptor.
func (l *loader) rule(n *node, d *descriptorYAML) error {
	x, err := l.extension(n.path, &d.Sluice)
	if err != nil {
		return err
	}
	if d.RateLimit == nil && len(x.limits) == 0 {
		if !d.Sluice.IsZero() {
			return l.errorf("%s: sluice: limits are missing: add limits here, or a rate_limit to the descriptor",
				n.path)
		}
		return nil
	}
	r := &Rule{
		Path: n.path, ShadowMode: d.ShadowMode, QuotaMode: d.QuotaMode, DetailedMetric: d.DetailedMetric,
		CountDenied: x.countDenied, CountAdmitted: x.countAdmitted, domainBytes: len(l.domain) + len("."),
	}
	if d.RateLimit != nil {
		if err := l.rateLimit(r, d.RateLimit, len(x.limits) > 0); err != nil {
			return err
		}
	}
	if r.Unlimited && !d.Sluice.IsZero() {
		return l.errorf("%s: sluice is not allowed together with unlimited", n.path)
	}
	if r.RequestsPerUnit > 0 && r.Unit != Unknown {
		window, err := NewWindow(r.RequestsPerUnit, r.Unit, x.exact, x.onFailure)
		if err != nil {
			return l.errorf("%s: %w", n.path, err)
		}
		r.Limits = append(r.Limits, window)
	}
	r.Limits = append(r.Limits, x.limits...)
	for _, one := range r.Limits {
		one.Scope = r.Path
	}
	if l.options.Accepts != nil {
		if err := l.options.Accepts(r.Limits); err != nil {
			return l.errorf("%s: %w", n.path, err)
		}
	}
	n.rule = r
	l.config.rules++
	return nil
}

// rateLimit sets fields of r from rate_limit. withLimits says that the key "sluice" has limits, so that the unit may be
// missing.
func (l *loader) rateLimit(r *Rule, y *rateLimitYAML, withLimits bool) error {
	unit, valid := parseUnit(y.Unit)
	switch noWindow := withLimits && y.Unit == "" && y.RequestsPerUnit == 0; {
	case y.Unlimited && valid:
		return l.errorf("should not specify rate limit unit when unlimited")
	case !y.Unlimited && !valid && !noWindow:
		return l.errorf("invalid rate limit unit '%s'", y.Unit)
	}
	r.Name, r.RequestsPerUnit, r.Unit, r.Unlimited = y.Name, y.RequestsPerUnit, unit, y.Unlimited
	for _, replaced := range y.Replaces {
		if replaced.Name == "" {
			return l.errorf("should not have an empty replaces entry")
		}
		if replaced.Name == y.Name {
			return l.errorf("replaces should not contain name of same descriptor")
		}
		r.Replaces = append(r.Replaces, replaced.Name)
	}
	return nil
}

// metadataOf converts the value of metadata. It returns nil if there is none.
func metadataOf(m map[string]any) (*structpb.Struct, error) {
	if len(m) == 0 {
		return nil, nil //nolint:nilnil // no metadata is no error
	}
	return structpb.NewStruct(withTextKeys(m).(map[string]any))
}

// withTextKeys returns v with the keys of all its mappings converted to texts.
func withTextKeys(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, of := range v {
			out[key] = withTextKeys(of)
		}
		return out
	case map[any]any:
		out := make(map[string]any, len(v))
		for key, of := range v {
			out[fmt.Sprint(key)] = withTextKeys(of)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = withTextKeys(v[i])
		}
		return out
	}
	return v
}
