package standin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"time"

	"github.com/sluicelimits/sluice/pacer"
	"github.com/sluicelimits/sluice/redisstore"
)

// Options describe a run. All windows are seconds.
type Options struct {
	Redis     string // address
	Key       string // of the shared limit; another one for each run on a Redis
	Limit     int64  // per second
	Processes int
	Guard     pacer.Guard
	Windows   int           // that are counted, after the first ones, in which the ledger begins
	Kill      int           // processes that are killed while they hold units, in different windows
	Halve     bool          // halve the limit in the middle, with a notice of three windows
	Restart   func() error  // called once the halved limit holds: makes Redis lose its data; nil: nothing is lost
	Ahead     time.Duration // of the provider's clock
	Peer      string        // see [Orders]; the provider then bans nobody. A peer does not learn of Halve

	alone bool // see Orders
}

// Result is the outcome of a run.
type Result struct {
	Banned       bool
	Over         int64   // requests beyond the limit, in all windows together
	Used         float64 // of the limit, %, in the counted windows together
	Least        float64 // the same of the counted window in which it was least
	Late         int64   // permits that came too late to be used, of the processes that were not killed
	Calls        float64 // calls to the ledger per process and second, of the same processes
	FailedCalls  int64   // of these processes
	FinalProcess int     // how many processes there were at the end
}

// begin is the number of windows before those that are counted: the ledger leases nothing in the first three, and the
// shares follow the needs of the one after that.
const begin = 5

// process is a client that runs.
type process struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	stdout bytes.Buffer
}

// Run runs clients against a provider. Each of them is this program again, see [Main].
func Run(ctx context.Context, o Options) (r Result, err error) {
	provider, err := Listen(o.Limit, o.Ahead)
	if err != nil {
		return r, err
	}
	defer provider.Close()
	provider.onlyCounts = o.Peer != ""
	text, err := json.Marshal(Orders{Provider: provider.Addr(), Redis: o.Redis, Key: o.Key, Limit: o.Limit,
		Guard: o.Guard, Waiting: 2000, Alone: o.alone, Peer: o.Peer})
	if err != nil {
		return r, err
	}
	var running []*process
	defer func() {
		for _, p := range running {
			p.kill()
		}
	}()
	for range o.Processes {
		p, err := start(ctx, string(text))
		if err != nil {
			return r, err
		}
		running = append(running, p)
	}
	first := time.Now().Unix() + begin
	last := first + int64(o.Windows) - 1
	wait := func(window int64, into time.Duration) { waitUntil(ctx, time.Unix(window, int64(into))) }
	// Half of the victims die in the first half, and all of them at a time at which they hold units of the next window.
	killed := 0
	kill := func(of int64) {
		for ; killed < o.Kill && int64(killed) < of; killed++ {
			wait(first+int64(o.Windows)*int64(killed+1)/int64(o.Kill+2), 900*time.Millisecond)
			running[0].kill()
			running = running[1:]
		}
	}
	kill(int64(o.Kill+1) / 2)
	if o.Halve {
		middle := first + int64(o.Windows)/2
		wait(middle-3, 0)
		err := halve(ctx, o, middle)
		for ; errors.Is(err, pacer.ErrTooSoon) && middle < last+2; err = halve(ctx, o, middle) {
			middle++ // in a run of few windows a process was killed just before; or the machine is busy
		}
		if err != nil {
			return r, err
		}
		provider.Announce(o.Limit/2, middle)
		if o.Restart != nil {
			wait(middle+1, 500*time.Millisecond)
			if err := o.Restart(); err != nil {
				return r, err
			}
		}
	}
	kill(math.MaxInt64)
	wait(last+1, 0)
	_, r.Banned = provider.Banned()
	r.FinalProcess = len(running)
	for len(running) > 0 {
		var rep Report
		if rep, err = running[0].stop(); err != nil && !r.Banned {
			return r, err
		}
		running = running[1:]
		r.Late += rep.Late
		r.FailedCalls += rep.LedgerErrors
		r.Calls += float64(rep.LedgerCalls)
	}
	r.Calls /= float64(max(r.FinalProcess, 1) * (o.Windows + begin))
	r.countUse(provider, first, last)
	return r, ctx.Err()
}

// waitUntil waits until a time, or until ctx ends.
func waitUntil(ctx context.Context, at time.Time) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Until(at)):
	}
}

// countUse fills in how much of the limit was used in the windows from first to last, by the provider's count.
func (r *Result) countUse(provider *Provider, first, last int64) {
	r.Over = provider.Over()
	var used, usable int64
	r.Least = 100
	for window := first; window <= last; window++ {
		n, limit := provider.Count(window)
		used, usable = used+n, usable+limit
		r.Least = min(r.Least, 100*float64(n)/float64(limit))
	}
	r.Used = 100 * float64(used) / float64(usable)
}

// halve changes the shared limit, as an operator's program would.
func halve(ctx context.Context, o Options, from int64) error {
	store, err := redisstore.New(ctx, redisstore.Config{Addrs: []string{o.Redis}})
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	p, err := pacer.New(pacer.Config{Limit: pacer.PerSecond(o.Limit), Guard: o.Guard,
		Shared: &pacer.Shared{Ledger: store.Ledger(), Key: o.Key}})
	if err != nil {
		return err
	}
	defer p.Close()
	return p.SetSharedLimit(ctx, o.Limit/2, time.Unix(from, 0))
}

func start(ctx context.Context, text string) (*process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.CommandContext(ctx, program)} //nolint:gosec // the test binary itself
	p.cmd.Env = append(os.Environ(), clientVar+"="+text)
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, os.Stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	return p, p.cmd.Start()
}

// kill kills a client with all that it holds.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// stop tells a client to end.
func (p *process) stop() (r Report, err error) {
	_ = p.stdin.Close()
	if err := p.cmd.Wait(); err != nil {
		return r, fmt.Errorf("client: %w", err)
	}
	return r, json.Unmarshal(p.stdout.Bytes(), &r)
}
