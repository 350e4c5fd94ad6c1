// Package client is the operator's side of package operate: it makes their calls over HTTP, and applies plans
// files to the control tables.
package client

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/request/loopback"
	"io"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"
)

// Sign signs a request with AWS Signature Version 4. bodyHash is the SHA-256 of the body in hex.
type Sign func(ctx context.Context, r *http.Request, bodyHash string) error

// Client calls operations at one endpoint. It is safe for concurrent use. Make it with New.
type Client struct {
	base        *url.URL
	sign        Sign
	token, hint string // see WithToken
	http        *http.Client
}

// maxAnswerBytes is the largest size of an answer that is read.
const maxAnswerBytes = 16 << 20

// New makes a client. The endpoint must be an https URL, or a URL on this machine. sign may be nil only for a URL on
// this machine; if it is not nil, every call is signed.
func New(endpoint string, sign Sign) (*Client, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Scheme != "http" &&
		u.Scheme != "https" {
		return nil, fmt.Errorf("endpoint %.200q: want a URL such as "+
			"https://abc.execute-api.eu-west-1.amazonaws.com/prod", endpoint)
	}
	if !Local(u) && u.Scheme != "https" {
		return nil, fmt.Errorf("endpoint %.200q: want https, which every endpoint needs except on this machine",
			endpoint)
	}
	if !Local(u) && sign == nil {
		return nil, fmt.Errorf("endpoint %.200q: calls to it must be signed", endpoint)
	}
	return &Client{base: u, sign: sign, http: &http.Client{
		Timeout: time.Minute,
		// A signature is for one URL.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Local reports whether the URL is on this machine. Calls to such a URL need no signature.
func Local(u *url.URL) bool {
	return loopback.Host(u.Hostname())
}

// WithToken returns a client whose calls carry a bearer token, or none if token is "". hint is the error of a call
// that is refused for its token: it should say where the token came from, or why there is none, and what to do. c must
// be for this machine and must not sign.
func (c *Client) WithToken(token, hint string) (*Client, error) {
	if !Local(c.base) || c.sign != nil {
		return nil, fmt.Errorf("endpoint %s: a token is sent only to this machine, and not with a signature",
			c.base.Redacted())
	}
	with := *c
	with.token, with.hint = token, hint
	return &with, nil
}

// Signs reports whether the client signs its calls.
func (c *Client) Signs() bool { return c.sign != nil }

// At returns a client of the path below this client's endpoint.
func (c *Client) At(path ...string) *Client {
	below := *c
	below.base = c.base.JoinPath(path...)
	return &below
}

// Do calls an operation. The error is a *operate.Error if the operation refused the call.
func Do[Request, Response any](
	ctx context.Context, c *Client, o operate.Typed[Request, Response], request *Request,
) (*Response, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	to := c.base.JoinPath(o.Path)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	if c.sign != nil {
		sum := sha256.Sum256(body)
		if err := c.sign(ctx, r, hex.EncodeToString(sum[:])); err != nil {
			return nil, fmt.Errorf("sign the call: %w", err)
		}
	}
	res, err := c.http.Do(r)
	if err != nil {
		var failed *url.Error
		if errors.As(err, &failed) {
			err = failed.Err
		}
		if Local(to) && errors.Is(err, syscall.ECONNREFUSED) {
			return nil, fmt.Errorf("call %s: %w (is 'sluice dev' running there? --endpoint and SLUICE_ENDPOINT set "+
				"another address)", to.Redacted(), err)
		}
		return nil, fmt.Errorf("call %s: %w", to.Redacted(), err)
	}
	defer func() { _ = res.Body.Close() }() // the body was read, or is not needed
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswerBytes+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("call %s: read the answer: %w", to.Redacted(), err)
	case len(answer) > maxAnswerBytes:
		return nil, fmt.Errorf("call %s: the answer is larger than %d MiB", to.Redacted(), maxAnswerBytes>>20)
	case res.StatusCode != http.StatusOK:
		return nil, c.refusal(to, res.StatusCode, answer)
	}
	out := new(Response)
	if err := json.Unmarshal(answer, out); err != nil {
		return nil, fmt.Errorf("call %s: the answer is not from Sluice%s", to.Redacted(), elsewhere(to))
	}
	return out, nil
}

// elsewhere returns what to do if an answer is not from Sluice's admin endpoint, as the end of an error.
func elsewhere(to *url.URL) string {
	text := ", so this is not its admin endpoint: name the right URL with --endpoint or SLUICE_ENDPOINT"
	if Local(to) {
		text += ". To start one at another port: sluice dev --listen 127.0.0.1:8090, whose endpoint is " +
			"http://127.0.0.1:8090/_sluice/admin"
	}
	return text
}

// refusal returns the error for an answer whose status is not 200. Answers of API Gateway itself have a message. What
// else listens on this machine may answer with any status.
func (c *Client) refusal(to *url.URL, status int, answer []byte) error {
	var said struct {
		Error   *operate.Error
		Message string
	}
	_ = json.Unmarshal(answer, &said) // an answer that is not JSON has no message
	if said.Error != nil && said.Error.Code != "" {
		if said.Error.Code == operate.Unauthorized && c.hint != "" {
			said.Error.Message = fmt.Sprintf("call %s: %s", to.Redacted(), c.hint)
		}
		return said.Error
	}
	text := fmt.Sprintf("call %s: %d %s", to.Redacted(), status, http.StatusText(status))
	if said.Message != "" && len(said.Message) < 500 {
		text += ": " + strings.ReplaceAll(said.Message, "\n", " ")
	}
	switch {
	case c.sign == nil, status == http.StatusUnauthorized, status == http.StatusNotFound:
		text += ": the answer is not from Sluice" + elsewhere(to)
	case status == http.StatusForbidden:
		text += " (your IAM identity may not call it, or its credentials have expired)"
	}
	return errors.New(text)
}

// List implements Remote.
func (c *Client) List(ctx context.Context, r *operate.ListRequest) (*operate.ListResponse, error) {
	return Do(ctx, c, operate.List, r)
}

// Preview implements Remote.
func (c *Client) Preview(ctx context.Context, r *operate.PreviewRequest) (*operate.ApplyResponse, error) {
	return Do(ctx, c, operate.Preview, r)
}

// Apply implements Remote.
func (c *Client) Apply(ctx context.Context, r *operate.ApplyRequest) (*operate.ApplyResponse, error) {
	return Do(ctx, c, operate.Apply, r)
}
