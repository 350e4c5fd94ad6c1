package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// Calls holds an API's answers. The calls are made once, and all checks use their answers.
type Calls struct {
	Socket    bool     // the API is a WebSocket API
	HasKey    bool     // the user gave an API key
	Charge    int      // how many calls with the key the user allowed
	Anonymous *Answer  // the answer to the call without a credential
	Keyed     []Answer // the answers to calls with the key, in order
	Err       error    // the error that ended the calls early; nil if none did
}

// Answer is the answer to one call.
type Answer struct {
	Status    int
	Header    http.Header
	Body      []byte
	Sent, Got time.Time
}

// maxBodyBytes is the most that is read of an answer's body.
const maxBodyBytes = 64 << 10

// Call makes one GET without a credential, which counts against the API's ipLimits. Then it makes up to charge GETs
// with the key, which are charged to the key's tenant, until two of them are denied: the second denial shows whether
// the first was cached.
func Call(ctx context.Context, client *http.Client, to *url.URL, key string, charge int) *Calls {
	c := &Calls{Socket: to.Scheme == "ws" || to.Scheme == "wss", HasKey: key != "", Charge: charge}
	if c.Anonymous, c.Err = get(ctx, client, to, ""); c.Err != nil || key == "" {
		return c
	}
	for refused := 0; refused < 2 && len(c.Keyed) < charge; {
		a, err := get(ctx, client, to, key)
		if err != nil {
			c.Err = err
			return c
		}
		c.Keyed = append(c.Keyed, *a)
		if a.Status >= http.StatusBadRequest {
			refused++
		}
	}
	return c
}

// get makes one call. If the scheme of the URL is ws or wss, the call is the handshake of a WebSocket connection, which
// is closed after the answer.
func get(ctx context.Context, client *http.Client, to *url.URL, key string) (*Answer, error) {
	at := *to
	at.Scheme = strings.Replace(to.Scheme, "ws", "http", 1)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	r.Header.Set("User-Agent", "sluice-doctor")
	if at.Scheme != to.Scheme {
		for name, value := range map[string]string{"Connection": "Upgrade", "Upgrade": "websocket",
			"Sec-Websocket-Version": "13", "Sec-Websocket-Key": "c2x1aWNlLWRvY3Rvci4uLg=="} {
			r.Header.Set(name, value)
		}
	}
	if key != "" {
		r.Header.Set(identity.APIKeyHeader, key)
	}
	a := &Answer{Sent: time.Now()}
	res, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }() // everything that is needed was read
	a.Status, a.Header, a.Got = res.StatusCode, res.Header, time.Now()
	if a.Status == http.StatusSwitchingProtocols { // the connection has no body, and no end
		return a, nil
	}
	if a.Body, err = io.ReadAll(io.LimitReader(res.Body, maxBodyBytes)); err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	return a, nil
}

// kind is the kind of the API that answered.
type kind string

const (
	noGateway kind = "no API Gateway"
	rest      kind = "a REST API"
	httpAPI   kind = "an HTTP API"
	socket    kind = "a WebSocket API"
)

// kind finds out the kind of the API by the headers that API Gateway adds to each answer.
func (c *Calls) kind() kind {
	switch {
	case c.Socket:
		return socket
	case c.Anonymous == nil:
		return noGateway
	case c.Anonymous.Header.Get("X-Amz-Apigw-Id") != "":
		return rest
	case c.Anonymous.Header.Get("Apigw-Requestid") != "":
		return httpAPI
	}
	return noGateway
}

// badKey reports whether the API does not accept the key.
func (c *Calls) badKey() bool {
	return slices.ContainsFunc(c.Keyed, func(a Answer) bool { return a.Status == http.StatusUnauthorized })
}

// Findings about what a check needs and the command line did not give.
const (
	giveURL     = "give the URL of a route that is behind the authorizer"
	giveKey     = "give an API key with --key-file, and with --charge how many calls may be charged to its tenant"
	giveGoodKey = "give a key that the API knows: `sluice key create`"
	giveAPI     = "give the API's own URL, https://ID.execute-api.REGION.amazonaws.com/…"
)

// whyUnchecked returns a finding if the API's answers cannot be checked; nil if they can.
func (c *Calls) whyUnchecked() *Finding {
	var f Finding
	switch {
	case c.Anonymous == nil:
		f = unknown("see that the URL is right and can be reached from here", "the API did not answer: %v", c.Err)
	case c.kind() == noGateway:
		f = unknown(giveAPI, "the answer has no header of API Gateway: something else gave it, or stands in between")
	default:
		return nil
	}
	return &f
}

// all returns the answers to all calls.
func (c *Calls) all() []*Answer {
	all := []*Answer{c.Anonymous}
	for i := range c.Keyed {
		all = append(all, &c.Keyed[i])
	}
	return all
}

// refusals returns the authorizer's denials that a REST API answered with its gateway response ACCESS_DENIED. If there
// are none, the finding says why.
func (c *Calls) refusals() (all []*Answer, _ *Finding) {
	if f := c.whyUnchecked(); f != nil {
		return nil, f
	}
	if k := c.kind(); k != rest {
		f := unknown("", "%s has no gateway responses, so nothing relies on this there", k)
		return nil, &f
	}
	for _, a := range c.all() {
		if a.denied() && a.isSluices() {
			all = append(all, a)
		}
	}
	if len(all) > 0 {
		return all, nil
	}
	f := unknown(giveKey, "no call was refused")
	switch {
	case c.badKey():
		f = unknown(giveGoodKey, "a call with the key was answered 401")
	case c.HasKey && c.Charge > 0:
		f = unknown("raise --charge, or give the key of a tenant with a small limit",
			"%d calls with the key, and none was refused", len(c.Keyed))
	}
	return nil, &f
}

// denied reports whether the answer is API Gateway's ACCESS_DENIED, whether the authorizer or a resource policy denied.
func (a *Answer) denied() bool {
	return a.Header.Get("X-Amzn-Errortype") == "AccessDeniedException" ||
		(a.Status == http.StatusForbidden || a.Status == http.StatusTooManyRequests) && a.isSluices()
}

// isSluices reports whether the answer contains something that the authorizer wrote, even if it is damaged.
func (a *Answer) isSluices() bool {
	return bytes.Contains(a.Body, []byte("docs/problems.md#")) || bytes.Contains(a.Body, []byte("#quota-exceeded")) ||
		a.Header.Get("RateLimit") != ""
}

// problem is the body of a denial.
type problem struct {
	Type, Title, Instance string
	Status                int    // the status in the body: all denials of a REST API have the same HTTP status
	Limit, Remaining      *int64 // of the limit that denied; nil if no limit did
	RetryAfterMs          *int64 `json:"retry-after-ms"`
}

// problem parses the body. ok says whether it is a complete problem that the authorizer wrote.
func (a *Answer) problem() (p problem, ok bool) {
	if json.Unmarshal(a.Body, &p) != nil || p.Title == "" || p.Status == 0 {
		return p, false
	}
	for _, k := range answer.Kinds() {
		if k != answer.Allowed && p.Type == k.Type() {
			return p, true
		}
	}
	return p, false
}
