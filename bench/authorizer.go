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

// warmFunctions builds the authorizer, and the same function with a limiter that admits everything.
func (d *deployment) warmFunctions() (both [2]*function, err error) {
	if both[0], err = d.function("authorizer", ".", "./functions/authorizer"); err == nil {
		both[0].env = d.with("SLUICE_REDIS_DEADLINE", busyDeadline)
		both[1], err = d.function("allowing", "bench", "./allowing")
	}
	return both, err
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
	functions, err := d.warmFunctions()
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
	for i, f := range functions {
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
	if err := d.wantSpentUnits("wide", warmTenants, int64(pair[0].calls)); err != nil {
		return r, err
	}
	r.Value = median(times[0]) / median(times[1])
	r.note("%.0f µs against %.0f µs: medians of %d calls each, in turn; one at a time, JWTs already seen, "+
		"%d tenants with %d limits", median(times[0]), median(times[1]), rounds*warmBlock, warmTenants, functionLimits)
	return r, nil
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
