package server

import (
	"io"
	"net/http"
	"net/http/pprof"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/sluicelimits/sluice/internal/limiter/metrics"
)

// clientHandler serves clients without gRPC, and health checks.
func (s *Server) clientHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /json", s.json)
	mux.HandleFunc("GET /healthcheck", s.healthcheck)
	if s.c.Limits != nil {
		s.c.Limits.Register(mux)
	}
	return s.c.Metrics.record(mux)
}

// json decides a request in the JSON form of the protocol. The status is 200 or 429 for a decision, and 400 for any
// error, as in envoyproxy/ratelimit.
func (s *Server) json(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequestBytes))
	var request rlsv3.RateLimitRequest
	if err == nil {
		err = protojson.Unmarshal(body, &request)
	}
	var response *rlsv3.RateLimitResponse
	if err == nil {
		response, err = s.c.RateLimits.ShouldRateLimit(r.Context(), &request)
	}
	if err != nil {
		s.c.Log.Debug("a request to /json was not decided", "error", err)
		http.Error(w, http.StatusText(http.StatusBadRequest), http.StatusBadRequest)
		return
	}
	text, err := protojson.Marshal(response)
	if err != nil {
		s.c.Log.Error("a decision could not be written as JSON", "error", err)
		http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if response.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT {
		w.WriteHeader(http.StatusTooManyRequests)
	}
	_, _ = w.Write(text) // fails only if the client has closed the connection
}

// healthcheck answers 200 and "OK" while the server is healthy, and 500 otherwise.
func (s *Server) healthcheck(w http.ResponseWriter, _ *http.Request) {
	if !s.serving.Load() {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	_, _ = io.WriteString(w, "OK")
}

// debugHandler serves diagnostics for operators.
func (s *Server) debugHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /rlconfig", func(w http.ResponseWriter, _ *http.Request) {
		if c := s.c.RateLimits.Current(); c != nil {
			_, _ = io.WriteString(w, c.Dump())
		}
	})
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) { s.c.RateLimits.Stats().Write(w) })
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", metrics.TextType)
		_ = metrics.WriteText(w, s.c.Metrics.Gather(s.c.RateLimits, s.c.Chain)) // as above
	})
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "/debug/pprof/: profiles\n/metrics: for Prometheus\n"+
			"/rlconfig: the configuration in force\n/stats: statistics\n")
	})
	return mux
}
