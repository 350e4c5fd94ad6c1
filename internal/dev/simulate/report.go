package simulate

import (
	"time"
)

// Report is what a replay found. Its JSON form is for machines: fields are only ever added.
type Report struct {
	Requests      int64 `json:"requests"`       // lines replayed; the sum of the next five without ShadowDenied
	Allowed       int64 `json:"allowed"`        // requests that every limit admitted
	Denied        int64 `json:"denied"`         // requests that a limit denied
	UnknownTenant int64 `json:"unknown_tenant"` // requests that name a tenant without a plan
	Suspended     int64 `json:"suspended"`      // requests of suspended tenants
	NoRoute       int64 `json:"no_route"`       // requests for a route that is not declared
	ShadowDenied  int64 `json:"shadow_denied"`  // of the allowed: those that a shadow limit would have denied

	Lines        int64            `json:"lines"`         // read, the skipped ones included
	SkippedLines int64            `json:"skipped_lines"` // not replayed
	Skipped      map[string]int64 `json:"skipped"`       // by reason
	OddLines     []OddLine        `json:"odd_lines"`     // the first skipped ones
	Logs         []string         `json:"logs"`
	Incomplete   []string         `json:"incomplete"` // for each log that could not be read to its end: where, and why
	Order        string           `json:"order"`      // how the lines were put in order: "streamed" or "sorted"
	Notes        []string         `json:"notes"`

	From *time.Time `json:"from"` // of the first request; null where there is none
	To   *time.Time `json:"to"`   // of the last

	Limits       []LimitReport `json:"limits"` // in the order of the plans file
	Tenants      Ranking       `json:"tenants"`
	Addresses    Ranking       `json:"addresses"`
	WorstMinutes []Minute      `json:"worst_minutes"` // most denials first
	// null where nothing was denied, or nothing fits however long one waits
	LongestWait *Wait    `json:"longest_wait"`
	Timeline    Timeline `json:"timeline"`
}

// OddLine is a line that was not replayed.
type OddLine struct {
	Log    string `json:"log"`
	Line   int64  `json:"line"` // from 1
	Reason string `json:"reason"`
	Text   string `json:"text"` // its beginning
}

// LimitReport is what one limit did. Requests that it applied to and that another limit denied are in Applied only.
type LimitReport struct {
	ID      string `json:"id"`
	Origin  string `json:"origin"`         // "ipLimits", "plan", "anonymousPlan"
	Plan    string `json:"plan,omitempty"` // where Origin is not "ipLimits"
	Mode    string `json:"mode"`
	Rule    string `json:"rule"`    // in words
	Applied int64  `json:"applied"` // requests that it was asked about
	// of these: requests that were admitted; of a shadow: and that it admits too
	Allowed       int64      `json:"allowed"`
	Denied        int64      `json:"denied"`        // of these: requests denied with this limit as the binding one
	ShadowDenied  int64      `json:"shadow_denied"` // of these: requests that it would have denied, were it no shadow
	Never         int64      `json:"never"`         // of the denied: cost more than the limit can ever hold
	LongestWaitMS int64      `json:"longest_wait_ms"`
	FirstDenied   *time.Time `json:"first_denied,omitempty"`
	LastDenied    *time.Time `json:"last_denied,omitempty"`
	// denials for each point of the timeline; absent where all are 0
	Timeline []int64 `json:"timeline,omitempty"`
}

// Ranking is tenants or addresses, those with the most denials first.
type Ranking struct {
	Total int `json:"total"` // how many there are
	// false: there were too many to count each; figures of one that came late are lower bounds
	Exact  bool     `json:"exact"`
	Top    []Person `json:"top"`
	Others Others   `json:"others"` // all that are not in Top
}

// Person is a tenant or an address. IPv6 addresses are counted by the plans' ipv6Prefix.
type Person struct {
	Name          string     `json:"name"`
	Plan          string     `json:"plan,omitempty"`
	Status        string     `json:"status,omitempty"` // "unknown" or "suspended", for a tenant that is
	Requests      int64      `json:"requests"`
	Allowed       int64      `json:"allowed"`
	Denied        int64      `json:"denied"`
	ShadowDenied  int64      `json:"shadow_denied"`
	LongestWaitMS int64      `json:"longest_wait_ms"`
	FirstDenied   *time.Time `json:"first_denied,omitempty"`
	LastDenied    *time.Time `json:"last_denied,omitempty"`
}

// Others is the sum over those that are not listed.
type Others struct {
	Count        int64 `json:"count"`
	Requests     int64 `json:"requests"`
	Allowed      int64 `json:"allowed"`
	Denied       int64 `json:"denied"`
	ShadowDenied int64 `json:"shadow_denied"`
}

func (o *Others) add(p *person) {
	o.Count++
	o.Requests += p.requests
	o.Allowed += p.allowed
	o.Denied += p.denied
	o.ShadowDenied += p.shadowDenied
}

// Minute is a minute with denials.
type Minute struct {
	At            time.Time `json:"at"`
	Requests      int64     `json:"requests"`
	Allowed       int64     `json:"allowed"`
	Denied        int64     `json:"denied"`
	Limit         string    `json:"limit"`  // that denied most
	Origin        string    `json:"origin"` // of the limit
	Plan          string    `json:"plan,omitempty"`
	LimitDenied   int64     `json:"limit_denied"`
	Tenant        string    `json:"tenant,omitempty"` // that was denied most, where lines name tenants
	TenantDenied  int64     `json:"tenant_denied,omitempty"`
	Address       string    `json:"address"` // that was denied most
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

// Timeline is outcomes over time. Times at which nothing happened have no point.
type Timeline struct {
	StepSeconds int64   `json:"step_seconds"` // length of each point
	Points      []Point `json:"points"`
}

// Point is one step of the timeline.
type Point struct {
	At           time.Time `json:"at"` // its beginning
	Allowed      int64     `json:"allowed"`
	Denied       int64     `json:"denied"`
	ShadowDenied int64     `json:"shadow_denied"`
	Other        int64     `json:"other"` // unknown or suspended tenants, no route
}
