package secrets_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/secrets"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/testkit/secretstest"
)

func TestParse(t *testing.T) {
	key, address := identity.NewKey(), netip.MustParseAddr("203.0.113.7")
	named, err := identity.NewAnonymiserFrom(addressKey)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		form    form
		peppers []string
	}{
		{"whole", wholeForm(), []string{"p1"}},
		{"peppers alone", form{Peppers: map[string][]byte{"p2": pepper2, "p1": pepper1}}, []string{"p1", "p2"}},
		{"an address key alone", form{AddressKey: addressKey}, nil},
		{"a login alone, of the default user", form{Redis: &redisForm{Password: passwords[0]}}, nil},
	} {
		v, err := secrets.Parse(c.form.text())
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		hashes, err := v.Peppers().Hashes(key)
		if err != nil || len(hashes) != len(c.peppers) {
			t.Errorf("%s: %d hashes, %v; want %v", c.name, len(hashes), err, c.peppers)
			continue
		}
		for i, id := range c.peppers {
			if got, want := hex.EncodeToString(hashes[i].Hash[:]), identity.HashKey(c.form.Peppers[id],
				key); hashes[i].Pepper != id || got != want {
				t.Errorf("%s: under %s the hash is %s, want %s under %s", c.name, hashes[i].Pepper, got, want, id)
			}
		}
		user, password, ok := v.Login()
		if ok != (c.form.Redis != nil) || (ok && (redisForm{user, password}) != *c.form.Redis) {
			t.Errorf("%s: the login is %q, %q, present %v; want that of the secret", c.name, user, password, ok)
		}
		if v.HasAddressKey() != (c.form.AddressKey != nil) {
			t.Errorf("%s: the values have an address key: %v, want as in the secret", c.name, v.HasAddressKey())
		}
	}
	m := new(secretstest.Manager)
	m.Set(name, wholeForm().text())
	s, _ := open(t, sdk(m))
	get(t, s)
	if got := s.Anonymise(address); got != named.Anonymise(address) {
		t.Errorf("%s is named %q, want %q", address, got, named.Anonymise(address))
	}
}

// Guarantees that a malformed secret is refused with the name of the wrong member and without any value, even if a
// value is misplaced as a name.
func TestParseRefuses(t *testing.T) {
	b64 := func(n int) string { return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("K"), n)) }
	p1 := base64.StdEncoding.EncodeToString(pepper1)
	pw := passwords[0]
	many := make([]string, 0, identity.MaxPeppers+1)
	for i := range identity.MaxPeppers + 1 {
		many = append(many, fmt.Sprintf(`"p%d":%q`, i, p1))
	}
	for _, c := range []struct{ name, text, want string }{
		{"nothing", "", "not JSON"},
		{"no JSON", pw, "not JSON at byte 1"},
		{"cut off", `{"peppers":{"p1":"` + p1, "not JSON at byte"},
		{"more after it", wholeForm().text() + pw, "not JSON at byte"},
		{"null", "null", "not an object"},
		{"a list", `["` + p1 + `"]`, "not an object"},
		{"a string", `"` + p1 + `"`, "not an object"},
		{"no member", "{}", "the secret has no member"},
		{"an unknown member", `{"pepper":{"p1":"` + p1 + `"}}`, "pepper: unknown"},
		{"another case", `{"Peppers":{"p1":"` + p1 + `"}}`, "Peppers: unknown"},
		{"a member twice", `{"addressKey":"` + b64(32) + `","addressKey":"` + b64(33) + `"}`,
			"addressKey: the member is there twice"},
		{"a member twice, written differently", `{"addressKey":"` + b64(32) + `","address\u004bey":"` + b64(33) + `"}`,
			"addressKey: the member is there twice"},
		{"a value as a member", `{"` + p1 + `":"p1"}`, "member 1: unknown"},
		{"peppers is a string", `{"peppers":"` + p1 + `"}`, "peppers: not an object"},
		{"peppers is null", `{"peppers":null}`, "peppers: not an object"},
		{"no peppers", `{"peppers":{}}`, "peppers: the object is empty"},
		{"too many peppers", `{"peppers":{` + strings.Join(many, ",") + `}}`, "peppers.p8: want at most 8"},
		{"a pepper twice", `{"peppers":{"p1":"` + p1 + `","p1":"` + p1 + `"}}`,
			"peppers.p1: the member is there twice"},
		{"a pepper is a number", `{"peppers":{"p1":12345678901234567890}}`, "peppers.p1: not a string"},
		{"a pepper is an object", `{"peppers":{"p1":{"value":"` + p1 + `"}}}`, "peppers.p1: not a string"},
		{"a pepper is null", `{"peppers":{"p1":null}}`, "peppers.p1: not a string"},
		{"a pepper is not base64", `{"peppers":{"p1":"` + string(pepper1) + `"}}`, "peppers.p1: not base64"},
		{"a pepper without padding", `{"peppers":{"p1":"` + strings.TrimRight(b64(16), "=") + `"}}`,
			"peppers.p1: not base64"},
		{"a pepper on two lines", `{"peppers":{"p1":"` + b64(18)[:12] + `\n` + b64(18)[12:] + `"}}`,
			"peppers.p1: not base64"},
		{"a short pepper", `{"peppers":{"p1":"` + b64(15) + `"}}`, "peppers.p1: 15 bytes, want 16..1024"},
		{"an empty pepper", `{"peppers":{"p1":""}}`, "peppers.p1: 0 bytes"},
		{"a long pepper", `{"peppers":{"p1":"` + b64(1025) + `"}}`, "peppers.p1: 1025 bytes, want 16..1024"},
		{"a huge pepper", `{"peppers":{"p1":"` + b64(2000) + `"}}`, "peppers.p1: more than 1024 bytes"},
		{"a pepper without id", `{"peppers":{"":"` + p1 + `"}}`, "peppers.member 1: its id is not"},
		{"a pepper with an odd id", `{"peppers":{"p/1":"` + p1 + `"}}`, "peppers.member 1: its id is not"},
		{"id and pepper in each other's place", `{"peppers":{"PEPPER-one-is-not-for-logs":"p1"}}`,
			"peppers.member 1: not base64"},
		{"a short address key", `{"addressKey":"` + b64(31) + `"}`, "addressKey: 31 bytes, want 32..1024"},
		{"an address key is a number", `{"addressKey":1}`, "addressKey: not a string"},
		{"redis is a string", `{"redis":"` + pw + `"}`, "redis: not an object"},
		{"redis without password", `{"redis":{"username":"sluice"}}`, "redis.password: missing"},
		{"redis empty", `{"redis":{}}`, "redis.password: missing"},
		{"a short password", `{"redis":{"password":"PASSWORD-first"}}`, "redis.password: 14 characters, want 16..128"},
		{"a long password", `{"redis":{"password":"` + strings.Repeat("x", 129) + `"}}`,
			"redis.password: 129 characters, want 16..128"},
		{"an odd password", `{"redis":{"password":"` + pw + `\n"}}`,
			"redis.password: a character that is not visible ASCII"},
		{"an empty user", `{"redis":{"username":"","password":"` + pw + `"}}`, "redis.username: 0 characters"},
		{"a user is a list", `{"redis":{"username":["sluice"],"password":"` + pw + `"}}`,
			"redis.username: not a string"},
		{"a user alone", `{"username":"sluice"}`, "password: missing"},
		{"a short password alone", `{"password":"PASSWORD-first"}`, "password: 14 characters, want 16..128"},
		{"two logins", `{"redis":{"password":"` + pw + `"},"username":"sluice","password":"` + pw + `"}`,
			"redis: the secret also has username and password"},
		{"another member of redis", `{"redis":{"password":"` + pw + `","host":"` + pw + `"}}`, "redis.host: unknown"},
		{"huge", `{"x":"` + strings.Repeat("x", 64<<10) + `"}`, "bytes, want at most 65536"},
		{"deep", strings.Repeat(`{"peppers":`, 5900), "not JSON"},
		{"not UTF-8", "{\"redis\":{\"password\":\"" + pw + "\xff\"}}",
			"redis.password: a character that is not visible ASCII"},
	} {
		v, err := secrets.Parse(c.text)
		if err == nil || v != nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v; want an error with %q", c.name, v, err, c.want)
			continue
		}
		wantSilent(t, c.name, err.Error())
	}
}

// Guarantees that printing, logging or encoding something that contains values never shows one: a shown value stays
// valid until it is rotated.
func TestNothingShows(t *testing.T) {
	m := new(secretstest.Manager)
	m.Set(name, wholeForm().text())
	s, _ := open(t, sdk(m))
	v := get(t, s)
	s.Close() // a print with a wrong verb follows the fields of what contains the cache
	holder := struct {
		values  *secrets.Values
		Value   secrets.Values
		hidden  secrets.Values
		cache   *secrets.Cache
		Peppers *identity.Peppers
	}{v, *v, *v, s, v.Peppers()}
	for what, x := range map[string]any{
		"values": v, "a copy": *v, "a struct": holder, "a pointer to it": &holder, "a list": []secrets.Values{*v},
		"a map":     map[string]any{"v": *v},
		"the cache": s, "peppers": v.Peppers(), "an error": fmt.Errorf("about %v and %+v: %w", v, *v,
			errors.ErrUnsupported),
	} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%w", "%p"} {
			wantSilent(t, what+" with "+verb, appendDecoded(fmt.Sprintf(verb, x)))
		}
		if b, err := json.Marshal(x); err == nil {
			wantSilent(t, what+" as JSON", string(b))
		}
		var b bytes.Buffer
		for _, h := range []slog.Handler{slog.NewTextHandler(&b, nil), slog.NewJSONHandler(&b, nil)} {
			slog.New(h).Info("look", "x", x, slog.Group("g", "x", x))
		}
		wantSilent(t, what+" in a log", b.String())
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		if got, want := fmt.Sprintf(verb, v), "secret values, version "+v.Version(); got != want {
			t.Errorf("with %s the values are %q, want %q", verb, got, want)
		}
	}
	if b, err := json.Marshal(v); err != nil || !strings.Contains(string(b), v.Version()) {
		t.Errorf("as JSON the values are %s, %v; want their version %q", b, err, v.Version())
	}
}

// appendDecoded appends what hex digits and lists of bytes in a text decode to.
func appendDecoded(s string) string {
	for _, run := range regexp.MustCompile(`[0-9A-Fa-f]{16,}`).FindAllString(s, -1) {
		if b, err := hex.DecodeString(run[:len(run)/2*2]); err == nil {
			s += string(b)
		}
	}
	for _, list := range regexp.MustCompile(`\d+( \d+){8,}`).FindAllString(s, -1) {
		var b []byte
		for field := range strings.FieldsSeq(list) {
			var n byte
			if _, err := fmt.Sscan(field, &n); err == nil {
				b = append(b, n)
			}
		}
		s += string(b)
	}
	return s
}

// Guarantees that wantSilent can fail: the check finds a value in each encoding.
func TestShownIsFound(t *testing.T) {
	for _, text := range []string{
		appendDecoded(fmt.Sprint(pepper1)), appendDecoded(fmt.Sprintf("%x", struct{ k string }{string(addressKey)})),
		fmt.Sprint(wholeForm()), wholeForm().text(),
		fmt.Sprintf("%+v", struct{ p *redisForm }{wholeForm().Redis}.p),
	} {
		if secretsIn(appendDecoded(text)) == "" {
			t.Errorf("shown finds no secret value in %q, want one", text)
		}
	}
}

// Patterns of the errors: they contain only names of members, lengths, positions, and fixed text.
var shape = regexp.MustCompile(`^(\d+ bytes, want at most 65536|not JSON( at byte \d+)?|not an object|` +
	`the secret has no member|` +
	`([A-Za-z0-9._-]{1,20}|member \d+)(\.([A-Za-z0-9._-]{1,20}|member \d+))?: (unknown, want [a-zA-Z, ]+|` +
	`not an object|not a string|not base64|the member is there twice|missing|want at most 8|` +
	`the object is empty; if you use no API keys, leave it out|more than 1024 bytes|` +
	`\d+ (bytes|characters), want \d+\.\.\d+|a character that is not visible ASCII|` +
	`its id is not 1 to 64 of A-Z a-z 0-9 \. _ -))$`)

// FuzzParse guarantees that no text makes the parser panic, that its errors contain only names and numbers, and that
// accepted texts have the same meaning for a common JSON parser.
func FuzzParse(f *testing.F) {
	f.Add(wholeForm().text())
	f.Add(form{Peppers: map[string][]byte{"p1": pepper1, "p2": pepper2}}.text())
	f.Add(`{"username":"u","password":"0123456789abcdef"}`)
	f.Add(`{"redis":{"username":"u","password":"0123456789abcdef"},"redis":1}`)
	f.Add(`{"peppers":{"p1":"` + string(pepper1) + `"}}`)
	f.Add(`{"a":[{"b":null}]}`)
	f.Add(" \n{}")
	f.Fuzz(func(t *testing.T, text string) {
		v, err := secrets.Parse(text)
		if err != nil {
			if !shape.MatchString(err.Error()) {
				t.Fatalf("the error does not consist of names and numbers only: %v", err)
			}
			return
		}
		var of struct {
			form
			redisForm // of a secret with only Redis's login
		}
		d := json.NewDecoder(strings.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(&of); err != nil {
			t.Fatalf("a text is accepted that a JSON parser refuses: %v", err)
		}
		want := of.form
		if of.redisForm != (redisForm{}) {
			want.Redis = &of.redisForm
		}
		const key = "a-key-made-elsewhere"
		hashes, err := v.Peppers().Hashes(key)
		if err != nil || len(hashes) != len(want.Peppers) {
			t.Fatalf("%d hashes, %v; want %d", len(hashes), err, len(want.Peppers))
		}
		for _, h := range hashes {
			if hex.EncodeToString(h.Hash[:]) != identity.HashKey(want.Peppers[h.Pepper], key) {
				t.Fatalf("the hash under the pepper %s is not that of identity.HashKey", h.Pepper)
			}
		}
		user, password, ok := v.Login()
		if ok != (want.Redis != nil) || (ok && (redisForm{user, password}) != *want.Redis) ||
			v.HasAddressKey() != (want.AddressKey != nil) {
			t.Fatal("the login or the address key differs from what a JSON parser reads")
		}
	})
}

// Guarantees that an invalid configuration is refused with the names of all wrong fields.
func TestNewRefuses(t *testing.T) {
	_, err := secrets.New(secrets.Config{Wait: time.Minute, Refresh: 25 * time.Hour, Cooldown: -1})
	for _, want := range []string{"Client", "ID has 0", "Wait is 1m0s, want at most 30s", "Refresh is 25h",
		"Cooldown is -1ns"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New = %v, want %q", err, want)
		}
	}
	s, _ := open(t, sdk(new(secretstest.Manager)), func(c *secrets.Config) { c.Log = nil })
	if _, err := s.Get(canceledContext(), time.Now()); !errors.Is(err, secrets.ErrUnavailable) ||
		!errors.Is(err, context.Canceled) {
		t.Errorf("Get with a canceled context = %v, want ErrUnavailable and why", err)
	}
}

func canceledContext() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
