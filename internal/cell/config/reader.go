// Package config reads the config table of a cell for the requests that the cell decides. A [Reader] keeps a copy of
// what they need.
//
// A [Reader] loads documents when a request needs them, and learns from the log which of them it must read again. It
// guarantees:
//
//   - The head is read before any document, and reads are consistent. What is read is therefore at least as new as the
//     head, and later changes are in the log.
//   - A document with a higher entry number than the known head is used only after the log has been read up to that
//     entry. Everything in the copy is therefore of one state of the table: a tenant is never resolved against a plan
//     of another state.
//   - Documents that a new entry names are read again before they are used.
//   - The whole copy is dropped after a gap in the log, if the head went backwards, and if the table was repaired or
//     replaced.
//   - Every document of the copy is read again after at most [MaxAge], whatever the log says. So is a document that the
//     copy knows to be missing: somebody may have changed the table without it. A log that cannot be read is trusted
//     for no longer.
//   - If what must be read again cannot be read, what was last read is used on. The exception is an API key that the
//     log names, since it may be revoked.
//   - The log is polled at most once per second: beside the decision while the copy is at most 2 s old, and before the
//     decision if the copy is older. The age is the larger of those by the wall clock and by the monotonic clock, since
//     the monotonic clock of a process stands still while it is frozen. One poll serves all requests.
//   - If the table does not answer, the copy is used on, and is stale after 30 s. For what is not in the copy the error
//     is [authorizer.ErrNotLoaded]. No read is waited for longer than [Config.Timeout], or, after a start,
//     [Config.FirstTimeout], and a table that keeps failing is not asked for a while.
//   - A cell that is one of several grants nothing before it has read its shares. It goes on with the shares that it
//     last read if they are missing later. See [Config.Cell] and [Config.Alone].
//   - A document that does not compile, and a row that is not a document, never replace a document that compiles. If
//     there is no earlier one, only what needs the document is not loaded.
//   - Shares or a placement that cannot be read are not treated as absent. A tombstone of either means that they are
//     unknown: shares that were read before stay in force, and requests of the placement's tenant cannot be decided.
//
// A request keeps the settings that it began with. Its key and its tenant are looked up in the newest state that is
// known at that time, so a change between the two look-ups may affect only the second.
package config

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/limiter/breaker"
	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/singleflight"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

var _ authorizer.Source = (*Reader)(nil)

// Ages of a copy.
const (
	PollEvery  = time.Second      // least time between two polls of the log
	Fresh      = 2 * time.Second  // an older copy is renewed before a decision
	StaleAfter = 30 * time.Second // decisions with an older copy are marked as stale
	MaxAge     = 15 * time.Minute // longest use of a document without reading it again, if the table can be read

	thawed    = 5 * time.Second // after this time without a request, the process may have been frozen in between
	maxBehind = 500             // log entries; a copy that is further behind is dropped

	// A copy is read again after MaxAge less Fresh, since a poll may come that late, and less up to ageSpread, so that
	// processes that were started together do not read again together. The mean of 12 minutes is in the calculation of
	// costs (package cost: renewEvery).
	ageSpread = 6 * time.Minute
)

// Config sets up a [Reader].
type Config struct {
	Table table.Table // required

	// Cell is the id of the cell. Tenants get this cell's share of each limit; see package shares. While the table has
	// no shares, nothing is loaded, since one of several cells must not grant what others grant. If Cell is "", shares
	// are ignored, and a tenant has the whole of each limit.
	Cell string

	// Alone says that there is no other cell. Then a tenant has the whole of each limit as long as the table has no
	// shares. Once it has shares, they apply.
	Alone bool

	// Reaches reports whether this cell has access to the counters of another cell. If so, quotas, and limits too
	// small to be divided, that the other cell keeps are passed to the store with that limit.Limit.Home. Of limits
	// that an unreachable cell keeps, this cell grants nothing, and the log says so. If nil, no cell is reachable. For
	// limits that this cell keeps for all cells, Home is Cell.
	Reaches func(home string) bool

	// Hashes returns the hashes under which the presented key may be stored. If nil, every key is unknown. An error
	// other than identity.ErrMalformedKey is treated as authorizer.ErrNotLoaded.
	Hashes func(ctx context.Context, now time.Time, presented string) ([]identity.KeyHash, error)

	// Holds reports whether the table has a document of the kind that is not deleted, for a table that knows this
	// without a read. If nil, the table may have documents of every kind.
	Holds func(table.Kind) bool

	// Accepts returns an error if the store cannot keep a limit; a document with such a limit does not compile. If
	// nil, every limit is accepted.
	Accepts func(*limit.Limit) error

	// OnApply is called for each log entry with the time at which it was read, to measure how long changes take to
	// arrive. It is not called for entries that are skipped because the copy is loaded anew. It may be called by
	// several goroutines at once.
	OnApply func(e table.Entry, now time.Time)

	Log *slog.Logger // default slog.Default()

	// Timeout bounds one read of the table, 1 ms to 10 s; 0 selects 100 ms. A poll takes at most two Timeouts, and a
	// request that finds nothing in the cache waits for at most five: for a poll, its key, its tenant and the tenant's
	// plan.
	Timeout time.Duration

	// FirstTimeout bounds the first poll, which opens connections. It also replaces Timeout in the first two seconds
	// of requests after a start or a thaw, when the process is slow. 1 ms to 60 s; 0 selects 1 s; a value below
	// Timeout means Timeout.
	FirstTimeout time.Duration

	MaxDocuments int // largest number of documents in the cache, 16 or more; 0 selects 20,000
	MaxAbsent    int // largest number of ids and hashes that are remembered as absent, 16 or more; 0 selects 10,000
	// largest size of the cache, by an estimate of the memory of compiled documents, 1 MiB or more; 0 selects 64 MiB
	MaxBytes int64
}

// Reader keeps a copy of the part of a table that requests need. It is safe for concurrent use. Make it with [New].
type Reader struct {
	c       Config
	breaker *breaker.Breaker // in front of the table

	mu      sync.Mutex
	known   *simplelru.LRU[cacheKey, *entry]
	absent  *simplelru.LRU[cacheKey, int64] // the generations in which the documents were found to be absent
	bytes   int64                           // estimated size of known
	flights map[cacheKey]*flight
	poll    *poll // the poll in progress, or nil
	state
	loggedBad [2]int64  // versions of the settings and shares that were last logged as not valid
	fresh     *view     // the view with the settings in force
	stale     *view     // the same view, marked as stale
	tried     time.Time // when the last poll began
	begun     time.Time // time of the last request
	woke      time.Time // time of the first request since the process began or thawed
	failing   bool      // the last poll failed
	polls     int64
	failures  int64
	resets    int64
	bad       int64 // number of versions of documents that were not valid
	documents int64 // number of documents read
}

// New makes a reader. It does not read anything. The error names the field of c that is wrong.
func New(c Config) (*Reader, error) {
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	set(&c.Timeout, 100*time.Millisecond)
	set(&c.FirstTimeout, time.Second)
	if c.MaxDocuments == 0 {
		c.MaxDocuments = 20_000
	}
	if c.MaxAbsent == 0 {
		c.MaxAbsent = 10_000
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = 64 << 20
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	switch {
	case c.Table == nil:
		return nil, errors.New("config: Table is missing")
	case c.Timeout < time.Millisecond || c.Timeout > 10*time.Second:
		return nil, fmt.Errorf("config: Timeout %s is outside 1ms..10s", c.Timeout)
	case c.FirstTimeout < time.Millisecond || c.FirstTimeout > time.Minute:
		return nil, fmt.Errorf("config: FirstTimeout %s is outside 1ms..1m", c.FirstTimeout)
	case c.MaxDocuments < 16:
		return nil, fmt.Errorf("config: MaxDocuments %d is below 16", c.MaxDocuments)
	case c.MaxAbsent < 16:
		return nil, fmt.Errorf("config: MaxAbsent %d is below 16", c.MaxAbsent)
	case c.MaxBytes < 1<<20:
		return nil, fmt.Errorf("config: MaxBytes %d is below 1 MiB", c.MaxBytes)
	}
	c.FirstTimeout = max(c.FirstTimeout, c.Timeout)
	r := &Reader{c: c, breaker: newBreaker(), flights: map[cacheKey]*flight{}}
	size := c.MaxDocuments
	if c.Cell != "" { // for each tenant, a placement or its absence
		size *= 2
	}
	var err error
	if r.known, err = simplelru.NewLRU(size, func(_ cacheKey, e *entry) { r.bytes -= e.size }); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	if r.absent, err = simplelru.NewLRU[cacheKey, int64](c.MaxAbsent, nil); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	r.unloaded(errors.New("not read yet"))
	return r, nil
}

// mayHold reports whether the table may hold a document of the kind.
func (r *Reader) mayHold(kind table.Kind) bool { return r.c.Holds == nil || r.c.Holds(kind) }

// Begin implements [authorizer.Source].
func (r *Reader) Begin(ctx context.Context, now time.Time) (authorizer.Configuration, func()) {
	r.mu.Lock()
	if clock.Between(r.begun, now) > thawed {
		r.breaker.Reset() // failures before a freeze say nothing about the table now
		r.woke = now
	}
	r.begun = now
	front := !r.loaded || clock.Between(r.synced, now) > Fresh
	p, mine := r.due(now, false)
	if p != nil && front {
		r.mu.Unlock()
		_ = p.wait(ctx) // after an error, the copy is used on
		r.mu.Lock()
	}
	v := r.fresh
	if clock.Between(r.synced, now) > StaleAfter {
		v = r.stale
	}
	r.mu.Unlock()
	if mine && !front {
		return v, func() { _ = p.wait(ctx) } // so that a freeze of the process does not interrupt the poll
	}
	return v, nil
}

// Load updates the copy, so that it contains everything that was written before the call. A process calls it before its
// first request. The error says why the copy is not up to date.
func (r *Reader) Load(ctx context.Context, now time.Time) error {
	for {
		r.mu.Lock()
		p, mine := r.due(now, true)
		r.mu.Unlock()
		_ = p.Wait(ctx)
		ended, err := p.Result()
		if !ended {
			return fmt.Errorf("read the cell configuration: %w", context.DeadlineExceeded)
		}
		if mine { // a poll that was in progress may have read the head before the call
			return err
		}
	}
}

// poll is one read of the log, on behalf of all requests that wait for it.
type poll struct {
	*singleflight.Call

	began time.Time // by the clock of the request that began it
}

// wait waits for the end of the poll and returns its error, or an error if the poll has not ended.
func (p *poll) wait(ctx context.Context) error {
	_ = p.Wait(ctx) // the result says whether the poll has ended
	ended, err := p.Result()
	if !ended {
		return context.DeadlineExceeded
	}
	return err
}

// due returns the poll in progress. If there is none, it begins one if a poll is due or force is set, and otherwise
// returns nil. mine says that the poll is new. r.mu is held.
func (r *Reader) due(now time.Time, force bool) (p *poll, mine bool) {
	timeout := 2 * r.c.Timeout
	if !r.loaded {
		timeout = r.c.FirstTimeout
	}
	// A poll that began too long ago is from before a freeze of the process, and its connection is lost.
	if r.poll != nil && clock.Between(r.poll.began, now) < timeout+PollEvery {
		return r.poll, false
	}
	if !force && clock.Between(r.tried, now) < PollEvery {
		return nil, false
	}
	return r.start(now, timeout), true
}

// start begins a poll. r.mu is held.
func (r *Reader) start(now time.Time, timeout time.Duration) *poll {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	p := &poll{Call: singleflight.Begin(clock.At(now), ctx.Done()), began: now}
	r.poll, r.tried = p, now
	r.polls++
	each := min(r.c.Timeout, timeout)
	if !r.loaded { // the first read opens connections
		each = timeout
	}
	go func() {
		defer cancel()
		p.End(r.sync(ctx, p, each))
	}()
	return p
}

// sync carries out a poll. Its result is ignored if another poll has replaced it.
func (r *Reader) sync(ctx context.Context, p *poll, timeout time.Duration) error {
	start := time.Now()
	entries, err := r.follow(ctx, p, timeout)
	r.mu.Lock()
	if r.poll == p {
		r.poll = nil
		if err != nil {
			r.failures++
			if !r.loaded {
				r.unloaded(err)
			}
		}
		if failing := err != nil; failing != r.failing {
			r.failing = failing
			defer r.logPoll(err)
		}
	}
	r.mu.Unlock()
	if r.c.OnApply != nil {
		for _, e := range entries {
			r.c.OnApply(e, p.began.Add(time.Since(start)))
		}
	}
	return err
}

func (r *Reader) logPoll(err error) {
	if err != nil {
		r.c.Log.Warn("the cell configuration cannot be read; decisions use the present copy", "error", err)
		return
	}
	r.c.Log.Info("the cell configuration can be read again")
}

// state is what the last poll that succeeded found, except for the documents that are read when a request needs them.
type state struct {
	loaded     bool
	head       table.Head
	synced     time.Time     // when the poll began: the copy reflects everything written before
	generation int64         // counts the times that everything was read again
	read       time.Time     // when the generation began
	life       time.Duration // of the generation
	central
}

// central holds the documents that are read together with the log. If shares is nil, every limit is granted as a whole.
type central struct {
	settings *plan.Settings
	shares   *sharing
}

// follow reads the log up to the head and puts the new state into force. It returns the new entries. It starts again if
// the central documents change between its reads.
func (r *Reader) follow(ctx context.Context, p *poll, timeout time.Duration) ([]table.Entry, error) {
	for range 3 {
		r.mu.Lock()
		next := r.state
		r.mu.Unlock()
		before := next.head
		err := r.ask(ctx, timeout, func(ctx context.Context) (err error) {
			next.head, err = r.c.Table.Head(ctx)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("read the head: %w", err)
		}
		old := clock.Between(next.read, p.began) >= next.life
		entries, dropped, err := r.entries(ctx, timeout, &next, before)
		if err != nil && !old { // whoever reads everything again does not need the log
			return nil, err
		}
		if old || dropped != "" || namesCentral(entries) {
			var ahead bool
			switch next.central, ahead, err = r.readCentral(ctx, timeout, next.head, next.central); {
			case err != nil:
				return nil, err
			case ahead:
				continue
			}
		}
		if old || dropped != "" {
			next.generation++
			next.read, next.life = p.began, MaxAge-Fresh-rand.N(ageSpread)
		}
		next.loaded, next.synced = true, p.began
		return entries, r.advance(p, next, entries, dropped)
	}
	return nil, errors.New("read the settings: they changed during each of the reads")
}

// entries returns the log entries from the known head to the new one. If the copy must be dropped instead, dropped is
// the reason; otherwise it is "".
func (r *Reader) entries(
	ctx context.Context, timeout time.Duration, next *state, before table.Head,
) (entries []table.Entry, dropped string, err error) {
	switch {
	case !next.loaded:
		return nil, "this is the first read", nil
	case next.head.Incarnation != before.Incarnation:
		return nil, "the table was repaired or replaced", nil
	case next.head.Seq < before.Seq:
		return nil, "the table's head went backwards", nil
	case next.head.Seq-before.Seq > maxBehind:
		return nil, "the copy is too many log entries behind", nil
	case next.head.Seq == before.Seq:
		return nil, "", nil
	}
	err = r.ask(ctx, timeout, func(ctx context.Context) (err error) {
		entries, err = r.c.Table.Log(ctx, before.Seq, next.head.Seq)
		return err
	})
	if err != nil {
		return nil, "", fmt.Errorf("read the log: %w", err)
	}
	whole := int64(len(entries)) == next.head.Seq-before.Seq
	for i := range entries {
		whole = whole && entries[i].Seq == before.Seq+1+int64(i)
	}
	if !whole {
		return nil, "the table's log has a gap", nil
	}
	return entries, "", nil
}

// centralRefs are the documents that are read with the log. The second one is read only if Config.Cell is set.
var centralRefs = [...]table.Ref{
	{Kind: plan.KindSettings, ID: plan.SettingsID}, {Kind: table.KindShares, ID: table.SharesID},
}

// namesCentral reports whether one of the entries names a central document.
func namesCentral(entries []table.Entry) bool {
	return slices.ContainsFunc(entries, func(e table.Entry) bool {
		return slices.ContainsFunc(e.Changes, func(c table.Change) bool {
			return slices.Contains(centralRefs[:], c.Ref)
		})
	})
}

// errNoShares says that a cell does not know what it may grant.
var errNoShares = errors.New("the table has no shares: this cell is one of several and does not know what it may " +
	"grant of each limit")

// readCentral reads the settings and the shares. ahead says that they are of a later state than head. If a document
// does not compile, or a row is not a document, the last good one stays in force. Without a good one, readCentral
// returns an error.
func (r *Reader) readCentral(
	ctx context.Context, timeout time.Duration, head table.Head, before central,
) (now central, ahead bool, err error) {
	refs := centralRefs[:]
	if r.c.Cell == "" {
		refs = refs[:1]
	}
	var got []table.Document
	err = r.ask(ctx, timeout, func(ctx context.Context) (err error) {
		if got, err = r.c.Table.Get(ctx, refs...); err == nil && len(got) != len(refs) {
			err = fmt.Errorf("%d documents for %d", len(got), len(refs))
		}
		return err
	})
	if bad := new(table.BadRow); errors.As(err, &bad) && before.settings != nil {
		r.refuse(bad.Ref, 0, err)
		return before, false, nil
	}
	if err != nil {
		return before, false, fmt.Errorf("read the settings: %w", err)
	}
	if slices.ContainsFunc(got, func(d table.Document) bool { return d.Seq > head.Seq }) {
		return before, true, nil
	}
	now.settings = plan.NoSettings()
	if d := &got[0]; d.Version > 0 && !d.Deleted {
		if now.settings, err = r.compileSettings(*d); err != nil {
			r.refuseOnce(0, d, err)
			if now.settings = before.settings; before.settings == nil {
				return before, false, err
			}
		}
	}
	if len(got) > 1 {
		if now.shares, err = r.sharesOf(&got[1], before.shares); err != nil {
			return before, false, err
		}
	}
	return now, false, nil
}

// sharesOf returns the shares of the document, or, if the document has no valid ones, those of before. If there are
// neither, a cell that is not alone does not know what it may grant, and sharesOf returns an error. A cell that is
// alone grants the whole of each limit if the table has no shares, or if a repair has removed forged ones.
func (r *Reader) sharesOf(d *table.Document, before *sharing) (*sharing, error) {
	s, err := readShares(&r.c, d)
	if err == nil && (s != nil || r.c.Alone && (before == nil || d.Version == 0)) {
		return s, nil
	}
	if err == nil {
		err = errNoShares
	}
	if d.Version > 0 { // without a version the cell is new and has not received its shares yet
		r.refuseOnce(1, d, err)
	}
	if before == nil {
		return nil, err
	}
	return before, nil
}

// refuseOnce logs a document that is not valid once for each version. Such a document is read with each poll until a
// valid version replaces it.
func (r *Reader) refuseOnce(which int, d *table.Document, err error) {
	r.mu.Lock()
	logged := r.loggedBad[which] == d.Version
	r.loggedBad[which] = d.Version
	r.mu.Unlock()
	if !logged {
		r.refuse(d.Ref, d.Version, err)
	}
}

// advance puts a new state into force. Documents that the log names are read again before they are used.
func (r *Reader) advance(p *poll, next state, entries []table.Entry, dropped string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.poll != p {
		return errors.New("another poll replaced this one")
	}
	if dropped != "" {
		if r.loaded {
			r.resets++
			r.c.Log.Warn("the copy of the cell configuration is dropped: "+dropped, "entry", next.head.Seq)
		}
		r.known.Purge()
		r.absent.Purge()
		for _, f := range r.flights {
			f.void = true
		}
	}
	r.state = next
	for i := range entries {
		for _, c := range entries[i].Changes {
			r.supersede(c.Ref)
		}
	}
	if r.fresh.settings != next.settings || !r.fresh.loaded {
		r.fresh = &view{r: r, settings: next.settings, loaded: true}
		r.stale = &view{r: r, settings: next.settings, loaded: true, stale: true}
	}
	return nil
}

// unloaded sets the state of a reader that has read nothing, because of err. r.mu is held.
func (r *Reader) unloaded(err error) {
	r.fresh = &view{r: r, settings: plan.NoSettings(), stale: true, err: fmt.Errorf("%w: %w", authorizer.ErrNotLoaded,
		err)}
	r.stale = r.fresh
}

// refuse logs a document that does not compile.
func (r *Reader) refuse(ref table.Ref, version int64, err error) {
	r.mu.Lock()
	r.bad++
	r.mu.Unlock()
	what := "a document of the cell configuration is not valid; the last valid one stays in force"
	if errors.Is(err, errUnplaced) {
		what = "a placement is unknown; requests of its tenant cannot be decided"
	}
	r.c.Log.Error(what, "document", ref.Name(), "version", version, "error", err)
}

// Stats says what a reader holds, and counts what it has done since it was made.
type Stats struct {
	Loaded   bool
	Seq      int64         // number of the last log entry in force
	Age      time.Duration // time since the last successful poll began; 0 if nothing was loaded
	Stale    bool
	Polls    int64
	Failures int64 // of polls
	Resets   int64 // times that the whole copy was dropped

	Documents    int   // in the cache
	Absent       int   // ids and hashes known to be absent
	Bytes        int64 // of the cache, estimated
	Reads        int64 // documents that were read, including absent ones
	ReadFailures int64 // reads of the table that failed
	Refused      int64 // reads that were not tried because the table kept failing
	BadDocuments int64 // versions of documents that do not compile
}

// Stats returns what the reader holds at now.
func (r *Reader) Stats(now time.Time) Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	reads := r.breaker.Stats()
	s := Stats{
		Loaded: r.loaded, Seq: r.head.Seq, Stale: true, Polls: r.polls, Failures: r.failures, Resets: r.resets,
		Documents: r.known.Len(), Absent: r.absent.Len(), Bytes: r.bytes, Reads: r.documents,
		ReadFailures: reads.Failed, Refused: reads.Refused, BadDocuments: r.bad,
	}
	if r.loaded {
		s.Age = max(clock.Between(r.synced, now), 0)
		s.Stale = s.Age > StaleAfter
	}
	return s
}
