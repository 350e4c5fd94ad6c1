package cellconfig

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/singleflight"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// cacheKey names what is cached. A key's hash is no text, so that looking one up allocates nothing.
type cacheKey struct {
	kind cachedKind
	id   string
	hash [sha256.Size]byte
}

type cachedKind uint8

const (
	cachedPlan cachedKind = iota + 1
	cachedTenant
	cachedKey
	cachedPlacement // that there is none is an entry, too: most tenants have none
)

// entry is a document in the cache, compiled. r.mu guards it; what it points to is immutable.
type entry struct {
	version int64 // newest that was looked at
	need    int64 // newest that the log names
	size    int64 // bytes, estimated
	own     int64 // of these, what weigh added
	sum     uint64
	age     age
	err     error // why the newest is not good; the forms are then of an earlier one, or nil

	plan *plan.Plan
	key  *identity.Key

	read   *plan.TenantDocument
	tenant *plan.Tenant // the last that compiled
	with   *plan.Plan   // the plan that it was compiled with last
	unfit  error        // and why that failed

	placed *shares.Placement // of a placement; nil: none

	placedAt  cacheKey // of a tenant: its placement's
	placedOf  string
	divided   *plan.Tenant // of a tenant: as the cell grants it, made of the three that follow
	dividedOf *plan.Tenant
	dividedBy *sharing
	dividedAt *shares.Placement
	shared    int64 // bytes, of size, that dividing added
}

// found is what the cache knows of a document.
type found uint8

const (
	isUnknown found = iota
	isCurrent
	isSuperseded // it is here, and the log names a newer one
	isAbsent     // the table has none
	isOld        // the copy has an answer, which is too old to be used without another look at the table
)

var (
	errNoPlan   = errors.New("its plan is not there")
	errUnplaced = errors.New("where the tenant is served is not known here: its placement was deleted, or could not " +
		"be read")
	errOlder = errors.New("the table has an older version than its log says")
)

// refused is the error where no earlier tenant is left.
func (e *entry) refused(err error) error {
	if e.tenant != nil {
		return nil
	}
	return err
}

// find looks a document up. r.mu is held.
func (r *Reader) find(k cacheKey) (*entry, found) {
	if e, ok := r.known.Get(k); ok {
		switch {
		case e.version < e.need:
			return e, isSuperseded
		case r.old(k, &e.age):
			return e, isOld
		}
		return e, isCurrent
	}
	if a, ok := r.absent.Get(k); ok {
		if r.old(k, a) {
			return nil, isOld
		}
		return nil, isAbsent
	}
	return nil, isUnknown
}

// supersede takes note of what the log says. r.mu is held.
func (r *Reader) supersede(c Change) {
	k, ok := c.cached()
	if !ok {
		return
	}
	if e, ok := r.known.Peek(k); ok {
		e.need = max(e.need, c.Version)
	}
	r.absent.Remove(k)
	if f := r.flights[k]; f != nil {
		f.need = max(f.need, c.Version)
	}
}

// form is a document compiled.
type form struct {
	plan *plan.Plan
	read *plan.TenantDocument
	key  *identity.Key

	placed *shares.Placement
	err    error

	kept bool // the copy has it as it is: nothing was compiled
}

// compile makes what the document holds.
func (r *Reader) compile(k *cacheKey, d *Document) (f form) {
	defer func() { // a document is what others wrote: it may not end the process
		if p := recover(); p != nil {
			f = form{err: fmt.Errorf("it cannot be compiled: %v", p)}
		}
	}()
	switch k.kind {
	case cachedPlan:
		if f.plan, f.err = plan.CompilePlan(plan.Document{Kind: plan.KindPlan, ID: k.id, Body: d.Body}); f.err == nil {
			f.err = r.acceptedSet(f.plan.Set())
		}
	case cachedTenant:
		f.read, f.err = plan.ReadTenant(plan.Document{Kind: plan.KindTenant, ID: k.id, Body: d.Body})
	case cachedPlacement:
		f.placed, f.err = shares.ReadPlacement(k.id, d.Body)
	case cachedKey:
		id, hash := keyOf(d.Body)
		var key *plan.Key
		if key, f.err = plan.CompileKey(plan.Document{Kind: plan.KindKey, ID: id, Body: d.Body}); f.err != nil {
			return f
		}
		if hash != k.ref().ID {
			f.err = fmt.Errorf("key %q is not under its own hash", id)
			return f
		}
		f.key = &identity.Key{ID: key.ID, Tenant: key.Tenant, Subject: key.Subject, Hash: key.Hash, Pepper: key.Pepper,
			ExpiresAt: key.ExpiresAt, Revoked: key.Revoked}
	}
	return f
}

func (r *Reader) compileSettings(d Document) (s *plan.Settings, err error) {
	defer func() {
		if p := recover(); p != nil {
			s, err = nil, fmt.Errorf("they cannot be compiled: %v", p)
		}
	}()
	if s, err = plan.CompileSettings(plan.Document{Kind: plan.KindSettings, ID: plan.SettingsID,
		Body: d.Body}); err != nil {
		return nil, err
	}
	return s, r.acceptedSet(s.IPLimits())
}

// acceptedSet asks the store about every limit.
func (r *Reader) acceptedSet(s *plan.Set) error {
	if r.c.Accepts == nil {
		return nil
	}
	for _, e := range s.Limits {
		if err := r.c.Accepts(e.Limit); err != nil {
			return err
		}
	}
	return nil
}

// accepted asks the store about a tenant's limits, where they are not the plan's own.
func (r *Reader) accepted(t *plan.Tenant, p *plan.Plan) error {
	for _, s := range t.Sets() {
		if s == p.Set() {
			continue
		}
		if err := r.acceptedSet(s); err != nil {
			return err
		}
	}
	return nil
}

// What an entry takes, roughly and rather more; a test holds it against what tenants and large plans do take.
const (
	entryBytes = 1000
	bodyFactor = 40
	limitBytes = 8 // for each limit of a set that a tenant has for itself
)

// weigh counts the sets that a tenant does not share with its plan. r.mu is held.
func (r *Reader) weigh(e *entry, p *plan.Plan) {
	own := int64(0)
	for _, s := range e.tenant.Sets() {
		if s != p.Set() {
			own += int64(len(s.Limits)) * limitBytes
		}
	}
	r.bytes += own - e.own
	e.size, e.own = e.size+own-e.own, own
}

// store puts a document into the cache that was read at a time. r.mu is held. It returns what is to be logged of one
// that is not good.
func (r *Reader) store(k cacheKey, d *Document, f form, read time.Time) (refused error) {
	if (d.Version == 0 || d.Deleted) && k.kind != cachedPlacement {
		r.known.Remove(k)
		r.absent.Add(k, &age{read: read, renew: tooOld}) // not read again beside requests: what nobody has may be much
		return nil
	}
	r.absent.Remove(k)
	e, ok := r.known.Peek(k)
	if !ok {
		e = &entry{}
	}
	e.version, e.sum, e.age, e.err = d.Version, r.sum(d), newAge(read), f.err
	switch {
	case d.Deleted: // a placement: older ones may have been missed, too
		e.placed, e.err = nil, errUnplaced
		refused = errUnplaced
	case f.err != nil:
		refused = f.err
	case k.kind == cachedTenant:
		e.read, e.with, e.unfit = f.read, nil, nil
	case k.kind == cachedPlacement:
		e.placed = f.placed
	default:
		e.plan, e.key = f.plan, f.key
	}
	r.bytes -= e.size
	e.size, e.own, e.shared = entryBytes+bodyFactor*int64(len(d.Body)), 0, 0
	e.dividedOf = nil
	r.bytes += e.size
	r.known.Add(k, e)
	for r.bytes > r.c.MaxBytes && r.known.Len() > 1 {
		r.known.RemoveOldest()
	}
	return refused
}

// flight is one read of one document, for all who wait.
type flight struct {
	*singleflight.Call

	key  cacheKey
	need int64     // newest version that the log names since it began; r.mu guards it
	void bool      // the copy was dropped since it began; r.mu guards it
	read time.Time // when its read of the table began; r.mu guards it

	older   atomic.Bool // the table gave an older version than its log says
	unnamed atomic.Bool // the table gave another document than the copy has, and its log says nothing of that
}

// result is why the flight failed, be it that it has not ended.
func (f *flight) result() error {
	if ended, err := f.Result(); ended {
		return err
	}
	return f.why(context.DeadlineExceeded)
}

// why is err, or what is known better.
func (f *flight) why(err error) error {
	switch {
	case f.unnamed.Load():
		return errUnnamed
	case f.older.Load():
		return errOlder
	}
	return err
}

// load reads documents into the cache, at most maxLoad of them. It returns when they are there, or with why they are
// not. It is no error if the table cannot be read and the copy has an answer to each, however old: it is used for
// another PollEvery before the table is asked again.
func (r *Reader) load(ctx context.Context, keys ...cacheKey) error {
	var flights [maxLoad]*flight
	r.mu.Lock()
	r.depart(flights[:0], keys)
	r.mu.Unlock()
	for _, f := range flights[:len(keys)] {
		if err := f.Wait(ctx); err != nil {
			return err
		}
		if err := f.result(); err != nil { // if it ended and is late both at once, what came in time counts
			return r.keep(keys, err)
		}
	}
	return nil
}

const maxLoad = max(identity.MaxPeppers, 3) // a tenant, its placement and its plan

// depart appends the flights of documents: those that are under way, and one new read of all others. r.mu is held.
func (r *Reader) depart(flights []*flight, keys []cacheKey) []*flight {
	var mine []*flight
	// The budget is the read's own: others wait for it, too, and a client that goes away takes nothing with it.
	budget, cancel := context.WithTimeout(context.Background(), r.patience())
	for _, k := range keys {
		f := r.flights[k]
		if f == nil || f.BudgetEnded() {
			f = &flight{Call: singleflight.Begin(clock.Read(), budget.Done()), key: k}
			if e, ok := r.known.Peek(k); ok {
				f.need = r.expected(e)
			}
			r.flights[k] = f
			mine = append(mine, f)
		}
		flights = append(flights, f)
	}
	if mine == nil {
		cancel()
		return flights
	}
	go func() {
		defer cancel()
		r.fetch(budget, mine)
	}()
	return flights
}

// patience is how long a read may take: a good key is not turned away because its environment has only just begun. r.mu
// is held.
func (r *Reader) patience() time.Duration {
	if clock.Between(r.woke, r.begun) < wakes {
		return r.c.FirstTimeout
	}
	return r.c.Timeout
}

const wakes = 2 * time.Second // of requests, until a process that began or thawed is as quick as it will be

// fetch reads the documents of the flights and ends them.
func (r *Reader) fetch(ctx context.Context, flights []*flight) {
	var err error
	for wait := 2 * time.Millisecond; wait <= 16*time.Millisecond; wait *= 2 {
		var documents []Document
		if documents, err = r.get(ctx, flights); err != nil {
			break
		}
		forms := make([]form, len(flights))
		r.mu.Lock()
		for i := range flights {
			forms[i].kept = r.has(&flights[i].key, &documents[i])
		}
		r.mu.Unlock()
		for i := range flights {
			if documents[i].Version > 0 && !documents[i].Deleted && !forms[i].kept {
				forms[i] = r.compile(&flights[i].key, &documents[i])
			}
		}
		if flights, err = r.settle(ctx, flights, documents, forms); len(flights) == 0 {
			return
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range flights {
		r.endFlight(f, f.why(err))
	}
}

// settle stores what may be, and returns the flights that must read again, with why.
func (r *Reader) settle(ctx context.Context, flights []*flight, documents []Document, forms []form) ([]*flight, error) {
	newest := int64(0)
	for i := range documents {
		newest = max(newest, documents[i].Seq)
	}
	why := r.catchUp(ctx, newest)
	r.mu.Lock()
	var again, landed []*flight
	var refused []func()
	for i, f := range flights {
		d := &documents[i]
		switch {
		case f.void:
			f.void, f.need, why = false, 0, errRestless
			f.unnamed.Store(false)
		case r.flights[f.key] != f: // nobody waits for it, and a later read may have found a newer document
			landed = append(landed, f)
			continue
		case d.Version < f.need:
			f.older.Store(true)
			why = errOlder
		case d.Seq > r.head.Seq: // why it could not be caught up with is known
		case r.unnamed(f.key, d):
			f.unnamed.Store(true)
			r.doubted, why = true, errUnnamed
		case forms[i].kept && r.confirm(f.key, d, f.read):
			landed = append(landed, f)
			continue
		case forms[i].kept: // it was pushed out of the cache meanwhile
			why = errRestless
		default:
			if err := r.store(f.key, d, forms[i], f.read); err != nil {
				refused = append(refused, func() { r.refuse(d.Ref, d.Version, err) })
			}
			landed = append(landed, f)
			continue
		}
		again = append(again, f)
	}
	r.mu.Unlock()
	for _, tell := range refused {
		tell()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range landed {
		r.endFlight(f, nil)
	}
	return again, why
}

// endFlight ends a flight. r.mu is held.
func (r *Reader) endFlight(f *flight, err error) {
	if r.flights[f.key] == f {
		delete(r.flights, f.key)
	}
	f.End(err)
}

// get reads the documents of the flights.
func (r *Reader) get(ctx context.Context, flights []*flight) ([]Document, error) {
	refs := make([]Ref, len(flights))
	r.mu.Lock()
	for i, f := range flights {
		refs[i], f.read = f.key.ref(), r.begun
	}
	r.mu.Unlock()
	var documents []Document
	// the flights' budget ends before that
	err := r.gate.do(ctx, r.c.FirstTimeout, func(ctx context.Context) (err error) {
		if documents, err = r.c.Table.Get(ctx, refs...); err == nil && len(documents) != len(refs) {
			err = fmt.Errorf("%d documents for %d", len(documents), len(refs))
		}
		return err
	})
	if err == nil {
		r.mu.Lock()
		r.documents += int64(len(documents))
		r.mu.Unlock()
	}
	return documents, err
}

// catchUp follows the log until it is at entry seq: a document of a later state than the copy may only be used together
// with what else that state changed. A copy that is in doubt is dropped. It is the one poll that may come less than
// PollEvery after another.
func (r *Reader) catchUp(ctx context.Context, seq int64) error {
	for range 3 {
		r.mu.Lock()
		if r.head.Seq >= seq && !r.doubted {
			r.mu.Unlock()
			return nil
		}
		p, _ := r.due(r.begun, true)
		r.mu.Unlock()
		if err := p.wait(ctx); err != nil {
			return err
		}
	}
	return errRestless
}
