package main

import (
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/pflag"

	"github.com/sluicelimits/sluice/internal/limiter/metrics"
)

// otlpVariable is the environment variable that takes the place of --otlp. OpenTelemetry defines it.
const otlpVariable = "OTEL_EXPORTER_OTLP_ENDPOINT"

// otlpOptions say whether metrics are sent to an OpenTelemetry collector.
type otlpOptions struct {
	endpoint string
	every    time.Duration
}

func (o *otlpOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.endpoint, "otlp", "", "send metrics to the OpenTelemetry collector at `URL`, by OTLP over HTTP, "+
		"such as http://127.0.0.1:4318 (default: "+otlpVariable+")")
	durationFlag(f, &o.every, "otlp-every", metrics.DefaultEvery, time.Second, "send metrics to --otlp every `TIME`")
}

// open makes the sender of the metrics that gather returns. If there is no collector, it returns nil.
func (o *otlpOptions) open(gather func() []metrics.Metric, log *slog.Logger) (*metrics.Exporter, error) {
	name, endpoint := "--otlp", o.endpoint
	if endpoint == "" {
		name, endpoint = otlpVariable, os.Getenv(otlpVariable)
	}
	if endpoint == "" {
		return nil, nil //nolint:nilnil // metrics are sent to a collector only if there is one
	}
	host, err := os.Hostname()
	if err != nil {
		log.Warn("metrics are sent without the attribute host.name", "error", err)
	}
	e, err := metrics.NewExporter(metrics.ExporterConfig{Endpoint: endpoint, Service: "sluice",
		Version:    version(debug.ReadBuildInfo),
		Attributes: map[string]string{"host.name": host, "service.instance.id": rand.Text()}, Every: o.every,
		Gather: gather, Log: log})
	if err != nil {
		return nil, fmt.Errorf("%s %q: %w", name, endpoint, err)
	}
	return e, nil
}
