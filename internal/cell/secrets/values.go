package secrets

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// Bounds of a secret.
const (
	maxSecretBytes  = 64 << 10 // the limit of Secrets Manager
	maxKeyBytes     = 1024     // of a pepper and of an addressKey
	maxUsername     = 128
	minPassword     = 16 // the bounds of ElastiCache
	maxPassword     = 128
	maxNamed        = 20 // longest name that an error shows, in characters; a longer name may be a misplaced value
	maxEncodedBytes = (maxKeyBytes + 2) / 3 * 4
)

// Values are the values of one version of the secret. They are immutable. Printing, formatting, logging or encoding
// them shows only the version.
type Values struct {
	version string
	// a pointer to a struct of pointers, so that printing a struct that contains Values with a wrong verb shows only
	// addresses
	in *inside
}

type inside struct {
	peppers   *identity.Peppers
	addresses *identity.Anonymiser // nil if the secret has no addressKey
	login     *login               // nil if the secret has no login
	public    bool                 // a pepper is the public one of 'sluice dev'
}

type login struct{ username, password string }

// Version returns the version's id in Secrets Manager; "" if v is nil.
func (v *Values) Version() string {
	if v == nil {
		return ""
	}
	return v.version
}

// Peppers returns the peppers that hash presented keys. It is never nil; it is empty if the secret has no peppers.
func (v *Values) Peppers() *identity.Peppers { return v.in.peppers }

// Addresses returns the key that names addresses; nil if the secret has no addressKey.
func (v *Values) Addresses() *identity.Anonymiser { return v.in.addresses }

// String returns only the version.
func (v Values) String() string { return "secret values, version " + v.version }

// Format writes String, whatever the verb.
func (v Values) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, v.String()) }

// LogValue returns only the version.
func (v Values) LogValue() slog.Value { return slog.StringValue(v.String()) }

// MarshalText returns only the version, for JSON and other encodings.
func (v Values) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// parse reads the secret's text. The error names the member and never contains the value.
func parse(text, version string) (*Values, error) {
	if len(text) > maxSecretBytes {
		return nil, fmt.Errorf("%d bytes, want at most %d", len(text), maxSecretBytes)
	}
	var whole json.RawMessage
	if err := json.Unmarshal([]byte(text), &whole); err != nil {
		var syntax *json.SyntaxError // its text contains a character of the value
		if errors.As(err, &syntax) {
			return nil, fmt.Errorf("not JSON at byte %d", syntax.Offset)
		}
		return nil, errors.New("not JSON")
	}
	in := new(inside)
	d := &document{json.NewDecoder(bytes.NewReader(whole))}
	members, own := 0, login{}
	err := d.object("", func(name, path string) (err error) {
		members++
		switch name {
		case "peppers":
			return in.readPeppers(d)
		case "addressKey":
			return in.readAddressKey(d)
		case "redis":
			return in.readLogin(d)
		case "username", "password":
			return own.member(d, name, path)
		}
		return fmt.Errorf("%s: unknown, want peppers, addressKey and redis, or username and password", path)
	})
	if err == nil && own != (login{}) {
		err = in.takeLogin(&own)
	}
	switch {
	case err != nil:
		return nil, err
	case members == 0:
		return nil, errors.New("the secret has no member")
	case in.peppers == nil:
		if in.peppers, err = identity.NewPeppers(nil); err != nil {
			return nil, err
		}
	}
	return &Values{version: version, in: in}, nil
}

func (in *inside) readPeppers(d *document) error {
	peppers := make(map[string][]byte)
	err := d.object("peppers", func(id, path string) error {
		secret, err := d.bytes(path, identity.MinPepperBytes)
		switch {
		case err != nil:
			return err
		case !limit.ValidID(id):
			return fmt.Errorf("%s: its id is not 1 to 64 of A-Z a-z 0-9 . _ -", path)
		case len(peppers) == identity.MaxPeppers:
			return fmt.Errorf("%s: want at most %d", path, identity.MaxPeppers)
		}
		peppers[id] = secret
		in.public = in.public || bytes.Equal(secret, identity.DevPepper())
		return nil
	})
	if err == nil && len(peppers) == 0 {
		err = errors.New("peppers: the object is empty; if you use no API keys, leave it out")
	}
	if err != nil {
		return err
	}
	in.peppers, err = identity.NewPeppers(peppers)
	return err
}

func (in *inside) readAddressKey(d *document) error {
	key, err := d.bytes("addressKey", identity.MinAddressKeyBytes)
	if err == nil {
		in.addresses, err = identity.NewAnonymiserFrom(key)
	}
	return err
}

func (in *inside) readLogin(d *document) error {
	l := new(login)
	err := d.object("redis", func(name, path string) error { return l.member(d, name, path) })
	if err == nil && l.password == "" {
		err = errors.New("redis.password: missing")
	}
	in.login = l
	return err
}

// takeLogin takes the login of a secret that holds only Redis's login, in the form in which Secrets Manager generates
// passwords.
func (in *inside) takeLogin(l *login) error {
	switch {
	case in.login != nil:
		return errors.New("redis: the secret also has username and password: give only one of the two")
	case l.password == "":
		return errors.New("password: missing")
	}
	in.login = l
	return nil
}

// member reads a member of a login.
func (l *login) member(d *document, name, path string) (err error) {
	switch name {
	case "username":
		l.username, err = d.visible(path, 1, maxUsername)
	case "password":
		l.password, err = d.visible(path, minPassword, maxPassword)
	default:
		err = fmt.Errorf("%s: unknown, want username and password", path)
	}
	return err
}

// document reads a text that is known to be JSON.
type document struct{ *json.Decoder }

// object reads an object and calls member for each name; member reads the value. No name may occur twice.
func (d *document) object(path string, member func(name, path string) error) error {
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return notAnObject(path)
	}
	var seen []string
	for d.More() {
		t, err := d.Token()
		name, ok := t.(string)
		if err != nil || !ok {
			return notAnObject(path)
		}
		at := join(path, name, len(seen)+1)
		if slices.Contains(seen, name) {
			return fmt.Errorf("%s: the member is there twice", at)
		}
		seen = append(seen, name)
		if err := member(name, at); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

func notAnObject(path string) error {
	if path == "" {
		return errors.New("not an object")
	}
	return fmt.Errorf("%s: not an object", path)
}

// join returns the path of a member. A member whose name may be a misplaced value is named by its number.
func join(path, name string, place int) string {
	if len(name) > maxNamed || !limit.ValidID(name) {
		name = "member " + strconv.Itoa(place)
	}
	if path == "" {
		return name
	}
	return path + "." + name
}

func (d *document) text(path string) (string, error) {
	t, err := d.Token()
	s, ok := t.(string)
	if err != nil || !ok {
		return "", fmt.Errorf("%s: not a string", path)
	}
	return s, nil
}

// bytes reads base64 with padding and without line breaks.
func (d *document) bytes(path string, least int) ([]byte, error) {
	s, err := d.text(path)
	if err != nil {
		return nil, err
	}
	if len(s) > maxEncodedBytes {
		return nil, fmt.Errorf("%s: more than %d bytes", path, maxKeyBytes)
	}
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	switch {
	case err != nil || strings.ContainsAny(s, "\r\n"): // the decoder ignores line breaks
		return nil, fmt.Errorf("%s: not base64", path)
	case len(b) < least || len(b) > maxKeyBytes:
		return nil, fmt.Errorf("%s: %d bytes, want %d..%d", path, len(b), least, maxKeyBytes)
	}
	return b, nil
}

// visible reads a text of visible ASCII characters.
func (d *document) visible(path string, least, most int) (string, error) {
	s, err := d.text(path)
	switch {
	case err != nil:
		return "", err
	case strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", fmt.Errorf("%s: a character that is not visible ASCII", path)
	case len(s) < least || len(s) > most:
		return "", fmt.Errorf("%s: %d characters, want %d..%d", path, len(s), least, most)
	}
	return s, nil
}
