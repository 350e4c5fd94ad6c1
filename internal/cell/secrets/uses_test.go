package secrets_test

import (
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/cell/secrets"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
	"github.com/sluicelimits/sluice/internal/testkit/secretstest"
)

var _ authorizer.Sources = (*secrets.Cache)(nil)

var loopback = netip.MustParseAddr("127.0.0.1")

// Guarantees that operators name an address as the cell does, or know that they cannot: a random name would find no
// counter.
func TestAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		named, err := identity.NewAnonymiserFrom(addressKey)
		if err != nil {
			t.Fatal(err)
		}
		for text, want := range map[string]string{wholeForm().text(): named.Anonymise(loopback),
			(form{Peppers: wholeForm().Peppers}).text(): ""} {
			m := new(secretstest.Manager)
			m.Set(name, text)
			s, _ := open(t, sdk(m))
			values, err := s.Get(t.Context(), time.Now())
			if err != nil {
				t.Fatal(err)
			}
			if got := values.Addresses(); (got == nil) != (want == "") || got != nil &&
				got.Anonymise(loopback) != want {
				t.Errorf("the address key gives another name than the cell does, want %q", want)
			}
		}
	})
}

// Guarantees that addresses always have a name, that names use the secret's key as soon as there is one and when it
// changes, and that the use of a random key is logged once for each reason.
func TestAnonymise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		named, err := identity.NewAnonymiserFrom(addressKey)
		if err != nil {
			t.Fatal(err)
		}
		m := new(secretstest.Manager)
		m.Set(name, wholeForm().text())
		m.Fail(secretstest.Fault{Delay: time.Second}, -1)
		s, log := open(t, sdk(m))
		began := time.Now()
		own := s.Anonymise(loopback)
		if again := s.Anonymise(loopback); len(own) != 32 || again != own || own == named.Anonymise(loopback) ||
			time.Since(began) != 0 {
			t.Errorf("before the secret is read the name is %q, then %q, after %v; want one of this process, at once",
				own, again, time.Since(began))
		}
		waitFor(2 * time.Second)
		if got := s.Anonymise(loopback); got != named.Anonymise(loopback) {
			t.Errorf("the name is %q, want that of the secret's key: Anonymise itself must begin the read", got)
		}
		m.Fail(secretstest.Fault{}, 0)
		m.Set(name, form{AddressKey: append([]byte("x"), addressKey...)}.text())
		waitFor(secrets.DefaultRefresh * 6 / 5)
		s.Anonymise(loopback)
		synctest.Wait()
		if got := s.Anonymise(loopback); got == own || got == named.Anonymise(loopback) {
			t.Errorf("after a change of the key the name is %q, want that of the new key", got)
		}
		m.Set(name, form{Peppers: wholeForm().Peppers}.text())
		waitFor(secrets.DefaultRefresh * 6 / 5)
		s.Anonymise(loopback)
		synctest.Wait()
		if got := s.Anonymise(loopback); got != own || s.Anonymise(loopback) != own {
			t.Errorf("without a key the name is %q, want this process's own, %q", got, own)
		}
		if n, k := log.count("not read yet"), log.count("has no addressKey"); n != 1 || k != 1 {
			t.Errorf("the log reports %d and %d times that names are valid in this process only, want once for each "+
				"reason: %s", n, k, log)
		}
		other, _ := open(t, sdk(new(secretstest.Manager)))
		if other.Anonymise(loopback) == own {
			t.Error("two processes without a key give an address the same name, want different ones")
		}
	})
}

// Guarantees that a connection waits for the first login and not for later ones, that it causes at most one read per
// cooldown, and that a secret without a login is distinguished from one that cannot be read.
func TestRedisCredentials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := new(secretstest.Manager)
		m.Set(name, wholeForm().text())
		m.Fail(secretstest.Fault{Delay: time.Second}, -1)
		s, _ := open(t, sdk(m))
		login := func(want string, after time.Duration) {
			t.Helper()
			began := time.Now()
			user, password, err := s.RedisCredentials(t.Context())
			if user != "sluice" || password != want || err != nil || time.Since(began) != after {
				t.Errorf("the login is %q, %q, %v after %v; want %q after %v", user, password, err, time.Since(began),
					want, after)
			}
		}
		login(passwords[0], time.Second)
		next := wholeForm()
		next.Redis.Password = passwords[1]
		m.Set(name, next.text())
		for range 10 {
			login(passwords[0], 0)
		}
		waitFor(secrets.DefaultCooldown)
		login(passwords[0], 0) // this login is refused if the old password is no longer valid
		waitFor(time.Second)
		login(passwords[1], 0)
		if n := m.Calls(); n != 2 {
			t.Errorf("%d reads, want 2", n)
		}
		m.Fail(secretstest.Fault{}, 0)
		m.Set(name, form{AddressKey: addressKey}.text())
		waitFor(secrets.DefaultCooldown)
		if _, err := s.Renew(t.Context(), time.Now()); err != nil {
			t.Error(err)
		}
		if _, _, err := s.RedisCredentials(t.Context()); !errors.Is(err, secrets.ErrNoRedis) {
			t.Errorf("without a login: %v, want ErrNoRedis", err)
		}
		none, _ := open(t, sdk(new(secretstest.Manager)))
		if _, _, err := none.RedisCredentials(t.Context()); !errors.Is(err, secrets.ErrUnavailable) {
			t.Errorf("without a secret: %v, want ErrUnavailable", err)
		}
	})
}

// Guarantees that a real Redis accepts new connections after its user's password was replaced, even if the old one
// becomes invalid immediately.
func TestRedisPasswordRotates(t *testing.T) {
	server := redistest.Start(t)
	admin := server.Client(t)
	do := func(args ...any) {
		t.Helper()
		if err := admin.Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	do("ACL", "SETUSER", "sluice", "on", ">"+passwords[0], "~*", "+@all")
	m := new(secretstest.Manager)
	m.Set(name, wholeForm().text())
	s, _ := open(t, sdk(m), func(c *secrets.Config) { c.Cooldown = time.Nanosecond })
	store, err := redis.New(t.Context(), redis.Config{Addrs: []string{server.Addr}, Credentials: s.RedisCredentials})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}()
	entered := func() (err error) {
		for range 1000 { // a failed dial may delay the next one
			if err = store.Ping(t.Context()); err == nil {
				return nil
			}
		}
		return err
	}
	if err := entered(); err != nil {
		t.Fatalf("a connection with the first password: %v, want no error", err)
	}
	next := wholeForm()
	next.Redis.Password = passwords[1]
	m.Set(name, next.text())
	do("ACL", "SETUSER", "sluice", "resetpass", ">"+passwords[1])
	do("CLIENT", "KILL", "USER", "sluice")
	if err := entered(); err != nil {
		t.Errorf("a connection after the rotation: %v, want no error", err)
	}
}

// Guarantees that a public pepper is logged, since hashes made with it protect nothing.
func TestPublicPepper(t *testing.T) {
	for want, pepper := range map[int][]byte{0: pepper1, 1: identity.DevPepper()} {
		m := new(secretstest.Manager)
		m.Set(name, form{Peppers: map[string][]byte{"p1": pepper}}.text())
		s, log := open(t, sdk(m))
		get(t, s)
		s.Close()
		if n := log.count("the public one"); n != want {
			t.Errorf("the log says %d times that the pepper is public, want %d", n, want)
		}
	}
}

// Guarantees that reading present values does not allocate.
func TestGetAllocatesNothing(t *testing.T) {
	m := new(secretstest.Manager)
	m.Set(name, wholeForm().text())
	s, _ := open(t, sdk(m))
	get(t, s)
	s.Close() // otherwise background work would be counted
	now := time.Now()
	if n := testing.AllocsPerRun(100, func() {
		if v, err := s.Get(t.Context(), now); err != nil || v == nil {
			t.Error(v, err)
		}
	}); n > 0 {
		t.Errorf("Get allocates %v times, want 0", n)
	}
}
