package limits

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"unicode/utf8"
)

// Register adds the API to mux, which bounds the bodies of requests: POST /v1/check, /v1/check-batch, /v1/peek and
// /v1/refund, and GET /v1/openapi.yaml. The status of a decision is 200, also if it denies.
func (s *Service) Register(mux *http.ServeMux) {
	handle(mux, "check", s.Check)
	handle(mux, "check-batch", s.CheckBatch)
	handle(mux, "peek", s.Peek)
	handle(mux, "refund", s.Refund)
	mux.HandleFunc("GET /v1/openapi.yaml", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/yaml")
		_, _ = w.Write(OpenAPI) // fails only if the client has closed the connection
	})
}

// RefuseWithoutPlans answers requests for the API if the service has no plans. The status is 404, as that of a server
// without this API.
func RefuseWithoutPlans(w http.ResponseWriter, _ *http.Request) {
	writeError(w, notFound(
		"this service has no plans: start it with --plans or --config-table to use Sluice's own API"))
}

func handle[In, Out any](
	mux *http.ServeMux, name string, method func(context.Context, *In) (*Out, error),
) {
	mux.HandleFunc("POST /v1/"+name, func(w http.ResponseWriter, r *http.Request) {
		// a web page can make a browser send other content types without asking the server first
		if mediaType, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); mediaType != "application/json" {
			writeError(w, invalid("the content type is %.80q: send the header 'Content-Type: application/json'",
				r.Header.Get("Content-Type")))
			return
		}
		body, err := ReadBody(r)
		in := new(In)
		if err == nil {
			err = decode(body, in)
		}
		if err != nil {
			writeError(w, invalid("the body is not the JSON form of the request: %v", err))
			return
		}
		out, err := method(r.Context(), in)
		if err != nil {
			writeError(w, err)
			return
		}
		if noter, ok := w.(DenialNoter); ok && Denies(out) {
			noter.NoteDenial()
		}
		write(w, http.StatusOK, out)
	})
}

// ReadBody reads the body of a request whose size is bounded by http.MaxBytesHandler. The error for a larger body names
// the bound and the flag that sets it.
func ReadBody(r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(r.Body)
	if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
		return nil, fmt.Errorf("it has more than %d bytes, which --max-message sets", tooLarge.Limit)
	}
	return body, err
}

// decode reads one JSON value. A field that the request does not have is an error: a name that is written wrongly would
// otherwise count as missing. So is text that is not UTF-8: package encoding/json would replace what is invalid, and
// two names could become one.
func decode(body []byte, to any) error {
	if !utf8.Valid(body) {
		return errors.New("it is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the request")
	}
	return nil
}

// Denies reports whether a response of the API has a decision that denies. Of a batch, one is enough.
func Denies(response any) bool {
	switch r := response.(type) {
	case *CheckResponse:
		return !r.Decision.Allowed
	case *CheckBatchResponse:
		return slices.ContainsFunc(r.Decisions, func(d *Decision) bool { return !d.Allowed })
	}
	return false
}

// DenialNoter is implemented by a [http.ResponseWriter] that counts denials: their status is 200, like that of
// admissions.
type DenialNoter interface{ NoteDenial() }

func invalid(format string, args ...any) *Error {
	return &Error{"invalidargument", fmt.Sprintf(format, args...), http.StatusBadRequest}
}

func notFound(message string) *Error { return &Error{"notfound", message, http.StatusNotFound} }

func unavailable(message string) *Error {
	return &Error{"unavailable", message, http.StatusServiceUnavailable}
}

func writeError(w http.ResponseWriter, err error) {
	var e *Error
	if !errors.As(err, &e) {
		e = &Error{"internal", err.Error(), http.StatusInternalServerError}
	}
	write(w, e.status, e)
}

func write(w http.ResponseWriter, code int, message any) {
	text, err := json.Marshal(message)
	if err != nil { // no message has a field that cannot be written
		http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(text) // fails only if the client has closed the connection
}
