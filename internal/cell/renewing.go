package cell

import (
	"context"
	"errors"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/cell/secrets"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// renewing is a source that reads the secret again when a key is unknown, since the key may be hashed with a new pepper
// that the cached secret does not have. The secret's cache bounds how often the secret is read.
type renewing struct {
	authorizer.Source
	secret *secrets.Cache
}

// Begin implements [authorizer.Source].
func (r *renewing) Begin(ctx context.Context, now time.Time) (authorizer.Configuration, func()) {
	c, join := r.Source.Begin(ctx, now)
	return &renewed{c, r.secret}, join
}

type renewed struct {
	authorizer.Configuration
	secret *secrets.Cache
}

// Key implements [authorizer.Configuration].
func (r *renewed) Key(ctx context.Context, presented string, now time.Time) (*identity.Key, error) {
	before, err := r.secret.Get(ctx, now)
	k, unknown := r.Configuration.Key(ctx, presented, now)
	if err != nil || !errors.Is(unknown, identity.ErrUnknownKey) {
		return k, unknown
	}
	if after, err := r.secret.Renew(ctx, now); err != nil || after.Version() == before.Version() {
		return nil, unknown
	}
	return r.Configuration.Key(ctx, presented, now)
}
