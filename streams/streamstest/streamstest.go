// Package streamstest holds what the tests of the streams share: a meter whose counts can be read, a keeper of dead
// letters that can fail, and histories of items.
package streamstest

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/streams/delivery"
)

// Meter keeps what was counted. Its zero value is ready to use.
type Meter struct {
	mu     sync.Mutex
	counts map[string]int64
	times  map[string][]time.Duration
}

// Count implements the meters of the streams.
func (m *Meter) Count(name string, n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.counts == nil {
		m.counts = map[string]int64{}
	}
	m.counts[name] += n
}

// Took implements the meters of the streams.
func (m *Meter) Took(name string, d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.times == nil {
		m.times = map[string][]time.Duration{}
	}
	m.times[name] = append(m.times[name], d)
}

// Of returns a count.
func (m *Meter) Of(name string) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.counts[name]
}

// Times returns all durations of a metric, shortest first.
func (m *Meter) Times(name string) []time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(slices.Values(m.times[name]))
}

// Want fails the test unless the counts have these values.
func (m *Meter) Want(t testing.TB, want map[string]int64) {
	t.Helper()
	for name, n := range want {
		if got := m.Of(name); got != n {
			t.Errorf("%s is %d, want %d", name, got, n)
		}
	}
}

// Keeper stores dead letters in memory. Its zero value is ready to use.
type Keeper struct {
	mu    sync.Mutex
	err   error
	items []delivery.DeadLetter
}

// Keep implements [delivery.Keeper].
func (k *Keeper) Keep(_ context.Context, i delivery.DeadLetter) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err == nil {
		k.items = append(k.items, i)
	}
	return k.err
}

// Away makes Keep fail with the error, or succeed again if the error is nil.
func (k *Keeper) Away(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err = err
}

// Items returns the dead letters.
func (k *Keeper) Items() []delivery.DeadLetter {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.items)
}

// Written is the time at which histories were written.
var Written = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// History returns the records of one item: a version for each body. An empty body makes a tombstone. The sequence
// numbers are table/key/version.
func History(t testing.TB, table control.Table, key string, bodies ...string) []control.Delivery {
	t.Helper()
	var current *control.Item
	var out []control.Delivery
	for i, body := range bodies {
		c, err := control.Change{
			Table: table, Key: key, Expect: int64(i), Body: []byte(body), Delete: body == "", Actor: "tester",
			Reason: "test", Now: Written,
		}.Check()
		if err != nil {
			t.Fatal(err)
		}
		next, _, err := control.Next(current, c)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, control.Delivery{
			Sequence: string(table) + "/" + key + "/" + strconv.Itoa(i+1),
			Record:   &control.Record{Sequence: strconv.Itoa(i + 1), Old: current, New: next},
		})
		current = &next
	}
	return out
}
