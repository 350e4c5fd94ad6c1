package pacer

import (
	"cmp"
	"maps"
	"math/bits"
	"slices"
	"strings"
	"time"
)

// Bounds of what [Pacer.Stats] counts apart.
const (
	// MaxStatsKeys is the number of keys that are counted apart. A key takes some 1.1 KiB.
	MaxStatsKeys = 100

	maxStatsKeyBytes = 256 // length of the longest key that is counted apart
	// a key is counted apart until it has had no grants for so long, if others need its place
	statsKept = time.Minute
)

// Stats describes who waits, for how long, and who is served. Its counts begin with the first call of [Pacer.Stats].
// The difference of two results is what happened between them.
type Stats struct {
	Status

	// Waits counts the waits of all granted requests. A request that was granted at once waited for 0 s.
	Waits Waits

	// Keys holds the keys whose requests wait or have waited, at most MaxStatsKeys of them: those with most granted
	// units first. Keys that no longer had requests may be missing.
	Keys []KeyStats

	// Others counts the requests of all keys that are not in Keys together. Its Key is "".
	Others KeyStats
}

// KeyStats describes the requests of one key that did not fit at once, and therefore took a place in the queue.
// Requests that were granted at once are not counted by key, since looking up their keys would take longer than
// granting them. While all requests of a pacer have to wait, KeyStats describes all requests of the key.
type KeyStats struct {
	Key     string
	Waiting int   // tickets in the queue
	Granted int64 // units that were granted
	Waits   Waits // of the requests that were granted
}

// Waits counts waits by their length, in steps of a millisecond up to 8 ms, and of at most a quarter of the length
// above that. The longest wait that it tells apart is 49 days.
type Waits struct{ counts [waitSteps]int64 }

// Waits below 8 ms have a step for each millisecond. Above, each doubling of the length has four steps.
const waitSteps = 8 + 4*(32-3)

// waitStep returns the step of a wait, in milliseconds.
func waitStep(ms uint32) int {
	if ms < 8 {
		return int(ms)
	}
	octave := bits.Len32(ms) // 4 for 8..15 ms
	return 8 + 4*(octave-4) + int(ms>>(octave-3))&3
}

// stepEnd returns the length at which a step ends.
func stepEnd(step int) time.Duration {
	if step < 8 {
		return time.Duration(step+1) * time.Millisecond
	}
	octave, quarter := (step-8)/4, (step-8)%4
	return time.Duration(5+quarter) << (octave + 1) * time.Millisecond
}

// Count returns the number of waits.
func (w *Waits) Count() (n int64) {
	for _, count := range w.counts {
		n += count
	}
	return n
}

// Quantile returns a length that the given part of the waits, 0..1, does not exceed: the end of their step. If there
// are no waits, it returns 0.
func (w *Waits) Quantile(part float64) time.Duration {
	left := part * float64(w.Count())
	last := 0
	for step, count := range w.counts {
		if count == 0 {
			continue
		}
		last = step
		if left -= float64(count); left <= 0 {
			break
		}
	}
	if w.counts[last] == 0 {
		return 0
	}
	return stepEnd(last)
}

// Since returns the waits that were counted after an earlier result.
func (w *Waits) Since(earlier *Waits) Waits {
	out := *w
	for step, count := range earlier.counts {
		out.counts[step] -= count
	}
	return out
}

// Add adds other waits.
func (w *Waits) Add(other *Waits) {
	for step, count := range other.counts {
		w.counts[step] += count
	}
}

// waitStats counts for [Pacer.Stats].
type waitStats struct {
	atOnce int64 // Counts.AtOnce when the counting began
	keys   map[string]*keyStats
	others keyStats
	swept  time.Duration // when places were last looked for
}

// keyStats counts the grants of one key.
type keyStats struct {
	granted int64
	waits   Waits
	last    time.Duration // the latest grant
}

// sinceOf returns the time in the form that a ticket has. It overflows after 49 days.
func sinceOf(now time.Duration) uint32 { return uint32(uint64(now) / uint64(time.Millisecond)) }

// grantedTicket counts the grant of a ticket.
func (q *queue) grantedTicket(t *ticket, now time.Duration) {
	s := t.key.stats
	if s == nil {
		return // nobody has called Stats
	}
	s.granted += t.cost
	s.waits.counts[waitStep(sinceOf(now)-t.since)]++
	s.last = now
}

// stamp notes when the latest ticket was made.
func (q *queue) stamp(now time.Duration) {
	t := q.at(q.latest.node)
	t.since = sinceOf(now)
	if q.stats != nil && t.key.stats == nil {
		t.key.stats = q.statsOf(t.key.name, now)
	}
}

// statsOf returns where to count the grants of a key.
func (q *queue) statsOf(key string, now time.Duration) *keyStats {
	w := q.stats
	if s := w.keys[key]; s != nil {
		return s
	}
	if len(key) > maxStatsKeyBytes || len(w.keys) >= MaxStatsKeys && !q.sweepStats(now) {
		return &w.others
	}
	s := &keyStats{last: now}
	w.keys[strings.Clone(key)] = s
	return s
}

// sweepStats makes room for other keys, and reports whether there is room. It looks at most once a second.
func (q *queue) sweepStats(now time.Duration) bool {
	w := q.stats
	if now-w.swept < time.Second {
		return false
	}
	w.swept = now
	for key, s := range w.keys {
		if q.keys[key] == nil && now-s.last > statsKept {
			w.others.granted += s.granted
			w.others.waits.Add(&s.waits)
			delete(w.keys, key)
		}
	}
	return len(w.keys) < MaxStatsKeys
}

// Stats returns the present state of the pacer, who waits, and what was counted since the first call of Stats. The
// first call makes the pacer begin to count by key, which takes a few nanoseconds per request that waits, and none for
// other requests. A call takes some 100 µs if there are MaxStatsKeys keys, and holds the pacer's lock for half of it.
func (p *Pacer) Stats() Stats {
	p.mu.Lock()
	out := Stats{Status: p.status()}
	q := p.core.queue
	if q.stats == nil {
		q.beginStats(p.core.counts.AtOnce, time.Since(p.origin))
	}
	rows := make([]KeyStats, len(q.stats.keys))
	sorted := make([]*KeyStats, 0, len(rows)) // a row is too large to be moved often
	out.Others = KeyStats{Waiting: q.waiting, Granted: q.stats.others.granted, Waits: q.stats.others.waits}
	for key, s := range q.stats.keys {
		row := &rows[len(sorted)]
		sorted = append(sorted, row)
		row.Key, row.Granted, row.Waits = key, s.granted, s.waits
		if k := q.keys[key]; k != nil {
			row.Waiting = k.tickets
			out.Others.Waiting -= k.tickets
		}
	}
	out.Waits.counts[0] = p.core.counts.AtOnce - q.stats.atOnce
	p.mu.Unlock()
	slices.SortFunc(sorted, func(a, b *KeyStats) int {
		return cmp.Or(cmp.Compare(b.Granted, a.Granted), cmp.Compare(b.Waiting, a.Waiting), cmp.Compare(a.Key, b.Key))
	})
	out.Waits.Add(&out.Others.Waits)
	out.Keys = make([]KeyStats, len(sorted))
	for i, row := range sorted {
		out.Keys[i] = *row
		out.Waits.Add(&row.Waits)
	}
	return out
}

// beginStats begins to count. Keys that have requests now have them counted from now on.
func (q *queue) beginStats(atOnce int64, now time.Duration) {
	q.stats = &waitStats{atOnce: atOnce, keys: make(map[string]*keyStats)}
	for _, k := range slices.SortedFunc(maps.Values(q.keys), func(a, b *keyQueue) int {
		return cmp.Compare(b.units, a.units)
	}) {
		k.stats = q.statsOf(k.name, now)
	}
}
