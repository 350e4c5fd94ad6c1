package secrets

import "github.com/sluicelimits/sluice/internal/limiter/refresh"

// Parse exports parse for its fuzz target.
func Parse(text string) (*Values, error) { return parse(text, "v") }

// Login returns the login for Redis.
func (v *Values) Login() (username, password string, ok bool) {
	if v.in.login == nil {
		return "", "", false
	}
	return v.in.login.username, v.in.login.password, true
}

// HasAddressKey reports whether the values have an addressKey.
func (v *Values) HasAddressKey() bool { return v.in.addresses != nil }

// Timing of reads.
const (
	ReadTimeout = refresh.ReadTimeout
	FrozenAfter = refresh.FrozenAfter
	ReplaceWait = refresh.ReplaceWait
	MaxBackoff  = refresh.MaxBackoff
)
