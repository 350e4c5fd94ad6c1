// Command prometheus registers the metrics of a limiter with Prometheus's Go client, together with those of the
// program.
//
//	go run ./prometheus
//	curl http://127.0.0.1:8080/metrics
package main

import (
	"context"
	"log"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sluicelimits/sluice"
	"github.com/sluicelimits/sluice/middleware"
)

func main() { log.Fatal(serve()) }

func serve() error {
	limiter, err := sluice.New(sluice.Config{Plans: []string{"plans/public.yaml"}, Measure: true})
	if err != nil {
		return err
	}
	defer func() { _ = limiter.Close(context.Background()) }()
	return http.ListenAndServe("127.0.0.1:8080", handler(limiter)) //nolint:gosec // an example: set timeouts
}

func handler(limiter *sluice.Limiter) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector{limiter})
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.Handle("/", middleware.Limit(limiter)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	return mux
}

// collector gives the metrics of a limiter to Prometheus.
type collector struct{ limiter *sluice.Limiter }

// Describe describes no metrics, because which metrics exist depends on the stores.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect reads all metrics.
func (c collector) Collect(to chan<- prometheus.Metric) {
	for _, m := range c.limiter.Metrics() {
		labels := prometheus.Labels{}
		for _, l := range m.Labels {
			labels[l.Name] = l.Value
		}
		desc := prometheus.NewDesc(m.Name, m.Help, nil, labels)
		switch m.Kind {
		case sluice.Histogram:
			buckets := make(map[float64]uint64, len(m.Buckets))
			for _, b := range m.Buckets {
				buckets[b.UpTo] = b.Count
			}
			to <- prometheus.MustNewConstHistogram(desc, m.Count, m.Sum, buckets)
		case sluice.Gauge:
			to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, m.Value)
		case sluice.Counter:
			to <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, m.Value)
		}
	}
}
