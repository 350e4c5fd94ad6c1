package redis

import (
	"strconv"
	"strings"
	"testing"
)

// Guarantees that the packs that are remembered do not grow until every pack seems to have been used: at most half of
// the bits are set, however many packs are used.
func TestSeenPacksForget(t *testing.T) {
	s := new(seenPacks)
	const bits = int64(len(s.words)) * 64
	for i := range 2 * bits {
		s.add([]byte(strconv.FormatInt(i, 10)))
	}
	unknown := 0
	const asked = 10_000
	for i := range asked {
		if !s.has([]byte("other" + strconv.Itoa(i))) {
			unknown++
		}
	}
	if n := s.count.Load(); n > bits/2 || unknown < asked*4/10 {
		t.Errorf("%d of %d bits are set, and %d of %d packs that were not used are unknown", n, bits, unknown, asked)
	}
	if s.add([]byte("used")); !s.has([]byte("used")) {
		t.Error("a pack is unknown after its use")
	}
}

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
