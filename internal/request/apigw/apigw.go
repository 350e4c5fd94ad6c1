// Package apigw knows what API Gateway sends to a Lambda authorizer, and what it takes as an answer.
//
// There are five shapes of event, told apart by what they hold: see [Shape]. What comes out of [Parse] is the same for
// all; what an [Encoder] writes is what the shape's gateway reads. Nothing is decided here.
//
// What users find in their logs and mapping templates:
//
//   - principalId is "tenant" or "tenant/subject", each percent-encoded so that the slash is unambiguous; "(anonymous)"
//     for a call without a credential under the anonymousPlan; "(unknown)" where the call was answered before it was
//     known who sent it. The simple response of payload 2.0 has no principalId: the context has the tenant and the
//     subject there, too.
//   - usageIdentifierKey is not sent. It would make API Gateway's usage plans count beside our limits, and its value is
//     an API key in clear, of which we hold only a hash. So an API must not set apiKeySource to AUTHORIZER.
//   - The context holds scalars under the names of the Context constants: strings of printable ASCII, whole numbers and
//     booleans. REST APIs hand all of them on as strings.
//
// Results must not be cached (TTL 0): an answer is about one request. A policy names the one method and path that was
// asked for.
package apigw

import "log/slog"

// Shape is the kind of event, and so of answer. The zero Shape is none.
type Shape uint8

// The shapes.
const (
	RESTToken   Shape = iota + 1 // REST API, TOKEN authorizer: the token and the method's ARN, nothing else
	RESTRequest                  // REST API, REQUEST authorizer
	HTTP1                        // HTTP API, payload format 1.0
	HTTP2                        // HTTP API, payload format 2.0; its authorizer must have simple responses enabled
	WebSocket                    // WebSocket API, the $connect route
	shapeEnd
)

var shapeNames = [shapeEnd]string{"none", "rest_token", "rest_request", "http_1", "http_2", "websocket"}

// String is a stable name for logs and metrics.
func (s Shape) String() string {
	if s >= shapeEnd {
		s = 0
	}
	return shapeNames[s]
}

// Event is one request to authorize. Its strings share memory with each other, not with the bytes it was parsed from.
type Event struct {
	Shape Shape

	// ARN is the method's or route's, as sent. It is what a policy names. It may hold anything that a path may.
	ARN string

	API, Stage string // the API's id and the stage's name; both are the operator's
	// the gateway's, for logs, if it has the form of those that gateways make; else "", as where HasContext is false
	RequestID string
	Trace     string // X-Amzn-Trace-Id, at most 256 bytes of its own alphabet; else ""

	Method string

	// Path is as the client sent it, percent-encoded and not normalised, without stage, base path and query. Of a TOKEN
	// event it is what the ARN says. Of a WebSocket it is "/$connect", and Method is GET, as the handshake's is.
	Path string

	// Header has names in canonical form. Lines of one name stand in the order of the event; names that differ only in
	// case are one. HTTP APIs join lines with commas. Of a TOKEN event it is the token alone, as Authorization: the
	// event does not say which header it came from, so a token without a scheme counts as a bearer token.
	Header map[string][]string

	Cookies []string // of payload 2.0, which splits them; they are in Header["Cookie"] as well, as in the other shapes
	Peer    string   // the address that the gateway saw; "" where HasContext is false

	// Route is what the request matched in the API's own routing: "/product/{id}" (REST, payload 1.0), "GET
	// /product/{id}" or "$default" (payload 2.0), "$connect"; "" where HasContext is false.
	Route string

	// HasContext is false for a TOKEN event, which has no address, no route template and no request id. Limits by
	// address and calls without a credential cannot be served from it.
	HasContext bool
}

// String says which request it is, without what a log must not hold: token, headers, address. Fields that are logged
// are picked one by one.
func (e *Event) String() string {
	return e.Shape.String() + " " + e.API + "/" + e.Stage + " " + e.RequestID
}

// LogValue is String, so that an event that is logged whole tells no secret.
func (e *Event) LogValue() slog.Value { return slog.StringValue(e.String()) }
