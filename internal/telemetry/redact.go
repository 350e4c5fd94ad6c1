package telemetry

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
)

// redacted stands for a value that is not told.
const redacted = "[redacted]"

// sensitive is what a key holds, in lower case and without its separators, that tells a value which is not to be
// logged.
var sensitive = []string{
	"authorization", "bearer", "cookie", "token", "jwt", "apikey", "secret", "password", "passwd", "passphrase",
	"pepper",
	"credential", "privatekey", "signature", "sessionid",
	"forwarded", "remoteaddr", "remoteip", "sourceip", "clientip", "realip",
}

// Sensitive reports whether values under this key are never logged: those of authorization, cookie, token, x-api-key
// and the like, and those of a client's address, as in x-forwarded-for. Case and separators make no difference, and so
// "X-Api-Key", "xApiKey" and "x_api_key" are one. It rather takes a key too many.
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

// redact is for slog.HandlerOptions.
func redact(groups []string, a slog.Attr) slog.Attr {
	if Sensitive(a.Key) || slices.ContainsFunc(groups, Sensitive) {
		return slog.String(a.Key, redacted)
	}
	if a.Value.Kind() == slog.KindAny {
		a.Value = redactAny(a.Value)
	}
	return a
}

// redactAny redacts members of what will become JSON. It looks at the JSON, not at the value: names are what their tags
// say, and values write themselves as they like.
func redactAny(v slog.Value) slog.Value {
	_, writesItself := v.Any().(json.Marshaler)
	if _, isError := v.Any().(error); isError && !writesItself {
		return v // its text is logged, and that has no keys
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

// redactTree redacts in place, and reports whether there was something to redact.
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
