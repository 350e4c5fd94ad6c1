package config

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
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
	version int64 // that was read last
	// generation of the copy in which the document was read. An entry of an earlier generation must be read again
	// before it is used; 0: because the log has named it since.
	generation int64
	size       int64 // estimated bytes of the entry
	err        error // why version is not valid; the forms below are then of an earlier version, or nil

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
	isOld    // in the cache, but it must be read again; if that fails, it may be used
	isAbsent // the table has no such document
)

var (
	errNoPlan   = errors.New("its plan does not exist")
	errUnplaced = errors.New("which cells serve the tenant is unknown, because its placement was deleted or cannot " +
		"be read")
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
		if e.generation != r.generation {
			return e, isOld
		}
		return e, isCurrent
	}
	if in, ok := r.absent.Get(k); ok && in == r.generation {
		return nil, isAbsent
	}
	return nil, isUnknown
}

// supersede records that the log names a document. r.mu is held.
func (r *Reader) supersede(ref table.Ref) {
	k, ok := cached(ref)
	if !ok {
		return
	}
	if e, ok := r.known.Peek(k); ok {
		e.generation = 0
	}
	r.absent.Remove(k)
	if f := r.flights[k]; f != nil {
		f.void = true
	}
}

// form is a compiled document.
type form struct {
	plan *plan.Plan
	read *plan.TenantDocument
	key  *identity.Key

	placed *shares.Placement
	err    error
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
)

// store puts a document that was read into the cache. It returns the error to be logged if the document is not valid.
// r.mu is held.
func (r *Reader) store(k cacheKey, d *table.Document, f form) (refused error) {
	if f.err == nil && (d.Version == 0 || d.Deleted) && k.kind != cachedPlacement {
		r.known.Remove(k)
		r.absent.Add(k, r.generation)
		return nil
	}
	r.absent.Remove(k)
	e, ok := r.known.Peek(k)
	if !ok {
		e = &entry{}
	}
	e.version, e.generation, e.err = d.Version, r.generation, f.err
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
	e.size, e.shared = entryBytes+bodyFactor*int64(len(d.Body)), 0
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
	void bool // the log named the document, or the copy was dropped, after the read began; guarded by r.mu
}

// result returns the flight's error, or an error if it has not ended.
func (f *flight) result() error {
	if ended, err := f.Result(); ended {
		return err
	}
	return context.DeadlineExceeded
}

// load reads documents into the cache, at most maxLoad of them. It returns when they are there, or with the error.
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
			return err
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
		documents, err = r.get(ctx, flights)
		forms := make([]form, len(flights))
		if i := badRow(flights, err); i >= 0 { // the others can be read without it
			r.storeDocuments(flights[i:i+1], []table.Document{{Ref: flights[i].key.ref()}}, []form{{err: err}})
			if flights = slices.Delete(flights, i, i+1); len(flights) == 0 {
				return
			}
			continue
		}
		if err != nil {
			break
		}
		newest := int64(0)
		for i := range flights {
			newest = max(newest, documents[i].Seq)
			if documents[i].Version > 0 && !documents[i].Deleted {
				forms[i] = r.compile(&flights[i].key, &documents[i])
			}
		}
		if err = r.catchUp(ctx, newest); err == nil {
			err = errKeptChanging
		}
		if flights = r.storeDocuments(flights, documents, forms); len(flights) == 0 {
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
		r.endFlight(f, err)
	}
}

// badRow returns the position of the flight whose row the error calls no document. It returns -1 if the error names no
// row.
func badRow(flights []*flight, err error) int {
	bad := new(table.BadRow)
	if !errors.As(err, &bad) {
		return -1
	}
	return slices.IndexFunc(flights, func(f *flight) bool { return f.key.ref() == bad.Ref })
}

// storeDocuments stores the documents that may be used, and ends their flights. It returns the flights that must read
// again.
func (r *Reader) storeDocuments(flights []*flight, documents []table.Document, forms []form) (again []*flight) {
	var ended []*flight
	var refused []func()
	r.mu.Lock()
	for i, f := range flights {
		switch d := &documents[i]; { //nolint:gosec // each flight has a document and a form
		case f.void:
			f.void = false
			again = append(again, f)
			continue
		case d.Seq > r.head.Seq: // the log could not be read up to this entry
			again = append(again, f)
			continue
		case r.flights[f.key] != f: // a later flight has replaced it, and may have found a newer document
		default:
			if err := r.store(f.key, d, forms[i]); err != nil { //nolint:gosec // the same
				refused = append(refused, func() { r.refuse(d.Ref, d.Version, err) })
			}
		}
		ended = append(ended, f)
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
	return again
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
	for i, f := range flights {
		refs[i] = f.key.ref()
	}
	var documents []table.Document
	// The budget of the flights ends before this timeout.
	err := r.ask(ctx, r.c.FirstTimeout, func(ctx context.Context) (err error) {
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
// together with the other changes of that state. This is the only poll that may follow another within less than
// PollEvery.
func (r *Reader) catchUp(ctx context.Context, seq int64) error {
	for range 3 {
		r.mu.Lock()
		if r.head.Seq >= seq {
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
