package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"

	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/cell"
)

// inProcess is the authorizer as it is deployed, in this process. Its costs can be measured without those of the
// Runtime API and of other processes.
type inProcess struct {
	*cell.Function
	metrics *metrics
	close   func() error
}

// here makes the authorizer of the deployment in this process, with some variables changed: see deployment.with.
func (d *deployment) here(pairs ...string) (*inProcess, error) {
	env := d.with(pairs...)
	env["AWS_LAMBDA_FUNCTION_NAME"], env["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"] = "authorizer",
		strconv.Itoa(functionMemoryMB)
	var list []string
	for name, value := range env {
		list = append(list, name+"="+value)
	}
	bundle := os.DirFS(d.dir)
	settings, err := environ.Parse(list, bundle)
	if err != nil {
		return nil, err
	}
	memory, garbage := debug.SetMemoryLimit(-1), debug.SetGCPercent(100) // cell.New changes both
	debug.SetGCPercent(garbage)
	p := &inProcess{metrics: &metrics{}}
	p.Function, err = cell.New(cell.Config{
		Settings: settings, Env: func(name string) string { return env[name] }, Bundle: bundle, Output: p.metrics,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	})
	p.close = sync.OnceValue(func() error {
		defer debug.SetMemoryLimit(memory)
		defer debug.SetGCPercent(garbage)
		if p.Function == nil {
			return nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), patient)
		defer cancel()
		return p.Close(ctx)
	})
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// metrics collects the lines of metrics that a function writes.
type metrics struct {
	mu      sync.Mutex
	lines   []line
	refused error
}

// line holds the metrics of a line that figures use.
type line struct {
	AWS struct{ Timestamp int64 } `json:"_aws"`

	Decisions   int64
	Denied      int64        `json:"enforce_denied"`
	Backstop    int64        `json:"requests_served_by_backstop"`
	Limiter     distribution `json:"limiter_latency"` // µs
	RedisCalls  distribution `json:"store_latency_redis"`
	RedisErrors int64        `json:"store_errors_redis"`
}

// distribution holds values in ascending order, and how often each occurred.
type distribution struct {
	Values []float64
	Counts []int64
}

func (d *distribution) add(o *distribution) {
	for i, v := range o.Values {
		at, found := slices.BinarySearch(d.Values, v)
		if !found {
			d.Values, d.Counts = slices.Insert(d.Values, at, v), slices.Insert(d.Counts, at, 0)
		}
		d.Counts[at] += o.Counts[i]
	}
}

func (d *distribution) count() (n int64) {
	for _, c := range d.Counts {
		n += c
	}
	return n
}

// quantile returns the value that the part q of all values does not exceed.
func (d *distribution) quantile(q float64) float64 {
	most := int64(q * float64(d.count()))
	for i, v := range d.Values {
		most -= d.Counts[i]
		if most < 0 {
			return v
		}
	}
	return 0
}

// Write implements [io.Writer].
func (m *metrics) Write(text []byte) (int, error) {
	var l line
	err := json.NewDecoder(bytes.NewReader(text)).Decode(&l)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil && m.refused == nil {
		m.refused = fmt.Errorf("a line of metrics: %w: %s", err, text)
	}
	m.lines = append(m.lines, l)
	return len(text), nil
}

// since adds up the lines from the given second on. The error names a line that could not be read.
func (m *metrics) since(second int64) (line, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var sum line
	for i := range m.lines {
		l := &m.lines[i]
		if l.AWS.Timestamp < second*1000 {
			continue
		}
		sum.Decisions += l.Decisions
		sum.Denied += l.Denied
		sum.Backstop += l.Backstop
		sum.RedisErrors += l.RedisErrors
		sum.Limiter.add(&l.Limiter)
		sum.RedisCalls.add(&l.RedisCalls)
	}
	return sum, m.refused
}
