package secrets

import "github.com/sluicelimits/sluice/internal/limiter/refresh"

// Parse is parse, for its fuzz target.
func Parse(text string) (*Values, error) { return parse(text, "v") }

// Login is the login for Redis.
func (v *Values) Login() (username, password string, ok bool) {
	if v.in.login == nil {
		return "", "", false
	}
	return v.in.login.username, v.in.login.password, true
}

// HasAddressKey reports whether there is one.
func (v *Values) HasAddressKey() bool { return v.in.addresses != nil }

// Timing of reads.
const (
	ReadTimeout = refresh.ReadTimeout
	FrozenAfter = refresh.FrozenAfter
	ReplaceWait = refresh.ReplaceWait
	MaxBackoff  = refresh.MaxBackoff
)
