//go:build unix

package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/testkit/built"
	"github.com/sluicelimits/sluice/internal/testkit/functiontest"
	"github.com/sluicelimits/sluice/internal/testkit/lambdahost"
	"github.com/sluicelimits/sluice/internal/testkit/s3test"
)

// Guarantees that the deployed binary starts without a call, archives the records of a stream in the bucket with its
// lock, answers in Lambda's format, and writes its metrics.
func TestFunction(t *testing.T) {
	executable := filepath.Join(t.TempDir(), "bootstrap")
	if err := built.Function(executable, "."); err != nil {
		t.Fatal(err)
	}
	b := s3test.New(t, s3test.Config{Lock: true, Mode: "COMPLIANCE", Days: 30})
	nobody, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer nobody.Close()
	var mu sync.Mutex
	var lines bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	host, err := lambdahost.Start(ctx, lambdahost.Config{
		Binary: executable, Timeout: 30 * time.Second,
		Env: map[string]string{
			"AWS_ENDPOINT_URL": "http://" + nobody.Addr().String(), "AWS_ENDPOINT_URL_S3": b.URL(),
			"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local",
			"AWS_REGION": "eu-west-1", "SLUICE_PLANS_TABLE": "t-plans", "SLUICE_TENANTS_TABLE": "t-tenants",
			"SLUICE_KEYS_TABLE": "t-keys", "SLUICE_CELLS_TABLE": "t-cells",
			"SLUICE_OPERATIONS_TABLE": "t-operations", "SLUICE_AUDIT_BUCKET": s3test.Name,
		},
		Output: func(l lambdahost.Line) {
			mu.Lock()
			defer mu.Unlock()
			fmt.Fprintf(&lines, "%s\n", l.Text)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	c, err := control.Change{Table: control.Operations, Key: "op-1", Body: []byte(`{"did":"reset"}`), Actor: "ann",
		Reason: "because", Now: time.Now()}.Check()
	if err != nil {
		t.Fatal(err)
	}
	item, _, err := control.Next(nil, c)
	if err != nil {
		t.Fatal(err)
	}
	record := &control.Record{Sequence: "1", New: item}
	event := []byte(`{"Records":[` + functiontest.RecordOf(t, 1, "t-operations",
		control.Delivery{Record: record}) + `]}`)
	for range 2 {
		if got, err := host.Invoke(ctx, event); err != nil || string(got) != `{"batchItemFailures":[]}` {
			t.Errorf("%s, %v", got, err)
		}
	}
	if err := host.Close(ctx); err != nil {
		t.Error(err)
	}
	want, err := events.Encode(record.Audit())
	if v := b.Versions(control.ObjectName(control.Operations, "op-1", 1)); err != nil || len(v) != 1 ||
		!bytes.Equal(v[0], want) {
		t.Errorf("the bucket has %q, %v", v, err)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, metric := range []string{`"objects_made":1`, `"objects_equal":1`, `"records_unequal":0`} {
		if !strings.Contains(lines.String(), metric) {
			t.Errorf("no line has %s:\n%s", metric, lines.String())
		}
	}
}
