package sluice_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sluicelimits/sluice"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
	"github.com/sluicelimits/sluice/redisstore"
)

const (
	callers    = 16 // of each process, at once
	mostAtOnce = 8
	holdFor    = 5 * time.Second // renewed every 1.7 s, so a process may stand still for 3 s
)

// enter adds a member to the set of those that are being served, and notes the most that were there at once.
const enter = `redis.call('SADD', KEYS[1], ARGV[1])
local n = redis.call('SCARD', KEYS[1])
if n > tonumber(redis.call('GET', KEYS[2]) or 0) then redis.call('SET', KEYS[2], n) end`

// serveCalls is a process that serves calls until its standard input ends. args are the address of Redis and a name.
func serveCalls(args []string) error {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	s, err := redisstore.New(ctx, redisstore.Config{Addrs: args[:1], Deadline: patient})
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	plans := fmt.Appendf(nil, "plans: [ { id: p, limits: [ { id: in-flight, concurrency: %d, holdFor: %s, "+
		"onStoreFailure: closed } ] } ]\ntenants: [ { id: acme, plan: p } ]", mostAtOnce, holdFor)
	l, err := sluice.New(sluice.Config{Store: s, Log: quiet, PlansData: plans})
	if err != nil {
		return err
	}
	defer func() { _ = l.Close(context.Background()) }()
	truth := goredis.NewClient(&goredis.Options{Addr: args[0]})
	defer truth.Close()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	var wg sync.WaitGroup
	errs := make(chan error, callers)
	for i := range callers {
		wg.Go(func() {
			member := fmt.Sprint(args[1], ".", i)
			for ctx.Err() == nil {
				takes, kind := time.Duration(rand.Int64N(int64(20*time.Millisecond))), "short"
				if i == 0 {
					takes, kind = holdFor*3/2, "long" // so its place is renewed
				}
				if err := serveCall(ctx, l, truth, member, kind, takes); err != nil {
					errs <- err
					stop()
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	return <-errs
}

func serveCall(ctx context.Context, l *sluice.Limiter, truth *goredis.Client, member, kind string, takes time.Duration,
) error {
	d := l.Decide(context.Background(), acme, sluice.Request{})
	if !d.Allowed {
		select {
		case <-ctx.Done():
		case <-time.After(min(d.RetryAfter, 10*time.Millisecond)):
		}
		return d.Err
	}
	defer l.Hold(d.Reservation())()
	if err := truth.Eval(context.Background(), enter, []string{"live", "most"}, member).Err(); err != nil &&
		err != goredis.Nil { //nolint:errorlint // the client returns it as it is
		return err
	}
	select {
	case <-ctx.Done():
	case <-time.After(takes):
	}
	if err := truth.SRem(context.Background(), "live", member).Err(); err != nil {
		return err
	}
	return truth.Incr(context.Background(), kind).Err()
}

// Guarantees that four processes, which are killed and replaced again and again, never serve more calls of a tenant at
// once than the limit, though calls outlast holdFor; that they do serve so many; and that the places of those that were
// killed come free.
func TestPlacesOfProcesses(t *testing.T) {
	addr := redistest.Start(t).Addr
	truth := goredis.NewClient(&goredis.Options{Addr: addr})
	defer truth.Close()
	type process struct {
		*exec.Cmd
		name string
		in   io.Closer
	}
	var running []process
	started := 0
	start := func() {
		started++
		p := process{Cmd: exec.CommandContext(t.Context(), os.Args[0]), name: fmt.Sprint("p", started)}
		p.Env, p.Stderr = append(os.Environ(), childEnv+"=places "+addr+" "+p.name), os.Stderr
		in, err := p.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		p.in = in
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		running = append(running, p)
	}
	for range 4 {
		start()
	}
	// wait waits until so many more calls of a kind have ended.
	wait := func(kind string, more int64) {
		for until := int64(-1); ; <-time.After(10 * time.Millisecond) {
			n, err := truth.Get(t.Context(), kind).Int64()
			if err != nil && err != goredis.Nil { //nolint:errorlint // the client returns it as it is
				t.Fatal(err)
			}
			if until < 0 {
				until = n + more
			}
			if n >= until {
				return
			}
		}
	}
	kills := soak.Times(40)
	for range kills {
		wait("short", 5) // places come free even if all were those of killed processes
		dying := running[0]
		running = running[1:]
		_ = dying.Process.Kill()
		_ = dying.Wait()
		for i := range callers {
			if err := truth.SRem(t.Context(), "live", fmt.Sprint(dying.name, ".", i)).Err(); err != nil {
				t.Fatal(err)
			}
		}
		start()
	}
	wait("long", 4)
	for _, p := range running {
		_ = p.in.Close()
		if err := p.Wait(); err != nil {
			t.Errorf("a process ended with %v", err)
		}
	}
	most, err := truth.Get(t.Context(), "most").Int64()
	if err != nil || most != mostAtOnce {
		t.Errorf("at most %d calls were served at once, %v; want %d", most, err, mostAtOnce)
	}
	t.Logf("%d kills: at most %d calls at once", kills, most)
}
