package cell

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/cell/secrets"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// file is the configuration from a file of the bundle. It is in memory as a whole and never changes.
type file struct {
	authorizer.Snapshot // without Keys, since their peppers are in the secret

	keys    map[identity.KeyHash]*identity.Key
	peppers []string // ids of the peppers that the keys name
	secret  *secrets.Cache
	log     *slog.Logger
}

// readFile reads and compiles a plans file of the bundle, which must be JSON. The error names every problem.
func readFile(
	bundle fs.FS, name string, store limit.Store, secret *secrets.Cache, log *slog.Logger,
) (*file, error) {
	in, err := bundle.Open(name)
	if err != nil {
		return nil, err
	}
	// Read one byte more than allowed, so that Parse reports a file that is too large.
	data, err := io.ReadAll(io.LimitReader(in, plan.MaxFileBytes+1))
	if err := errors.Join(err, in.Close()); err != nil {
		return nil, err
	}
	c, err := plan.Parse(plan.Source{Name: name, Data: data})
	switch {
	case err != nil && len(data) <= plan.MaxFileBytes && !json.Valid(data):
		return nil, fmt.Errorf("%s is not valid JSON, and the function does not read YAML: "+
			"make lambdas PLANS=FILE writes FILE as JSON into the zip, under its name with .json, "+
			"which SLUICE_CONFIG_FILE must name", name)
	case err != nil:
		return nil, err
	}
	f := &file{keys: make(map[identity.KeyHash]*identity.Key), secret: secret, log: log}
	f.Config = c
	errs := []error{authorizer.Accepted(c, time.Now(), store)}
	peppers := make(map[string]bool)
	for _, k := range c.Keys() {
		at := identity.KeyHash{Pepper: k.Pepper}
		if _, err := hex.Decode(at.Hash[:], []byte(k.Hash)); err != nil { // not reached: Parse has checked the digits
			errs = append(errs, fmt.Errorf("%s: the hash of key %q: %w", name, k.ID, err))
		}
		if k.Pepper == identity.DevPepperID {
			errs = append(errs, fmt.Errorf("%s: key %q is hashed with the pepper %q, which is public: create "+
				"another key",
				name, k.ID, k.Pepper))
		}
		f.keys[at] = &identity.Key{ID: k.ID, Tenant: k.Tenant, Subject: k.Subject, Hash: k.Hash, Pepper: k.Pepper,
			ExpiresAt: k.ExpiresAt, Revoked: k.Revoked}
		peppers[k.Pepper] = true
	}
	f.peppers = slices.Sorted(maps.Keys(peppers))
	for _, w := range c.Warnings() {
		log.Warn("a setting cannot do what it seems to", "setting", w.String())
	}
	return f, errors.Join(errs...)
}

// Begin implements [authorizer.Source].
func (f *file) Begin(context.Context, time.Time) (authorizer.Configuration, func()) { return f, nil }

// HasKeys implements [authorizer.Configuration].
func (f *file) HasKeys() bool { return len(f.keys) > 0 }

// Key implements [authorizer.Configuration].
func (f *file) Key(ctx context.Context, presented string, now time.Time) (*identity.Key, error) {
	hashes, err := hashes(ctx, f.secret, now, presented)
	if err != nil {
		return nil, err
	}
	for _, h := range hashes {
		if k := f.keys[h]; k != nil {
			return k, k.Check(now)
		}
	}
	return nil, identity.ErrUnknownKey
}

// prepare logs which keys cannot be verified, once the secret is read.
func (f *file) prepare(ctx context.Context) {
	v, err := f.secret.Get(ctx, time.Now())
	if err != nil {
		return // each request that needs the secret reports the error
	}
	have, err := v.Peppers().Hashes(identity.ExampleKey("nobody"))
	if err != nil {
		return
	}
	for _, p := range f.peppers {
		if !slices.ContainsFunc(have, func(h identity.KeyHash) bool { return h.Pepper == p }) {
			f.log.Error("the secret lacks a pepper, so keys that are hashed with it are unknown", "pepper", p)
		}
	}
}

// hashes returns the hashes under which the presented key may be stored.
func hashes(ctx context.Context, secret *secrets.Cache, now time.Time, presented string) ([]identity.KeyHash, error) {
	if err := identity.CheckKey(presented); err != nil {
		return nil, err // without waiting for the secret
	}
	v, err := secret.Get(ctx, now)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", authorizer.ErrNotLoaded, err)
	}
	return v.Peppers().Hashes(presented)
}
