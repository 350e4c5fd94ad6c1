// Package apigw reads the events that API Gateway sends to a Lambda authorizer, and writes the answers that it expects.
//
// There are five shapes of events, which differ in their fields: see [Shape]. [Parse] returns the same type for all
// shapes. An [Encoder] writes the answer that the gateway of the shape reads. The package decides nothing.
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
// Results must not be cached (TTL 0), because an answer is about one request. A policy names only the method and path
// of the request.
package apigw

import "log/slog"

// Shape is the kind of event, and therefore of answer. The zero Shape is no shape.
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

// String returns a stable name for logs and metrics.
func (s Shape) String() string {
	if s >= shapeEnd {
		s = 0
	}
	return shapeNames[s]
}

// Event is one request to authorize. Its strings share memory with each other, and not with the bytes that were parsed.
type Event struct {
	Shape Shape

	// ARN is that of the method or route, as sent. A policy names it. It may hold any text that a path may.
	ARN string

	API, Stage string // id of the API and name of the stage; the operator chooses both
	// RequestID is the gateway's id of the request, for logs. It is "" if it does not have the form of ids that
	// gateways make, and if HasContext is false.
	RequestID string
	Trace     string // X-Amzn-Trace-Id, if it has at most 256 bytes of its alphabet; otherwise ""

	Method string

	// Path is as the client sent it, percent-encoded and not normalised, without stage, base path and query. For a
	// TOKEN event, it is the path in the ARN. For a WebSocket event, it is "/$connect", and Method is GET, as in the
	// handshake.
	Path string

	// Header has names in canonical form. Lines of one name have the order of the event. Names that differ only in case
	// are equal. HTTP APIs join lines with commas. For a TOKEN event, it has only the token, as Authorization: the
	// event does not say which header had the token, so a token without a scheme counts as a bearer token.
	Header map[string][]string

	Cookies []string // only in payload 2.0, which splits them; Header["Cookie"] has them in all shapes
	Peer    string   // the address of the gateway's peer; "" if HasContext is false

	// Route is what the request matched in the API's own routing: "/product/{id}" (REST, payload 1.0), "GET
	// /product/{id}" or "$default" (payload 2.0), "$connect". It is "" if HasContext is false.
	Route string

	// HasContext is false for a TOKEN event, which has no address, no route template and no request id. Limits by
	// address, and calls without a credential, are not possible with it.
	HasContext bool
}

// String identifies the request without what must not be logged: token, headers, address.
func (e *Event) String() string {
	return e.Shape.String() + " " + e.API + "/" + e.Stage + " " + e.RequestID
}

// LogValue returns String, so that an event that is logged as a whole reveals no secret.
func (e *Event) LogValue() slog.Value { return slog.StringValue(e.String()) }
