package config

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/limiter/clock"
	"github.com/sluicelimits/sluice/internal/limiter/singleflight"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// cacheKey names a cached document. The hash of a key is stored as bytes, so that looking it up does not allocate.
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
	cachedPlacement // the absence of a placement is an entry too, since most tenants have none
)

// entry is a compiled document in the cache. r.mu guards it; what it points to is immutable.
type entry struct {
	version int64  // the newest version that was read
	need    int64  // the newest version that the log names
	size    int64  // estimated bytes of the entry
	own     int64  // the part of size that weigh added
	sum     uint64 // of the version's content: see Reader.sum
	age     age
	err     error // why version is not valid; the forms below are then of an earlier version, or nil

	plan *plan.Plan
	key  *identity.Key

	read   *plan.TenantDocument
	tenant *plan.Tenant // the last tenant that compiled
	with   *plan.Plan   // the plan with which the tenant was last compiled
	unfit  error        // why that compilation failed

	placed *shares.Placement // of a placement; nil: there is none

	placedAt  cacheKey // of a tenant: the key of its placement
	placedOf  string
	divided   *plan.Tenant // of a tenant: the tenant as this cell grants it; made of the three fields that follow
	dividedOf *plan.Tenant
	dividedBy *sharing
	dividedAt *shares.Placement
	shared    int64 // the part of size that dividing added
}

// cacheState says what the cache knows about a document.
type cacheState uint8

const (
	isUnknown cacheState = iota
	isCurrent
	isSuperseded // in the cache, but the log names a newer version
	isAbsent     // the table has no such document
	isOld        // in the cache, or known to be absent, but too old to be used without reading the table again
)

var (
	errNoPlan   = errors.New("its plan does not exist")
	errUnplaced = errors.New("which cells serve the tenant is unknown, because its placement was deleted or cannot " +
		"be read")
	errOlder = errors.New("the table has an older version than its log names")
)

// errIfNoTenant returns err if the entry has no earlier tenant that can be used instead, and otherwise nil.
func (e *entry) errIfNoTenant(err error) error {
	if e.tenant != nil {
		return nil
	}
	return err
}

// find looks up a document. r.mu is held.
func (r *Reader) find(k cacheKey) (*entry, cacheState) {
	if e, ok := r.known.Get(k); ok {
		switch {
		case e.version < e.need:
			return e, isSuperseded
		case r.mustReread(k, &e.age):
			return e, isOld
		}
		return e, isCurrent
	}
	if a, ok := r.absent.Get(k); ok {
		if r.mustReread(k, a) {
			return nil, isOld
		}
		return nil, isAbsent
	}
	return nil, isUnknown
}

// supersede records a change that the log names. r.mu is held.
func (r *Reader) supersede(c table.Change) {
	k, ok := cached(c.Ref)
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

// form is a compiled document.
type form struct {
	plan *plan.Plan
	read *plan.TenantDocument
	key  *identity.Key

	placed *shares.Placement
	err    error

	kept bool // the copy already has this document, so it was not compiled again
}

// compile compiles a document.
func (r *Reader) compile(k *cacheKey, d *table.Document) (f form) {
	defer func() { // a panic over a stored document must not end the process
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
		id, hash := table.KeyOf(d.Body)
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

func (r *Reader) compileSettings(d table.Document) (s *plan.Settings, err error) {
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

// acceptedSet asks the store about every limit of the set.
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

// accepted asks the store about the limits of a tenant that differ from its plan's.
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

// Estimates of the memory that an entry takes. They are rather too high than too low; a test compares them with the
// memory of real tenants and large plans.
const (
	entryBytes = 1000
	bodyFactor = 40
	limitBytes = 8 // for each limit of a set that only one tenant has
)

// weigh adds to the entry's size the limits that the tenant does not share with its plan. r.mu is held.
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

// store puts a document that was read at a time into the cache. It returns the error to be logged if the document is
// not valid. r.mu is held.
func (r *Reader) store(k cacheKey, d *table.Document, f form, read time.Time) (refused error) {
	if (d.Version == 0 || d.Deleted) && k.kind != cachedPlacement {
		r.known.Remove(k)
		// Absence is not renewed beside requests, since there may be many absent documents.
		r.absent.Add(k, &age{read: read, renew: tooOld})
		return nil
	}
	r.absent.Remove(k)
	e, ok := r.known.Peek(k)
	if !ok {
		e = &entry{}
	}
	e.version, e.sum, e.age, e.err = d.Version, r.sum(d), newAge(read), f.err
	switch {
	case d.Deleted: // the tombstone of a placement says that the placement is unknown
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

// flight is one read of one document, on behalf of all requests that wait for it.
type flight struct {
	*singleflight.Call

	key  cacheKey
	need int64     // the newest version that the log has named since the read began; guarded by r.mu
	void bool      // the copy was dropped after the read began; guarded by r.mu
	read time.Time // when its read of the table began; guarded by r.mu

	older   atomic.Bool // the table returned an older version than its log names
	unnamed atomic.Bool // the table returned another document than the copy has, without a log entry
}

// result returns the flight's error, or an error if it has not ended.
func (f *flight) result() error {
	if ended, err := f.Result(); ended {
		return err
	}
	return f.why(context.DeadlineExceeded)
}

// why returns a more precise error than err, if there is one.
func (f *flight) why(err error) error {
	switch {
	case f.unnamed.Load():
		return errUnnamed
	case f.older.Load():
		return errOlder
	}
	return err
}

// load reads documents into the cache, at most maxLoad of them. It returns when they are there, or with the error. If
// the table cannot be read and the copy has an answer for each document, however old, load returns nil: the answers
// are used for another PollEvery before the table is read again.
func (r *Reader) load(ctx context.Context, keys ...cacheKey) error {
	var flights [maxLoad]*flight
	r.mu.Lock()
	r.flightsFor(flights[:0], keys)
	r.mu.Unlock()
	for _, f := range flights[:len(keys)] {
		if err := f.Wait(ctx); err != nil {
			return err
		}
		if err := f.result(); err != nil { // checked even if the wait ended too, since an answer in time counts
			return r.extendUse(keys, err)
		}
	}
	return nil
}

const maxLoad = max(identity.MaxPeppers, 3) // a tenant, its placement and its plan

// flightsFor appends a flight for each document: the one in progress, or a new one. All new flights have one read in
// common, which flightsFor begins. r.mu is held.
func (r *Reader) flightsFor(flights []*flight, keys []cacheKey) []*flight {
	var begun []*flight
	// The read has a budget of its own, since several requests may wait for it: the end of one of them must not end the
	// read.
	budget, cancel := context.WithTimeout(context.Background(), r.patience())
	for _, k := range keys {
		f := r.flights[k]
		if f == nil || f.BudgetEnded() {
			f = &flight{Call: singleflight.Begin(clock.Read(), budget.Done()), key: k}
			if e, ok := r.known.Peek(k); ok {
				f.need = r.expected(e)
			}
			r.flights[k] = f
			begun = append(begun, f)
		}
		flights = append(flights, f)
	}
	if begun == nil {
		cancel()
		return flights
	}
	go func() {
		defer cancel()
		r.fetch(budget, begun)
	}()
	return flights
}

// patience returns how long a read may take. Right after a start or a thaw it is longer, so that a valid key is not
// refused because the process is still slow. r.mu is held.
func (r *Reader) patience() time.Duration {
	if clock.Between(r.woke, r.begun) < slowStart {
		return r.c.FirstTimeout
	}
	return r.c.Timeout
}

// slowStart is how long a process is slow after a start or a thaw, by the times of its requests.
const slowStart = 2 * time.Second

// fetch reads the documents of the flights and ends the flights.
func (r *Reader) fetch(ctx context.Context, flights []*flight) {
	var err error
	for wait := 2 * time.Millisecond; wait <= 16*time.Millisecond; wait *= 2 {
		var documents []table.Document
		if documents, err = r.get(ctx, flights); err != nil {
			break
		}
		forms := make([]form, len(flights))
		r.mu.Lock()
		for i := range flights {
			forms[i].kept = r.hasVersion(&flights[i].key, &documents[i])
		}
		r.mu.Unlock()
		for i := range flights {
			if documents[i].Version > 0 && !documents[i].Deleted && !forms[i].kept {
				forms[i] = r.compile(&flights[i].key, &documents[i])
			}
		}
		if flights, err = r.storeDocuments(ctx, flights, documents, forms); len(flights) == 0 {
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

// storeDocuments stores the documents that may be used. It returns the flights that must read again, and why.
func (r *Reader) storeDocuments(
	ctx context.Context, flights []*flight, documents []table.Document, forms []form,
) ([]*flight, error) {
	newest := int64(0)
	for i := range documents {
		newest = max(newest, documents[i].Seq)
	}
	why := r.catchUp(ctx, newest)
	r.mu.Lock()
	var again, ended []*flight
	var refused []func()
	for i, f := range flights {
		d := &documents[i]
		switch {
		case f.void:
			f.void, f.need, why = false, 0, errKeptChanging
			f.unnamed.Store(false)
		case r.flights[f.key] != f: // a later flight has replaced it, and may have found a newer document
			ended = append(ended, f)
			continue
		case d.Version < f.need:
			f.older.Store(true)
			why = errOlder
		case d.Seq > r.head.Seq: // why is the error of catchUp, which did not reach this entry
		case r.unnamed(f.key, d):
			f.unnamed.Store(true)
			r.doubted, why = true, errUnnamed
		case forms[i].kept && r.confirm(f.key, d, f.read):
			ended = append(ended, f)
			continue
		case forms[i].kept: // dropped from the cache in between
			why = errKeptChanging
		default:
			if err := r.store(f.key, d, forms[i], f.read); err != nil {
				refused = append(refused, func() { r.refuse(d.Ref, d.Version, err) })
			}
			ended = append(ended, f)
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
	for _, f := range ended {
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
func (r *Reader) get(ctx context.Context, flights []*flight) ([]table.Document, error) {
	refs := make([]table.Ref, len(flights))
	r.mu.Lock()
	for i, f := range flights {
		refs[i], f.read = f.key.ref(), r.begun
	}
	r.mu.Unlock()
	var documents []table.Document
	// The budget of the flights ends before this timeout.
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

// catchUp reads the log until it has reached entry seq: a document of a later state than the copy may be used only
// together with the other changes of that state. It drops a copy that contradicts the table. This is the only poll
// that may follow another within less than PollEvery.
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
	return errKeptChanging
}
