package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/secrets"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// as Secrets Manager makes it for the stack
const addressKey = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789ab"

// Guarantees that an added pepper hashes keys correctly, and that the earlier peppers and the key for addresses are
// unchanged. If one of these changed, every key or counter that depends on it would be lost.
func TestAdd(t *testing.T) {
	text := []byte(`{"addressKey":"` + addressKey + `"}`)
	var peppers [][]byte
	for i := range identity.MaxPeppers {
		pepper := bytes.Repeat([]byte{byte(i + 1)}, randomBytes)
		peppers = append(peppers, pepper)
		var err error
		if text, err = edit(text, add(fmt.Sprintf("p%d", i), pepper)); err != nil {
			t.Fatal(err)
		}
	}
	cache, err := secrets.New(secrets.Config{Client: fixed(text), ID: "x", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	values, err := cache.Get(context.Background(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for i, pepper := range peppers {
		all[fmt.Sprintf("p%d", i)] = pepper
	}
	want, err := identity.NewPeppers(all)
	if err != nil {
		t.Fatal(err)
	}
	const key = "sk_0123456789abcdef0123456789abcdef"
	got, err := values.Peppers().Hashes(key)
	wanted, bad := want.Hashes(key)
	if err != nil || bad != nil || fmt.Sprint(got) != fmt.Sprint(wanted) || len(got) != identity.MaxPeppers {
		t.Errorf("the hashes are %v, %v; want %v, %v", got, err, wanted, bad)
	}
	bits, err := base64.StdEncoding.DecodeString(addressKey)
	if err != nil {
		t.Fatal(err)
	}
	anonymiser, err := identity.NewAnonymiserFrom(bits)
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddr("192.0.2.1")
	if got, want := cache.Anonymise(addr), anonymiser.Anonymise(addr); got != want {
		t.Errorf("the name of an address is %s, want %s: the key for addresses has changed", got, want)
	}
	if _, err := edit(text, add("more", peppers[0])); err == nil ||
		!strings.Contains(err.Error(), "the most that are allowed") {
		t.Errorf("adding a ninth pepper gives %v", err)
	}
}

// Guarantees that nothing is written if the secret is not as expected, and that no error contains a value of it.
func TestAddRefuses(t *testing.T) {
	const marker = "c2VjcmV0LXZhbHVlLXRoYXQtaXMtbG9uZy1lbm91Z2g="
	for name, tt := range map[string]struct{ text, id, want string }{
		"nothing":            {"", "p1", "not JSON"},
		"an id of ours":      {`{"addressKey":"` + addressKey + `"}`, "p 1", "id must have"},
		"the same again":     {`{"peppers":{"p1":"` + marker + `"}}`, "p1", `has a pepper "p1"`},
		"an unknown member":  {`{"addressKey":"` + addressKey + `","x":"` + marker + `"}`, "p1", "unknown"},
		"a member twice":     {`{"peppers":{"p1":"` + marker + `"},"peppers":{"p2":"` + marker + `"}}`, "p3", "twice"},
		"no base64":          {`{"peppers":{"p1":"` + marker + `!"}}`, "p2", "peppers"},
		"more than there is": {`{"addressKey":"` + strings.Repeat("a", maxBytes) + `"}`, "p1", "bytes"},
	} {
		var out bytes.Buffer
		err := run(add(tt.id, random()), strings.NewReader(tt.text), &out)
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), marker) ||
			out.Len() > 0 {
			t.Errorf("%s: %v, %d bytes written; want %q and none", name, err, out.Len(), tt.want)
		}
	}
}

// Guarantees that each pepper is different, and has 32 bytes.
func TestRun(t *testing.T) {
	seen := map[string]bool{}
	for range 3 {
		var out bytes.Buffer
		before := strings.NewReader(`{"addressKey":"` + addressKey + `"}` + "\n")
		if err := run(add("p1", random()), before, &out); err != nil {
			t.Fatal(err)
		}
		var secret struct {
			Peppers    map[string][]byte
			AddressKey string
		}
		err := json.Unmarshal(out.Bytes(), &secret)
		if err != nil || len(secret.Peppers["p1"]) != randomBytes || secret.AddressKey != addressKey {
			t.Fatalf("%v: %d bytes of pepper", err, len(secret.Peppers["p1"]))
		}
		seen[string(secret.Peppers["p1"])] = true
	}
	if len(seen) != 3 {
		t.Errorf("3 runs gave %d different peppers", len(seen))
	}
}

const twoPeppers = `"peppers":{"p1":"QUFBQUFBQUFBQUFBQUFBQQ==","p2":"QkJCQkJCQkJCQkJCQkJCQg=="}`

// Guarantees what the two commands for a leaked secret change, and that they change nothing else.
func TestLeaked(t *testing.T) {
	const before = `{"addressKey":"` + addressKey + `",` + twoPeppers + `,"redis":{"password":"passwordpassword"}}`
	newKey := bytes.Repeat([]byte{7}, randomBytes)
	for _, tt := range []struct {
		name       string
		by         change
		text, want string // want begins with an exclamation mark if it is an error
	}{
		{"remove", remove("p1"), before, strings.Replace(before, `"p1":"QUFBQUFBQUFBQUFBQUFBQQ==",`, "", 1)},
		{"another key for addresses", replaceAddressKey(newKey), before,
			strings.Replace(before, addressKey, base64.StdEncoding.EncodeToString(newKey), 1)},
		{"a key for addresses where there are no peppers", replaceAddressKey(newKey), `{"addressKey":"` + addressKey +
			`"}`,
			`{"addressKey":"` + base64.StdEncoding.EncodeToString(newKey) + `"}`},
		{"one that is not there", remove("p3"), before, `!the secret has no pepper "p3"`},
		{"the only one", remove("p1"), `{"peppers":{"p1":"QUFBQUFBQUFBQUFBQUFBQQ=="}}`,
			`!"p1" is the only pepper of the secret`},
		{"an id that is none", remove("p 1"), before, "!id must have"},
	} {
		got, err := edit([]byte(tt.text), tt.by)
		want, refused := strings.CutPrefix(tt.want, "!")
		as := err == nil && string(got) == want
		if refused {
			as = err != nil && strings.Contains(err.Error(), want)
		}
		if !as {
			t.Errorf("%s: %s, %v; want %s", tt.name, got, err, want)
		}
	}
}

// Guarantees that each command line is parsed correctly, and that none is mistaken for the id of a new pepper.
func TestParse(t *testing.T) {
	const before = `{"addressKey":"` + addressKey + `",` + twoPeppers + `}`
	for line, want := range map[string]string{
		"p3": "p1 p2 p3 same", "-remove p1": "p2 same", "-address-key": "p1 p2 other",
		"": "usage", "-remove": "usage", "-Remove": "usage", "p3 p4": "usage", "-address-key p1": "usage",
	} {
		by, err := parse(strings.Fields(line))
		got := "usage"
		if err == nil {
			text, err := edit([]byte(before), by)
			var secret struct {
				AddressKey string
				Peppers    map[string][]byte
			}
			if err = errors.Join(err, json.Unmarshal(text, &secret)); err != nil {
				t.Fatal(err)
			}
			words := append(slices.Sorted(maps.Keys(secret.Peppers)), "same")
			if secret.AddressKey != addressKey {
				words[len(words)-1] = "other"
			}
			got = strings.Join(words, " ")
		}
		if got != want {
			t.Errorf("pepper %s: %s, want %s", line, got, want)
		}
	}
}
