package cell

import (
	"context"
	"net/netip"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/cell/secrets"
	"github.com/sluicelimits/sluice/internal/plan"
)

// IPLimits returns the limits before authentication that the cell enforces at present. The error wraps
// [authorizer.ErrNotLoaded].
func (k *Counters) IPLimits(ctx context.Context) (*plan.Set, error) {
	configuration, err := k.configuration(ctx)
	if err != nil {
		return nil, err
	}
	return configuration.IPLimits(), nil
}

// IPv6Prefix returns the length of the prefix, in bits, by which the cell counts IPv6 addresses at present. The error
// wraps [authorizer.ErrNotLoaded].
func (k *Counters) IPv6Prefix(ctx context.Context) (int, error) {
	configuration, err := k.configuration(ctx)
	if err != nil {
		return 0, err
	}
	return configuration.IPv6Prefix(), nil
}

func (k *Counters) configuration(ctx context.Context) (authorizer.Configuration, error) {
	configuration, join := k.reader.Begin(ctx, time.Now())
	if join != nil {
		defer join()
	}
	if !k.reader.Stats(time.Now()).Loaded {
		return nil, authorizer.ErrNotLoaded
	}
	return configuration, nil
}

// AddressNames names addresses as the cell's authorizer does, for operators. Make it with [NewAddressNames].
type AddressNames struct{ secret *secrets.Cache }

// NewAddressNames makes AddressNames from the settings of the cell's authorizer, which must name a secret. It makes no
// calls.
func NewAddressNames(c Config) (*AddressNames, error) {
	a, err := newAWSClients(c.Env)
	if err != nil {
		return nil, err
	}
	secret, err := secrets.New(secrets.Config{Client: a.secretsManager(), ID: c.Settings.Secret, Wait: patience,
		Log: c.Log})
	if err != nil {
		return nil, err
	}
	return &AddressNames{secret}, nil
}

// Name returns the name of an address, which must be in the form of [identity.Canonical]. It returns "" if the secret
// has no addressKey: then each of the cell's instances uses names of its own.
func (n *AddressNames) Name(ctx context.Context, address netip.Addr) (string, error) {
	values, err := n.secret.Get(ctx, time.Now())
	if err != nil {
		return "", err
	}
	if names := values.Addresses(); names != nil {
		return names.Anonymise(address), nil
	}
	return "", nil
}
