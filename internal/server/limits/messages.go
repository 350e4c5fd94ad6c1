package limits

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// OpenAPI describes the API in YAML.
//
//go:embed openapi.yaml
var OpenAPI []byte

// Call says who calls, and what. Whoever asks has verified it.
type Call struct {
	Tenant  string `json:"tenant"`  // who pays, up to 128 bytes; empty: no credential, so the anonymousPlan applies
	Subject string `json:"subject"` // who acts inside the tenant, for limits per subject
	KeyID   string `json:"keyId"`   // names the credential, never the credential itself, for limits per api_key
	Method  string `json:"method"`  // such as GET
	Path    string `json:"path"`    // percent-encoded, without the query
	Address string `json:"address"` // the client's address, for ipLimits; empty: they do not apply

	Cost   int64             `json:"cost"`   // of limits that count requests, 0..limit.MaxUnits; 0: what the plan says
	Costs  Costs             `json:"costs"`  // by unit, as in sluice.Costs
	Claims map[string]string `json:"claims"` // for limits per claim
}

// CheckRequest asks for one decision.
type CheckRequest struct {
	Call *Call `json:"call"`
}

// CheckResponse is the answer to Check and to Peek.
type CheckResponse struct {
	Decision *Decision `json:"decision"`
}

// CheckBatchRequest asks for a decision on each of 1 to MaxCalls calls, in their order. If AllOrNothing is set and one
// call is denied, none is charged, and the decisions of the calls after the denied one are missing.
type CheckBatchRequest struct {
	Calls        []*Call `json:"calls"`
	AllOrNothing bool    `json:"allOrNothing"`
}

// CheckBatchResponse has the decisions in the order of the calls.
type CheckBatchResponse struct {
	Decisions []*Decision `json:"decisions"`
}

// Decision is the decision on one call.
type Decision struct {
	Allowed bool              `json:"allowed"`
	Reason  string            `json:"reason"` // allowed, limited, ip_limited, never_fits, unknown_tenant and so on
	Status  int               `json:"status"` // the HTTP status that fits the answer
	Tenant  string            `json:"tenant"` // empty if the call is anonymous
	Plan    string            `json:"plan"`   // id of the plan; empty if none was found
	Limits  []Limit           `json:"limits"` // those that were asked and enforce; the one that binds first
	Headers map[string]string `json:"headers"`
	Problem string            `json:"problem"` // body of a denial, application/problem+json

	RetryAfter *Duration `json:"retryAfter"` // until the call fits, if nobody else spends; nil if no wait helps
	Receipt    string    `json:"receipt"`    // for a refund, at the same instance; empty if nothing was charged
}

// Limit is the state of one limit after the decision.
type Limit struct {
	Policy    string   `json:"policy"`    // its name in RateLimit-Policy
	Unit      string   `json:"unit"`      // what it counts: requests, tokens and so on
	Capacity  int64    `json:"capacity"`  // the most units that it ever admits at once
	Remaining int64    `json:"remaining"` // units
	Admits    bool     `json:"admits"`    // it has room for the call
	MoreAfter Duration `json:"moreAfter"` // until more remains, if nobody spends
}

// Costs is what a call spends by unit, 0..limit.MaxUnits of each.
type Costs map[string]int64

// UnmarshalJSON implements [json.Unmarshaler]. Its errors name the unit.
func (c *Costs) UnmarshalJSON(text []byte) error {
	var numbers map[string]json.RawMessage
	if err := json.Unmarshal(text, &numbers); err != nil {
		return fmt.Errorf("costs: %w", err)
	}
	*c = make(Costs, len(numbers))
	for unit, number := range numbers {
		n, err := strconv.ParseInt(string(number), 10, 64)
		if err != nil {
			return fmt.Errorf("costs: %.40q: %.40s is not a whole number of 0..2^40", unit, number)
		}
		(*c)[unit] = n
	}
	return nil
}

// RefundRequest gives back at most Units of each limit, 0..limit.MaxUnits; 0: all of them.
type RefundRequest struct {
	Receipt string `json:"receipt"`
	Units   int64  `json:"units"`
}

// RefundResponse says what was given back.
type RefundResponse struct {
	Units    int64 `json:"units"`    // the most that one limit got back
	Repeated bool  `json:"repeated"` // the receipt was refunded before; nothing was given back
	Expired  bool  `json:"expired"`  // the receipt is older than limit.MaxReceiptAge; nothing was given back
}

// Error is the body of an answer that is no decision.
type Error struct {
	Code    string `json:"code"` // invalidargument, notfound, resourceexhausted or unavailable
	Message string `json:"message"`
	status  int    // of HTTP
}

// Error implements error.
func (e *Error) Error() string { return e.Message }

// Duration is a time span that is seconds in JSON, as text with an "s": "1.5s".
type Duration time.Duration

// MarshalJSON implements [json.Marshaler].
func (d Duration) MarshalJSON() ([]byte, error) {
	return json.Marshal(strconv.FormatFloat(time.Duration(d).Seconds(), 'f', -1, 64) + "s")
}

// UnmarshalJSON implements [json.Unmarshaler], for programs and tests that read answers.
func (d *Duration) UnmarshalJSON(text []byte) error {
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	parsed, err := time.ParseDuration(s)
	*d = Duration(parsed)
	return err
}
