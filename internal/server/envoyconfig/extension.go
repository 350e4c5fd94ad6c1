package envoyconfig

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
)

// extension holds the value of the key "sluice" of a descriptor:
//
//	sluice:
//	  countDenied: true         # all limits of this descriptor count denied requests, too; false: never
//	  exact: true               # the store decides each request of rate_limit; nothing is leased
//	  onStoreFailure: closed    # of rate_limit: backstop, open or closed
//	  limits:                   # in addition to rate_limit; each is written as in a plan
//	    - {id: burst, algorithm: token_bucket, rate: 10, period: 1s, burst: 20}
//	    - {id: monthly, quota: {units: 100000, every: month, timezone: Europe/Paris}}
//
// All limits of a descriptor must admit, and they are charged together or not at all. With limits, rate_limit can be
// left out, or have no more than a name and replaces.
type extension struct {
	countDenied, countAdmitted bool
	exact                      bool
	onFailure                  limit.FailurePolicy
	limits                     []*limit.Limit
}

// limitKeys are the keys of a plan's limit that are allowed here. Descriptors take the place of the others.
var limitKeys = []string{
	"id", "algorithm", "rate", "threshold", "period", "burst", "buckets", "tiers", "quota", "align", "exact",
	"onStoreFailure",
}

// extension reads the value of the key "sluice". n is the zero node if the key is missing.
func (l *loader) extension(path string, n *yaml.Node) (x extension, err error) {
	if n.IsZero() {
		return x, nil
	}
	bad := func(at *yaml.Node, format string, args ...any) (extension, error) {
		return x, l.errorf("%s: sluice: line %d: "+format, append([]any{path, at.Line}, args...)...)
	}
	if n = resolve(n); n.Kind != yaml.MappingNode {
		return bad(n, "want a mapping with limits, countDenied, exact or onStoreFailure")
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], resolve(n.Content[i+1])
		if seen[key.Value] {
			return bad(key, "%s is there twice", key.Value)
		}
		seen[key.Value] = true
		switch key.Value {
		case "countDenied":
			err = value.Decode(&x.countDenied)
			x.countAdmitted = !x.countDenied
		case "exact":
			err = value.Decode(&x.exact)
		case "onStoreFailure":
			ok := false
			if x.onFailure, ok = limit.ParseFailurePolicy(value.Value); !ok {
				return bad(value, "onStoreFailure %q is not backstop, open or closed", value.Value)
			}
		case "limits":
			x.limits, err = planLimits(value)
		default:
			return bad(key, "unknown key %q: want limits, countDenied, exact or onStoreFailure", key.Value)
		}
		if err != nil {
			return bad(value, "%s: %s", key.Value, strings.TrimPrefix(err.Error(), "yaml: unmarshal errors:\n  "))
		}
	}
	return x, nil
}

// planLimits reads a list of limits that are written as in a plan.
func planLimits(n *yaml.Node) ([]*limit.Limit, error) {
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		return nil, errors.New("want a list of limits")
	}
	for _, item := range n.Content {
		item = resolve(item)
		for i := 0; item.Kind == yaml.MappingNode && i+1 < len(item.Content); i += 2 {
			if key := item.Content[i].Value; !slices.Contains(limitKeys, key) {
				return nil, fmt.Errorf("a limit of a descriptor has no %q: want %s", key, strings.Join(limitKeys, ", "))
			}
		}
	}
	text, err := yaml.Marshal(map[string]any{"plans": []any{map[string]any{"id": "sluice", "limits": n}}})
	if err != nil {
		return nil, err
	}
	parsed, err := plan.Parse(configyaml.Source("limits", text))
	var wrong *plan.Error
	if errors.As(err, &wrong) && len(wrong.Problems) > 0 {
		return nil, errors.New(wrong.Problems[0].Message)
	}
	if err != nil {
		return nil, err
	}
	var limits []*limit.Limit
	for _, e := range parsed.Plans()[0].Set().Limits {
		if e.Limit.ID == WindowID {
			return nil, fmt.Errorf("the id %q is reserved for the limit of rate_limit: choose another one", WindowID)
		}
		limits = append(limits, e.Limit)
	}
	return limits, nil
}
