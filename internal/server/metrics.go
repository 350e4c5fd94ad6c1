package server

import (
	"cmp"
	"context"
	"net/http"
	"strconv"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/metrics"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/server/limits"
	"github.com/sluicelimits/sluice/internal/server/rls"
)

// Metrics holds what the debug server reports to Prometheus at /metrics. The number of time series is bounded:
// labels are methods, codes, names of stores, and the names of statistics, whose number package rls bounds. The zero
// Metrics is ready for use. It is safe for concurrent use.
type Metrics struct {
	// KillSwitch is the kill switch that plans follow, or nil. Set it, and Calls, before the Metrics are used.
	KillSwitch interface {
		Mode() limit.Mode
		Failures() int64
	}

	Calls *metrics.StoreCalls // of the stores of counters; nil if there are none

	Decisions    metrics.Table[string] // of the proxy, by reason
	Certificates *Certificates         // nil if the servers speak plain text

	requests metrics.Table[requestLabels]
}

// overLimit is the code of a request whose decision denies.
const overLimit = "OVER_LIMIT"

type requestLabels struct{ method, code string }

// intercept records the requests of the gRPC server.
func (m *Metrics) intercept(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler,
) (any, error) {
	began := time.Now()
	out, err := handle(ctx, req)
	m.requests.At(requestLabels{info.FullMethod, codeOf(out, err)}).Observe(time.Since(began))
	return out, err
}

// codeOf returns the code of a gRPC request, or OVER_LIMIT for a decision that denies.
func codeOf(out any, err error) string {
	if err != nil {
		return status.Code(err).String()
	}
	if denies(out) {
		return overLimit
	}
	return codes.OK.String()
}

// record returns a handler that records the requests to a handler by the pattern that a [http.ServeMux] finds for them.
func (m *Metrics) record(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began, response := time.Now(), &statusWriter{ResponseWriter: w}
		handler.ServeHTTP(response, r)
		pattern, code := r.Pattern, strconv.Itoa(cmp.Or(response.code, http.StatusOK))
		if pattern == "" {
			pattern = "other"
		}
		if response.denied {
			code = overLimit
		}
		m.requests.At(requestLabels{pattern, code}).Observe(time.Since(began))
	})
}

// denies reports whether a response is a decision that denies.
func denies(out any) bool {
	envoy, ok := out.(*rlsv3.RateLimitResponse)
	return ok && envoy.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT
}

// statusWriter remembers the status of a response.
type statusWriter struct {
	http.ResponseWriter
	code   int  // 0: nothing has been written
	denied bool // the response is a decision that denies, whatever its status
}

// WriteHeader implements [http.ResponseWriter].
func (w *statusWriter) WriteHeader(code int) {
	w.code = code
	w.ResponseWriter.WriteHeader(code)
}

// Write implements [http.ResponseWriter].
func (w *statusWriter) Write(p []byte) (int, error) {
	w.code = cmp.Or(w.code, http.StatusOK)
	return w.ResponseWriter.Write(p)
}

// Unwrap is for [http.ResponseController]: profiles of the debug server need it.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// NoteDenial implements [limits.DenialNoter].
func (w *statusWriter) NoteDenial() {
	w.denied = true
	if outer, ok := w.ResponseWriter.(limits.DenialNoter); ok {
		outer.NoteDenial()
	}
}

// Gather returns all metrics. service is nil for the proxy, and chain if counters are in memory.
func (m *Metrics) Gather(service *rls.Service, chain *resilience.Chain) []metrics.Metric {
	all := m.requests.Append(nil, "sluice_request_seconds",
		"Requests by method and code; OVER_LIMIT is a decision that denies.", func(l requestLabels) []metrics.Label {
			return []metrics.Label{{Name: "method", Value: l.method}, {Name: "code", Value: l.code}}
		})
	if m.Calls != nil {
		all = m.Calls.Append(all)
	}
	if service != nil {
		all = appendStats(all, service.Stats())
	}
	all = m.Decisions.Append(all, "sluice_decision_seconds", "Decisions by reason, and how long they took.",
		func(reason string) []metrics.Label { return []metrics.Label{{Name: "reason", Value: reason}} })
	if m.Certificates != nil {
		all = append(all, metrics.Metric{Name: "sluice_certificate_expiry_seconds", Kind: metrics.Gauge,
			Help:  "When the certificate of the servers expires, in seconds since 1970.",
			Value: float64(m.Certificates.Expiry().Unix())})
	}
	if chain != nil {
		all = metrics.AppendChain(all, chain)
	}
	if m.KillSwitch != nil {
		all = append(all,
			metrics.Metric{Name: "sluice_kill_switch", Kind: metrics.Gauge, Value: float64(m.KillSwitch.Mode()),
				Help: "Mode of all limits of plans, by the kill switch: 0 enforce, 1 shadow, 2 off."},
			metrics.Metric{Name: "sluice_kill_switch_failed_polls_total", Kind: metrics.Counter,
				Value: float64(m.KillSwitch.Failures()), Help: "Polls of the kill switch that failed."})
	}
	return metrics.AppendProcess(all)
}

func appendStats(all []metrics.Metric, s *rls.Stats) []metrics.Metric {
	add := func(name, help string, value int64, labels ...metrics.Label) {
		all = append(all, metrics.Metric{Name: name, Help: help, Kind: metrics.Counter, Value: float64(value),
			Labels: labels})
	}
	const loads = "Configurations that were read, by whether they were put in force."
	add("sluice_config_loads_total", loads, s.ConfigLoadSuccess.Load(), metrics.Label{Name: "result", Value: "success"})
	add("sluice_config_loads_total", loads, s.ConfigLoadError.Load(), metrics.Label{Name: "result", Value: "error"})
	const undecided = "Requests of Envoy that were not decided."
	add("sluice_rate_limit_errors_total", undecided, s.ServiceError.Load(),
		metrics.Label{Name: "cause", Value: "request"})
	add("sluice_rate_limit_errors_total", undecided, s.StoreError.Load(), metrics.Label{Name: "cause", Value: "store"})
	add("sluice_rate_limit_errors_total", undecided, s.Canceled.Load(), metrics.Label{Name: "cause", Value: "client"})
	add("sluice_refund_errors_total", "Charges of denied requests, and negative hits, that could not be given back.",
		s.RefundError.Load())
	s.EachCount(func(key, what string, n int64) {
		add("sluice_hits_total", "Hits by the name of the statistics of a descriptor, and what became of them.", n,
			metrics.Label{Name: "key", Value: key}, metrics.Label{Name: "outcome", Value: what})
	})
	return all
}
