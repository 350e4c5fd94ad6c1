package ops

import (
	"context"
	"net/netip"
	"strings"

	"github.com/sluicelimits/sluice/internal/control/call"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// nameOf is the name under which the cell counts the address, "" where there is none. No error has the address.
func (s *Service) nameOf(ctx context.Context, r *Counters) (string, error) {
	if r.Address == "" {
		return "", nil
	}
	address, err := netip.ParseAddr(r.Address)
	if err != nil || address.Zone() != "" {
		return "", call.Refuse(call.Invalid, "address: want one such as 192.0.2.1 or 2001:db8::1, without a zone "+
			"and a port")
	}
	for _, f := range []struct{ name, text string }{
		{"reason", r.Reason}, {"path", r.Path}, {"subject", r.Subject}, {"api_key", r.APIKey}, {"tenant", r.Tenant},
		{"method", r.Method}, {"limit", r.Limit},
	} {
		if has(f.text, r.Address, address.Unmap()) {
			return "", call.Refuse(call.Invalid, "%s: has the address, which is not to be on record", f.name)
		}
	}
	name, prefix := "", plan.DefaultIPv6Prefix
	if s.c.IPv6Prefix != nil {
		if prefix, err = s.c.IPv6Prefix(ctx); err != nil {
			s.c.Log.ErrorContext(ctx, "ipv6Prefix could not be read", "error", err)
			return "", call.Refuse(call.Unavailable, "the cell's configuration did not answer; try again")
		}
	}
	if s.c.NameAddress != nil {
		name, err = s.c.NameAddress(ctx, identity.Canonical(address, prefix))
	}
	switch {
	case err != nil:
		s.c.Log.ErrorContext(ctx, "the key of addresses could not be read", "error", err)
		return "", call.Refuse(call.Unavailable, "the key that the cell names addresses with could not be read: the "+
			"log of the ops function says why")
	case name == "":
		return "", call.Refuse(call.Unsupported, "cell %s has no key to name addresses with, so each instance "+
			"counts them under names of its own", s.c.Cell)
	}
	return name, nil
}

// has reports whether a text has an address, in whatever way that is written.
func has(text, typed string, address netip.Addr) bool {
	text = strings.ToLower(text)
	if strings.Contains(text, strings.ToLower(typed)) || strings.Contains(text, address.String()) {
		return true
	}
	for word := range strings.FieldsFuncSeq(text,
		func(r rune) bool { return !strings.ContainsRune("0123456789abcdef.:", r) }) {
		if a, err := netip.ParseAddr(strings.TrimRight(word, ".")); err == nil && a.Unmap() == address {
			return true
		}
	}
	return false
}
