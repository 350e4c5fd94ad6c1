package ops_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/call"
	"github.com/sluicelimits/sluice/internal/control/ops"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Guarantees that operators reach the counters of an address, of ipLimits and of a tenant's limit per address, on
// every store; and that no record and no log contains the address, while the record contains its keyed name.
func TestCountersOfAnAddress(t *testing.T) {
	eachStore(t, func(t *testing.T, store limit.Store) {
		w := newWorld(t, store)
		owner := limit.Owner{Kind: limit.Address, Name: w.names.Anonymise(client)}
		if !w.decide(owner, w.config.IPLimits(), "per-address", limit.LeaseRequest{Need: 60}, 60).Allowed ||
			!w.spend("acme", "client", 8) {
			t.Fatal("the first charges are denied, want them allowed")
		}
		for _, address := range []string{client.String(), "::ffff:" + client.String()} {
			r, err := w.s.Peek(t.Context(), actor, &ops.Counters{Address: address})
			if err != nil || len(r.Counters) != 1 || r.Counters[0].Used != 60 || r.Tenant != "" {
				t.Fatalf("peek of ipLimits: %+v, %v; want 60 used", r, err)
			}
		}
		for address, used := range map[string]int64{client.String(): 8, "203.0.113.78": 0} {
			r, err := w.s.Peek(t.Context(), actor, &ops.Counters{Tenant: "acme", Limit: "client", Path: "/x",
				Address: address})
			if err != nil || r.Counters[0].Used != used {
				t.Errorf("peek of a tenant's limit per address: %+v, %v; want %d used", r, err, used)
			}
		}
		r, err := w.s.Refund(t.Context(), actor, &ops.Counters{Tenant: "acme", Limit: "client", Path: "/x",
			Address: client.String(), Units: 5, Reason: "office"})
		if err != nil || r.Counters[0].Used != 3 {
			t.Errorf("refund: %+v, %v; want 3 used", r, err)
		}
		if r, err = w.s.Reset(t.Context(), actor, &ops.Counters{Address: client.String(), Limit: "per-address",
			Reason: "an office behind one address"}); err != nil || r.Counters[0].Used != 0 {
			t.Errorf("reset: got %+v, error %v; want 0 used", r, err)
		}
		item, err := w.tables.Get(t.Context(), control.Operations, r.Operation)
		if err != nil {
			t.Fatal(err)
		}
		all, err := json.Marshal(item)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(all), owner.Name) {
			t.Errorf("got the record %s, want the name of the address in it", all)
		}
		w.wantNowhere(client.String())
	})
}

// wantNowhere fails the test if a record or a log line contains the text.
func (w *world) wantNowhere(secret string) {
	w.Helper()
	items, _, err := w.tables.List(w.Context(), control.Operations, "", control.MaxPage)
	if err != nil || len(items) == 0 {
		w.Fatalf("%d operations are recorded, %v", len(items), err)
	}
	for i := range items {
		if all, err := json.Marshal(items[i]); err != nil || strings.Contains(string(all), secret) {
			w.Errorf("%s is on record: %s, %v", secret, all, err)
		}
	}
	if strings.Contains(w.logged.String(), secret) {
		w.Errorf("%s is in the log: %s", secret, w.logged)
	}
}

// Guarantees that an address that cannot be used is refused without repeating it, and that nothing is recorded.
func TestAddressesThatAreRefused(t *testing.T) {
	w, _ := newClockedWorld(t)
	const secret = "203.0.113.77"
	keyless, away, small := w.settings(w.store, w.tables), w.settings(w.store, w.tables), w.settings(w.store, w.tables)
	keyless.NameAddress = nil
	nameless := w.settings(w.store, w.tables)
	nameless.NameAddress = func(context.Context, netip.Addr) (string, error) { return "", nil }
	away.NameAddress = func(context.Context, netip.Addr) (string, error) { return "", errors.New("the secret is away") }
	small.Addresses = nil
	for name, c := range map[string]struct {
		settings ops.Config
		r        ops.Counters
		code     call.Code
		says     string
	}{
		"a name": {w.settings(w.store, w.tables), ops.Counters{Address: "localhost." + secret}, call.Invalid,
			"address: want an address"},
		"a port": {w.settings(w.store, w.tables), ops.Counters{Address: secret + ":80"}, call.Invalid,
			"address: want an address"},
		"a zone": {w.settings(w.store, w.tables), ops.Counters{Address: "fe80::1%" + secret}, call.Invalid,
			"address: want an address"},
		"in the reason": {w.settings(w.store, w.tables), ops.Counters{Address: secret, Reason: "block of " +
			secret}, call.Invalid, "reason: contains the address"},
		"mapped, too": {w.settings(w.store, w.tables), ops.Counters{Address: "::ffff:" + secret, Reason: secret +
			" is loud"}, call.Invalid, "reason: contains the address"},
		"written out": {w.settings(w.store, w.tables), ops.Counters{Address: "2001:db8::5",
			Reason: "was [2001:0DB8:0:0::5]."}, call.Invalid, "reason: contains the address"},
		"in hex": {w.settings(w.store, w.tables),
			ops.Counters{Address: secret, Reason: "it is ::ffff:cb00:714d."}, call.Invalid,
			"reason: contains the address"},
		"in the path": {w.settings(w.store, w.tables), ops.Counters{Address: "2001:DB8::5",
			Path: "/from/2001:db8::5"}, call.Invalid, "path: contains the address"},
		"no key": {keyless, ops.Counters{Address: secret}, call.Unsupported, "no key to name addresses with"},
		"no key in it": {nameless, ops.Counters{Address: secret}, call.Unsupported,
			"no key to name addresses with"},
		"no key to be had": {away, ops.Counters{Address: secret}, call.Unavailable, "cannot be read"},
		"in memory": {small, ops.Counters{Address: secret}, call.Unsupported,
			"in the memory of each of its instances"},
	} {
		t.Run(name, func(t *testing.T) {
			s := ops.New(c.settings)
			_, err := s.Peek(t.Context(), actor, &c.r)
			if codeOf(err) != c.code || !strings.Contains(err.Error(), c.says) ||
				strings.Contains(err.Error(), secret) {
				t.Errorf("%v, want %s with %q", err, c.code, c.says)
			}
			if items, _, err := w.tables.List(t.Context(), control.Operations, "", control.MaxPage); err != nil ||
				len(items) != 0 {
				t.Errorf("got %d recorded operations, error %v; want none", len(items), err)
			}
			if strings.Contains(w.logged.String(), secret) {
				t.Errorf("got the address in the log, want it nowhere: %s", w.logged)
			}
		})
	}
}

// Guarantees that operators reach the counters of an IPv6 network by any of its addresses, whatever its size.
func TestCountersOfANetwork(t *testing.T) {
	eachStore(t, func(t *testing.T, store limit.Store) {
		w := newWorld(t, store)
		owner := limit.Owner{Kind: limit.Address, Name: w.names.Anonymise(netip.MustParseAddr("2001:db8:1::"))}
		if !w.decide(owner, w.config.IPLimits(), "per-address", limit.LeaseRequest{Need: 60}, 60).Allowed {
			t.Fatal("the first charge is denied, want it allowed")
		}
		c := w.settings(store, w.tables)
		c.IPv6Prefix = func(context.Context) (int, error) { return 48, nil }
		s := ops.New(c)
		for address, used := range map[string]int64{"2001:db8:1:2::3": 60, "2001:db8:2::1": 0} {
			r, err := s.Peek(t.Context(), actor, &ops.Counters{Address: address})
			if err != nil || len(r.Counters) != 1 || r.Counters[0].Used != used {
				t.Errorf("peek at %s: %+v, %v; want %d used", address, r, err, used)
			}
		}
		c.IPv6Prefix = func(context.Context) (int, error) { return 0, errors.New("the table is away") }
		s = ops.New(c)
		if r, err := s.Peek(t.Context(), actor, &ops.Counters{Address: "2001:db8:1::1"}); err == nil {
			t.Errorf("without the configuration: %+v; want a refusal", r)
		}
	})
}
