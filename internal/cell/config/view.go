package config

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/route"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

var _ authorizer.Configuration = (*view)(nil)

// view is what a request sees: the settings that it began with, and everything else through the reader.
type view struct {
	r        *Reader
	settings *plan.Settings
	loaded   bool
	stale    bool
	err      error // why nothing is loaded
}

// IPLimits implements [authorizer.Configuration].
func (v *view) IPLimits() *plan.Set { return v.settings.IPLimits() }

// IPv6Prefix implements [authorizer.Configuration].
func (v *view) IPv6Prefix() int { return v.settings.IPv6Prefix() }

// Routed implements [authorizer.Configuration].
func (v *view) Routed(method string, path *route.Path) bool { return v.settings.Routed(method, path) }

// HasKeys implements [authorizer.Configuration].
func (v *view) HasKeys() bool { return v.r.mayHold(plan.KindKey) }

// HasPlans implements [authorizer.Configuration].
func (v *view) HasPlans() bool { return v.r.mayHold(plan.KindPlan) || v.r.mayHold(plan.KindTenant) }

// Stale implements [authorizer.Configuration].
func (v *view) Stale() bool { return v.stale }

// Anonymous implements [authorizer.Configuration].
func (v *view) Anonymous(ctx context.Context) (string, *plan.Set, error) {
	if !v.loaded {
		return "", nil, v.err
	}
	id := v.settings.AnonymousPlan()
	if id == "" {
		return "", nil, nil
	}
	p, err := v.r.plan(ctx, id)
	if err != nil {
		return "", nil, fmt.Errorf("%w: the plan of anonymous calls: %w", authorizer.ErrNotLoaded, err)
	}
	return id, v.r.anonymous(p), nil
}

// anonymous returns the plan of calls without a credential, as the cell grants it at the time of the last request.
func (r *Reader) anonymous(p *plan.Plan) *plan.Set {
	r.mu.Lock()
	by, now := r.shares, r.begun
	r.mu.Unlock()
	if by == nil {
		return p.Set()
	}
	return by.anonymousSet(p, now.UnixMicro())
}

// Tenant implements [authorizer.Configuration].
func (v *view) Tenant(ctx context.Context, id string) (*plan.Tenant, error) {
	if !v.loaded {
		return nil, v.err
	}
	if id == "" || len(id) > table.MaxIDBytes {
		return nil, nil
	}
	t, err := v.r.tenant(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("%w: a tenant: %w", authorizer.ErrNotLoaded, err)
	}
	return t, nil
}

// Key implements [authorizer.Configuration].
func (v *view) Key(ctx context.Context, presented string, now time.Time) (*identity.Key, error) {
	if v.r.c.Hashes == nil {
		return nil, identity.ErrUnknownKey
	}
	hashes, err := v.r.c.Hashes(ctx, now, presented)
	switch {
	case errors.Is(err, identity.ErrMalformedKey):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%w: the peppers: %w", authorizer.ErrNotLoaded, err)
	case len(hashes) > identity.MaxPeppers:
		return nil, fmt.Errorf("%w: %d peppers, want at most %d", authorizer.ErrNotLoaded, len(hashes),
			identity.MaxPeppers)
	case !v.loaded:
		return nil, v.err
	}
	key, err := v.r.key(ctx, hashes)
	if err != nil {
		return nil, fmt.Errorf("%w: an API key: %w", authorizer.ErrNotLoaded, err)
	}
	if key == nil {
		return nil, identity.ErrUnknownKey
	}
	return key, key.Check(now)
}

// rounds bounds how often one look-up reads documents that it finds missing: the tenant, its plan, its placement, and
// two of these once more if they change in between.
const rounds = 5

var errKeptChanging = errors.New("the document changed during each of the reads")

// plan returns a plan, and reads it if necessary.
func (r *Reader) plan(ctx context.Context, id string) (*plan.Plan, error) {
	at := cacheKey{kind: cachedPlan, id: id}
	for range rounds {
		r.mu.Lock()
		e, found := r.find(at)
		var p *plan.Plan
		var bad error
		if e != nil {
			p, bad = e.plan, e.err
		}
		r.mu.Unlock()
		switch {
		case found == isAbsent:
			return nil, errNoPlan
		case found == isCurrent && p == nil:
			return nil, bad
		case found == isCurrent:
			return p, nil
		}
		if err := r.load(ctx, at); err != nil {
			if p != nil {
				return p, nil
			}
			return nil, err
		}
	}
	return nil, errKeptChanging
}

// tenant returns a tenant, resolved against its plan; nil if there is none.
func (r *Reader) tenant(ctx context.Context, id string) (*plan.Tenant, error) {
	for range rounds {
		r.mu.Lock()
		var m missing
		t, err := r.lookUp(cacheKey{kind: cachedTenant, id: id}, &m)
		r.mu.Unlock()
		if m.n == 0 {
			return t, err
		}
		if err := r.load(ctx, m.keys[:m.n]...); err != nil {
			if t != nil { // as it was last known
				return t, nil
			}
			return nil, err
		}
	}
	return nil, errKeptChanging
}

// missing are the keys of documents that must be read before a request is decided.
type missing struct {
	keys [maxLoad]cacheKey
	n    int
}

func (m *missing) add(k cacheKey) {
	m.keys[m.n] = k
	m.n++
}

// lookUp returns the tenant as the cell limits it, by what is in the cache. It returns nil if the tenant does not
// exist, or if the cache does not tell. It adds to m what must be read. r.mu is held.
func (r *Reader) lookUp(at cacheKey, m *missing) (*plan.Tenant, error) {
	e, found := r.find(at)
	if found == isAbsent {
		return nil, nil
	}
	if found != isCurrent {
		m.add(at)
	}
	if e == nil {
		if r.shares != nil {
			m.add(cacheKey{kind: cachedPlacement, id: shares.PlacementKey(at.id)})
		}
		return nil, nil
	}
	t, err := r.resolve(e, m)
	if err != nil {
		return nil, err
	}
	return r.share(e, t, m)
}

// resolve returns the tenant with the limits of its plan. If the plan must be read first, it adds the plan to m, and t
// is the tenant that was last resolved, or nil. r.mu is held.
func (r *Reader) resolve(e *entry, m *missing) (t *plan.Tenant, err error) {
	if e.read == nil {
		return nil, e.err
	}
	id := e.read.PlanID()
	if id == "" {
		if e.with != planless {
			e.tenant, err = e.read.Compile(nil)
			e.with = planless
		}
		return e.tenant, err
	}
	at := cacheKey{kind: cachedPlan, id: id}
	p, found := r.find(at)
	switch {
	case found == isUnknown || found == isOld:
		m.add(at)
		return e.tenant, nil
	case found == isAbsent:
		if !errors.Is(e.unfit, errNoPlan) {
			r.unfit(e, nil, errNoPlan)
		}
	case p.plan == nil:
		return e.tenant, e.errIfNoTenant(p.err)
	case e.with == p.plan:
	default:
		made, err := e.read.Compile(p.plan)
		if err == nil {
			err = r.accepted(made, p.plan)
		}
		if err != nil {
			r.unfit(e, p.plan, err)
		} else {
			e.tenant, e.with, e.unfit = made, p.plan, nil
		}
	}
	return e.tenant, e.errIfNoTenant(e.unfit)
}

// planless stands for the plan of a tenant without a plan.
var planless = &plan.Plan{}

// unfit records and logs that a tenant does not compile with its plan. r.mu is held.
func (r *Reader) unfit(e *entry, p *plan.Plan, err error) {
	e.with, e.unfit = p, err
	r.bad++
	r.c.Log.Error("a tenant does not fit its plan; its last valid limits stay in force", "plan", e.read.PlanID(),
		"version",
		e.version, "error", err)
}

// key returns the stored key with one of the hashes; nil if there is none.
func (r *Reader) key(ctx context.Context, hashes []identity.KeyHash) (*identity.Key, error) {
	for range rounds {
		r.mu.Lock()
		var m missing
		key, bad := r.lookUpKey(hashes, &m)
		r.mu.Unlock()
		if m.n == 0 {
			return key, bad
		}
		if err := r.load(ctx, m.keys[:m.n]...); err != nil {
			if key != nil { // as it was last known
				return key, nil
			}
			return nil, err
		}
	}
	return nil, errKeptChanging
}

// lookUpKey returns the key with one of the hashes, by what is in the cache. It adds to m what must be read first. r.mu
// is held.
func (r *Reader) lookUpKey(hashes []identity.KeyHash, m *missing) (key *identity.Key, bad error) {
	for i := range hashes {
		at := cacheKey{kind: cachedKey, hash: hashes[i].Hash}
		e, found := r.find(at)
		if found == isUnknown || found == isOld {
			m.add(at)
		}
		switch {
		case e == nil || e.generation == 0: // a key that the log names may be revoked
		case e.key == nil:
			bad = e.err
		case e.key.Pepper == hashes[i].Pepper:
			key = e.key
			if found == isCurrent {
				m.n = 0
				return key, nil
			}
		}
	}
	return key, bad
}

// cached returns the cache's name of a document; false if documents of this kind are not cached.
func cached(r table.Ref) (cacheKey, bool) {
	switch r.Kind {
	case plan.KindPlan:
		return cacheKey{kind: cachedPlan, id: r.ID}, true
	case plan.KindTenant:
		return cacheKey{kind: cachedTenant, id: r.ID}, true
	case table.KindPlacement:
		return cacheKey{kind: cachedPlacement, id: r.ID}, true
	case table.KindKeyHash:
		k := cacheKey{kind: cachedKey}
		n, err := hex.Decode(k.hash[:], []byte(r.ID[:min(len(r.ID), hex.EncodedLen(len(k.hash)))]))
		return k, err == nil && n == len(k.hash) && len(r.ID) == hex.EncodedLen(len(k.hash))
	default: // a key under its id, the settings, and kinds that only others read
		return cacheKey{}, false
	}
}

func (k *cacheKey) ref() table.Ref {
	switch k.kind {
	case cachedPlan:
		return table.Ref{Kind: plan.KindPlan, ID: k.id}
	case cachedTenant:
		return table.Ref{Kind: plan.KindTenant, ID: k.id}
	case cachedPlacement:
		return table.Ref{Kind: table.KindPlacement, ID: k.id}
	default:
		return table.Ref{Kind: table.KindKeyHash, ID: hex.EncodeToString(k.hash[:])}
	}
}
