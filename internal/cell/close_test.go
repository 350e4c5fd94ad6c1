package cell

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	memstore "github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/telemetry"
)

// slowWriter takes a second for each line, as a process that gets no processor does.
type slowWriter struct{ bytes.Buffer }

func (w *slowWriter) Write(line []byte) (int, error) {
	<-time.After(time.Second)
	return w.Buffer.Write(line)
}

// Guarantees that Close writes what was recorded even if its context has ended before the line is written: the context
// bounds the calls to the stores.
func TestCloseWritesTheLastMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, err := memstore.New(memstore.Config{})
		if err != nil {
			t.Fatal(err)
		}
		chain, err := resilience.NewChain(resilience.ChainConfig{Frozen: true, Log: slog.New(slog.DiscardHandler),
			Rates: resilience.NamedStore{Name: "memory", Store: store}})
		if err != nil {
			t.Fatal(err)
		}
		out := &slowWriter{}
		recorder, err := telemetry.New(telemetry.Config{Writer: out, Namespace: "Sluice", Cell: "eu-1"})
		if err != nil {
			t.Fatal(err)
		}
		f := &Function{recorder: recorder, stores: &stores{chain: chain}, stop: func() {}}
		recorder.ColdStart(time.Now())
		ended, end := context.WithCancel(t.Context())
		end()
		_ = f.Close(ended) // it may report that the stores were not reached
		if line := out.String(); !strings.Contains(line, `"cold_starts":1`) {
			t.Errorf("the last metrics are written as %q, want a line with cold_starts 1", line)
			<-time.After(time.Minute) // for the writer, which must end in this test
		}
	})
}
