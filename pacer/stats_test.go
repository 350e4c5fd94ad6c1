package pacer_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/pacer"
)

// Guarantees that Stats tells who waits, and how long the granted requests of each key waited.
func TestStats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := open(t, pacer.Config{Limit: pacer.PerSecond(10)})
		<-time.After(time.Until(time.Now().Truncate(time.Second).Add(time.Second))) // the beginning of a window
		ignore := pacer.WakerFunc(func(pacer.Permit, error) {})
		enqueue := func(key string, n int) {
			t.Helper()
			for range n {
				if _, err := p.Enqueue(key, 1, pacer.Forever, ignore); err != nil {
					t.Fatal(err)
				}
			}
		}
		for range 8 {
			if _, err := p.Acquire(context.Background(), "at once", 1); err != nil {
				t.Fatal(err)
			}
		}
		enqueue("early", 4) // two of them wait when the counting begins
		if s := p.Stats(); s.Waiting != 2 || len(s.Keys) != 1 || s.Keys[0].Key != "early" || s.Keys[0].Waiting != 2 ||
			s.Waits.Count() != 0 {
			t.Fatalf("the first result is %+v, want that 2 requests of key early wait", s)
		}
		<-time.After(300 * time.Millisecond)
		enqueue("late", 12)
		<-time.After(1700*time.Millisecond - time.Millisecond) // all but 4 of them are served after 0.7 s
		s := p.Stats()
		for _, want := range []struct {
			key              string
			waiting, granted int
			longest          time.Duration
		}{{"late", 4, 8, 768 * time.Millisecond}, {"early", 0, 2, 1024 * time.Millisecond}} {
			i := slices.IndexFunc(s.Keys, func(k pacer.KeyStats) bool { return k.Key == want.key })
			if i < 0 {
				t.Fatalf("there is no key %q", want.key)
			}
			k := s.Keys[i]
			if k.Waiting != want.waiting || k.Granted != int64(want.granted) || k.Waits.Count() != k.Granted ||
				k.Waits.Quantile(0.01) != want.longest || k.Waits.Quantile(1) != want.longest {
				t.Errorf("key %q: %d wait, %d granted, waits of %s to %s; want %+v", k.Key, k.Waiting, k.Granted,
					k.Waits.Quantile(0.01), k.Waits.Quantile(1), want)
			}
		}
		if s.Waits.Count() != 10 || s.Granted != 20 || s.AtOnce != 8 {
			t.Errorf("%d waits, %d units granted, %d requests at once", s.Waits.Count(), s.Granted, s.AtOnce)
		}
		<-time.After(500 * time.Millisecond)
		if _, err := p.Acquire(context.Background(), "at once", 1); err != nil {
			t.Fatal(err)
		}
		later := p.Stats()
		if since := later.Waits.Since(&s.Waits); since.Count() != 5 || since.Quantile(0.2) != time.Millisecond {
			t.Errorf("%d waits since then, the shortest within %s; want 5, and one within 1ms", since.Count(),
				since.Quantile(0.2))
		}
	})
}

// Guarantees that Stats takes bounded memory, and that the requests of all further keys are counted together.
func TestStatsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := open(t, pacer.Config{Limit: pacer.PerSecond(1000)})
		p.Stats()
		long := strings.Repeat("x", 1000)
		pass := func(prefix string, keys int) {
			t.Helper()
			for i := range keys {
				key := fmt.Sprint(prefix, i)
				if i == 0 {
					key = long
				}
				w := pacer.WakerFunc(func(pacer.Permit, error) {})
				if _, err := p.Enqueue(key, 1, pacer.Forever, w); err != nil {
					t.Fatal(err)
				}
			}
			<-time.After(10 * time.Second)
		}
		<-time.After(time.Second)
		for range 1000 {
			p.TryAcquire(1)
		}
		pass("a", 5000)
		s := p.Stats()
		sum := s.Others.Granted
		for _, k := range s.Keys {
			if sum += k.Granted; k.Key == long {
				t.Error("a long key is counted apart")
			}
		}
		if len(s.Keys) != pacer.MaxStatsKeys || sum != 5000 || s.Others.Waits.Count() != 5000-pacer.MaxStatsKeys {
			t.Errorf("%d keys are counted apart; %d units granted, want 5000", len(s.Keys), sum)
		}
		<-time.After(2 * time.Minute)
		for range 1000 {
			p.TryAcquire(1)
		}
		pass("b", 50)
		if s = p.Stats(); s.Waits.Count() != 7050 || !slices.ContainsFunc(s.Keys, func(k pacer.KeyStats) bool {
			return k.Key == "b49"
		}) {
			t.Errorf("%d waits, want 7050, and new keys in the place of old ones: %+v", s.Waits.Count(), len(s.Keys))
		}
	})
}

// Guarantees that a quantile is at least the true one, and at most a quarter larger, or a millisecond.
func TestQuantile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 2))
		for range 300 {
			wait := time.Duration(float64(time.Hour) * min(random.ExpFloat64()/1000, 20) * random.Float64())
			p, err := pacer.New(pacer.Config{Limit: pacer.Limit{Units: 1, Period: 24 * time.Hour}})
			if err != nil {
				t.Fatal(err)
			}
			p.Stats()
			p.TryAcquire(1)
			if _, err := p.Enqueue("key", 1, pacer.Forever, pacer.WakerFunc(func(pacer.Permit, error) {})); err != nil {
				t.Fatal(err)
			}
			<-time.After(wait)
			if err := p.SetLimit(pacer.Limit{Units: 2, Period: 24 * time.Hour}); err != nil {
				t.Fatal(err)
			}
			s := p.Stats()
			got := s.Keys[0].Waits.Quantile(0.5)
			if most := wait + max(wait/4, time.Millisecond); got < wait-time.Millisecond ||
				got > most+time.Millisecond {
				t.Fatalf("a wait of %s is counted as %s", wait, got)
			}
			p.Close()
		}
	})
}
