package ops

import (
	"context"
	"net/netip"
	"strings"

	"github.com/sluicelimits/sluice/internal/control/call"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// nameOf returns the name under which the cell counts the address of r, or "" if r has no address. Its errors do not
// contain the address.
func (s *Service) nameOf(ctx context.Context, r *Counters) (string, error) {
	if r.Address == "" {
		return "", nil
	}
	address, err := netip.ParseAddr(r.Address)
	if err != nil || address.Zone() != "" {
		return "", call.Refuse(call.Invalid, "address: want an address such as 192.0.2.1 or 2001:db8::1, without a "+
			"zone or a port")
	}
	for _, f := range []struct{ name, text string }{
		{"reason", r.Reason}, {"path", r.Path}, {"subject", r.Subject}, {"api_key", r.APIKey}, {"tenant", r.Tenant},
		{"method", r.Method}, {"limit", r.Limit},
	} {
		if contains(f.text, r.Address, address.Unmap()) {
			return "", call.Refuse(call.Invalid, "%s: contains the address, which must not be recorded", f.name)
		}
	}
	name, prefix := "", plan.DefaultIPv6Prefix
	if s.c.IPv6Prefix != nil {
		if prefix, err = s.c.IPv6Prefix(ctx); err != nil {
			s.c.Log.ErrorContext(ctx, "ipv6Prefix of the cell's configuration cannot be read", "error", err)
			return "", call.Refuse(call.Unavailable, "the cell's configuration did not answer; try again")
		}
	}
	if s.c.NameAddress != nil {
		name, err = s.c.NameAddress(ctx, identity.Canonical(address, prefix))
	}
	switch {
	case err != nil:
		s.c.Log.ErrorContext(ctx, "the key by which the cell names addresses cannot be read", "error", err)
		return "", call.Refuse(call.Unavailable, "the key by which the cell names addresses cannot be read: the log "+
			"of the ops function says why")
	case name == "":
		return "", call.Refuse(call.Unsupported, "cell %s has no key to name addresses with, so each of its instances "+
			"counts them under other names", s.c.Cell)
	}
	return name, nil
}

// contains reports whether a text contains an address, in any notation.
func contains(text, typed string, address netip.Addr) bool {
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
