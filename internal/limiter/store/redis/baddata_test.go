package redis_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// Guarantees that any value at a key of this package leads to an error or to a decision within bounds, and that a value
// that cannot be read expires within a minute, so that no owner is locked out for good.
func TestBadData(t *testing.T) {
	server := redistest.Start(t)
	admin := server.Client(t)
	const shared = "{rl:t4:acme,}"
	log := limit.Charge{Cost: 1, Limit: build(t,
		limit.Limit{ID: "log", Tiers: []limit.Tier{{Algorithm: limit.SlidingLog, Threshold: 1000, Period: time.Hour}}})}
	user := limit.Charge{Cost: 1, Value: limit.ValueOf("u"),
		Limit: build(t, limit.Limit{ID: "user", Per: "subject", MaxValues: 1,
			Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: 1000, Period: limit.MaxPeriod}}})}
	text := func(f func(pack string) string) func(*testing.T, *goredis.Client, string) {
		return func(t *testing.T, c *goredis.Client, key string) {
			was, err := c.Get(t.Context(), key).Result()
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Set(t.Context(), key, f(was), 0).Err(); err != nil { // and without an expiry
				t.Fatal(err)
			}
		}
	}
	double := func(at int, v float64) func(string) string {
		return func(pack string) string {
			b := []byte(pack)
			binary.LittleEndian.PutUint64(b[at:], math.Float64bits(v))
			return string(b)
		}
	}
	command := func(args ...any) func(*testing.T, *goredis.Client, string) {
		return func(t *testing.T, c *goredis.Client, key string) {
			if err := c.Del(t.Context(), key).Err(); err != nil {
				t.Fatal(err)
			}
			if err := c.Do(t.Context(), append([]any{args[0], key}, args[1:]...)...).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	const states = 6 + 3*17 // where the doubles begin, after the heads of three tiers
	tests := []struct {
		name    string
		charges []limit.Charge
		key     string
		spoil   func(*testing.T, *goredis.Client, string)
		answers bool // the decision is right, with the units that were counted
	}{
		{"a list", threeCharges(t), shared, command("RPUSH", "x"), false},
		{"a hash", threeCharges(t), shared, command("HSET", "x", "y"), false},
		{"nothing", threeCharges(t), shared, text(func(string) string { return "" }), false},
		{"a text", threeCharges(t), shared, text(func(string) string { return "42" }), false},
		{"cut short", threeCharges(t), shared, text(func(p string) string { return p[:len(p)-5] }), false},
		{"cut in its heads", threeCharges(t), shared, text(func(p string) string { return p[:40] }), false},
		{"its number of tiers too large", threeCharges(t), shared,
			text(func(p string) string { return p[:4] + "\xff\xff" + p[6:] }), false},
		{"bytes behind it", threeCharges(t), shared, text(func(p string) string { return p + "abc" }), false},
		{"400 KB", threeCharges(t), shared, text(func(string) string { return strings.Repeat("x", 400<<10) }), false},
		{"400 KB behind it", threeCharges(t), shared,
			text(func(p string) string { return p + strings.Repeat("x", 400<<10) }),
			false},
		{"a level that is no number", threeCharges(t), shared, text(double(states+16, math.NaN())), false},
		{"an endless level", threeCharges(t), shared, text(double(states+16, math.Inf(1))), false},
		{"half a unit", threeCharges(t), shared, text(double(states+16, 0.5)), false},
		{"a time that is no number", threeCharges(t), shared, text(double(states+8, math.NaN())), false},
		{"a count beyond 2^53", threeCharges(t), shared, text(double(states+32, 1e300)), false},
		{"a log that is a text", []limit.Charge{log}, shared + "3:log,6:tenant,stamps*", command("SET", "x"), false},
		{"entries of a log that are not ours", []limit.Charge{log}, shared + "3:log,6:tenant,stamps*",
			func(t *testing.T, c *goredis.Client, key string) {
				if err := c.ZAdd(t.Context(), key, goredis.Z{Score: 1, Member: "old"},
					goredis.Z{Score: 9e15, Member: "new"}).Err(); err != nil {
					t.Fatal(err)
				}
			}, true},
		{"an entry of a log that the pack does not count", []limit.Charge{log}, shared + "3:log,6:tenant,stamps*",
			func(t *testing.T, c *goredis.Client, key string) {
				if err := c.ZAdd(t.Context(), key, goredis.Z{Score: 1, Member: "1:5000"}).Err(); err != nil {
					t.Fatal(err)
				}
			}, false},
		{"entries of a log that count too much", []limit.Charge{log}, shared + "3:log,6:tenant,stamps*",
			func(t *testing.T, c *goredis.Client, key string) {
				for i := range 2 {
					if err := c.ZAdd(t.Context(), key,
						goredis.Z{Score: 1, Member: fmt.Sprintf("%d:%d", i, int64(1)<<53)}).Err(); err != nil {
						t.Fatal(err)
					}
				}
			}, false},
		{"an entry of a log at half a µs", []limit.Charge{log}, shared + "3:log,6:tenant,stamps*",
			func(t *testing.T, c *goredis.Client, key string) {
				if err := c.ZAdd(t.Context(), key, goredis.Z{Score: float64(time.Now().UnixMicro()) + 0.5,
					Member: "x:1"}).Err(); err != nil {
					t.Fatal(err)
				}
			}, false},
		{"a set of values that is a text", []limit.Charge{user}, shared + "4:user,7:subject,values",
			command("SET", "x"), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := admin.FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			s := open(t, redis.Config{Addrs: []string{server.Addr}})
			if _, err := decideOnce(t, s, tt.charges); err != nil {
				t.Fatal(err)
			}
			key := tt.key
			if strings.HasSuffix(key, "*") {
				keys, err := admin.Keys(t.Context(), key).Result()
				if err != nil || len(keys) != 1 {
					t.Fatalf("keys %s: %q, %v", key, keys, err)
				}
				key = keys[0]
			}
			tt.spoil(t, admin, key)
			charges := tt.charges
			if charges[0].Limit.ID == "user" { // the sorted set is asked for a new value
				charges = []limit.Charge{{Limit: charges[0].Limit, Value: limit.ValueOf("v"), Cost: 1}}
			}
			var d limit.Decision
			err := s.Decide(t.Context(), &limit.Request{Owner: acme, Charges: charges}, time.Now(), &d)
			if tt.answers {
				if err != nil || !d.Allowed || d.Results[0].Remaining() != 998 {
					t.Fatalf("%v, allowed %t; want allowed, with 998 left", err, d.Allowed)
				}
				return
			}
			if err == nil {
				t.Fatalf("answered: allowed %t; want an error", d.Allowed)
			}
			if !contains(err, "acme") || !errors.Is(err, limit.ErrUnreadable) || d.Allowed {
				t.Errorf("allowed %t, %v; want limit.ErrUnreadable and the owner", d.Allowed, err)
			}
			if _, err := decideOnce(t, s, charges); err == nil {
				return // the value was repaired
			}
			if ttl, err := admin.PTTL(t.Context(), key).Result(); err != nil || ttl <= 0 || ttl > time.Minute {
				t.Errorf("%q is there for %s, %v; want a minute at most", key, ttl, err)
			}
			if err := admin.Del(t.Context(), key).Err(); err != nil { // as after the minute
				t.Fatal(err)
			}
			if _, err := decideOnce(t, s, charges); err != nil {
				t.Errorf("after the unreadable value has expired: %v, want no error", err)
			}
		})
	}
}

// Guarantees that an error about a pack with damaged bytes says that the server answered, so that one tenant's data
// opens no circuit breaker, and that a decision by such a pack is within bounds.
func TestSpoiledPacks(t *testing.T) {
	server := redistest.Start(t)
	admin := server.Client(t)
	s := openAt(t, redis.Config{Addrs: []string{server.Addr}})
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	charges := append(threeCharges(t), tenUnits(t)...)
	ahead := make([]limit.LeaseRequest, 4)
	for i := range ahead {
		ahead[i] = limit.LeaseRequest{Need: 1, Least: 1}
	}
	ask := func(charges []limit.Charge, ahead []limit.LeaseRequest) (*limit.Decision, error) {
		d := new(limit.Decision)
		return d, s.Decide(t.Context(), &limit.Request{Owner: acme, Charges: charges, Leases: ahead}, noon, d)
	}
	forms := map[string]func() (*limit.Decision, error){
		"in front": func() (*limit.Decision, error) { return ask(charges, nil) },
		"leased":   func() (*limit.Decision, error) { return ask(charges, ahead) },
		"scattered": func() (*limit.Decision, error) {
			if d, err := ask(charges, nil); err != nil {
				return d, err
			}
			return ask(charges[1:], nil)
		},
		"leased before": func() (*limit.Decision, error) {
			if d, err := ask(charges, ahead); err != nil {
				return d, err
			}
			return ask(charges[:2], nil)
		},
	}
	const key = "{rl:t4:acme,}"
	unreadable := 0
	for name, fill := range forms {
		if err := admin.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		if d, err := fill(); err != nil || !d.Allowed {
			t.Fatalf("%s: %v", name, err)
		}
		pack, err := admin.Get(t.Context(), key).Bytes()
		if err != nil {
			t.Fatal(err)
		}
		for range 400 {
			spoiled := slices.Clone(pack)
			at := r.IntN(len(spoiled))
			switch r.IntN(4) {
			case 0:
				spoiled[at] = byte(r.Uint32())
			case 1:
				spoiled = spoiled[:at]
			case 2:
				spoiled = slices.Insert(spoiled, at, spoiled[r.IntN(len(spoiled))])
			case 3: // a number of another type
				at = min(at, len(spoiled)-8)
				binary.LittleEndian.PutUint64(spoiled[at:],
					math.Float64bits([]float64{math.NaN(), math.Inf(1), -1e300, 0.5}[r.IntN(4)]))
			}
			if err := admin.Set(t.Context(), key, spoiled, 0).Err(); err != nil {
				t.Fatal(err)
			}
			some, leases := charges[r.IntN(2):], ahead
			if leases = leases[:len(some)]; r.IntN(3) > 0 {
				leases = nil
			}
			d, err := ask(some, leases)
			if err != nil && !limit.Answered(err) {
				t.Errorf("seed %d: %s, as %q: %v; want an error that says the server answered", seed, name, spoiled,
					err)
			}
			if errors.Is(err, limit.ErrUnreadable) {
				unreadable++
			}
			for i := range d.Results {
				if left := d.Results[i].Remaining(); d.Allowed && left > d.Results[i].Tier.Capacity() {
					t.Errorf("seed %d: %s, damaged to %q: %d units remain of %d", seed, name, spoiled, left,
						d.Results[i].Tier.Capacity())
				}
			}
		}
	}
	if unreadable < 100 {
		t.Errorf("only %d packs could not be read, so the test shows too little", unreadable)
	}
}

// Guarantees that an error of a script about one owner's data says that the server answered, and that errors about the
// server do not.
func TestScriptErrors(t *testing.T) {
	server := redistest.Start(t)
	if err := server.Client(t).RPush(t.Context(), "list", "x").Err(); err != nil {
		t.Fatal(err)
	}
	s := open(t, redis.Config{Addrs: []string{server.Addr}})
	for source, want := range map[string]error{
		"return {} .. ''":                                                  limit.ErrUnreadable,
		"assert(false)":                                                    limit.ErrUnreadable,
		"return struct.unpack('<d', '')":                                   limit.ErrUnreadable,
		"return redis.call('GET', KEYS[1])":                                limit.ErrUnreadable,
		"return redis.error_reply('SLUICE unreadable: k')":                 limit.ErrUnreadable,
		"return redis.error_reply('SLUICE full: k')":                       limit.ErrFull,
		"return redis.error_reply('SLUICE two values share a counter: k')": limit.ErrDuplicateCounter,
		"return redis.error_reply('OOM command not allowed')":              nil,
		"return redis.error_reply('READONLY it')":                          nil,
		"return redis.error_reply('ERR unknown')":                          nil,
		"return redis.error_reply('MISCONF Redis is configured to save')":  nil,
		"return redis.error_reply('NOREPLICAS Not enough good replicas')":  nil,
		"return redis.error_reply('CLUSTERDOWN Hash slot not served')":     nil,
	} {
		err := s.Run(t.Context(), source, "list")
		if err == nil || limit.Answered(err) != (want != nil) || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: %v, answered %t; want %v", source, err, limit.Answered(err), want)
		}
	}
}

// Guarantees that a server whose clock leaps ahead by a day and comes back neither admits too much nor denies for a
// day.
func TestClockLeaps(t *testing.T) {
	addr := address(t)
	for _, a := range limit.Algorithms() {
		t.Run(a.String(), func(t *testing.T) {
			s := openAt(t, redis.Config{Addrs: []string{addr}})
			s.SetSpace(newSpace())
			l := limit.Tier{Algorithm: a, Threshold: 5, Period: time.Minute}
			if a == limit.Quota {
				l.Period, l.Calendar = 0, &limit.Calendar{Every: limit.Day, Location: time.UTC}
			}
			charges := []limit.Charge{{Limit: build(t, limit.Limit{ID: "five", Tiers: []limit.Tier{l}}), Cost: 1}}
			admitted := func(at time.Time) (n int) {
				for range 10 {
					var d limit.Decision
					if err := s.Decide(t.Context(), &limit.Request{Owner: acme, Charges: charges}, at, &d); err != nil {
						t.Fatalf("at %s: %v", at, err)
					}
					if d.Allowed {
						n++
					}
				}
				return n
			}
			most := 5
			if a == limit.LeakyBucket {
				most = 1
			}
			day := 24 * time.Hour
			for _, at := range []time.Duration{0, day, 0, -day, 0} {
				if n := admitted(noon.Add(at)); n > most {
					t.Errorf("%s from noon %d are admitted, want at most %d", at, n, most)
				}
			}
			later := 3 * time.Minute
			if a == limit.Quota {
				later = 13 * time.Hour
			}
			if n := admitted(noon.Add(later)); n != most {
				t.Errorf("after the leaps and %s %d are admitted, want %d", later, n, most)
			}
		})
	}
}
