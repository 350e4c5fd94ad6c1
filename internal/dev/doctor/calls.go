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

// Calls are an API's answers to the calls that doctor makes. They are made once, and all checks look at them.
type Calls struct {
	Socket    bool     // the API is a WebSocket API
	HasKey    bool     // a key was given
	Charge    int      // how many calls with the key were allowed
	Anonymous *Answer  // to a call without a credential
	Keyed     []Answer // to calls with the key, in order
	Err       error    // ended the calls early
}

// Answer is the answer to one call.
type Answer struct {
	Status    int
	Header    http.Header
	Body      []byte
	Sent, Got time.Time
}

// maxBodyBytes bounds what is read of an answer's body.
const maxBodyBytes = 64 << 10

// Call makes one GET of the URL without a credential, which counts against the API's ipLimits, and up to charge
// GETs with the key, each of which is charged to the key's tenant. It stops when two of these were refused: the
// second shows whether the first was cached.
func Call(ctx context.Context, client *http.Client, to *url.URL, key string, charge int) *Calls {
	c := &Calls{Socket: to.Scheme == "ws" || to.Scheme == "wss", HasKey: key != "", Charge: charge}
	if c.Anonymous, c.Err = Get(ctx, client, to, ""); c.Err != nil || key == "" {
		return c
	}
	for refused := 0; refused < 2 && len(c.Keyed) < charge; {
		a, err := Get(ctx, client, to, key)
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

// Get makes one call. Where the URL begins with ws, it asks for a WebSocket connection, and goes no further than
// the answer.
func Get(ctx context.Context, client *http.Client, to *url.URL, key string) (*Answer, error) {
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
	defer func() { _ = res.Body.Close() }() // what was read of it is all that is wanted
	a.Status, a.Header, a.Got = res.StatusCode, res.Header, time.Now()
	if a.Status == http.StatusSwitchingProtocols { // the connection has no body, and no end
		return a, nil
	}
	if a.Body, err = io.ReadAll(io.LimitReader(res.Body, maxBodyBytes)); err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	return a, nil
}

// kind is what answered.
type kind string

const (
	noGateway kind = "no API Gateway"
	rest      kind = "a REST API"
	httpAPI   kind = "an HTTP API"
	socket    kind = "a WebSocket API"
)

// kind goes by the headers that API Gateway adds to each answer.
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

// badKey reports whether the key opens nothing.
func (c *Calls) badKey() bool {
	return slices.ContainsFunc(c.Keyed, func(a Answer) bool { return a.Status == http.StatusUnauthorized })
}

// what a check needs that the command line did not give.
const (
	giveURL     = "give the URL of a route that is behind the authorizer"
	giveKey     = "give an API key with --key-file, and with --charge how many calls may be charged to its tenant"
	giveGoodKey = "give a key that the API knows: `sluice key create`"
	giveAPI     = "give the API's own URL, https://ID.execute-api.REGION.amazonaws.com/…, or start `sluice dev " +
		"--api rest`"
)

// ready says why a check of the API's answers cannot begin; nil if it can.
func (t *Target) ready() *Finding {
	var f Finding
	switch c := t.Calls; {
	case c == nil:
		f = unknown(giveURL, "no URL was given")
	case c.Anonymous == nil:
		f = unknown("see that the URL is right and can be reached from here", "the API did not answer: %v", c.Err)
	case c.kind() == noGateway:
		f = unknown(giveAPI, "the answer has no header of API Gateway: something else gave it, or stands in between")
	default:
		return nil
	}
	return &f
}

// all are the answers to all calls.
func (c *Calls) all() []*Answer {
	all := []*Answer{c.Anonymous}
	for i := range c.Keyed {
		all = append(all, &c.Keyed[i])
	}
	return all
}

// refusals are the authorizer's denials that a REST API answered by its gateway response ACCESS_DENIED. The finding
// says why there are none.
func (t *Target) refusals() ([]*Answer, *Finding) {
	if f := t.ready(); f != nil {
		return nil, f
	}
	c, all := t.Calls, []*Answer(nil)
	if k := c.kind(); k != rest {
		f := unknown("", "%s has no gateway responses, so nothing relies on this there", k)
		return nil, &f
	}
	for _, a := range c.all() {
		if a.denied() && a.ours() {
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

// denied reports whether the answer is API Gateway's ACCESS_DENIED, by whomever: the authorizer, or a resource policy.
func (a *Answer) denied() bool {
	return a.Header.Get("X-Amzn-Errortype") == "AccessDeniedException" ||
		(a.Status == http.StatusForbidden || a.Status == http.StatusTooManyRequests) && a.ours()
}

// ours reports whether the answer has something of the authorizer's in it, be it garbled.
func (a *Answer) ours() bool {
	return bytes.Contains(a.Body, []byte("docs/problems.md#")) || bytes.Contains(a.Body, []byte("#quota-exceeded")) ||
		a.Header.Get("RateLimit") != ""
}

// problem is the body of a refusal.
type problem struct {
	Type, Title, Instance string
	Status                int    // not that of the answer: all denials of a REST API have one
	Limit, Remaining      *int64 // of the limit that refused; nil where none did
	RetryAfterMs          *int64 `json:"retry-after-ms"`
}

// problem reads the body. The second result is whether it is a problem of ours, whole.
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
