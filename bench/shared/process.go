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

// instanceVar is the environment variable that makes a process an instance.
const instanceVar = "SLUICE_BENCH_INSTANCE"

// Main makes the process an instance if [Run] started it as one, and then does not return. Every program that calls Run
// must call Main first, because Run starts the same program for the instances.
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

// order is the first message to an instance. It says what the instance has to do.
type order struct {
	Scenario Scenario
	Limiter  Limiter
	Redis    string // address
	Instance int
	Seed     uint64
	Length   time.Duration // length of the load
}

// readiness is the first message of an instance, which it sends when it is connected to the store.
type readiness struct {
	Offset time.Duration // by how much the server's clock is ahead of the instance's
	Round  time.Duration // the round trip in which Offset was measured
}

// report is the last message of an instance.
type report struct {
	Events []Event
	Late   []time.Duration // how late each request was sent
	Memory int64
	Errors []string // errors of some requests that were not decided
	Lost   int64
}

// storeDeadline is far longer than a deployed store waits, so that a slow call is measured as slow, and not as an
// error.
const storeDeadline = 2 * time.Second

// serve is the main function of an instance. The process ends when its parent ends.
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
	go func() { // the parent sends nothing more, so the end of the input is the end of the parent
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

// heap returns how many bytes of heap and stacks are in use after a garbage collection.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// compareClocks measures by how much the server's clock is ahead of this process's, in the shortest of some round
// trips.
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

// load holds the requests of one instance.
type load struct {
	store    limit.Store
	arrivals []Arrival
	requests []limit.Request

	mu     sync.Mutex
	report report
}

// asking is the memory of one request. Later requests reuse it.
type asking struct {
	req limit.Request
	d   limit.Decision
}

var askings = sync.Pool{New: func() any { return new(asking) }}

// run sends each request at its time, even if earlier ones are still under way.
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

// decide makes decision i and records it. The recorded time is the one that the decision names, bounded by the times
// before and after the call: the server runs on the same machine and has the same clock.
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
		l.report.Lost++
		if len(l.report.Errors) < 3 {
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

// start starts an instance and sends it the order.
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

// stop ends the process and waits for its end.
func (p *instance) stop() error {
	_ = p.in.Close()
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("instance: %w", err)
	}
	return nil
}
