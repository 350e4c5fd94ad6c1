package identity_test

import (
	"encoding/hex"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// Guarantees that a mistyped or random key is refused before any hash is computed: each changed and each missing
// character is noticed. Without the checksum, a flood of random keys would cost one hash for each pepper.
func TestCheckKeyRefusesTypos(t *testing.T) {
	key := identity.NewKey()
	if err := identity.CheckKey(key); err != nil {
		t.Fatalf("CheckKey(%q) = %v, want nil", key, err)
	}
	for i := range len(key) {
		if i < len("slk_") {
			continue // without the prefix it may be a key that another system has made
		}
		other := byte('x')
		if key[i] == other {
			other = 'y'
		}
		typo := key[:i] + string(other) + key[i+1:]
		if err := identity.CheckKey(typo); !errors.Is(err, identity.ErrMalformedKey) {
			t.Errorf("CheckKey(%q), character %d changed, = %v; want ErrMalformedKey", typo, i+1, err)
		}
		short := key[:i] + key[i+1:]
		if err := identity.CheckKey(short); !errors.Is(err, identity.ErrMalformedKey) {
			t.Errorf("CheckKey(%q), character %d missing, = %v; want ErrMalformedKey", short, i+1, err)
		}
	}
	for _, bad := range []string{"", " ", "a b", "a\x00b", "clé", strings.Repeat("k", identity.MaxKeyBytes+1)} {
		if err := identity.CheckKey(bad); !errors.Is(err, identity.ErrMalformedKey) {
			t.Errorf("CheckKey(%.40q) = %v; want ErrMalformedKey", bad, err)
		}
	}
	if err := identity.CheckKey("legacy-key.1"); err != nil {
		t.Errorf("CheckKey of a key made elsewhere = %v, want nil", err)
	}
}

func TestNewKeysDiffer(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		k := identity.NewKey()
		if seen[k] {
			t.Fatalf("NewKey made %q twice", k)
		}
		seen[k] = true
	}
}

// Guarantees that the stored form of a key is what any tool for HMAC-SHA256 prints (here test case 2 of RFC 4231), so
// that keys can be hashed by other tools.
func TestHashKeyKnownAnswer(t *testing.T) {
	const want = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
	if got := identity.HashKey([]byte("Jefe"), "what do ya want for nothing?"); got != want {
		t.Errorf("HashKey = %s, want %s", got, want)
	}
}

func TestVerify(t *testing.T) {
	old, fresh := []byte("the pepper of last year"), []byte("the pepper of this year")
	presented := map[string]string{}
	for _, id := range []string{"live", "old-pepper", "expired", "ends-later", "revoked"} {
		presented[id] = identity.NewKey()
	}
	stored := func(id string, change func(*identity.Key)) identity.Key {
		k := identity.Key{ID: id, Tenant: "acme", Subject: "ci", Pepper: "2026",
			Hash: identity.HashKey(fresh, presented[id])}
		if change != nil {
			change(&k)
		}
		return k
	}
	keys, err := identity.NewKeys([]identity.Key{
		stored("live", nil),
		stored("old-pepper",
			func(k *identity.Key) { k.Pepper, k.Hash = "2025", identity.HashKey(old, presented["old-pepper"]) }),
		stored("expired", func(k *identity.Key) { k.ExpiresAt = noon }),
		stored("ends-later", func(k *identity.Key) { k.ExpiresAt = noon.Add(time.Microsecond) }),
		stored("revoked", func(k *identity.Key) { k.Revoked = true }),
	}, map[string][]byte{"2025": old, "2026": fresh})
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]error{"live": nil, "old-pepper": nil, "ends-later": nil,
		"expired": identity.ErrExpiredKey, "revoked": identity.ErrRevokedKey} {
		got, err := keys.Verify(presented[id], noon)
		if !errors.Is(err, want) {
			t.Errorf("Verify(key %s) = %v, want %v", id, err, want)
		}
		if err == nil && got.ID != id {
			t.Errorf("Verify(key %s) found %s", id, got.ID)
		}
	}
	if _, err := keys.Verify(identity.NewKey(), noon); !errors.Is(err, identity.ErrUnknownKey) {
		t.Errorf("Verify(a key nobody stored) = %v, want ErrUnknownKey", err)
	}
	// Guarantees that a stored hash is not accepted as a key: whoever reads the table cannot make calls with its
	// content.
	if _, err := keys.Verify(identity.HashKey(fresh, presented["live"]), noon); !errors.Is(err,
		identity.ErrUnknownKey) {
		t.Errorf("Verify(a stored hash) = %v, want ErrUnknownKey", err)
	}
	allocs := testing.AllocsPerRun(100, func() {
		if _, err := keys.Verify(presented["live"], noon); err != nil {
			t.Error(err)
		}
	})
	if allocs > 0 && !soak.RaceEnabled {
		t.Errorf("Verify allocates %v times, want 0", allocs)
	}
}

// Guarantees that a key which was hashed with one pepper is not found with another one: the id of the pepper is part of
// what is stored.
func TestVerifyBindsPepper(t *testing.T) {
	a, b := []byte("pepper a pepper a"), []byte("pepper b pepper b")
	key, other := identity.NewKey(), identity.NewKey()
	keys, err := identity.NewKeys([]identity.Key{
		{ID: "wrong", Tenant: "acme", Pepper: "a", Hash: identity.HashKey(b, key)},
		{ID: "uses-b", Tenant: "acme", Pepper: "b", Hash: identity.HashKey(b, other)},
	}, map[string][]byte{"a": a, "b": b})
	if err != nil {
		t.Fatal(err)
	}
	if k, err := keys.Verify(key, noon); !errors.Is(err, identity.ErrUnknownKey) {
		t.Errorf("Verify under the wrong pepper = %v, %v; want ErrUnknownKey", k, err)
	}
	if k, err := keys.Verify(other, noon); err != nil || k.ID != "uses-b" {
		t.Errorf("Verify = %v, %v; want uses-b", k, err)
	}
}

func TestNewKeysRefuses(t *testing.T) {
	pepper := map[string][]byte{"dev": identity.DevPepper(), "short": []byte("short")}
	for id := range identity.MaxPeppers + 1 {
		pepper[string(rune('a'+id))] = identity.DevPepper()
	}
	hash := func(k string) string { return identity.HashKey(identity.DevPepper(), k) }
	many := make([]identity.Key, 0, identity.MaxPeppers+1)
	for id := range identity.MaxPeppers + 1 {
		p := string(rune('a' + id))
		many = append(many, identity.Key{ID: p, Hash: hash(p), Pepper: p})
	}
	for _, c := range []struct {
		name string
		keys []identity.Key
		want string
	}{
		{"unknown pepper", []identity.Key{{ID: "k", Hash: hash("1"), Pepper: "prod"}}, `pepper "prod" is unknown`},
		{"short pepper", []identity.Key{{ID: "k", Hash: hash("1"), Pepper: "short"}}, "want at least 16"},
		{"not hex", []identity.Key{{ID: "k", Hash: "xyz", Pepper: "dev"}}, "hash is not 64 hex digits"},
		{"same hash", []identity.Key{{ID: "k", Hash: hash("1"), Pepper: "dev"},
			{ID: "l", Hash: hash("1"), Pepper: "dev"}}, `keys[1] ("l"): key "k" has the same hash`},
		{"same id", []identity.Key{{ID: "k", Hash: hash("1"), Pepper: "dev"},
			{ID: "k", Hash: hash("2"), Pepper: "dev"}}, "another key has this id"},
		{"too many peppers", many, "9 peppers, want at most 8"},
	} {
		if _, err := identity.NewKeys(c.keys, pepper); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: NewKeys = %v, want an error with %q", c.name, err, c.want)
		}
	}
}

func TestFindCredentials(t *testing.T) {
	h := func(pairs ...string) map[string][]string {
		m := map[string][]string{}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = append(m[pairs[i]], pairs[i+1])
		}
		return m
	}
	for _, c := range []struct {
		name        string
		header      map[string][]string
		key, bearer string
		bad         bool
	}{
		{"none", h("Accept", "x"), "", "", false},
		{"key", h("X-Api-Key", " k "), "k", "", false},
		{"bearer", h("Authorization", "bearer  k"), "", "k", false},
		{"both", h("X-Api-Key", "k", "Authorization", "Bearer l"), "k", "l", false},
		{"empty key", h("X-Api-Key", ""), "", "", true},
		{"empty authorization", h("Authorization", ""), "", "", true},
		{"bearer of nothing", h("Authorization", "Bearer "), "", "", true},
		{"basic", h("Authorization", "Basic Zm9vOmJhcg=="), "", "", true},
		{"two keys", h("X-Api-Key", "k", "X-Api-Key", "k"), "", "", true},
		{"two authorizations", h("Authorization", "Bearer k", "Authorization", "Bearer k"), "", "", true},
		{"empty key beside bearer", h("X-Api-Key", "", "Authorization", "Bearer k"), "", "", true},
	} {
		found, err := identity.FindCredentials(c.header)
		if found.Key != c.key && !c.bad || found.Bearer != c.bearer && !c.bad ||
			errors.Is(err, identity.ErrBadCredential) != c.bad {
			t.Errorf("%s: FindCredentials(%v) = %+v, %v; want %q, %q, bad %v", c.name, c.header, found, err, c.key,
				c.bearer, c.bad)
		}
		if found.Any() != (len(c.header) > 0 && c.name != "none" && !c.bad) {
			t.Errorf("%s: Any() = %v", c.name, found.Any())
		}
	}
}

// Guarantees that a look-up uses the hashes that HashKey stores, with each pepper and in the same order; that a text
// that cannot be a key is refused before any hash is computed; and that a look-up allocates nothing.
func TestHashes(t *testing.T) {
	secrets := map[string][]byte{"2026": []byte("the pepper of this year"), "2025": []byte("the pepper of last year")}
	p, err := identity.NewPeppers(secrets)
	if err != nil {
		t.Fatal(err)
	}
	clear(secrets["2025"]) // the caller may clear its secrets: they must have been copied
	secrets["2025"] = []byte("the pepper of last year")
	key := identity.NewKey()
	hashes, err := p.Hashes(key)
	if err != nil || len(hashes) != 2 {
		t.Fatalf("Hashes = %d of them, %v; want two", len(hashes), err)
	}
	for i, id := range []string{"2025", "2026"} {
		if got, want := hex.EncodeToString(hashes[i].Hash[:]),
			identity.HashKey(secrets[id], key); hashes[i].Pepper != id || got != want {
			t.Errorf("hash %d = %s under %s, want %s under %s", i, got, hashes[i].Pepper, want, id)
		}
	}
	for _, bad := range []string{"", "a b", key + "x", strings.Repeat("k", identity.MaxKeyBytes+1)} {
		if got, err := p.Hashes(bad); !errors.Is(err, identity.ErrMalformedKey) || len(got) != 0 {
			t.Errorf("Hashes(%.40q) = %d of them, %v; want ErrMalformedKey", bad, len(got), err)
		}
	}
	memory := make([]identity.KeyHash, 0, identity.MaxPeppers)
	allocs := testing.AllocsPerRun(100, func() {
		if got, err := p.AppendHashes(memory, key); err != nil || len(got) != 2 {
			t.Error(len(got), err)
		}
	})
	if allocs > 0 && !soak.RaceEnabled {
		t.Errorf("AppendHashes allocates %v times, want 0", allocs)
	}
	if none, err := identity.NewPeppers(nil); err != nil {
		t.Errorf("NewPeppers of none = %v, want nil", err)
	} else if got, err := none.Hashes(key); err != nil || len(got) != 0 {
		t.Errorf("Hashes without peppers = %d of them, %v; want none", len(got), err)
	}
}

// Guarantees that all peppers that protect too little are refused together, with an error that does not show them.
func TestNewPeppersRefuses(t *testing.T) {
	good := "sixteen bytes ok"
	many := map[string][]byte{}
	for i := range identity.MaxPeppers + 1 {
		many[strconv.Itoa(i)] = []byte(good)
	}
	for _, c := range []struct {
		name    string
		peppers map[string][]byte
		want    []string
	}{
		{"too many", many, []string{"9 peppers, want at most 8"}},
		{"short", map[string][]byte{"p1": []byte(good[1:])}, []string{`pepper "p1" has 15 bytes, want at least 16`}},
		{"no id", map[string][]byte{"": []byte(good)}, []string{`pepper "": its id is not`}},
		{"odd id", map[string][]byte{"a b": []byte(good)}, []string{`pepper "a b": its id is not`}},
		{"two at once", map[string][]byte{"x": nil, "y/": []byte(good)}, []string{`"x" has 0 bytes`, `"y/": its id`}},
	} {
		p, err := identity.NewPeppers(c.peppers)
		if err == nil || p != nil {
			t.Errorf("%s: NewPeppers = %v, nil; want an error", c.name, p)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: NewPeppers = %v, want %q", c.name, err, want)
			}
		}
		if strings.Contains(err.Error(), good[1:]) {
			t.Errorf("%s: the error shows a pepper: %v", c.name, err)
		}
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name string
		key  identity.Key
		want error
	}{
		{"for ever", identity.Key{}, nil},
		{"for a while", identity.Key{ExpiresAt: noon.Add(1)}, nil},
		{"ends now", identity.Key{ExpiresAt: noon}, identity.ErrExpiredKey},
		{"revoked", identity.Key{Revoked: true}, identity.ErrRevokedKey},
		{"revoked, then expired", identity.Key{Revoked: true, ExpiresAt: noon}, identity.ErrRevokedKey},
	} {
		if err := c.key.Check(noon); !errors.Is(err, c.want) {
			t.Errorf("%s: Check = %v, want %v", c.name, err, c.want)
		}
	}
}
