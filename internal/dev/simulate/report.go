package simulate

import (
	"time"
)

// Report is the result of a replay. Programs read its JSON form.
type Report struct {
	Requests      int64 `json:"requests"`       // lines replayed; the sum of the next five without ShadowDenied
	Allowed       int64 `json:"allowed"`        // requests that every limit admitted
	Denied        int64 `json:"denied"`         // requests that a limit denied
	UnknownTenant int64 `json:"unknown_tenant"` // requests that name a tenant without a plan
	Suspended     int64 `json:"suspended"`      // requests of suspended tenants
	NoRoute       int64 `json:"no_route"`       // requests for a route that is not declared
	ShadowDenied  int64 `json:"shadow_denied"`  // of the allowed: those that a shadow limit would have denied

	Lines        int64            `json:"lines"`         // lines read, including the skipped ones
	SkippedLines int64            `json:"skipped_lines"` // not replayed
	Skipped      map[string]int64 `json:"skipped"`       // by reason
	OddLines     []OddLine        `json:"odd_lines"`     // the first skipped lines
	Logs         []string         `json:"logs"`
	Incomplete   []string         `json:"incomplete"` // for each log that could not be read to its end: where and why
	Notes        []string         `json:"notes"`

	From *time.Time `json:"from"` // time of the first request; null if there is none
	To   *time.Time `json:"to"`   // time of the last request

	Limits       []LimitReport `json:"limits"` // in the order of the plans file
	Tenants      Ranking       `json:"tenants"`
	Addresses    Ranking       `json:"addresses"`
	WorstMinutes []Minute      `json:"worst_minutes"` // most denials first
	// null if nothing was denied, or if every denied request costs more than its limit can hold
	LongestWait *Wait `json:"longest_wait"`
}

// OddLine is a line that was skipped.
type OddLine struct {
	Log    string `json:"log"`
	Line   int64  `json:"line"` // counted from 1
	Reason string `json:"reason"`
	Text   string `json:"text"` // the beginning of the line
}

// LimitReport says what one limit did. Requests to which the limit applied and which another limit denied are counted
// in Applied only.
type LimitReport struct {
	ID      string `json:"id"`
	Origin  string `json:"origin"`         // "ipLimits", "plan", "anonymousPlan"
	Plan    string `json:"plan,omitempty"` // "" if Origin is "ipLimits"
	Mode    string `json:"mode"`
	Rule    string `json:"rule"`    // in words
	Applied int64  `json:"applied"` // requests to which it applied
	// of these: requests that were admitted; for a shadow limit, only those that it would have admitted, too
	Allowed int64 `json:"allowed"`
	Denied  int64 `json:"denied"` // of these: requests denied with this limit as the binding one
	// of these: requests that it would have denied if it were not a shadow
	ShadowDenied  int64     `json:"shadow_denied"`
	Never         int64     `json:"never"` // of the denied: those that cost more than the limit can ever hold
	LongestWaitMS int64     `json:"longest_wait_ms"`
	FirstDenied   time.Time `json:"first_denied,omitzero"`
	LastDenied    time.Time `json:"last_denied,omitzero"`
}

// Ranking lists tenants or addresses, those with most denials first.
type Ranking struct {
	Total int `json:"total"` // how many there are
	// false if there were too many to count each; then the counts of some are lower bounds
	Exact  bool     `json:"exact"`
	Top    []Person `json:"top"`
	Others Others   `json:"others"` // all that Top does not list
}

// Person is a tenant or an address. IPv6 addresses are counted as networks, by the plans' ipv6Prefix.
type Person struct {
	Name          string    `json:"name"`
	Plan          string    `json:"plan,omitempty"`
	Status        string    `json:"status,omitempty"` // "unknown" or "suspended", for a tenant that is
	Requests      int64     `json:"requests"`
	Allowed       int64     `json:"allowed"`
	Denied        int64     `json:"denied"`
	ShadowDenied  int64     `json:"shadow_denied"`
	LongestWaitMS int64     `json:"longest_wait_ms"`
	FirstDenied   time.Time `json:"first_denied,omitzero"`
	LastDenied    time.Time `json:"last_denied,omitzero"`
}

// Others is the sum over all tenants or addresses that are not listed.
type Others struct {
	Count        int64 `json:"count"`
	Requests     int64 `json:"requests"`
	Allowed      int64 `json:"allowed"`
	Denied       int64 `json:"denied"`
	ShadowDenied int64 `json:"shadow_denied"`
}

func (o *Others) add(p *Person) {
	o.Count++
	o.Requests += p.Requests
	o.Allowed += p.Allowed
	o.Denied += p.Denied
	o.ShadowDenied += p.ShadowDenied
}

// Minute is a minute in which requests were denied.
type Minute struct {
	At            time.Time `json:"at"`
	Requests      int64     `json:"requests"`
	Allowed       int64     `json:"allowed"`
	Denied        int64     `json:"denied"`
	Limit         string    `json:"limit"`  // the limit that denied most
	Origin        string    `json:"origin"` // of the limit
	Plan          string    `json:"plan,omitempty"`
	LimitDenied   int64     `json:"limit_denied"`
	Tenant        string    `json:"tenant,omitempty"` // the tenant that was denied most, if lines name tenants
	TenantDenied  int64     `json:"tenant_denied,omitempty"`
	Address       string    `json:"address"` // the address that was denied most
	AddressDenied int64     `json:"address_denied"`
}

// Wait is the longest wait that a denial named.
type Wait struct {
	MS      int64     `json:"ms"` // rounded up
	At      time.Time `json:"at"`
	Limit   string    `json:"limit"`
	Origin  string    `json:"origin"`
	Plan    string    `json:"plan,omitempty"`
	Tenant  string    `json:"tenant,omitempty"`
	Address string    `json:"address"`
}
