package redis_test

import (
	"errors"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sluicelimits/sluice/internal/limiter/ledger"
	"github.com/sluicelimits/sluice/internal/limiter/ledger/ledgertest"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

func TestLedgerContract(t *testing.T) {
	addr := address(t)
	spaces := map[ledger.Ledger]string{}
	connect := func(tb testing.TB, namespace string) ledger.Ledger {
		l := open(tb, redis.Config{Addrs: []string{addr}, Namespace: namespace}).Ledger()
		spaces[l] = namespace
		return l
	}
	ledgertest.Run(t, ledgertest.Config{
		New:  func(tb testing.TB) ledger.Ledger { return connect(tb, newSpace()) },
		Peer: func(tb testing.TB, l ledger.Ledger) ledger.Ledger { return connect(tb, spaces[l]) },
	})
}

// Guarantees that an entry expires if nobody has set its limit, and does not otherwise. A value that is not an entry is
// an error, and stays as it is.
func TestLedgerEntries(t *testing.T) {
	addr := address(t)
	client := goredis.NewClient(&goredis.Options{Addr: addr})
	t.Cleanup(func() { _ = client.Close() })
	space := newSpace()
	l := open(t, redis.Config{Addrs: []string{addr}, Namespace: space}).Ledger()
	claim := ledger.Claim{Window: 5, Limit: 10, Unit: 1}
	if _, err := l.Claim(t.Context(), "api", claim); err != nil {
		t.Fatal(err)
	}
	keys, err := client.Keys(t.Context(), "*"+space+"*").Result()
	if err != nil || len(keys) != 1 || !strings.HasSuffix(keys[0], "l3:api,}") {
		t.Fatalf("keys %q, %v", keys, err)
	}
	if ttl := client.TTL(t.Context(), keys[0]).Val(); ttl.Hours() < 23 || ttl.Hours() > 24 {
		t.Errorf("an entry without a limit has the expiry %s, want one within bounds", ttl)
	}
	if err := l.SetLimit(t.Context(), "api", 20, 9); err != nil {
		t.Fatal(err)
	}
	if ttl := client.TTL(t.Context(), keys[0]).Val(); ttl != -1 {
		t.Errorf("an entry with a limit has the expiry %s, want none", ttl)
	}
	entry := client.Get(t.Context(), keys[0]).Val()
	for _, bad := range []string{"something else", "SLL4" + entry[4:], "SLL4" + strings.Repeat("\x00", 8*53),
		"SLL6" + entry[4:], entry + "\x00", entry[:len(entry)-8]} {
		if err := client.Set(t.Context(), keys[0], bad, 0).Err(); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Claim(t.Context(), "api", claim); !errors.Is(err, limit.ErrUnreadable) {
			t.Errorf("a claim on the value %q: %v, want ErrUnreadable", bad, err)
		}
		if err := l.SetLimit(t.Context(), "api", 20, 99); !errors.Is(err, limit.ErrUnreadable) {
			t.Errorf("a limit of the value %q: %v, want ErrUnreadable", bad, err)
		}
		if text := client.Get(t.Context(), keys[0]).Val(); text != bad {
			t.Errorf("the value %q was changed to %q", bad, text)
		}
	}
}

// A slow server loses no units: a call to a ledger may take much longer than a decision, because the units of a call
// without a reply are lost.
func TestLedgerOnASlowServer(t *testing.T) {
	proxy := redistest.StartProxy(t, address(t))
	l := open(t, redis.Config{Addrs: []string{proxy.Addr}, Namespace: newSpace(),
		Deadline: redis.DefaultDeadline}).Ledger()
	claim := ledger.Claim{Window: 5, Limit: 10, Unit: 1}
	if _, err := l.Claim(t.Context(), "api", claim); err != nil {
		t.Fatal(err)
	}
	proxy.Delay(10 * redis.DefaultDeadline)
	if _, err := l.Claim(t.Context(), "api", claim); err != nil {
		t.Errorf("a server that answers after %s: %v", 10*redis.DefaultDeadline, err)
	}
}
