// Package pacepage serves a page that shows a running pacer: how many requests wait, how long they wait, and how much
// is granted in comparison with the limit, in total and for each key. It uses the style and scripts of package
// livepage.
package pacepage

import (
	"context"
	"embed"
	"net/http"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/dev/livepage"
	"github.com/sluicelimits/sluice/pacer"
)

// MaxKeys is the number of keys that the page lists. All other keys share one row.
const MaxKeys = 20

// columns is the number of seconds that the page shows.
const columns = 60

//go:embed page
var files embed.FS

// Watcher reads the statistics of a pacer once a second, and keeps them for a minute. This takes at most 7 MB, if the
// pacer has many keys.
type Watcher struct {
	pacer *pacer.Pacer
	about About

	mu      sync.Mutex
	samples []sample // the oldest first; at most columns + 1
}

type sample struct {
	at    time.Time
	stats pacer.Stats
}

// About describes the pacer in words.
type About struct {
	Command string `json:"command"` // what runs, such as "sluice pace"
	Store   string `json:"store"`   // the store through which the limit is shared; "" if it is not shared
}

// NewWatcher makes a Watcher with one sample.
func NewWatcher(p *pacer.Pacer, about About) *Watcher {
	w := &Watcher{pacer: p, about: about}
	w.sample()
	return w
}

// Run takes samples until ctx ends, once a second, in the middle of a window. Near the beginning of a window, a sample
// that is taken a little late would count units of that window for the second before.
func (w *Watcher) Run(ctx context.Context) {
	timer := time.NewTimer(w.untilFirst(time.Now()))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		w.sample()
		timer.Reset(w.untilNext(time.Now()))
	}
}

// untilFirst returns the time until the first sample of Run. If Run begins late in a second, the first sample is taken
// shortly before the end of that second. Otherwise the first bar would show what two windows granted, as if the limit
// were exceeded.
func (w *Watcher) untilFirst(now time.Time) time.Duration {
	const early = 2 * time.Millisecond
	toEnd := now.Truncate(time.Second).Add(time.Second).Sub(now)
	if next := w.untilNext(now); next < toEnd {
		return next
	}
	return max(toEnd-early, 0)
}

// untilNext returns the time until the next sample.
func (w *Watcher) untilNext(now time.Time) time.Duration {
	period := min(w.pacer.Status().Limit.Period, time.Second)
	into := (time.Second / 2).Truncate(period) + period/2
	return now.Add(-into).Truncate(time.Second).Add(time.Second + into).Sub(now)
}

func (w *Watcher) sample() {
	s := sample{time.Now(), w.pacer.Stats()}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.samples) > columns {
		w.samples = append(w.samples[:0], w.samples[1:]...)
	}
	w.samples = append(w.samples, s)
}

// Handler serves the page and its data, as livepage.Handler does.
func (w *Watcher) Handler() http.Handler {
	return livepage.PageHandler(files, func() any { return w.data() })
}

// Data is data.json: what the page shows. Times are milliseconds since 1970. All slices are present, if empty.
type Data struct {
	Version int   `json:"version"` // version of this format: 1
	NowMs   int64 `json:"now_ms"`
	About   About `json:"about"`
	Limit   Limit `json:"limit"`

	Waiting      int   `json:"waiting"`       // requests in the queue
	WaitingUnits int64 `json:"waiting_units"` // cost of these requests together
	WaitingKeys  int   `json:"waiting_keys"`

	// The slices have a value for each second, the oldest first.
	FromMs  int64     `json:"from_ms"` // when the first second began
	StepMs  int64     `json:"step_ms"` // 1000
	Granted []int64   `json:"granted"` // units
	Queued  []int     `json:"queued"`  // requests in the queue at the end of the second
	Limits  []float64 `json:"limits"`  // the limit, units per second
	Failed  []int64   `json:"failed"`  // calls to the store that failed

	Waits  Waits    `json:"waits"`  // how long the requests waited that were granted in these seconds
	Keys   []KeyRow `json:"keys"`   // at most MaxKeys; the key with most granted units in these seconds comes first
	Others *KeyRow  `json:"others"` // all other keys together; null if there are none

	Totals Totals `json:"totals"`
}

// Limit is the limit of the pacer, and its present window.
type Limit struct {
	Units     int64   `json:"units"`
	PeriodMs  float64 `json:"period_ms"`
	PerSecond float64 `json:"per_second"` // units per second in use now: the learned limit if there is one
	Learned   int64   `json:"learned"`    // units per window; 0: the limit is not learned
	Window    int64   `json:"window"`     // units that may be granted in the present window
	Used      int64   `json:"used"`       // units of Window that were granted
}

// Waits says how long requests waited.
type Waits struct {
	Count int64 `json:"count"`
	P50Ms int64 `json:"p50_ms"`
	P99Ms int64 `json:"p99_ms"`
}

// KeyRow describes the requests of a key that did not fit at once.
type KeyRow struct {
	Key       string  `json:"key"`
	Waiting   int     `json:"waiting"`
	Granted   int64   `json:"granted"` // units
	PerSecond float64 `json:"per_second"`
	Waits     Waits   `json:"waits"`
	Keys      int     `json:"keys"` // number of keys in this row; 0: all others
}

// Totals are counts since the pacer was made.
type Totals struct {
	Granted     int64 `json:"granted"` // units
	AtOnce      int64 `json:"at_once"` // requests that did not wait
	Returned    int64 `json:"returned"`
	Lost        int64 `json:"lost"`
	Refused     int64 `json:"refused"`
	Expired     int64 `json:"expired"`
	Canceled    int64 `json:"canceled"`
	StoreCalls  int64 `json:"store_calls"`
	StoreErrors int64 `json:"store_errors"`
}

// data joins the samples.
func (w *Watcher) data() *Data {
	w.mu.Lock()
	defer w.mu.Unlock()
	first, last := &w.samples[0], &w.samples[len(w.samples)-1]
	s := &last.stats
	d := &Data{
		Version: 1, NowMs: last.at.UnixMilli(), About: w.about,
		Limit: Limit{Units: s.Limit.Units, PeriodMs: float64(s.Limit.Period) / float64(time.Millisecond),
			PerSecond: perSecond(s), Learned: s.Learned, Window: s.Units, Used: s.Used},
		Waiting: s.Waiting, WaitingUnits: s.WaitingUnits, WaitingKeys: s.WaitingKeys,
		FromMs: last.at.Add(-columns * time.Second).UnixMilli(), StepMs: time.Second.Milliseconds(),
		Granted: make([]int64, columns), Queued: make([]int, columns), Limits: make([]float64, columns),
		Failed: make([]int64, columns),
		Totals: Totals{Granted: s.Granted, AtOnce: s.AtOnce, Returned: s.Returned, Lost: s.Lost, Refused: s.Refused,
			Expired: s.Expired, Canceled: s.Canceled, StoreCalls: s.LedgerCalls, StoreErrors: s.LedgerErrors},
	}
	for i := 1; i < len(w.samples); i++ {
		before, at := &w.samples[i-1].stats, columns-len(w.samples)+i
		now := &w.samples[i].stats
		d.Granted[at] = now.Granted - before.Granted
		d.Queued[at], d.Limits[at] = now.Waiting, perSecond(now)
		d.Failed[at] = now.LedgerErrors - before.LedgerErrors
	}
	waits := s.Waits.Since(&first.stats.Waits)
	d.Waits = waitsOf(&waits)
	d.Keys, d.Others = keyRows(&first.stats, s, last.at.Sub(first.at))
	return d
}

// perSecond returns the present limit in units per second.
func perSecond(s *pacer.Stats) float64 {
	units := s.Limit.Units
	if s.Learned > 0 {
		units = min(units, s.Learned)
	}
	return float64(units) / s.Limit.Period.Seconds()
}

func waitsOf(w *pacer.Waits) Waits {
	return Waits{w.Count(), w.Quantile(0.5).Milliseconds(), w.Quantile(0.99).Milliseconds()}
}
