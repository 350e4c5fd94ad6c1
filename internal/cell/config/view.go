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
		r.mu.Unlock()
		switch found {
		case isAbsent:
			return nil, errNoPlan
		case isCurrent:
			if e.plan == nil {
				return nil, e.err
			}
			return e.plan, nil
		case isUnknown, isSuperseded, isOld:
		}
		if err := r.load(ctx, at); err != nil {
			if lastGood(found, err) && e.plan != nil {
				return e.plan, nil
			}
			return nil, err
		}
	}
	return nil, errKeptChanging
}

// tenant returns a tenant, resolved against its plan; nil if there is none.
func (r *Reader) tenant(ctx context.Context, id string) (*plan.Tenant, error) {
	at := cacheKey{kind: cachedTenant, id: id}
	for range rounds {
		r.mu.Lock()
		e, found := r.find(at)
		if found == isCurrent {
			t, missing, err := r.asLimited(e)
			r.mu.Unlock()
			if missing.kind == 0 || err != nil {
				return t, err
			}
			if err := r.load(ctx, missing); err != nil {
				if t != nil && !contradicted(err) { // use the plan, or the placement, that was last known
					return t, nil
				}
				return nil, err
			}
			continue
		}
		var before *plan.Tenant
		if e != nil {
			before, _, _ = r.share(e, e.tenant)
		}
		keys := r.needed(at, e, found)
		r.mu.Unlock()
		if found == isAbsent {
			return nil, nil
		}
		if err := r.load(ctx, keys...); err != nil {
			switch {
			case lastGood(found, err) && before != nil:
				return before, nil
			case found == isOld && !contradicted(err): // only the plan or the placement cannot be read
				continue
			}
			return nil, err
		}
	}
	return nil, errKeptChanging
}

// needed returns the keys of the documents to read for a tenant that is not current: its own, and those of its
// placement and its plan if they are likely to be needed, too. r.mu is held.
func (r *Reader) needed(at cacheKey, e *entry, found cacheState) []cacheKey {
	keys := []cacheKey{at}
	if r.shares != nil && (e == nil || found == isOld) {
		keys = append(keys, cacheKey{kind: cachedPlacement, id: shares.PlacementKey(at.id)})
	}
	if found == isOld && e != nil && e.read != nil && e.read.PlanID() != "" {
		keys = append(keys, cacheKey{kind: cachedPlan, id: e.read.PlanID()})
	}
	return keys
}

// lastGood reports whether a document that is known to have changed may still be used, because the table does not
// answer. It may not be used if the table answers with something that contradicts its log.
func lastGood(found cacheState, err error) bool { return found == isSuperseded && !contradicted(err) }

// resolve returns the tenant with the limits of its plan. missing is the key of a plan that must be read first; t is
// then the tenant that was last resolved, or nil. r.mu is held.
func (r *Reader) resolve(e *entry) (t *plan.Tenant, missing cacheKey, err error) {
	if e.read == nil {
		return nil, missing, e.err
	}
	id := e.read.PlanID()
	if id == "" {
		if e.with != planless {
			e.tenant, err = e.read.Compile(nil)
			e.with = planless
		}
		return e.tenant, missing, err
	}
	at := cacheKey{kind: cachedPlan, id: id}
	p, found := r.find(at)
	switch {
	case found == isUnknown || found == isSuperseded || found == isOld:
		return e.tenant, at, nil
	case found == isAbsent:
		if !errors.Is(e.unfit, errNoPlan) {
			r.unfit(e, nil, errNoPlan)
		}
	case p.plan == nil:
		return e.tenant, missing, e.errIfNoTenant(p.err)
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
			r.weigh(e, p.plan)
		}
	}
	return e.tenant, missing, e.errIfNoTenant(e.unfit)
}

// asLimited returns the tenant as the cell limits it: the result of resolve and share.
func (r *Reader) asLimited(e *entry) (t *plan.Tenant, missing cacheKey, err error) {
	t, missing, err = r.resolve(e)
	t, placed, unplaced := r.share(e, t)
	if missing.kind == 0 && err == nil {
		if missing = placed; placed.kind == 0 {
			err = unplaced
		}
	}
	return t, missing, err
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
		var missing [identity.MaxPeppers]cacheKey
		n := 0
		var bad error
		r.mu.Lock()
		for i := range hashes {
			at := cacheKey{kind: cachedKey, hash: hashes[i].Hash}
			e, found := r.find(at)
			switch found {
			case isAbsent:
			case isCurrent:
				if e.key != nil && e.key.Pepper == hashes[i].Pepper {
					r.mu.Unlock()
					return e.key, nil
				}
				if e.key == nil {
					bad = e.err
				}
			case isUnknown, isSuperseded, isOld:
				missing[n] = at
				n++
			}
		}
		r.mu.Unlock()
		if n == 0 {
			return nil, bad
		}
		// A key that the log names is never used without reading it again: it may be revoked.
		if err := r.load(ctx, missing[:n]...); err != nil {
			return nil, err
		}
	}
	return nil, errKeptChanging
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
