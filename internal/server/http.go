package server

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/sluicelimits/sluice/internal/limiter/metrics"
	"github.com/sluicelimits/sluice/internal/request/loopback"
	"github.com/sluicelimits/sluice/internal/server/limits"
)

// clientHandler serves clients without gRPC, and health checks.
func (s *Server) clientHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthcheck", s.healthcheck)
	decisions := http.NewServeMux()
	if s.c.RateLimits != nil {
		decisions.HandleFunc("POST /json", s.json)
	}
	if s.c.Limits != nil {
		s.c.Limits.Register(decisions)
	} else {
		decisions.HandleFunc("/v1/", limits.RefuseWithoutPlans)
	}
	mux.Handle("/", s.refuseHTTPUntilReady(decisions))
	handler := s.c.Metrics.record(s.refuseWebPages("HTTP", s.recoverHTTPPanic(mux)))
	return http.MaxBytesHandler(handler, int64(s.c.MaxMessage))
}

// refuseWebPages answers nothing that a web page can make a browser send to the server with a name. Whoever opens a
// page on a machine that reaches the server would otherwise let it spend units. On a loopback address the Host is
// checked, too. Other addresses have names, which nobody told the server.
func (s *Server) refuseWebPages(name string, handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tcp, _ := s.Addr(name).(*net.TCPAddr)
		switch {
		case loopback.ByPage(r):
			http.Error(w, "this request has an Origin, or a Sec-Fetch-Site that tells of another site: requests of "+
				"web pages are not answered. Send it from a program, or enter the address in the browser",
				http.StatusForbidden)
		case tcp != nil && tcp.IP.IsLoopback() && loopback.NamesHost(r):
			http.Error(w, "the Host of this request is a name, which may be that of a web page: on a loopback "+
				"address, send the address or localhost as the Host", http.StatusForbidden)
		default:
			handler.ServeHTTP(w, r)
		}
	})
}

// json decides a request in the JSON form of the protocol. The status is 200 or 429 for a decision, and 400 for any
// error, as in envoyproxy/ratelimit. The text of an error begins as there, with "Bad Request", and goes on with the
// reason.
func (s *Server) json(w http.ResponseWriter, r *http.Request) {
	body, err := limits.ReadBody(r)
	var request rlsv3.RateLimitRequest
	if err != nil {
		err = fmt.Errorf("the body cannot be read: %w", err)
	} else if err = protojson.Unmarshal(body, &request); err != nil {
		err = fmt.Errorf("the body is not a request in JSON: %s", strings.TrimPrefix(plainSpaces(err), "proto: "))
	}
	var response *rlsv3.RateLimitResponse
	if err == nil {
		response, err = s.c.RateLimits.ShouldRateLimit(r.Context(), &request)
	}
	if err != nil {
		s.c.Log.Debug("a request to /json was not decided; the response has the reason, which may have values of it")
		reason := status.Convert(err).Message() // what a client gets over gRPC
		http.Error(w, http.StatusText(http.StatusBadRequest)+": "+reason, http.StatusBadRequest)
		return
	}
	text, err := protojson.Marshal(response)
	if err != nil {
		s.c.Log.Error("a decision could not be written as JSON", "error", err)
		http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if denies(response) {
		if noter, ok := w.(limits.DenialNoter); ok {
			noter.NoteDenial()
		}
		w.WriteHeader(http.StatusTooManyRequests)
	}
	_, _ = w.Write(text) // fails only if the client has closed the connection
}

// plainSpaces returns the text of an error of package protojson with ordinary spaces. The package chooses its spaces at
// random, so that nobody compares the text.
func plainSpaces(err error) string { return strings.ReplaceAll(err.Error(), "\u00a0", " ") }

// healthcheck answers 200 and "OK" while the server is healthy, and 500 otherwise. If the fallback limiter has decided
// in place of a store, a second line says how often. The server is healthy nevertheless: if it were not, a store that
// is away would take all instances out of service at once.
func (s *Server) healthcheck(w http.ResponseWriter, _ *http.Request) {
	switch {
	case !s.ready.Load():
		http.Error(w, notReady, http.StatusInternalServerError)
		return
	case !s.serving.Load():
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	_, _ = io.WriteString(w, "OK")
	if s.c.Chain == nil {
		return
	}
	if n := s.c.Chain.Stats(); n.Failures > 0 {
		_, _ = fmt.Fprintf(w, "\n%d decisions since the start were made without the store", n.Failures)
	}
}

// debugHandler serves diagnostics for operators. As in envoyproxy/ratelimit, it takes any method. The debug server has
// no TLS, so health checks that have no certificate ask it.
func (s *Server) debugHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthcheck", s.healthcheck)
	paths := "/healthcheck: OK while requests are decided\n/metrics: for Prometheus\n"
	if limits := s.c.RateLimits; limits != nil {
		paths += "/rlconfig: the configuration in force\n/stats: statistics\n"
		mux.HandleFunc("/rlconfig", func(w http.ResponseWriter, _ *http.Request) {
			if c := limits.Current(); c != nil {
				_, _ = io.WriteString(w, c.Dump())
			}
		})
		mux.HandleFunc("/stats", func(w http.ResponseWriter, _ *http.Request) { limits.Stats().Write(w) })
	}
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", metrics.TextType)
		_ = metrics.WriteText(w, s.c.Metrics.Gather(s.c.RateLimits, s.c.Chain)) // as above
	})
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, paths) })
	return s.refuseWebPages("debug", s.recoverHTTPPanic(mux))
}

// profiles serves the profiles of Go's runtime.
func (s *Server) profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return s.refuseWebPages("pprof", s.recoverHTTPPanic(mux))
}
