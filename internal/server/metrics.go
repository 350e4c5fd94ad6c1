package server

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/server/limitsv1"
	"github.com/sluicelimits/sluice/internal/server/rls"
)

// Metrics holds what the debug server reports to Prometheus at /metrics. The number of time series is bounded:
// labels are methods, codes, names of stores, and the names of statistics, whose number package rls bounds. The zero
// Metrics is ready for use. It is safe for concurrent use.
type Metrics struct {
	mu       sync.RWMutex
	requests map[requestLabels]*histogram
	calls    map[callLabels]*histogram
}

type requestLabels struct{ method, code string }

type callLabels struct {
	store  string
	failed bool
}

// bounds are the upper bounds of the histograms' buckets, in seconds. They reach from a decision in memory to a call
// that times out.
var bounds = [...]float64{25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 20e-3, 50e-3, 100e-3,
	250e-3, 1, 2.5, 10}

// histogram counts durations.
type histogram struct {
	buckets [len(bounds) + 1]atomic.Int64 // the last one holds durations above all bounds
	nanos   atomic.Int64
}

func (h *histogram) observe(took time.Duration) {
	i, _ := slices.BinarySearch(bounds[:], took.Seconds())
	h.buckets[i].Add(1)
	h.nanos.Add(int64(took))
}

// histogramOf returns the histogram of the labels. It adds one to m if there is none.
func histogramOf[L comparable](mu *sync.RWMutex, m *map[L]*histogram, labels L) *histogram {
	mu.RLock()
	h := (*m)[labels]
	mu.RUnlock()
	if h != nil {
		return h
	}
	mu.Lock()
	defer mu.Unlock()
	if *m == nil {
		*m = map[L]*histogram{}
	}
	if h = (*m)[labels]; h == nil {
		h = new(histogram)
		(*m)[labels] = h
	}
	return h
}

// ObserveCall records a call to a store. It is meant for resilience.ChainConfig.Observe.
func (m *Metrics) ObserveCall(store string, took time.Duration, failed bool) {
	histogramOf(&m.mu, &m.calls, callLabels{store, failed}).observe(took)
}

// intercept records the requests of the gRPC server.
func (m *Metrics) intercept(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler,
) (any, error) {
	began := time.Now()
	out, err := handle(ctx, req)
	histogramOf(&m.mu, &m.requests, requestLabels{info.FullMethod, codeOf(out, err)}).observe(time.Since(began))
	return out, err
}

// codeOf returns the code of a gRPC request, or OVER_LIMIT for a decision that denies.
func codeOf(out any, err error) string {
	if err != nil {
		return status.Code(err).String()
	}
	if denies(out) {
		return "OVER_LIMIT"
	}
	return codes.OK.String()
}

// record returns a handler that records the requests to mux by their pattern.
func (m *Metrics) record(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began, response := time.Now(), &statusWriter{ResponseWriter: w, code: http.StatusOK}
		mux.ServeHTTP(response, r)
		pattern := r.Pattern
		if pattern == "" {
			pattern = "other"
		}
		histogramOf(&m.mu, &m.requests, requestLabels{pattern, strconv.Itoa(response.code)}).observe(time.Since(began))
	})
}

// denies reports whether a response is a decision that denies.
func denies(out any) bool {
	switch out := out.(type) {
	case *rlsv3.RateLimitResponse:
		return out.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT
	case *limitsv1.CheckResponse:
		return !out.GetDecision().GetAllowed()
	}
	return false
}

// statusWriter remembers the status of a response.
type statusWriter struct {
	http.ResponseWriter
	code int
}

// WriteHeader implements [http.ResponseWriter].
func (w *statusWriter) WriteHeader(code int) {
	w.code = code
	w.ResponseWriter.WriteHeader(code)
}

// exposition writes metrics in Prometheus's text format.
type exposition struct{ w io.Writer }

// family writes the lines that introduce a metric.
func (e exposition) family(name, kind, help string) {
	fmt.Fprintf(e.w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

// sample writes a value. labels alternates names and values.
func (e exposition) sample(name string, value float64, labels ...string) {
	fmt.Fprintf(e.w, "%s%s %s\n", name, labelText(labels), strconv.FormatFloat(value, 'g', -1, 64))
}

var labelEscapes = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

func labelText(labels []string) string {
	if len(labels) == 0 {
		return ""
	}
	var b strings.Builder
	for i := 0; i+1 < len(labels); i += 2 {
		sep := byte(',')
		if i == 0 {
			sep = '{'
		}
		b.WriteByte(sep)
		b.WriteString(labels[i] + `="` + labelEscapes.Replace(strings.ToValidUTF8(labels[i+1], "\uFFFD")) + `"`)
	}
	return b.String() + "}"
}

func (e exposition) histogram(name string, h *histogram, labels ...string) {
	total := int64(0)
	for i := range h.buckets {
		total += h.buckets[i].Load()
		le := math.Inf(1)
		if i < len(bounds) {
			le = bounds[i]
		}
		e.sample(name+"_bucket", float64(total), append(slices.Clip(labels), "le", leText(le))...)
	}
	e.sample(name+"_sum", float64(h.nanos.Load())/1e9, labels...)
	e.sample(name+"_count", float64(total), labels...)
}

func leText(bound float64) string {
	if math.IsInf(bound, 1) {
		return "+Inf"
	}
	return strconv.FormatFloat(bound, 'g', -1, 64)
}

// write writes all metrics. chain may be nil.
func (m *Metrics) write(w io.Writer, service *rls.Service, chain *resilience.Chain) {
	e := exposition{w}
	e.family("sluice_request_seconds", "histogram",
		"Requests by method and code; OVER_LIMIT is a decision that denies.")
	m.each(func() {
		for labels, h := range m.requests {
			e.histogram("sluice_request_seconds", h, "method", labels.method, "code", labels.code)
		}
	})
	e.family("sluice_store_call_seconds", "histogram", "Calls of the stores of counters.")
	m.each(func() {
		for labels, h := range m.calls {
			e.histogram("sluice_store_call_seconds", h, "store", labels.store, "failed",
				strconv.FormatBool(labels.failed))
		}
	})
	writeStats(e, service.Stats())
	if chain != nil {
		writeChain(e, chain)
	}
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	e.family("go_goroutines", "gauge", "Goroutines.")
	e.sample("go_goroutines", float64(runtime.NumGoroutine()))
	e.family("go_memstats_alloc_bytes", "gauge", "Bytes of objects that are allocated and not freed.")
	e.sample("go_memstats_alloc_bytes", float64(memory.Alloc))
	e.family("go_memstats_sys_bytes", "gauge", "Bytes that the process has from the system.")
	e.sample("go_memstats_sys_bytes", float64(memory.Sys))
}

// each runs f under the lock, so that no histogram is added meanwhile.
func (m *Metrics) each(f func()) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	f()
}

func writeStats(e exposition, s *rls.Stats) {
	e.family("sluice_config_loads_total", "counter",
		"Configurations that were read, by whether they were put in force.")
	e.sample("sluice_config_loads_total", float64(s.ConfigLoadSuccess.Load()), "result", "success")
	e.sample("sluice_config_loads_total", float64(s.ConfigLoadError.Load()), "result", "error")
	e.family("sluice_rate_limit_errors_total", "counter", "Requests of Envoy that were not decided.")
	e.sample("sluice_rate_limit_errors_total", float64(s.ServiceError.Load()), "cause", "request")
	e.sample("sluice_rate_limit_errors_total", float64(s.StoreError.Load()), "cause", "store")
	e.family("sluice_refund_errors_total", "counter",
		"Charges that could not be given back after another limit had denied.")
	e.sample("sluice_refund_errors_total", float64(s.RefundError.Load()))
	e.family("sluice_hits_total", "counter",
		"Hits by the name of the statistics of a descriptor, and what became of them.")
	s.EachCount(func(key, what string, n int64) {
		e.sample("sluice_hits_total", float64(n), "key", key, "outcome", what)
	})
}

func writeChain(e exposition, c *resilience.Chain) {
	if c.Leases != nil {
		s := c.Leases.Stats()
		e.family("sluice_lease_decisions_total", "counter",
			"Decisions of the lease layer: from leases alone, and those that called a store.")
		e.sample("sluice_lease_decisions_total", float64(s.Local-s.Denied), "how", "admitted_from_leases")
		e.sample("sluice_lease_decisions_total", float64(s.Denied), "how", "denied_from_memory")
		e.sample("sluice_lease_decisions_total", float64(s.Calls), "how", "called")
		e.family("sluice_lease_units_lost_total", "counter",
			"Units that were leased, and neither spent nor given back.")
		e.sample("sluice_lease_units_lost_total", float64(s.Lost))
	}
	f := c.Fallback.Stats()
	e.family("sluice_fallback_decisions_total", "counter",
		"Decisions that the store did not make, by what applied instead.")
	e.sample("sluice_fallback_decisions_total", float64(f.Backstop), "policy", "backstop")
	e.sample("sluice_fallback_decisions_total", float64(f.Open), "policy", "open")
	e.sample("sluice_fallback_decisions_total", float64(f.Closed), "policy", "closed")
	e.family("sluice_breaker_open", "gauge", "1 while the circuit breaker of a store makes no calls, or only probes.")
	for _, b := range c.Breakers {
		open := 0.0
		if b.State() != resilience.StateClosed {
			open = 1
		}
		e.sample("sluice_breaker_open", open, "store", b.Name())
	}
	e.family("sluice_instances", "gauge", "Processes that share the store, as far as is known.")
	e.sample("sluice_instances", float64(c.Instances.Count()))
}
