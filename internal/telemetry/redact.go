package telemetry

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
)

// redacted replaces values that must not be logged.
const redacted = "[redacted]"

// sensitive lists parts of keys, in lower case and without separators. A value is not logged if its key contains one of
// them.
var sensitive = []string{
	"authorization", "bearer", "cookie", "token", "jwt", "apikey", "secret", "password", "passwd", "passphrase",
	"pepper",
	"credential", "privatekey", "signature", "sessionid",
	"forwarded", "remoteaddr", "remoteip", "sourceip", "clientip", "realip",
}

// Sensitive reports whether values under this key are never logged: those of authorization, cookie, token, x-api-key
// and similar keys, and those of keys for a client's address, such as x-forwarded-for. Case and separators make no
// difference: "X-Api-Key", "xApiKey" and "x_api_key" are equal. In doubt, a key is sensitive.
func Sensitive(key string) bool {
	plain := strings.Map(func(r rune) rune {
		switch r {
		case '-', '_', '.', ' ', ':', '/':
			return -1
		}
		return r
	}, strings.ToLower(key))
	return slices.ContainsFunc(sensitive, func(s string) bool { return strings.Contains(plain, s) })
}

// redact has the signature of slog.HandlerOptions.ReplaceAttr.
func redact(groups []string, a slog.Attr) slog.Attr {
	if Sensitive(a.Key) || slices.ContainsFunc(groups, Sensitive) {
		return slog.String(a.Key, redacted)
	}
	if a.Value.Kind() == slog.KindAny {
		a.Value = redactAny(a.Value)
	}
	return a
}

// redactAny redacts members of a value that will become JSON. It looks at the JSON, not at the value, because tags and
// marshalers determine the names.
func redactAny(v slog.Value) slog.Value {
	_, writesItself := v.Any().(json.Marshaler)
	if _, isError := v.Any().(error); isError && !writesItself {
		return v // its text is logged, and a text has no keys
	}
	text, err := json.Marshal(v.Any())
	if err != nil {
		return slog.StringValue("!ERROR: cannot be logged: no JSON") // the error may repeat the value
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var tree any
	if err := d.Decode(&tree); err != nil || !redactTree(tree) {
		return v
	}
	return slog.AnyValue(tree)
}

// redactTree redacts in place. It reports whether it redacted anything.
func redactTree(tree any) (found bool) {
	switch t := tree.(type) {
	case map[string]any:
		for key, value := range t {
			if Sensitive(key) {
				t[key], found = redacted, true
			} else if redactTree(value) {
				found = true
			}
		}
	case []any:
		for _, value := range t {
			if redactTree(value) {
				found = true
			}
		}
	}
	return found
}
