package bench

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
	"github.com/sluicelimits/sluice/pacer"
)

// made returns the value, or ends the benchmark with the error.
func made[T any](b *testing.B) func(T, error) T {
	return func(v T, err error) T {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
		return v
	}
}

// run spends b.N units, rounded up so that each key gets the same share.
func (c *contender) run(b *testing.B) {
	ops := (b.N + c.unit() - 1) / c.unit() * c.unit()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	b.ResetTimer()
	perOp, err := c.trial(ops)
	b.StopTimer()
	if err != nil {
		b.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.Mallocs-before.Mallocs)/float64(ops), "allocs/op")
	b.ReportMetric(perOp.wall, "ns/op")
	b.ReportMetric(perOp.processor, "cpu-ns/op")
}

// inTurn measures two contenders in turn and closes them. Ours is first in one round and second in the next, so that
// neither has an advantage. Each key can spend limit units in all.
func inTurn(b *testing.B, limit int, ours, theirs *contender) {
	pair := [2]*contender{ours, theirs}
	for _, c := range pair {
		defer c.close()
		stride := c.stride
		c.stride = 0 // so that the counters are made in the order of the keys
		if _, err := c.trial(c.unit()); err != nil {
			b.Fatal(err)
		}
		c.stride = stride
	}
	for round := range *rounds {
		for turn := range pair {
			c := pair[(round+turn)%2]
			b.Run(c.name, c.run)
		}
	}
	for _, c := range pair {
		if err := c.verify(limit); err != nil {
			b.Fatal(err)
		}
	}
}

// tiers are three token buckets: with a rate per second, per minute and per hour.
var tiers = [...]limit.Tier{
	{Algorithm: limit.TokenBucket, Period: time.Second, Threshold: 10},
	{Algorithm: limit.TokenBucket, Period: time.Minute, Threshold: 300},
	{Algorithm: limit.TokenBucket, Period: time.Hour, Threshold: 10_000},
}

// leasedTiers are three token buckets with a rate per second, per minute and per hour. Of each, so many units come free
// that they are leased.
var leasedTiers = [...]limit.Tier{
	{Algorithm: limit.TokenBucket, Period: time.Second, Threshold: 10},
	{Algorithm: limit.TokenBucket, Period: time.Minute, Threshold: 1200},
	{Algorithm: limit.TokenBucket, Period: time.Hour, Threshold: 100_000},
}

// mixed has a tier of each of three algorithms. Their windows are so long that the units that a measurement spends
// still count when they are verified.
var mixed = [...]limit.Tier{
	{Algorithm: limit.FixedWindow, Period: 366 * 24 * time.Hour, Threshold: plenty},
	{Algorithm: limit.SlidingWindow, Period: 365 * 24 * time.Hour, Threshold: plenty},
	{Algorithm: limit.Quota, Calendar: &limit.Calendar{Every: limit.Month, Location: time.UTC}, Threshold: plenty},
}

// slow are token buckets that refill by about one unit a year, so that they admit their burst and no more.
var slow = [...]limit.Tier{
	{Algorithm: limit.TokenBucket, Period: 366 * 24 * time.Hour, Threshold: 1},
	{Algorithm: limit.TokenBucket, Period: 365 * 24 * time.Hour, Threshold: 1},
	{Algorithm: limit.TokenBucket, Period: 364 * 24 * time.Hour, Threshold: 1},
}

// farStride is the distance between a key and the next one that is used, if there are many keys: their counters are
// then far apart in memory. It is a prime number, so that every key is used.
const farStride = 368_789

// BenchmarkMemory compares our memory store with go-limiter's store, which has one limit, on all cores at once.
func BenchmarkMemory(b *testing.B) {
	const scarce = 100 // units of a key that are soon used up, so that a measurement is about denials
	for _, bb := range []struct {
		name        string
		keys, units int
		tiers       []limit.Tier
	}{
		{"1_limit", memoryKeys, plenty, tiers[:1]},
		{"3_limits", memoryKeys, plenty, tiers[:]},
		{"3_mixed", memoryKeys, plenty, mixed[:]},
		{"1m_keys", 1_000_000, plenty, tiers[:1]},
		{"1_limit_denied", memoryKeys, scarce, slow[:1]},
		{"3_limits_denied", memoryKeys, scarce, slow[:]},
	} {
		b.Run(bb.name, func(b *testing.B) {
			if testing.Short() {
				bb.keys = min(bb.keys, memoryKeys)
			}
			allocatesNothing(b, made[*contender](b)(sluice(memoryKeys, int64(bb.units), bb.tiers...)), memoryKeys)
			ours := made[*contender](b)(sluice(bb.keys, int64(bb.units), bb.tiers...))
			theirs := made[*contender](b)(goLimiter(bb.keys, uint64(bb.units)))
			if bb.keys > memoryKeys {
				ours.stride, theirs.stride = farStride, farStride
			}
			inTurn(b, bb.units, ours, theirs)
		})
	}
}

// BenchmarkMemoryBytes measures by how many bytes the heap grows for each key that has one token bucket, without the
// bytes of the key's name.
func BenchmarkMemoryBytes(b *testing.B) {
	const keys = 100_000
	perKey := func(newContender func() (*contender, error)) func(b *testing.B) {
		return func(b *testing.B) {
			before := heapInUse()
			names := keyNames(keys) // each contender makes such names, too, which are not counted
			texts := heapInUse() - before
			runtime.KeepAlive(names)
			c := made[*contender](b)(newContender())
			defer c.close()
			c.workers = 1
			if _, err := c.trial(c.unit()); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(heapInUse()-before-texts)/keys, "bytes/key")
			if err := c.verify(plenty); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("sluice", perKey(func() (*contender, error) { return sluice(keys, plenty, tiers[0]) }))
	b.Run("golimiter", perKey(func() (*contender, error) { return goLimiter(keys, plenty) }))
}

// BenchmarkRedis compares a decision of our Redis store about three limits with one of redis_rate about one limit.
func BenchmarkRedis(b *testing.B) {
	addr := redistest.Start(b).Addr
	inTurn(b, plenty, made[*contender](b)(sluiceRedis(addr, tiers[:]...)), redisRate(addr, redisKeys))
}

// BenchmarkRedisHotKey compares decisions about one key from leases on Redis with those of redis_rate. The calls for
// leases are included.
func BenchmarkRedisHotKey(b *testing.B) {
	addr := redistest.Start(b).Addr
	store := made[*redis.Store](b)(redis.New(b.Context(), redisConfig(addr)))
	defer func() { _ = store.Close() }()
	ours, calls := leasing(b, store, 1, tiers[0])
	ours.workers = redisWorkers
	inTurn(b, plenty, ours, redisRate(addr, 1))
	calls.leased(b, ours)
}

// BenchmarkLeaseLocal compares a decision from leases over three limits with one of the memory store over the same
// limits: of a process that is busy with 100 keys, of one key, and of many.
func BenchmarkLeaseLocal(b *testing.B) {
	for _, keys := range []int{100, 1, memoryKeys} {
		b.Run(fmt.Sprintf("%d_keys", keys), func(b *testing.B) {
			one, _ := leasing(b, made[*memory.Store](b)(memory.New(memory.Config{})), 1, leasedTiers[:]...)
			allocatesNothing(b, one, 100_000)
			ours, calls := leasing(b, made[*memory.Store](b)(memory.New(memory.Config{})), keys, leasedTiers[:]...)
			theirs := made[*contender](b)(sluice(keys, plenty, leasedTiers[:]...))
			theirs.name = "memory_store"
			if _, err := ours.trial(30 * ours.unit()); err != nil { // so many that each key has leases
				b.Fatal(err)
			}
			inTurn(b, plenty, ours, theirs)
			calls.leased(b, ours)
		})
	}
}

// BenchmarkPacer compares Acquire with units in hand, by one goroutine, with the Wait of golang.org/x/time/rate.
func BenchmarkPacer(b *testing.B) {
	allocatesNothing(b, made[*contender](b)(pacerContender()), 1)
	l := rate.NewLimiter(rate.Every(365*24*time.Hour), plenty)
	inTurn(b, plenty, made[*contender](b)(pacerContender()),
		pacing("x_time_rate", func(ctx context.Context) error { return l.Wait(ctx) },
			func() int { return plenty - int(l.Tokens()) }))
}

// nobody is the waker of tickets that are never served.
type nobody struct{}

func (nobody) Wake(pacer.Permit, error) {}

// BenchmarkPacerWaiters measures the memory of tickets that wait at a pacer whose units are spent for a year.
func BenchmarkPacerWaiters(b *testing.B) {
	const waiting = 1_000_000
	b.Run("sluice", func(b *testing.B) {
		tickets := make([]pacer.Ticket, waiting)
		p := made[*pacer.Pacer](b)(pacer.New(pacer.Config{Limit: pacer.Limit{Units: 1, Period: pacer.MaxPeriod}}))
		defer p.Close()
		_ = made[pacer.Permit](b)(p.Acquire(b.Context(), "first", 1))
		before := heapInUse()
		for b.Loop() {
			for i := range tickets {
				tickets[i] = made[pacer.Ticket](b)(p.Enqueue("key", 1, pacer.Forever, nobody{}))
			}
			b.ReportMetric(float64(heapInUse()-before)/waiting, "bytes/ticket")
			if n := p.Status().Waiting; n != waiting {
				b.Fatalf("%d of %d tickets wait", n, waiting)
			}
			for _, t := range tickets {
				p.Cancel(t)
			}
		}
	})
}

// BenchmarkPacerWake measures how late tickets are woken, at 100,000 per second, beside golang.org/x/time/rate with a
// timer for each.
func BenchmarkPacerWake(b *testing.B) {
	const perSecond = 100_000
	n := 3 * perSecond
	if testing.Short() {
		n = perSecond
	}
	b.Run("sluice", func(b *testing.B) {
		for b.Loop() {
			p := made[*pacer.Pacer](b)(pacer.New(pacer.Config{Limit: pacer.PerSecond(perSecond),
				Smoothing: pacer.Spread}))
			// With Spread, what was not asked for since the window opened is caught up with, at no more than twice the
			// rate. Earliest does not count that. So the requests begin when a window opens.
			<-time.After(time.Until(time.Now().Truncate(time.Second).Add(time.Second)))
			lateness(b, n, func(woken func()) (due time.Time, err error) {
				t, err := p.Enqueue("key", 1, pacer.Forever, pacer.WakerFunc(func(pacer.Permit, error) { woken() }))
				return t.Earliest, err
			})
			p.Close()
		}
	})
	b.Run("x_time_rate", func(b *testing.B) {
		for b.Loop() {
			limiter := rate.NewLimiter(perSecond, 1)
			lateness(b, n, func(woken func()) (due time.Time, err error) {
				now := time.Now()
				delay := limiter.ReserveN(now, 1).DelayFrom(now)
				time.AfterFunc(delay, woken)
				return now.Add(delay), nil
			})
		}
	})
}

// lateness makes n requests, and reports by how many ms they are woken after they were due.
func lateness(b *testing.B, n int, enqueue func(woken func()) (due time.Time, err error)) {
	dues, woken := make([]time.Time, n), make([]time.Time, n)
	var all sync.WaitGroup
	for i := range n {
		all.Add(1)
		var err error
		if dues[i], err = enqueue(func() {
			woken[i] = time.Now()
			all.Done()
		}); err != nil {
			b.Fatal(err)
		}
	}
	all.Wait()
	late := make([]float64, n)
	for i := range late {
		late[i] = woken[i].Sub(dues[i]).Seconds() * 1e3
	}
	b.ReportMetric(quantile(late, 0.5), "p50-ms")
	b.ReportMetric(quantile(late, 0.99), "p99-ms")
}
