package redis

import (
	"strings"
	"testing"
)

// Guarantees that no two namespaces share keys, and that none ends the part of a key that a cluster hashes.
func TestNamespacesAreApart(t *testing.T) {
	seen := map[string]string{}
	for _, name := range []string{"", "a", "%", "%25", "}", "%7D", "%7d", "%257D", "a}", "a%7D"} {
		part := namespacePart(name)
		if other, twice := seen[part]; twice {
			t.Errorf("the namespaces %q and %q share their keys, %q", name, other, part)
		}
		if seen[part] = name; strings.Contains(part, "}") {
			t.Errorf("the namespace %q: its part of the keys, %q, has a }", name, part)
		}
	}
}
