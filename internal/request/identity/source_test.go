package identity_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/request/identity"
)

func TestSourceIP(t *testing.T) {
	const peer = "198.51.100.9:4711"
	for _, c := range []struct {
		name  string
		peer  string
		lines []string
		hops  int
		want  string
	}{
		{"no hops: the header is a client's claim", peer, []string{"203.0.113.7"}, 0, "198.51.100.9"},
		{"one hop", peer, []string{"203.0.113.7"}, 1, "203.0.113.7"},
		{"one hop, forged on the left", peer, []string{"1.2.3.4, 203.0.113.7"}, 1, "203.0.113.7"},
		{"two hops", peer, []string{"1.2.3.4, 203.0.113.7, 10.0.0.1"}, 2, "203.0.113.7"},
		{"lines are one list in their order", peer, []string{"1.2.3.4", "203.0.113.7", "10.0.0.1"}, 2, "203.0.113.7"},
		{"lines of several entries", peer, []string{"1.2.3.4,203.0.113.7", "10.0.0.2 ,\t10.0.0.1"}, 3, "203.0.113.7"},
		{"fewer entries than hops", peer, []string{"203.0.113.7"}, 2, "198.51.100.9"},
		{"no header", peer, nil, 1, "198.51.100.9"},
		{"an empty line is an entry", peer, []string{"203.0.113.7", ""}, 1, "198.51.100.9"},
		{"a trailing comma is an entry", peer, []string{"1.2.3.4,203.0.113.7,"}, 1, "198.51.100.9"},
		{"garbage", peer, []string{"1.2.3.4, unknown"}, 1, "198.51.100.9"},
		{"obfuscated", peer, []string{"_hidden"}, 1, "198.51.100.9"},
		{"port", peer, []string{"203.0.113.7:80"}, 1, "203.0.113.7"},
		{"brackets", peer, []string{"[2001:db8:1:2:3::4]"}, 1, "2001:db8:1:2:3::4"},
		{"brackets and port", peer, []string{"[2001:db8:1:2:3::4]:443"}, 1, "2001:db8:1:2:3::4"},
		{"quotes", peer, []string{`"[2001:db8:1:2:3::4]:443"`}, 1, "2001:db8:1:2:3::4"},
		{"zone", peer, []string{"fe80::1%eth0"}, 1, "fe80::1"},
		{"mapped", peer, []string{"::ffff:203.0.113.7"}, 1, "203.0.113.7"},
		{"mapped, with port", peer, []string{"[::ffff:203.0.113.7]:1"}, 1, "203.0.113.7"},
		{"leading zeros are not an address", peer, []string{"203.0.113.07"}, 1, "198.51.100.9"},
		{"oversized", peer, []string{strings.Repeat("1", 1<<16)}, 1, "198.51.100.9"},
		{"IPv6 peer", "[2001:db8::1:2:3:4]:1", nil, 0, "2001:db8::1:2:3:4"},
		{"no peer", "@", nil, 0, "invalid IP"},
	} {
		if got := identity.SourceIP(c.peer, c.lines, c.hops); got.String() != canonicalText(c.want) {
			t.Errorf("%s: SourceIP(%q, %.60q, %d) = %s, want %s", c.name, c.peer, c.lines, c.hops, got, c.want)
		}
	}
}

func canonicalText(s string) string {
	if a, err := netip.ParseAddr(s); err == nil {
		return a.String()
	}
	return s
}

// FuzzSourceIP guarantees that the parser never panics, that it returns a plain address, and that nothing that a client
// writes in front of the trusted hops changes the result. Otherwise a client could choose the counter that it is
// charged to.
func FuzzSourceIP(f *testing.F) {
	f.Add("198.51.100.9:1", "1.2.3.4, 203.0.113.7", "10.0.0.1", 2, "6.6.6.6")
	f.Add("[::1]:1", "::ffff:1.2.3.4", "[fe80::1%eth0]:80", 1, "")
	f.Add("", ",,", "\"", 3, ",")
	f.Add("@", "[", "]", 1, "[]")
	f.Fuzz(func(t *testing.T, peer, first, second string, hops int, forged string) {
		lines := []string{first, second}
		got := identity.SourceIP(peer, lines, hops)
		if got.IsValid() && identity.Plain(got) != got {
			t.Fatalf("SourceIP(%q, %q, %d) = %s, which is not plain", peer, lines, hops, got)
		}
		if got.Zone() != "" || got.Is4In6() {
			t.Fatalf("SourceIP(%q, %q, %d) = %s: zone or mapped", peer, lines, hops, got)
		}
		if hops <= 0 {
			if own := identity.SourceIP(peer, nil, 0); got != own {
				t.Fatalf("SourceIP(%q, %q, %d) = %s, want the peer's %s", peer, lines, hops, got, own)
			}
			return
		}
		if entries := strings.Count(first, ",") + strings.Count(second, ",") + 2; entries < hops {
			return // the proxies wrote fewer than they should have: only the fallback is promised
		}
		for _, l := range [][]string{{forged, first, second}, {forged + "," + first, second}} {
			if again := identity.SourceIP(peer, l, hops); again != got {
				t.Fatalf("with the forged %q in front, SourceIP(%q, %q, %d) = %s, and without it %s; want the same",
					forged, peer, l, hops, again, got)
			}
		}
	})
}

// Guarantees that a name reveals nothing about its address, and is the same for the whole life of the process.
func TestAnonymise(t *testing.T) {
	z, other := identity.NewAnonymiser(), identity.NewAnonymiser()
	a := netip.MustParseAddr("203.0.113.7")
	name := z.Anonymise(a)
	if len(name) != 32 || name != z.Anonymise(a) || name != z.Anonymise(netip.MustParseAddr("::ffff:203.0.113.7")) {
		t.Errorf("Anonymise(%s) = %q, then %q; want one name of 32 digits", a, name, z.Anonymise(a))
	}
	if name == other.Anonymise(a) {
		t.Errorf("two processes give the address %s the same name %q, want different ones", a, name)
	}
	seen := map[string]string{}
	for _, s := range []string{"203.0.113.7", "203.0.113.8", "2001:db8::", "2001:db8:0:1::", "::", "0.0.0.0"} {
		n := z.Anonymise(netip.MustParseAddr(s))
		if was, ok := seen[n]; ok {
			t.Errorf("the addresses %s and %s have the same name, want different ones", s, was)
		}
		seen[n] = s
	}
	if _, ok := seen[z.Anonymise(netip.Addr{})]; ok {
		t.Errorf("the invalid address has the same name as %s", seen[z.Anonymise(netip.Addr{})])
	}
}

// Guarantees that all addresses of one network are treated as one address, and those of two networks as different ones;
// and that the prefix of IPv6 does not apply to IPv4 addresses.
func TestCanonical(t *testing.T) {
	for _, c := range []struct {
		address string
		prefix  int
		want    string
	}{
		{"2001:db8:1:2:3:4:5:6", 64, "2001:db8:1:2::"},
		{"2001:db8:1:2:3:4:5:6", 56, "2001:db8:1::"},
		{"2001:db8:1:1ff:3:4:5:6", 56, "2001:db8:1:100::"},
		{"2001:db8:1:2:3:4:5:6", 32, "2001:db8::"},
		{"2001:db8:1:2:3:4:5:6", 128, "2001:db8:1:2:3:4:5:6"},
		{"fe80::1%eth0", 64, "fe80::"},
		{"::ffff:192.0.2.1", 32, "192.0.2.1"},
		{"192.0.2.1", 32, "192.0.2.1"},
	} {
		if got := identity.Canonical(netip.MustParseAddr(c.address), c.prefix); got.String() != c.want {
			t.Errorf("Canonical(%s, %d) = %s, want %s", c.address, c.prefix, got, c.want)
		}
	}
}

// Guarantees that instances with the same key give an address the same name, that each byte of the key matters, and
// that a key that could be guessed is refused.
func TestAnonymiserFrom(t *testing.T) {
	from := func(key string) *identity.Anonymiser {
		t.Helper()
		z, err := identity.NewAnonymiserFrom([]byte(key))
		if err != nil {
			t.Fatal(err)
		}
		return z
	}
	key, a := strings.Repeat("k", identity.MinAddressKeyBytes), netip.MustParseAddr("203.0.113.7")
	name := from(key).Anonymise(a)
	if again := from(key).Anonymise(a); again != name {
		t.Errorf("with one key the address %s has the names %q and %q, want the same", a, name, again)
	}
	for _, other := range []string{key + "k", key[:31] + "l", "l" + key[1:], key + "\x00"} {
		if from(other).Anonymise(a) == name {
			t.Errorf("with the key %q the name is the same as with %q, want a different one", other, key)
		}
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d", "%q"} {
		if got := fmt.Sprintf(verb, from(key)); got != "address key" {
			t.Errorf("printed with %s it is %q, want nothing of the key", verb, got)
		}
	}
	if z, err := identity.NewAnonymiserFrom([]byte(key[1:])); err == nil || strings.Contains(err.Error(), key[1:]) {
		t.Errorf("NewAnonymiserFrom of 31 bytes = %v, %v; want an error that does not show them", z, err)
	}
}

// Guarantees that the entry which a gateway itself has added is not treated as a proxy of the operator, however the
// address is spelled, and that no other entry is removed.
func TestBeforeGateway(t *testing.T) {
	for _, c := range []struct {
		lines []string
		peer  string
		want  []string
	}{
		{nil, "198.51.100.20", nil},
		{[]string{"198.51.100.20"}, "198.51.100.20", []string{}},
		{[]string{"203.0.113.7, 198.51.100.20"}, "198.51.100.20", []string{"203.0.113.7"}},
		{[]string{"203.0.113.7", " 198.51.100.20 "}, "198.51.100.20", []string{"203.0.113.7"}},
		{[]string{"203.0.113.7,::ffff:198.51.100.20"}, "198.51.100.20:443", []string{"203.0.113.7"}},
		{[]string{"198.51.100.20, 198.51.100.20"}, "198.51.100.20", []string{"198.51.100.20"}},
		{[]string{"198.51.100.20, 203.0.113.7"}, "198.51.100.20", []string{"198.51.100.20, 203.0.113.7"}},
		{[]string{"203.0.113.7, unknown"}, "unknown", []string{"203.0.113.7, unknown"}},
		{[]string{"203.0.113.7, "}, "198.51.100.20", []string{"203.0.113.7, "}},
	} {
		kept := slices.Clone(c.lines)
		if got := identity.BeforeGateway(c.lines, c.peer); !slices.Equal(got, c.want) || !slices.Equal(c.lines, kept) {
			t.Errorf("BeforeGateway(%q, %q) = %q, want %q; the lines are now %q", kept, c.peer, got, c.want, c.lines)
		}
	}
}
