package lambdahost

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Errors of a call for which the function was not called. With ErrClosed, the function may also have been killed in the
// middle of the call.
var (
	ErrThrottled = errors.New("lambdahost: every environment is busy")
	ErrTooLarge  = errors.New("lambdahost: the payload is too large")
	ErrClosed    = errors.New("lambdahost: the host is closed")
)

// Kind says how a call failed. The host determines it, while Error.Type can be anything that the function reports.
type Kind int

// The kinds of [Error].
const (
	Reported     Kind = iota + 1 // the function reported an error, and may go on serving
	InitFailed                   // no environment for the call could be started
	Exited                       // the process ended during the call
	TimedOut                     // the call took too long, and its environment was killed
	ResponseSize                 // the function answered with more than MaxResponseBytes
)

// String returns the kind in two or three words, for logs.
func (k Kind) String() string {
	switch k {
	case Reported:
		return "function error"
	case InitFailed:
		return "init failed"
	case Exited:
		return "process ended"
	case TimedOut:
		return "timed out"
	case ResponseSize:
		return "response too large"
	default:
		return fmt.Sprintf("Kind(%d)", int(k))
	}
}

// Types of errors that the function did not report itself. They are those that Lambda uses.
const (
	TypeExit         = "Runtime.ExitError"
	TypeEntrypoint   = "Runtime.InvalidEntrypoint" // the binary could not be run
	TypeTimeout      = "Sandbox.Timedout"
	TypeResponseSize = "Function.ResponseSizeTooLarge"
	TypeUnknown      = "Runtime.Unknown" // the function reported an error without a type
)

// Error is a call that failed in the function.
type Error struct {
	Kind      Kind
	Type      string // errorType, never empty
	Message   string // errorMessage
	RequestID string
	Document  []byte // the document that the function reported as its error; nil if it reported none
}

const maxMessageInError = 1 << 10 // bytes

// Error returns a text with the kind, the type, at most 1 KiB of the message, and the id of the call.
func (e *Error) Error() string {
	message := e.Message
	if len(message) > maxMessageInError {
		message = strings.ToValidUTF8(message[:maxMessageInError], "") + "..."
	}
	return fmt.Sprintf("lambdahost: %s: %s: %s (request %s)", e.Kind, e.Type, message, e.RequestID)
}

// forCall returns a copy of the error with the id of a call.
func (e *Error) forCall(i *invocation) *Error {
	c := *e
	c.RequestID = i.id
	return &c
}

// reported returns the error that a function reported. header is the type of the error in the headers or trailers of
// the report. It is used if the document has no type.
func reported(document []byte, header string) *Error {
	var d struct {
		Type    string `json:"errorType"`
		Message string `json:"errorMessage"`
	}
	e := &Error{Kind: Reported, Type: header, Document: document}
	if err := json.Unmarshal(document, &d); err != nil {
		e.Message = "the function's error is not a JSON document of errorType and errorMessage"
	} else {
		e.Message = d.Message
		if d.Type != "" {
			e.Type = d.Type
		}
	}
	if e.Type == "" {
		e.Type = TypeUnknown
	}
	return e
}
