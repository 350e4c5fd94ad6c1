package standin

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sluicelimits/sluice/internal/testkit/redistest"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
	"github.com/sluicelimits/sluice/pacer"
)

func TestMain(m *testing.M) {
	Main(map[string]Peer{"greedy": greedy})
	os.Exit(m.Run())
}

// guard allows for a machine that is busy with other tests: requests arrive late there.
var guard = pacer.Guard{ClockError: 10 * time.Millisecond, MaxDelay: 250 * time.Millisecond}

// A provider that bans a client for one request too many never bans eight processes that share a limit, although its
// clock is ahead of theirs, two of them are killed while they hold units, and the limit is halved. `make soak` runs
// this for a minute. How much of the limit is used is measured by the figure pacer_used_pct, because here the machine
// may be too busy.
func TestNeverBanned(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds of real time")
	}
	t.Parallel()
	for _, limit := range []int64{1000, 50_000} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			r, err := Run(t.Context(), Options{Redis: server.Addr, Key: "provider", Limit: limit, Processes: 8,
				Guard: guard, Windows: soak.Times(6), Kill: 2, Halve: true, Ahead: 7 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%+v", r)
			if r.Banned || r.Over != 0 {
				t.Errorf("%d requests beyond the limit; banned: %t", r.Over, r.Banned)
			}
			if r.FinalProcess != 6 || r.Used < 50 {
				t.Errorf("%d processes are left, want 6; %.1f %% of the limit were used", r.FinalProcess, r.Used)
			}
		})
	}
}

// Four processes whose limit was halved live keep to the halved limit when their Redis restarts empty.
func TestNeverBannedByAStoreThatRestarts(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds of real time")
	}
	t.Parallel()
	server := redistest.Start(t)
	client := goredis.NewClient(&goredis.Options{Addr: server.Addr})
	t.Cleanup(func() { _ = client.Close() })
	r, err := Run(t.Context(), Options{Redis: server.Addr, Key: "provider", Limit: 1000, Processes: 4, Guard: guard,
		Windows: 12, Halve: true, Ahead: 7 * time.Millisecond,
		Restart: func() error { return client.FlushAll(t.Context()).Err() }})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", r)
	if r.Banned || r.Over != 0 {
		t.Errorf("%d requests beyond the limit; banned: %t", r.Over, r.Banned)
	}
	if r.Used < 50 {
		t.Errorf("%.1f %% of the limit were used", r.Used)
	}
}

// The provider bans processes that each use the whole limit. Otherwise TestNeverBanned would prove nothing.
func TestBanned(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds of real time")
	}
	t.Parallel()
	r, err := Run(t.Context(), Options{Limit: 1000, Processes: 2, Guard: guard, Windows: 1, alone: true})
	if err != nil {
		t.Fatal(err)
	}
	if !r.Banned || r.Over == 0 {
		t.Errorf("two processes that each use the whole limit were not banned: %+v", r)
	}
}

// greedy sends three times the limit in each of ten parts of a second.
func greedy(ctx context.Context, o Orders, provider io.Writer) (r Report, err error) {
	tenth := time.NewTicker(time.Second / 10)
	defer tenth.Stop()
	for {
		select {
		case <-ctx.Done():
			return r, nil
		case <-tenth.C:
			n, err := provider.Write(make([]byte, 3*o.Limit/10))
			r.Sent += int64(n)
			if err != nil {
				return r, err
			}
		}
	}
}

// A peer is counted to its end although it is banned.
func TestPeerIsOnlyCounted(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds of real time")
	}
	t.Parallel()
	r, err := Run(t.Context(), Options{Limit: 1000, Processes: 2, Windows: 1, Peer: "greedy"})
	if err != nil {
		t.Fatal(err)
	}
	if !r.Banned || r.Used < 300 {
		t.Errorf("two processes that each send three times the limit: %+v", r)
	}
}
