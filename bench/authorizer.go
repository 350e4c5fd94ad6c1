package bench

import (
	"archive/zip"
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/internal/testkit/lambdahost"
	"github.com/sluicelimits/sluice/internal/testkit/tokentest"
)

// busyDeadline is the time limit of Redis's answers in figures for which a slow answer, on a busy machine, is no
// failure of Redis.
const busyDeadline = "2s"

// coldStart starts the function, calls it once, and ends it. It returns the time from the execution of its binary to
// its first poll, in ms.
func (f *function) coldStart(event []byte, check func(answer []byte) error) (float64, error) {
	h, err := f.start()
	if err != nil {
		return 0, err
	}
	defer func() { _ = stop(h) }()
	answer, err := h.Invoke(context.Background(), event)
	if err == nil {
		err = check(answer)
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", f.name, err)
	}
	environments := h.Stats().Environments
	if len(environments) != 1 || environments[0].Init <= 0 {
		return 0, fmt.Errorf("%s: environments %+v, want one that has polled", f.name, environments)
	}
	return environments[0].Init.Seconds() * 1e3, nil
}

// coldStartFigure measures the time from the execution of the authorizer's binary to its first poll of the Runtime API,
// as a multiple of that time of an empty function. The functions are started in turn.
func coldStartFigure(short bool) (r Result, err error) {
	d, err := deploy(tokentest.NewRSA("one"), 1, 0)
	if err != nil {
		return r, err
	}
	defer d.close()
	if err := d.withDynamoDB(); err != nil {
		return r, err
	}
	event, err := d.call("wide-0")
	if err != nil {
		return r, err
	}
	ours, err := d.function("authorizer", ".", "./functions/authorizer")
	if err != nil {
		return r, err
	}
	empty, err := d.function("empty", "bench", "./emptyfunction")
	if err != nil {
		return r, err
	}
	ours.env = d.with("SLUICE_REDIS_DEADLINE", busyDeadline)
	both := []struct {
		f     *function
		check func(answer []byte) error
	}{
		{ours, func(answer []byte) error { return admitted(answer, "wide-0") }},
		{empty, func(answer []byte) error {
			if string(answer) != "null" {
				return fmt.Errorf("answers %s, want null", answer)
			}
			return nil
		}},
	}
	rounds := 31
	if short {
		rounds = 3
	}
	var times [2][]float64
	for round := range rounds + 1 {
		for turn := range both {
			i := (round + turn) % len(both)
			took, err := both[i].f.coldStart(event, both[i].check)
			if err != nil {
				return r, err
			}
			if round > 0 { // the first does not count, because the files were read from the disk
				times[i] = append(times[i], took)
			}
		}
	}
	r.Value = median(times[0]) / median(times[1])
	r.note("with Redis, issuers, a secret and a plans file %.1f ms, at best %.1f; an empty function of aws-lambda-go "+
		"%.1f ms, at best %.1f; medians of %d starts each, in turn", median(times[0]), slices.Min(times[0]),
		median(times[1]), slices.Min(times[1]), rounds)
	return r, nil
}

const (
	warmTenants = 20 // tenants whose requests one environment serves
	warmBlock   = 50 // calls of one function before it is the other one's turn
)

// caller calls a function, one call after the other.
type caller struct {
	*lambdahost.Host
	events [][]byte // of different tenants, which are sent in turn
	calls  int
}

// block makes n calls, and returns how long each took, in µs.
func (c *caller) block(n int) (took []float64, err error) {
	for range n {
		tenant := c.calls % len(c.events)
		began := time.Now()
		answer, err := c.Invoke(context.Background(), c.events[tenant])
		took = append(took, time.Since(began).Seconds()*1e6)
		if err == nil {
			err = admitted(answer, fmt.Sprintf("wide-%d", tenant))
		}
		if err != nil {
			return nil, err
		}
		c.calls++
	}
	return took, nil
}

// narrowAdmitted returns how many of twice as many requests as the limit allows the function admits.
func (c *caller) narrowAdmitted(event []byte) (n int, err error) {
	for range 2 * narrowUnits {
		answer, err := c.Invoke(context.Background(), event)
		if err != nil {
			return 0, err
		}
		o, err := read(answer, "narrow-0")
		if err != nil {
			return 0, err
		}
		if o.allowed() {
			n++
		}
	}
	return n, nil
}

// warmFigure measures the time of a call through the Runtime API, by leases, as a multiple of that of the same function
// with a limiter that admits everything.
func warmFigure(short bool) (r Result, err error) {
	rounds := 61
	if short {
		rounds = 5
	}
	d, err := deploy(tokentest.NewRSA("one"), warmTenants, 1)
	if err != nil {
		return r, err
	}
	defer d.close()
	limiting, err := d.function("authorizer", ".", "./functions/authorizer")
	if err != nil {
		return r, err
	}
	limiting.env = d.with("SLUICE_REDIS_DEADLINE", busyDeadline)
	allowing, err := d.function("allowing", "bench", "./allowing")
	if err != nil {
		return r, err
	}
	events, err := d.calls("wide", warmTenants)
	if err != nil {
		return r, err
	}
	narrow, err := d.call("narrow-0")
	if err != nil {
		return r, err
	}
	var pair [2]*caller
	for i, f := range []*function{limiting, allowing} {
		h, err := f.start()
		if err != nil {
			return r, err
		}
		defer func() { _ = stop(h) }()
		pair[i] = &caller{Host: h, events: events}
		n, err := pair[i].narrowAdmitted(narrow)
		if want := narrowUnits * (i + 1); err == nil && n != want {
			err = fmt.Errorf("%d of %d above a limit of %d admitted, want %d", n, 2*narrowUnits, narrowUnits, want)
		}
		if err == nil {
			_, err = pair[i].block(4 * warmTenants) // verifies each JWT, and gets leases
		}
		if err != nil {
			return r, fmt.Errorf("%s: %w", f.name, err)
		}
	}
	var times [2][]float64
	for round := range rounds {
		for turn := range pair {
			i := (round + turn) % 2
			took, err := pair[i].block(warmBlock)
			if err != nil {
				return r, err
			}
			times[i] = append(times[i], took...)
		}
	}
	if err := errors.Join(stop(pair[0].Host), stop(pair[1].Host)); err != nil { // gives back all leases
		return r, err
	}
	if spent, err := d.countSpentUnits("wide", warmTenants); err != nil || spent != int64(pair[0].calls) {
		return r, fmt.Errorf("redis has counted %d units of %d calls that were admitted, error %w", spent,
			pair[0].calls, err)
	}
	r.Value = median(times[0]) / median(times[1])
	r.note("%.0f µs against %.0f µs: medians of %d calls each, in turn; one at a time, JWTs already seen, "+
		"%d tenants with %d limits", median(times[0]), median(times[1]), rounds*warmBlock, warmTenants, functionLimits)
	return r, nil
}

// jwtLoad makes calls of one tenant with a JWT. All of them are admitted.
type jwtLoad struct {
	d     *deployment
	f     *inProcess
	event []byte
	calls int
}

func newJWTLoad() (*jwtLoad, error) {
	d, err := deploy(tokentest.NewRSA("one"), 1, 1)
	if err != nil {
		return nil, err
	}
	l := &jwtLoad{d: d}
	if l.event, err = d.call("wide-0"); err == nil {
		l.f, err = d.here("SLUICE_REDIS_DEADLINE", busyDeadline)
	}
	if err == nil {
		_, err = l.run(2000) // verifies the JWT, and gets leases
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *jwtLoad) close() {
	if l.f != nil {
		_ = l.f.close()
	}
	l.d.close()
}

// run makes n calls, and returns the processor time of a call in µs. It is the time of this process, which contains the
// function and its client of Redis, but not the server.
func (l *jwtLoad) run(n int) (float64, error) {
	var answer []byte
	began := processorTime()
	for range n {
		var err error
		if answer, err = l.f.Invoke(context.Background(), l.event); err != nil {
			return 0, err
		}
	}
	took := processorTime() - began
	l.calls += n
	return took.Seconds() * 1e6 / float64(n), admitted(answer, "wide-0")
}

// verify checks that each call was admitted and counted, and that the limiter denies calls above a limit.
func (l *jwtLoad) verify() error {
	narrow, err := l.d.call("narrow-0")
	if err != nil {
		return err
	}
	const beyond = 3
	for range narrowUnits + beyond {
		if _, err := l.f.Invoke(context.Background(), narrow); err != nil {
			return err
		}
	}
	if err := l.f.close(); err != nil {
		return err
	}
	told, err := l.f.metrics.since(0)
	if err != nil {
		return err
	}
	spent, err := l.d.countSpentUnits("wide", 1)
	switch {
	case err != nil:
		return err
	case told.Decisions != int64(l.calls+narrowUnits+beyond) || told.Denied != beyond || told.Backstop != 0:
		return fmt.Errorf("%d decisions, %d denied, %d by the backstop; want %d, %d, 0",
			told.Decisions, told.Denied, told.Backstop, l.calls+narrowUnits+beyond, beyond)
	case spent != int64(l.calls):
		return fmt.Errorf("redis has counted %d units of %d calls", spent, l.calls)
	}
	return nil
}

// jwtFigure measures the processor time of a whole call with a JWT that was verified before. The least of some runs is
// the figure.
func jwtFigure(short bool) (r Result, err error) {
	l, err := newJWTLoad()
	if err != nil {
		return r, err
	}
	defer l.close()
	runs, each := 101, 5_000 // of many short runs, some are not disturbed by other programs
	if short {
		runs = 5
	}
	var times []float64
	for range runs {
		runtime.GC()
		took, err := l.run(each)
		if err != nil {
			return r, err
		}
		times = append(times, took)
	}
	r.Value = slices.Min(times)
	r.note("event of %d bytes to answer, JWT by RS256 seen before, 3 limits by leases of Redis: the least of %d runs "+
		"of %d calls, processor time; median %.1f µs", len(l.event), runs, each, median(times))
	return r, l.verify()
}

// zipFigure measures the size of the authorizer's bundle for arm64, as `make lambdas` builds it.
func zipFigure(bool) (r Result, err error) {
	cmd := exec.Command(filepath.Join(tree(), "scripts", "lambdas"), "authorizer") //nolint:gosec // its own
	cmd.Env = append(os.Environ(), "PLANS=", "ISSUERS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return r, fmt.Errorf("scripts/lambdas authorizer: %w\n%s", err, out)
	}
	bundle, err := os.ReadFile(filepath.Join(tree(), "dist", "lambdas", "authorizer.zip"))
	if err != nil {
		return r, err
	}
	files, err := zip.NewReader(bytes.NewReader(bundle), int64(len(bundle)))
	if err != nil {
		return r, err
	}
	in, err := files.Open("bootstrap")
	if err != nil {
		return r, err
	}
	defer func() { _ = in.Close() }()
	program, err := io.ReadAll(in)
	if err != nil {
		return r, err
	}
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return r, err
	}
	if f.Machine != elf.EM_AARCH64 || len(files.File) != 1 {
		return r, fmt.Errorf("the bundle has %d files, and bootstrap is for %s; want one file for arm64",
			len(files.File), f.Machine)
	}
	const megabyte = 1e6
	r.Value = float64(len(bundle)) / megabyte
	r.note("%d bytes, of an executable of %.1f MB for arm64", len(bundle), float64(len(program))/megabyte)
	return r, nil
}
