package limits

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/sluicelimits/sluice/client/limitsv1"
)

// maxBodyBytes bounds the body of a request over HTTP. It is the default of gRPC.
const maxBodyBytes = 4 << 20

// Register adds the API over HTTP to mux: POST /v1/check, /v1/check-batch, /v1/peek and /v1/refund, each with the JSON
// form of its message, and GET /v1/openapi.yaml. The status of a decision is 200, also if it denies.
func (s *Service) Register(mux *http.ServeMux) {
	handle(mux, "check", s.Check)
	handle(mux, "check-batch", s.CheckBatch)
	handle(mux, "peek", s.Peek)
	handle(mux, "refund", s.Refund)
	mux.HandleFunc("GET /v1/openapi.yaml", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/yaml")
		_, _ = w.Write(limitsv1.OpenAPI) // fails only if the client has closed the connection
	})
}

// RefuseWithoutPlans answers requests for the API if the service has no plans. The status is 404, as that of a server
// without this API.
func RefuseWithoutPlans(w http.ResponseWriter, _ *http.Request) {
	writeError(w, status.Error(codes.NotFound,
		"this service has no plans: start it with --plans or --config-table to use Sluice's own API"))
}

// message constrains a type to pointers to M that are messages.
type message[M any] interface {
	*M
	proto.Message
}

func handle[M any, In message[M], Out proto.Message](
	mux *http.ServeMux, name string, method func(context.Context, In) (Out, error),
) {
	mux.HandleFunc("POST /v1/"+name, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBodyBytes))
		in := In(new(M))
		if err == nil {
			err = protojson.Unmarshal(body, in)
		}
		if err != nil {
			writeError(w, status.Error(codes.InvalidArgument,
				"the body is not the JSON form of the request: "+err.Error()))
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

// Denies reports whether a response of the API has a decision that denies. Of a batch, one is enough.
func Denies(response any) bool {
	switch r := response.(type) {
	case *limitsv1.CheckResponse:
		return !r.GetDecision().GetAllowed()
	case *limitsv1.PeekResponse:
		return !r.GetDecision().GetAllowed()
	case *limitsv1.CheckBatchResponse:
		return slices.ContainsFunc(r.GetDecisions(), func(d *limitsv1.Decision) bool { return !d.GetAllowed() })
	}
	return false
}

// DenialNoter is implemented by a [http.ResponseWriter] that counts denials: their status is 200, like that of
// admissions.
type DenialNoter interface{ NoteDenial() }

// statuses maps the errors of the API to the statuses of HTTP.
var statuses = map[codes.Code]int{
	codes.InvalidArgument: http.StatusBadRequest, codes.NotFound: http.StatusNotFound,
	codes.ResourceExhausted: http.StatusTooManyRequests, codes.Unavailable: http.StatusServiceUnavailable,
}

func writeError(w http.ResponseWriter, err error) {
	s := status.Convert(err)
	code, ok := statuses[s.Code()]
	if !ok {
		code = http.StatusInternalServerError
	}
	write(w, code, &limitsv1.Error{Code: strings.ToLower(s.Code().String()), Message: s.Message()})
}

func write(w http.ResponseWriter, code int, m proto.Message) {
	text, err := protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(m)
	if err != nil { // a text is not UTF-8; the texts of requests were checked
		http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(text) // fails only if the client has closed the connection
}
