package identity

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"strings"
)

// MaxHops bounds the number of trusted proxies.
const MaxHops = 16

// SourceIP returns the address that a request counts against, in the form of [Plain].
//
// Without trusted hops, that is the peer's address. With N hops, it is the Nth entry of X-Forwarded-For from the right,
// over all lines in their order: the entry in which the outermost of the operator's own proxies wrote the address of
// its peer. Entries to the left of it are a client's claims, and are ignored. An empty element counts as an entry,
// because skipping it would select an entry further to the left.
//
// If that entry is missing or is not an address, SourceIP returns the peer's address. That is safe. Whoever comes
// through the proxies cannot remove the entry. It is missing only if the caller went around the proxies, in which case
// the peer is the caller, or if the proxies are configured wrongly, in which case the callers share the proxy's counter
// and are limited too early, never too late.
//
// Whoever can go around the proxies can also write the entry. If N is above 0, that way must be closed.
func SourceIP(peer string, forwardedFor []string, hops int) netip.Addr {
	own := parseAddr(peer)
	if hops <= 0 {
		return own
	}
	entry, ok := fromRight(forwardedFor, hops)
	if !ok {
		return own
	}
	if a := parseAddr(entry); a.IsValid() {
		return a
	}
	return own
}

// BeforeGateway returns what X-Forwarded-For held before a gateway added the address of its peer, as API Gateway does:
// the lines without that last entry. If the last entry is not the peer, nothing was added, and nothing is removed.
func BeforeGateway(forwardedFor []string, peer string) []string {
	if len(forwardedFor) == 0 {
		return forwardedFor
	}
	before, last := forwardedFor[:len(forwardedFor)-1], forwardedFor[len(forwardedFor)-1]
	comma := strings.LastIndexByte(last, ',')
	if own := parseAddr(peer); !own.IsValid() || parseAddr(last[comma+1:]) != own {
		return forwardedFor
	}
	if comma < 0 {
		return before
	}
	return append(before[:len(before):len(before)], last[:comma])
}

// fromRight returns the nth element from the right, from 1, of the lines as one comma-separated list.
func fromRight(lines []string, n int) (string, bool) {
	for i := len(lines) - 1; i >= 0; i-- {
		rest := lines[i]
		for {
			comma := strings.LastIndexByte(rest, ',')
			if n--; n == 0 {
				return rest[comma+1:], true
			}
			if comma < 0 {
				break
			}
			rest = rest[:comma]
		}
	}
	return "", false
}

// parseAddr reads an address with or without port, brackets, quotes and zone. It returns the zero Addr for any other
// text.
func parseAddr(s string) netip.Addr {
	s = strings.Trim(s, " \t")
	if len(s) > 100 { // the longest valid address with zone and port is far shorter
		return netip.Addr{}
	}
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		s = s[1 : len(s)-1]
	}
	if len(s) > 2 && s[0] == '[' && s[len(s)-1] == ']' {
		s = s[1 : len(s)-1]
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return Plain(a)
	}
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return Plain(ap.Addr())
	}
	return netip.Addr{}
}

// Plain returns the address without a zone. An IPv4 address that is mapped into IPv6 becomes IPv4.
func Plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// Canonical returns the form in which addresses are counted. IPv4 addresses stay as they are. An IPv6 address becomes
// the first address of its network, whose prefix has ipv6Prefix bits, 0..128, because one customer can use any address
// of its network.
func Canonical(a netip.Addr, ipv6Prefix int) netip.Addr {
	a = Plain(a)
	if a.Is6() {
		p, _ := a.Prefix(ipv6Prefix) // the prefix is in range
		a = p.Addr()
	}
	return a
}

// Anonymiser replaces addresses by names. Nobody can learn the address from the name without the key. It is safe for
// concurrent use.
type Anonymiser struct{ key [32]byte }

// NewAnonymiser makes an Anonymiser with a random key: names differ from process to process.
func NewAnonymiser() *Anonymiser {
	a := new(Anonymiser)
	rand.Read(a.key[:])
	return a
}

// Format hides the key, whatever the verb.
func (z *Anonymiser) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "address key") }

// MinAddressKeyBytes is the least length of an Anonymiser's key.
const MinAddressKeyBytes = 32

// NewAnonymiserFrom makes an Anonymiser with a given key. The same key gives the same names. It returns an error if the
// key is shorter than MinAddressKeyBytes.
func NewAnonymiserFrom(key []byte) (*Anonymiser, error) {
	if len(key) < MinAddressKeyBytes {
		return nil, fmt.Errorf("address key has %d bytes, want at least %d", len(key), MinAddressKeyBytes)
	}
	// The key is reduced to a fixed length as in the extract step of HKDF. The given key is the message, not HMAC's
	// key, because HMAC pads its key with zeros, and two keys could become one. The label makes the result useless for
	// other purposes.
	m := hmac.New(sha256.New, []byte("sluice: names of addresses, 1"))
	m.Write(key)
	a := new(Anonymiser)
	m.Sum(a.key[:0])
	return a, nil
}

// Anonymise returns the name of an address: 32 hex digits. To count networks, pass the address that [Canonical]
// returns. All invalid addresses (of a peer without one, as on a Unix socket) have the same name.
//
// The name is the first half of SHA-256 over key and address. Both have a fixed length and fit into one block, so this
// keyed hash is as good as HMAC, which protects against inputs of chosen length, and takes a quarter of the time.
func (z *Anonymiser) Anonymise(addr netip.Addr) string {
	var in [32 + 1 + 16]byte
	copy(in[:], z.key[:])
	if addr.IsValid() {
		in[32] = 1
		a := Plain(addr).As16()
		copy(in[33:], a[:])
	}
	sum := sha256.Sum256(in[:])
	var out [32]byte
	hex.Encode(out[:], sum[:16])
	return string(out[:])
}
