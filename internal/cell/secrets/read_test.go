package secrets_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/smithy-go/logging"

	"github.com/sluicelimits/sluice/internal/cell/secrets"
	"github.com/sluicelimits/sluice/internal/testkit/secretstest"
)

// broken are the ways in which the secret cannot be read, each with a part of its error.
var broken = map[string]struct {
	arrange func(*secretstest.Manager)
	cause   string
}{
	"down":      {withFault(secretstest.Down()), "InternalServiceError"},
	"throttled": {withFault(secretstest.Throttled()), "ThrottlingException: Rate exceeded"},
	"forbidden": {withFault(secretstest.Fault{Code: "AccessDeniedException",
		Message: "not authorized to perform: secretsmanager:GetSecretValue"}), "AccessDeniedException: not authorized"},
	"a long story":   {withFault(secretstest.Fault{Code: "X", Message: strings.Repeat("x", 9000)}), "X: xxx"},
	"dropped":        {withFault(secretstest.Fault{Drop: true}), "EOF"},
	"hangs":          {withFault(secretstest.Fault{Hang: true}), "longer than"},
	"removed":        {func(m *secretstest.Manager) { m.Remove(name) }, "ResourceNotFoundException"},
	"binary":         {func(m *secretstest.Manager) { m.SetBinary(name, pepper2) }, "the secret is binary"},
	"garbage inside": {func(m *secretstest.Manager) { m.Set(name, string(pepper2)) }, "not JSON at byte 1"},
	"another form": {func(m *secretstest.Manager) { m.Set(name, `{"redis":{"password":1}}`) },
		"redis.password: not a string"},
	"garbage": {withFault(secretstest.Fault{Body: `{"SecretString": PEPPER-two`}),
		"the answer cannot be read"},
	"a proxy's page": {withFault(secretstest.Fault{Body: "<html>PEPPER-two is not here",
		Status: http.StatusBadGateway}), "the answer cannot be read (status 502)"},
	"an error that is none": {withFault(secretstest.Fault{Body: `{"__type": {"PEPPER-two": 1}, "Message": [PEPPER-two`,
		Status: http.StatusBadRequest}), "the answer cannot be read (status 400)"},
	"another type": {withFault(secretstest.Fault{Body: `{"SecretString": {"PEPPER-two": "PEPPER-two"}, "VersionId": ` +
		`"x",` +
		` "VersionStages": ["AWSCURRENT"]}`}),
		"the answer cannot be read"},
	"an empty answer": {withFault(secretstest.Fault{Body: `{}`}), "does not have the stage"},
	"no value": {withFault(secretstest.Fault{Body: `{"VersionId": "x", "VersionStages": ["AWSCURRENT"]}`}),
		"the answer cannot be read"},
	"no version": {withFault(secretstest.Fault{Body: `{"SecretString": "{}", "VersionStages": ["AWSCURRENT"]}`}),
		"the answer cannot be read"},
	"a pending one": {func(m *secretstest.Manager) {
		m.Stage(name, form{AddressKey: pepper2}.text())
		m.Fail(secretstest.Fault{Stage: secretstest.Pending}, -1)
	}, "does not have the stage AWSCURRENT"},
}

func withFault(f secretstest.Fault) func(*secretstest.Manager) {
	return func(m *secretstest.Manager) { m.Fail(f, -1) }
}

// Guarantees that a secret that cannot be read gives an error with the cause within the wait, which contains nothing
// of an answer.
func TestUnavailable(t *testing.T) {
	for what, b := range broken {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := new(secretstest.Manager)
				m.Set(name, wholeForm().text())
				b.arrange(m)
				s, log := open(t, sdk(m), func(c *secrets.Config) { c.Wait = secrets.ReadTimeout + time.Second })
				if what == "hangs" {
					s, log = open(t, sdk(m))
				}
				began := time.Now()
				wantUnavailable(t, s, b.cause)
				if took := time.Since(began); took > secrets.ReadTimeout {
					t.Errorf("Get took %v, want at most %v", took, secrets.ReadTimeout)
				}
				waitFor(secrets.ReadTimeout)
				if n := log.count("the secret cannot be read"); n != 1 {
					t.Errorf("the log says %d times that it cannot be read, want once: %s", n, log)
				}
				if len(log.String()) > 1000 {
					t.Errorf("the log line has %d bytes, want at most 1000", len(log.String()))
				}
			})
		})
	}
}

// Guarantees that if Secrets Manager fails later, values that were read stay in use, no caller waits longer than half
// a second, and the failure is logged repeatedly, but not at each request.
func TestLastKnownGood(t *testing.T) {
	for what, b := range broken {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := new(secretstest.Manager)
				first := m.Set(name, wholeForm().text())
				s, log := open(t, sdk(m))
				good := get(t, s)
				b.arrange(m)
				for range 200 {
					waitFor(time.Minute)
					began := time.Now()
					if v := get(t, s); v != good {
						t.Fatalf("Get = %v, want what was read before", v)
					}
					if took := time.Since(began); took > secrets.ReplaceWait {
						t.Fatalf("Get took %v although there are values, want at most half a second", took)
					}
				}
				waitFor(secrets.ReadTimeout) // ends a read in progress
				stats := s.Stats()
				if stats.Failures < 50 || stats.Failures > 200 || stats.Version != first ||
					time.Since(stats.From) < 3*time.Hour {
					t.Errorf("Stats = %+v, want failures and the age of the values", stats)
				}
				if n := log.count("the secret cannot be read"); int64(n) != stats.Failures || log.count(first) < n {
					t.Errorf("the log says %d times that it cannot be read, want %d times, with the version in use", n,
						stats.Failures)
				}
				m.Fail(secretstest.Fault{}, 0)
				again := m.Set(name, form{Peppers: map[string][]byte{"p2": pepper2}}.text())
				waitFor(2 * secrets.MaxBackoff)
				get(t, s)
				synctest.Wait()
				if v := get(t, s); v.Version() != again || time.Since(s.Stats().From) > time.Minute {
					t.Errorf("Get = %v, want version %s: %s", v, again, log)
				}
			})
		})
	}
}

// Guarantees that a version with the stage AWSPENDING is never used, that a version that becomes AWSCURRENT is used
// within a refresh, and that an unchanged version is parsed once.
func TestRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := new(secretstest.Manager)
		first := m.Set(name, wholeForm().text())
		s, log := open(t, sdk(m))
		was := get(t, s)
		if was.Version() != first {
			t.Fatalf("the version is %s, want %s", was.Version(), first)
		}
		next := wholeForm()
		next.Peppers = map[string][]byte{"p1": pepper1, "p2": pepper2}
		next.Redis.Password = passwords[1]
		second := m.Stage(name, next.text())
		refresh := func() *secrets.Values {
			waitFor(secrets.DefaultRefresh * 6 / 5)
			get(t, s)
			synctest.Wait()
			return get(t, s)
		}
		calls := m.Calls()
		for range 5 {
			if v := refresh(); v != was {
				t.Fatalf("while it rotates Get = %v, want the same values as before", v)
			}
		}
		if n := m.Calls() - calls; n != 5 {
			t.Errorf("%d reads in 5 refreshes, want 5", n)
		}
		if !m.Finish(name) {
			t.Fatal("the local substitute has no rotation to finish")
		}
		if v := refresh(); v.Version() != second {
			t.Errorf("after the rotation Get = %v, want version %s", v, second)
		}
		if _, password, err := s.RedisCredentials(t.Context()); password != passwords[1] || err != nil {
			t.Errorf("after the rotation the login has another password than the new one: %v", err)
		}
		if n := log.count(second); n != 1 {
			t.Errorf("the log reports the new version %d times, want once: %s", n, log)
		}
	})
}

// Guarantees the cost of a refresh for callers: nothing while the values are young enough, and a bounded wait if they
// are so old that the environment was frozen. A clock that is set back does not stop refreshes.
func TestUpkeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, s := opened(t)
		var last string
		step := func(what string, after time.Duration, delay, wait time.Duration, renewed bool) {
			t.Helper()
			waitFor(after)
			version := m.Set(name, wholeForm().text())
			m.Fail(secretstest.Fault{Delay: delay}, -1)
			began := time.Now()
			v := get(t, s)
			if took := time.Since(began); took != wait || (v.Version() == version) != renewed {
				t.Errorf("%s: Get took %v and the new version is there: %v; want %v, %v", what, took,
					v.Version() == version, wait, renewed)
			}
			waitFor(secrets.ReadTimeout)
			last = version
		}
		const slow = 200 * time.Millisecond
		step("young", secrets.DefaultRefresh/2, slow, 0, false)
		step("old", secrets.DefaultRefresh*7/10, slow, 0, false)
		if v := get(t, s); v.Version() != last {
			t.Errorf("the version that was read in the background is not in use: %v", v)
		}
		step("thawed", 24*time.Hour, slow, slow, true)
		step("thawed, and Secrets Manager is slow", 24*time.Hour, 3*time.Second, secrets.ReplaceWait, false)
		calls := m.Calls()
		if _, err := s.Get(t.Context(), time.Now().Add(-time.Hour)); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if m.Calls() == calls {
			t.Error("nothing is read after the clock was set back by an hour, want a read")
		}
	})
}

// Guarantees that Get waits for overdue values even if the naming of an address, which comes first in a request and
// does not wait, has begun to read them.
func TestOverdueBesideAnonymise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, s := opened(t)
		waitFor(24 * time.Hour)
		version := m.Set(name, wholeForm().text())
		m.Fail(secretstest.Fault{Delay: 100 * time.Millisecond}, -1)
		s.Anonymise(loopback)
		if v := get(t, s); v.Version() != version {
			t.Errorf("Get = %v, want %s, which is under way", v, version)
		}
	})
}

// Guarantees that the log reports exactly the changes: a version once, failures with their number, and their end once.
func TestTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := new(secretstest.Manager)
		m.Set(name, wholeForm().text())
		s, log := open(t, sdk(m))
		look := func() {
			get(t, s)
			waitFor(secrets.DefaultRefresh * 6 / 5)
		}
		want := func(when string, fresh, failed, again int) {
			t.Helper()
			f, x, a := log.count("has a new version"), log.count("cannot be read"),
				log.count("can be read again")
			if f != fresh || x != failed || a != again {
				t.Errorf("%s the log reports %d versions, %d failures and %d ends of failures; want %d, %d, %d: %s",
					when, f, x, a, fresh, failed, again, log)
			}
		}
		for range 4 {
			look()
		}
		want("without a change", 1, 0, 0)
		m.Remove(name)
		for range 3 {
			look()
		}
		want("while it is away", 1, 3, 0)
		for n := 1; n <= 3; n++ {
			if log.count(fmt.Sprintf(`"failures":%d`, n)) != 1 {
				t.Errorf("the log has no line with %d failures: %s", n, log)
			}
		}
		m.Set(name, wholeForm().text())
		look()
		want("with another version", 2, 3, 0)
		m.Fail(secretstest.Fault{Code: "AccessDeniedException"}, 1)
		for range 4 {
			look()
		}
		want("after a failure", 2, 4, 1)
	})
}

func TestWarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := new(secretstest.Manager)
		m.Set(name, wholeForm().text())
		m.Fail(secretstest.Fault{Delay: time.Second}, -1)
		s, _ := open(t, sdk(m))
		began := time.Now()
		s.Warm(began)
		s.Warm(began)
		if took := time.Since(began); took != 0 {
			t.Errorf("Warm took %v, want no wait", took)
		}
		waitFor(900 * time.Millisecond)
		get(t, s)
		if took := time.Since(began); took != time.Second || m.Calls() != 1 {
			t.Errorf("the values are there after %v and %d reads, want a second and one", took, m.Calls())
		}
		waitFor(time.Minute)
		s.Warm(time.Now())
		synctest.Wait()
		if n := m.Calls(); n != 1 {
			t.Errorf("%d reads, want none for values that are there", n)
		}
	})
}

// Guarantees that a new pepper is found by the first key that needs it, and that a flood of unknown keys costs one
// read per cooldown, whether Secrets Manager answers or not.
func TestRenew(t *testing.T) {
	for what, fault := range map[string]secretstest.Fault{"well": {}, "down": secretstest.Down(),
		"hangs": {Hang: true}} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := new(secretstest.Manager)
				m.Set(name, wholeForm().text())
				s, _ := open(t, sdk(m, func(o *secretsmanager.Options) { o.RetryMaxAttempts = 1 }))
				renew := func() *secrets.Values {
					v, err := s.Renew(t.Context(), time.Now())
					if err != nil {
						t.Fatal(err)
					}
					return v
				}
				renew() // before the first read, Renew works as Get
				waitFor(secrets.DefaultCooldown)
				second := m.Set(name, wholeForm().text())
				if v := renew(); v.Version() != second {
					t.Errorf("Renew = %v, want %s at once", v, second)
				}
				m.Fail(fault, -1)
				before := m.Calls()
				const minutes = 10
				var waited time.Duration
				last := time.Now()
				for range minutes * 60 * 10 {
					began, calls := time.Now(), m.Calls()
					if v := renew(); v.Version() != second {
						t.Fatalf("Renew = %v, want what was read before", v)
					}
					if m.Calls() > calls {
						if gap := began.Sub(last); gap < secrets.DefaultCooldown {
							t.Errorf("a read comes %v after the one before, want at least the cooldown", gap)
						}
						last = began
					}
					waited += time.Since(began)
					waitFor(100 * time.Millisecond)
				}
				reads := m.Calls() - before
				// Waiting adds some time.
				if most := int(minutes*time.Minute/secrets.DefaultCooldown) + 2; reads < 5 || reads > most {
					t.Errorf("%d reads in %d minutes, want at most %d", reads, minutes, most)
				}
				if most := time.Duration(reads) * secrets.ReplaceWait; waited > most {
					t.Errorf("callers waited %v over %d reads, want at most %v", waited, reads, most)
				}
			})
		})
	}
}

// Guarantees that a client that is configured to log its messages does not log secrets.
func TestClientLogsNothing(t *testing.T) {
	m := new(secretstest.Manager)
	m.Set(name, wholeForm().text())
	log := new(lines)
	loud := sdk(m, func(o *secretsmanager.Options) {
		o.ClientLogMode = aws.LogResponseWithBody | aws.LogRequestWithBody
		o.Logger = logging.NewStandardLogger(log)
	})
	if _, err := loud.GetSecretValue(t.Context(),
		&secretsmanager.GetSecretValueInput{SecretId: aws.String(name)}); err != nil || secretsIn(log.String()) == "" {
		t.Fatalf("the test shows nothing: a client without the cache's options logs no secret: %v", err)
	}
	before := len(log.String())
	s, _ := open(t, loud)
	get(t, s)
	wantSilent(t, "the client's log", log.String()[before:])
}

// Guarantees that reads, rotations, failures and all uses of the values run concurrently without a race.
func TestConcurrently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := new(secretstest.Manager)
		m.Set(name, wholeForm().text())
		s, _ := open(t, sdk(m), func(c *secrets.Config) { c.Cooldown = time.Second })
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 200 {
					v := get(t, s)
					if hashes, err := v.Peppers().Hashes("a-key-made-elsewhere"); err != nil || len(hashes) != 1 {
						t.Errorf("%d hashes, error %v; want one hash", len(hashes), err)
					}
					if _, _, err := s.RedisCredentials(t.Context()); err != nil {
						t.Error(err)
					}
					if _, err := s.Renew(t.Context(), time.Now()); err != nil {
						t.Error(err)
					}
					if s.Anonymise(loopback) == "" || s.Stats().Version == "" {
						t.Error("an address has no name, or the stats have no version")
					}
					timer := time.NewTimer(5 * time.Second)
					<-timer.C
				}
			})
		}
		all.Go(func() {
			for i := range 100 {
				m.Fail([]secretstest.Fault{{}, secretstest.Down(), {Hang: true}, {Delay: time.Second}}[i%4], -1)
				m.Set(name, wholeForm().text())
				timer := time.NewTimer(9 * time.Second)
				<-timer.C
			}
		})
		all.Wait()
	})
}

// Guarantees, over a real connection, that the SDK's client and the local substitute understand each other.
func TestOverHTTP(t *testing.T) {
	m := new(secretstest.Manager)
	m.Set(name, wholeForm().text())
	url, stop, err := m.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	client := sdk(m, func(o *secretsmanager.Options) {
		o.BaseEndpoint, o.HTTPClient = &url, &http.Client{Transport: transport}
	})
	m.Fail(secretstest.Fault{Drop: true}, 1) // like a connection that a freeze has cut: the client tries again
	patient := func(c *secrets.Config) { c.ID, c.Wait = secretstest.ARN(name), 30*time.Second }
	s, _ := open(t, client, patient, func(c *secrets.Config) { c.Log = slog.New(slog.DiscardHandler) })
	v := get(t, s)
	if hashes, err := v.Peppers().Hashes("a-key-made-elsewhere"); err != nil || len(hashes) != 1 || m.Calls() != 2 {
		t.Errorf("%d hashes, %v after %d calls; want one after two", len(hashes), err, m.Calls())
	}
}
