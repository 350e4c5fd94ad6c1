// Package identity finds out who calls: the tenant and subject of an API key, and the client's address behind proxies.
//
// A key is stored only as HMAC-SHA256(pepper, key). The pepper is kept apart from the hashes, so whoever reads only the
// hashes can neither use nor guess a key. An address leaves this package only as a keyed hash.
package identity

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"math/big"
	"strings"
)

// Bounds and form of a key.
const (
	MaxKeyBytes    = 256 // of a presented key; a longer one is refused before it is hashed
	MinPepperBytes = 16
	keyPrefix      = "slk_"
	keySecretBytes = 32
	keySecretChars = 43 // base 62 digits that hold 32 bytes: 62^43 > 2^256
	keyCheckChars  = 6  // base 62 digits that hold a CRC-32
	keyChars       = len(keyPrefix) + keySecretChars + keyCheckChars
)

// digits are those of base 62: a double click selects a whole key, and a key needs no escaping in a shell, a URL or a
// header.
const digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// ErrMalformedKey means that a text cannot be a key: it is empty, too long, or has characters that keys do not have; or
// it begins like the keys of [NewKey] and has the wrong length or checksum.
var ErrMalformedKey = errors.New("malformed API key")

// NewKey makes a key of 256 random bits: "slk_", 43 base 62 digits, and a checksum of six digits. The checksum lets a
// typo be refused without a look-up, and lets a secret scanner recognise keys.
func NewKey() string {
	var secret [keySecretBytes]byte
	rand.Read(secret[:]) // never fails: it ends the program instead
	return FormatKey(secret)
}

// FormatKey returns the key of a secret.
func FormatKey(secret [keySecretBytes]byte) string {
	body := keyPrefix + base62(new(big.Int).SetBytes(secret[:]), keySecretChars)
	check := checksum(body)
	return body + string(check[:])
}

// CheckKey returns an error if a presented text cannot be a key. It reads at most MaxKeyBytes bytes. Keys that were
// made elsewhere have no checksum, and pass if they are visible ASCII.
func CheckKey(key string) error {
	if key == "" || len(key) > MaxKeyBytes {
		return fmt.Errorf("%w: %d bytes, want 1..%d", ErrMalformedKey, len(key), MaxKeyBytes)
	}
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return fmt.Errorf("%w: a character that is not visible ASCII at %d", ErrMalformedKey, i+1)
		}
	}
	if !strings.HasPrefix(key, keyPrefix) {
		return nil
	}
	if len(key) != keyChars {
		return fmt.Errorf("%w: %d characters, want %d", ErrMalformedKey, len(key), keyChars)
	}
	body := key[:keyChars-keyCheckChars]
	if check := checksum(body); key[len(body):] != string(check[:]) {
		return fmt.Errorf("%w: wrong checksum", ErrMalformedKey)
	}
	return nil
}

// HashKey returns the stored form of a key: hex of HMAC-SHA256(pepper, key).
func HashKey(pepper []byte, key string) string {
	m := hmac.New(sha256.New, pepper)
	m.Write([]byte(key))
	return hex.EncodeToString(m.Sum(nil))
}

// checksum returns the CRC-32 (IEEE) of body in base 62. It reads byte by byte, which avoids a copy.
func checksum(body string) (out [keyCheckChars]byte) {
	sum := ^uint32(0)
	for i := range len(body) {
		sum = crc32.IEEETable[byte(sum)^body[i]] ^ sum>>8
	}
	sum = ^sum
	for i := keyCheckChars - 1; i >= 0; i-- {
		out[i] = digits[sum%62]
		sum /= 62
	}
	return out
}

func base62(n *big.Int, chars int) string {
	out := make([]byte, chars)
	base, digit := big.NewInt(62), new(big.Int)
	for i := chars - 1; i >= 0; i-- {
		n.DivMod(n, base, digit)
		out[i] = digits[digit.Int64()]
	}
	return string(out)
}

// DevPepperID is the id of a built-in pepper, which lets `sluice dev` run without configuration. The pepper is public:
// hashes made with it protect nothing, and only `sluice dev` accepts it.
const DevPepperID = "dev"

// DevPepper returns the public pepper.
func DevPepper() []byte { return []byte("sluice dev pepper: public, for local use only") }

// ExampleKey returns the key of a tenant of the example plan. Anybody can compute it.
func ExampleKey(tenant string) string {
	return FormatKey(sha256.Sum256([]byte("sluice example key of " + tenant)))
}
