package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/identity"
	"github.com/sluicelimits/sluice/internal/secrets"
)

const addressKey = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789ab" // as Secrets Manager makes it for the stack

// Guarantees that a pepper that was added hashes keys as it should, beside those that were there and the key for addresses, which stay as
// they are: whatever changes of them is lost with every key or counter that rests on it.
func TestAdd(t *testing.T) {
	text := []byte(`{"addressKey":"` + addressKey + `"}`)
	var peppers [][]byte
	for i := range identity.MaxPeppers {
		pepper := bytes.Repeat([]byte{byte(i + 1)}, pepperBytes)
		peppers = append(peppers, pepper)
		var err error
		if text, err = add(text, fmt.Sprintf("p%d", i), pepper); err != nil {
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
		t.Errorf("hashes %v, %v; want %v, %v", got, err, wanted, bad)
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
		t.Errorf("addresses are named %s, want %s: the key for addresses is another one", got, want)
	}
	if _, err := add(text, "more", peppers[0]); err == nil || !strings.Contains(err.Error(), "as many as there may be") {
		t.Errorf("a ninth pepper: %v", err)
	}
}

// Guarantees that nothing is written where the secret is not what it should be, and that no error repeats a value.
func TestAddRefuses(t *testing.T) {
	const marker = "c2VjcmV0LXZhbHVlLXRoYXQtaXMtbG9uZy1lbm91Z2g="
	for name, tt := range map[string]struct{ text, id, want string }{
		"nothing":            {"", "p1", "not JSON"},
		"an id of ours":      {"{}", "p 1", "id is to be"},
		"the same again":     {`{"peppers":{"p1":"` + marker + `"}}`, "p1", `has a pepper "p1"`},
		"an unknown member":  {`{"addressKey":"` + addressKey + `","x":"` + marker + `"}`, "p1", "unknown"},
		"a member twice":     {`{"peppers":{"p1":"` + marker + `"},"peppers":{"p2":"` + marker + `"}}`, "p3", "twice"},
		"no base64":          {`{"peppers":{"p1":"` + marker + `!"}}`, "p2", "peppers"},
		"more than there is": {`{"addressKey":"` + strings.Repeat("a", maxBytes) + `"}`, "p1", "bytes"},
	} {
		var out bytes.Buffer
		err := run(tt.id, strings.NewReader(tt.text), &out)
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), marker) || out.Len() > 0 {
			t.Errorf("%s: %v, %d bytes written; want %q and none", name, err, out.Len(), tt.want)
		}
	}
}

// Guarantees that each pepper is another one, and of 32 bytes.
func TestRun(t *testing.T) {
	seen := map[string]bool{}
	for range 3 {
		var out bytes.Buffer
		if err := run("p1", strings.NewReader(`{"addressKey":"`+addressKey+`"}`+"\n"), &out); err != nil {
			t.Fatal(err)
		}
		var secret struct {
			Peppers    map[string][]byte
			AddressKey string
		}
		if err := json.Unmarshal(out.Bytes(), &secret); err != nil || len(secret.Peppers["p1"]) != pepperBytes || secret.AddressKey != addressKey {
			t.Fatalf("%v: %d bytes of pepper", err, len(secret.Peppers["p1"]))
		}
		seen[string(secret.Peppers["p1"])] = true
	}
	if len(seen) != 3 {
		t.Errorf("%d peppers of 3 runs", len(seen))
	}
}
