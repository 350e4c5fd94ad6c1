package shared

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
)

// instanceVar says in the environment that a process is an instance.
const instanceVar = "SLUICE_BENCH_INSTANCE"

// Main makes the process an instance if [Run] started it as one, and does not return then. Every program that calls Run
// calls Main first of all, for the instances are the same program again.
func Main() {
	if os.Getenv(instanceVar) == "" {
		return
	}
	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "instance: %v\n", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// order is the first message to an instance: what it shall do.
type order struct {
	Scenario Scenario
	Limiter  Limiter
	Redis    string // address
	Instance int
	Seed     uint64
	Length   time.Duration // of the load
}

// readiness is what an instance answers when it is connected.
type readiness struct {
	Offset time.Duration // by how much the server's clock is ahead of its own
	Round  time.Duration // the round trip in which that was measured
}

// report is what an instance answers in the end.
type report struct {
	Events []Event
	Late   []time.Duration // how late each request was asked
	Memory int64
	Errors []string // of requests that were not decided, some
	Lost   int64
}

// storeDeadline is far longer than a deployed store waits: here what is slow is to be seen as slow.
const storeDeadline = 2 * time.Second

// serve is an instance's life. Its parent's end is its own.
func serve(in io.Reader, out io.Writer) error {
	from, to := gob.NewDecoder(in), gob.NewEncoder(out)
	var o order
	if err := from.Decode(&o); err != nil {
		return fmt.Errorf("read the order: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	client := goredis.NewClient(redis.Options(redis.Config{Addrs: []string{o.Redis}, Deadline: storeDeadline}))
	defer func() { _ = client.Close() }()
	ready, err := compareClocks(ctx, client)
	if err != nil {
		return err
	}
	var mine []Arrival
	for a := range o.Scenario.Arrivals(o.Seed, o.Length) {
		if a.Instance == o.Instance {
			mine = append(mine, a)
		}
	}
	requests, err := o.Scenario.requests()
	if err != nil {
		return err
	}
	l := &load{arrivals: mine, requests: requests}
	l.report.Events, l.report.Late = make([]Event, len(mine)), make([]time.Duration, len(mine))
	before := heap()
	store, done, err := o.Limiter.open(ctx, o.Redis, o.Scenario.Instances)
	if err != nil {
		return err
	}
	l.store = store
	if err := to.Encode(ready); err != nil {
		return err
	}
	var start time.Time
	if err := from.Decode(&start); err != nil {
		return fmt.Errorf("read the start: %w", err)
	}
	go func() { // nothing more comes but the end
		_, _ = io.Copy(io.Discard, in)
		os.Exit(1)
	}()
	l.run(ctx, start)
	l.report.Memory = heap() - before
	runtime.KeepAlive(l)
	if err := done(ctx); err != nil {
		return fmt.Errorf("close the limiter: %w", err)
	}
	return to.Encode(&l.report)
}

// heap is how many bytes are in use, after garbage is collected.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// compareClocks measures by how much the server's clock differs, in the shortest of some round trips.
func compareClocks(ctx context.Context, client *goredis.Client) (readiness, error) {
	best := readiness{Round: time.Hour}
	for range 50 {
		sent := time.Now()
		server, err := client.Time(ctx).Result()
		if err != nil {
			return best, fmt.Errorf("read the server's clock: %w", err)
		}
		if round := time.Since(sent); round < best.Round {
			best = readiness{Offset: server.Sub(sent.Add(round / 2)), Round: round}
		}
	}
	return best, nil
}

// load is one instance's requests.
type load struct {
	store    limit.Store
	arrivals []Arrival
	requests []limit.Request

	mu     sync.Mutex
	report report
}

// asking is what one request needs, used again by later ones.
type asking struct {
	req limit.Request
	d   limit.Decision
}

var askings = sync.Pool{New: func() any { return new(asking) }}

// run asks each request at its time, however long those before it take.
func (l *load) run(ctx context.Context, start time.Time) {
	var all sync.WaitGroup
	for i := range l.arrivals {
		due := start.Add(l.arrivals[i].At)
		if wait := time.Until(due); wait > 0 {
			time.Sleep(wait)
		}
		l.report.Late[i] = time.Since(due)
		all.Go(func() { l.decide(ctx, i) })
	}
	all.Wait()
}

// decide makes decision i and records it. The time that the decision names is recorded only if it is between the times
// before and after the call; the server has the same clock.
func (l *load) decide(ctx context.Context, i int) {
	q := askings.Get().(*asking)
	defer askings.Put(q)
	q.req = l.requests[l.arrivals[i].Tenant]
	before := time.Now()
	err := l.store.Decide(ctx, &q.req, before, &q.d)
	took := time.Since(before)
	if err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.report.Lost++; len(l.report.Errors) < 3 {
			l.report.Errors = append(l.report.Errors, err.Error())
		}
		return
	}
	at := min(max(q.d.Now, before.UnixMicro()), before.Add(took).UnixMicro())
	l.report.Events[i] = Event{At: at, Took: took, Tenant: int32(l.arrivals[i].Tenant), Units: 1, Allowed: q.d.Allowed}
}

// instance is a process that runs serve.
type instance struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	to  *gob.Encoder
	out *gob.Decoder
}

func start(o *order) (*instance, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program) //nolint:gosec // this program itself
	cmd.Env = append(slices.Clone(os.Environ()), instanceVar+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &instance{cmd: cmd, in: in, to: gob.NewEncoder(in), out: gob.NewDecoder(out)}
	if err := p.to.Encode(o); err != nil {
		return nil, errors.Join(fmt.Errorf("instance %d: %w", o.Instance, err), p.stop())
	}
	return p, nil
}

// stop ends the process, unless it has ended.
func (p *instance) stop() error {
	_ = p.in.Close()
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("instance: %w", err)
	}
	return nil
}
