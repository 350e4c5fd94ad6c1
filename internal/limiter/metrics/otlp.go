package metrics

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// DefaultEvery is how often an [Exporter] sends where nothing else is said.
const DefaultEvery = time.Minute

// exportWithin is how long one request of an Exporter may take.
const exportWithin = 10 * time.Second

// maxPoints is how many values one request of an Exporter has at most: 4 MB if all have labels of 600 bytes. The
// OpenTelemetry collector refuses requests of more than 20 MiB.
const maxPoints = 5000

// Exporter sends metrics to an OpenTelemetry collector, by OTLP over HTTP in JSON. Make it with [NewExporter].
type Exporter struct {
	c      ExporterConfig
	began  time.Time
	failed bool // the last request failed
}

// ExporterConfig sets up an [Exporter].
type ExporterConfig struct {
	// Endpoint is the URL of the collector, such as http://127.0.0.1:4318. Metrics go to /v1/metrics below it, unless
	// its path ends so.
	Endpoint string

	Service, Version string            // service.name and service.version of the resource
	Attributes       map[string]string // further attributes of the resource
	Every            time.Duration     // between two requests; 0 selects DefaultEvery
	Gather           func() []Metric   // required
	Log              *slog.Logger      // if nil, slog.Default()
}

// NewExporter makes an exporter. It sends nothing yet. The error says what is wrong with Endpoint.
func NewExporter(c ExporterConfig) (*Exporter, error) {
	u, err := url.Parse(c.Endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("the endpoint is not a URL such as http://127.0.0.1:4318")
	}
	if !strings.HasSuffix(u.Path, "/v1/metrics") {
		u = u.JoinPath("v1/metrics")
	}
	c.Endpoint = u.String()
	if c.Every == 0 {
		c.Every = DefaultEvery
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return &Exporter{c: c, began: time.Now()}, nil
}

// Run sends until the context ends, and then once more, so that the last values arrive. A collector that is away costs
// nothing but a line in the log when that begins and when it ends: values are sums since the start of the process.
func (e *Exporter) Run(ctx context.Context) {
	tick := time.NewTicker(e.c.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			e.tell(e.Send(context.WithoutCancel(ctx), time.Now()))
			return
		case now := <-tick.C:
			e.tell(e.Send(ctx, now))
		}
	}
}

// Start sends metrics in a goroutine until the returned function is called, which sends them once more. The end of ctx
// does not end it, so that the last requests are counted. A nil Exporter sends nothing.
func (e *Exporter) Start(ctx context.Context) (end func()) {
	if e == nil {
		return func() {}
	}
	exporting, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() { e.Run(exporting); close(ended) }()
	return func() { stop(); <-ended }
}

func (e *Exporter) tell(err error) {
	if failed := err != nil; failed != e.failed {
		e.failed = failed
		if failed {
			e.c.Log.Warn("metrics cannot be sent; later ones have what these had", "error", err)
			return
		}
		e.c.Log.Info("metrics are sent again")
	}
}

// Send sends all metrics as of now, in requests of at most maxPoints values.
func (e *Exporter) Send(ctx context.Context, now time.Time) error {
	for some := range slices.Chunk(e.c.Gather(), maxPoints) {
		if err := e.send(ctx, e.request(some, now)); err != nil {
			return err
		}
	}
	return nil
}

func (e *Exporter) send(ctx context.Context, request otlpRequest) error {
	body, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, exportWithin)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.c.Endpoint, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	defer func() { _ = resp.Body.Close() }() // it is read, or of no use
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 200))
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("metrics: %s answers %s: %q", e.c.Endpoint, resp.Status, text)
	}
	return nil
}

// The messages of opentelemetry/proto/metrics/v1, in the JSON form of OTLP: 64-bit integers are strings.
type (
	otlpRequest struct {
		ResourceMetrics []otlpResourceMetrics `json:"resourceMetrics"`
	}
	otlpResourceMetrics struct {
		Resource     otlpResource       `json:"resource"`
		ScopeMetrics []otlpScopeMetrics `json:"scopeMetrics"`
	}
	otlpResource struct {
		Attributes []otlpAttribute `json:"attributes"`
	}
	otlpScopeMetrics struct {
		Scope   otlpScope    `json:"scope"`
		Metrics []otlpMetric `json:"metrics"`
	}
	otlpScope struct {
		Name string `json:"name"`
	}
	otlpMetric struct {
		Name        string    `json:"name"`
		Description string    `json:"description"`
		Unit        string    `json:"unit,omitempty"`
		Sum         *otlpData `json:"sum,omitempty"`
		Gauge       *otlpData `json:"gauge,omitempty"`
		Histogram   *otlpData `json:"histogram,omitempty"`
	}
	otlpData struct { // a gauge has the points alone
		DataPoints             []otlpPoint `json:"dataPoints"`
		AggregationTemporality int         `json:"aggregationTemporality,omitempty"`
		IsMonotonic            bool        `json:"isMonotonic,omitempty"` // of a sum
	}
	otlpPoint struct {
		Attributes        []otlpAttribute `json:"attributes,omitempty"`
		StartTimeUnixNano string          `json:"startTimeUnixNano"`
		TimeUnixNano      string          `json:"timeUnixNano"`
		AsDouble          *float64        `json:"asDouble,omitempty"`
		Count             string          `json:"count,omitempty"`
		Sum               *float64        `json:"sum,omitempty"`
		BucketCounts      []string        `json:"bucketCounts,omitempty"`
		ExplicitBounds    []float64       `json:"explicitBounds,omitempty"`
	}
	otlpAttribute struct {
		Key   string    `json:"key"`
		Value otlpValue `json:"value"`
	}
	otlpValue struct {
		StringValue string `json:"stringValue"`
	}
)

// cumulative is AGGREGATION_TEMPORALITY_CUMULATIVE: values are sums since the start.
const cumulative = 2

func (e *Exporter) request(all []Metric, now time.Time) otlpRequest {
	resource := otlpResource{Attributes: []otlpAttribute{{"service.name", otlpValue{e.c.Service}},
		{"service.version", otlpValue{e.c.Version}}}}
	for k, v := range e.c.Attributes {
		resource.Attributes = append(resource.Attributes, otlpAttribute{k, otlpValue{v}})
	}
	var out []otlpMetric
	var data *otlpData // of the last metric
	for _, m := range all {
		if len(out) == 0 || out[len(out)-1].Name != m.Name {
			data = new(otlpData)
			out = append(out, newOTLP(&m, data))
		}
		data.DataPoints = append(data.DataPoints, e.point(&m, now))
	}
	return otlpRequest{[]otlpResourceMetrics{{resource, []otlpScopeMetrics{{otlpScope{"sluice"}, out}}}}}
}

func newOTLP(m *Metric, data *otlpData) otlpMetric {
	out := otlpMetric{Name: m.Name, Description: m.Help}
	switch {
	case strings.HasSuffix(m.Name, "_seconds"):
		out.Unit = "s"
	case strings.HasSuffix(m.Name, "_bytes"):
		out.Unit = "By"
	}
	switch m.Kind {
	case Gauge:
		out.Gauge = data
	case Histogram:
		out.Histogram, data.AggregationTemporality = data, cumulative
	case Counter:
		out.Sum, data.AggregationTemporality, data.IsMonotonic = data, cumulative, true
	}
	return out
}

func (e *Exporter) point(m *Metric, now time.Time) otlpPoint {
	p := otlpPoint{StartTimeUnixNano: strconv.FormatInt(e.began.UnixNano(), 10),
		TimeUnixNano: strconv.FormatInt(now.UnixNano(), 10)}
	for _, l := range m.Labels {
		p.Attributes = append(p.Attributes,
			otlpAttribute{l.Name, otlpValue{strings.ToValidUTF8(l.Value, "\uFFFD")}})
	}
	if m.Kind != Histogram {
		p.AsDouble = &m.Value
		return p
	}
	p.Sum, p.Count = &m.Sum, strconv.FormatUint(m.Count, 10)
	below := uint64(0)
	for _, b := range m.Buckets {
		p.ExplicitBounds = append(p.ExplicitBounds, b.UpTo)
		p.BucketCounts = append(p.BucketCounts, strconv.FormatUint(b.Count-below, 10))
		below = b.Count
	}
	p.BucketCounts = append(p.BucketCounts, strconv.FormatUint(m.Count-below, 10))
	return p
}
