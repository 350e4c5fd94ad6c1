package lambdahost

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Why the function was not called, or with ErrClosed perhaps cut off.
var (
	ErrThrottled = errors.New("lambdahost: every environment is busy")
	ErrTooLarge  = errors.New("lambdahost: the payload is too large")
	ErrClosed    = errors.New("lambdahost: the host is closed")
)

// Kind says how a call failed. A function may claim any type of error, but not a kind.
type Kind int

// The kinds of [Error].
const (
	Reported     Kind = iota + 1 // the function reported an error, and may go on serving
	InitFailed                   // no environment came up for the call
	Exited                       // the process ended in mid-call
	TimedOut                     // the call took too long; its environment was killed
	ResponseSize                 // the function answered with more than MaxResponseBytes
)

// String is a word or two for logs.
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

// The types of errors that the function did not name itself, as Lambda writes them.
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
	Document  []byte // what the function posted as the error; nil where it posted none
}

const maxMessageInError = 1 << 10 // bytes

// Error names the kind, the type, the message, of which it shows at most 1 KiB, and the call.
func (e *Error) Error() string {
	message := e.Message
	if len(message) > maxMessageInError {
		message = strings.ToValidUTF8(message[:maxMessageInError], "") + "..."
	}
	return fmt.Sprintf("lambdahost: %s: %s: %s (request %s)", e.Kind, e.Type, message, e.RequestID)
}

// in is the error as one of the call.
func (e *Error) in(i *invocation) *Error {
	c := *e
	c.RequestID = i.id
	return &c
}

// reported reads what a function posted as its error. header is the type that it named beside the document, which is
// used where the document names none.
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
