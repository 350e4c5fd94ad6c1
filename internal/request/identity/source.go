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

// SourceIP is the address that a request counts against, in the form of [Plain].
//
// With no trusted hops it is the peer's. With N it is the Nth entry of X-Forwarded-For from the right, over all lines
// in their order: the one that the outermost of the operator's own proxies wrote about whom it saw. What stands left of
// it is what a client claims, and is never looked at. An empty element is an entry like any other: to skip it would
// move one place to the left.
//
// Where that entry is missing or is no address, the answer is the peer's address. That is safe: whoever came through
// the proxies did not get to write the entry, so it is missing only for one who went around them (then the peer is the
// caller), or where the proxies are set up wrong (then the callers share the proxy's counter: limited too early, never
// too late).
//
// Who can go around the proxies can also write the entry: with N above 0 that way must be closed.
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

// BeforeGateway is what X-Forwarded-For held when the request came to a gateway that adds the address of its peer, as
// API Gateway does: the lines without that last entry. Where the last entry is not the peer, nothing was added and
// nothing is taken.
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

// fromRight is the nth element from the right, from 1, of the lines as one comma-separated list.
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

// parseAddr reads an address with or without port, brackets, quotes and zone. It returns the zero Addr for anything
// else.
func parseAddr(s string) netip.Addr {
	s = strings.Trim(s, " \t")
	if len(s) > 100 { // the longest address with zone and port that means anything is far shorter
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

// Plain is the address without a zone, and an IPv4 address that is mapped into IPv6 as IPv4.
func Plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// Canonical is the form in which addresses are counted: IPv4 as it is; IPv6 as the first address of its network, whose
// prefix has so many bits, 0..128, since one customer can pick at will from the addresses of a network.
func Canonical(a netip.Addr, ipv6Prefix int) netip.Addr {
	a = Plain(a)
	if a.Is6() {
		p, _ := a.Prefix(ipv6Prefix) // the error is of a prefix that is out of range
		a = p.Addr()
	}
	return a
}

// Anonymiser turns addresses into names that say nothing about them without its key. It is safe for concurrent use.
type Anonymiser struct{ key [32]byte }

// NewAnonymiser takes a random key of its own: names differ from process to process.
func NewAnonymiser() *Anonymiser {
	a := new(Anonymiser)
	rand.Read(a.key[:])
	return a
}

// Format shows nothing of the key, whatever the verb.
func (z *Anonymiser) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "address key") }

// MinAddressKeyBytes is the least length of an Anonymiser's key.
const MinAddressKeyBytes = 32

// NewAnonymiserFrom names addresses alike wherever the key is the same. A key shorter than MinAddressKeyBytes is an
// error.
func NewAnonymiserFrom(key []byte) (*Anonymiser, error) {
	if len(key) < MinAddressKeyBytes {
		return nil, fmt.Errorf("address key has %d bytes, want at least %d", len(key), MinAddressKeyBytes)
	}
	// As HKDF extracts: any length becomes the fixed one. The key is the message, since as HMAC's key it would be
	// padded with zeros, and two keys could be one. The label keeps the outcome from being of use elsewhere.
	m := hmac.New(sha256.New, []byte("sluice: names of addresses, 1"))
	m.Write(key)
	a := new(Anonymiser)
	m.Sum(a.key[:0])
	return a, nil
}

// Anonymise names an address by 32 hex digits. To count networks, pass it the address that [Canonical] returns. An
// invalid address (of a peer without one, as on a Unix socket) has a name too, the same for all.
//
// It is SHA-256 over key and address, both of fixed length and so in one block, cut in half: as a keyed hash that is as
// good as HMAC, which guards against inputs of chosen length, at a quarter of the time.
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
