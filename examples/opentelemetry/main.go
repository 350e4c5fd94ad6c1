// Command opentelemetry gives the metrics of a limiter to OpenTelemetry's SDK, which writes them to the standard output
// when the program ends. Use your own exporter instead of stdoutmetric.
//
//	go run ./opentelemetry
package main

import (
	"context"
	"log"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/stdout/stdoutmetric"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/sluicelimits/sluice"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	limiter, err := sluice.New(sluice.Config{Plans: []string{"plans/two-plans.yaml"}, Measure: true})
	if err != nil {
		return err
	}
	defer func() { _ = limiter.Close(ctx) }()
	exporter, err := stdoutmetric.New(stdoutmetric.WithPrettyPrint())
	if err != nil {
		return err
	}
	reader := metric.NewPeriodicReader(exporter, metric.WithProducer(&producer{limiter: limiter, began: time.Now()}))
	provider := metric.NewMeterProvider(metric.WithReader(reader))
	limiter.Decide(ctx, sluice.Identity{Tenant: "acme"}, sluice.Request{Method: "GET", Path: "/product/1"})
	return provider.Shutdown(ctx) // exports the metrics a last time
}

// producer gives the metrics of a limiter to a reader of the SDK.
type producer struct {
	limiter *sluice.Limiter
	began   time.Time
}

// Produce reads all metrics. Those with the same name become the data points of one metric.
func (p *producer) Produce(context.Context) ([]metricdata.ScopeMetrics, error) {
	now, out := time.Now(), metricdata.ScopeMetrics{Scope: instrumentation.Scope{Name: "sluice"}}
	all := p.limiter.Metrics()
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].Name == all[0].Name {
			n++
		}
		out.Metrics = append(out.Metrics, metricdata.Metrics{Name: all[0].Name, Description: all[0].Help,
			Data: p.aggregation(all[:n], now)})
		all = all[n:]
	}
	return []metricdata.ScopeMetrics{out}, nil
}

func (p *producer) aggregation(same []sluice.Metric, now time.Time) metricdata.Aggregation {
	var points []metricdata.DataPoint[float64]
	var histograms []metricdata.HistogramDataPoint[float64]
	for _, m := range same {
		var labels []attribute.KeyValue
		for _, l := range m.Labels {
			labels = append(labels, attribute.String(l.Name, l.Value))
		}
		set := attribute.NewSet(labels...)
		points = append(points, metricdata.DataPoint[float64]{Attributes: set, StartTime: p.began, Time: now,
			Value: m.Value})
		h := metricdata.HistogramDataPoint[float64]{Attributes: set, StartTime: p.began, Time: now, Count: m.Count,
			Sum: m.Sum}
		below := uint64(0)
		for _, b := range m.Buckets { // Sluice's buckets are cumulative, and OpenTelemetry's are not
			h.Bounds, h.BucketCounts = append(h.Bounds, b.UpTo), append(h.BucketCounts, b.Count-below)
			below = b.Count
		}
		h.BucketCounts = append(h.BucketCounts, m.Count-below)
		histograms = append(histograms, h)
	}
	switch same[0].Kind {
	case sluice.Gauge:
		return metricdata.Gauge[float64]{DataPoints: points}
	case sluice.Histogram:
		return metricdata.Histogram[float64]{DataPoints: histograms, Temporality: metricdata.CumulativeTemporality}
	case sluice.Counter:
	}
	return metricdata.Sum[float64]{DataPoints: points, IsMonotonic: true, Temporality: metricdata.CumulativeTemporality}
}
