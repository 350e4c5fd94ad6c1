package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/cell/planfile"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/dev/devcells"
	"github.com/sluicelimits/sluice/internal/dev/gateway"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/metrics"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/limiter/store/router"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/server"
)

const (
	// AdminPath is the path of the operators' API in a gateway's URL.
	AdminPath = "/_sluice/admin"

	// DefaultEndpoint is the operators' API of a process that listens at the default address.
	DefaultEndpoint = "http://127.0.0.1:8080" + AdminPath

	// AloneCell is the name of the only cell if Options.Cells is empty.
	AloneCell = "local"
)

const (
	grace    = 15 * time.Second // how long requests in flight may take after a signal has asked the process to stop
	maxShown = 100              // most changes that the refusal of a start lists
)

// Options say what [Run] runs.
type Options struct {
	Plans     []string    // plans files, which are watched; none: Example, unless the data folder has plans
	Example   plan.Source // the plans that are used if there are no others
	Data      string      // folder of the control tables and the audit trail; "": nothing is kept
	Confirmed bool        // plans files may replace at the start what others wrote to Data
	Cells     []string    // cells that share the limits; none: one cell, AloneCell, has all limits
	Peppers   map[string][]byte
	NewKeys   string            // id of the pepper of new keys
	Tokens    authorizer.Tokens // nil: no JWT is accepted

	Listen       string // address of the first cell
	Upstream     *url.URL
	Methods      []string // methods that are served; none: every method
	TrustedHops  int
	Jitter       int           // percent that are added at random to Retry-After, at most
	MaxBodyBytes int64         // below 0: no bound
	BodyTimeout  time.Duration // below 0: no bound
	Audience     gateway.Audience
	Admin        bool // operators' calls are answered

	StoreBytes int64                                    // most memory of the counters of each cell in Cells
	Counters   func(context.Context) (*Counters, error) // opens the stores of AloneCell
	Hangups    func(context.Context) <-chan os.Signal   // receives a signal when the plans are to be read again

	Out io.Writer // gets what is printed at the start
	Log *slog.Logger
}

// Counters are the stores of a gateway.
type Counters struct {
	Tenants, Addresses limit.Store
	Base               limit.Store         // the counters behind Tenants, without lease layer and fallback limiter
	Chain              *resilience.Chain   // nil if all counters are in memory
	Calls              *metrics.StoreCalls // calls of the chain
	Names              authorizer.Sources  // of addresses
	Bytes              func() int64        // memory that counters take
	Close              func()              // gives leased units back, and closes the connections
}

// Run serves until the context ends and the requests in flight are done.
func Run(ctx context.Context, o Options) error {
	pageOff := o.Audience == gateway.Off
	if pageOff { // operators' calls from this machine are still answered
		o.Audience = gateway.Loopback
	}
	f := &process{Options: o, pageOff: pageOff, log: o.Log, homes: map[string]*memory.Store{},
		away: map[string]*router.Store{}, cells: map[string]*servedCell{}, failed: make(chan error, 1)}
	listener, err := f.open() // before anything else begins, which would log that it is interrupted
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }() // for a start that fails; a second close does nothing
	counters, err := o.Counters(ctx)
	if err != nil {
		return err
	}
	f.operators = newOperators(o.Admin, o.Log)
	defer f.operators.forgetAll()
	f.first, f.addressNames = listener, counters.Names
	if err := f.openPlane(ctx, counters.Tenants); err != nil {
		counters.Close()
		return err
	}
	err = f.run(ctx, counters)
	return errors.Join(err, f.plane.Close())
}

// several reports whether Options.Cells has any, so that cells share the limits.
func (f *process) several() bool { return len(f.Cells) > 0 }

// open listens at the address of --listen.
func (f *process) open() (net.Listener, error) {
	return server.ListenTCP("--listen", f.Listen)
}

// serve serves until the context ends and the requests in flight are done.
func (f *process) serveGateway(
	ctx context.Context, listener net.Listener, handler http.Handler, log *slog.Logger,
) error {
	serving := gateway.NewServer(handler, f.BodyTimeout, log)
	failed := make(chan error, 1)
	go func() { failed <- serving.Serve(listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve %s: %w", listener.Addr(), err)
	case <-ctx.Done():
		return stop(serving, log)
	}
}

// openPlane opens the control plane and applies the plans files to it.
func (f *process) openPlane(ctx context.Context, store limit.Store) error {
	var err error
	f.plane, err = devcells.Open(devcells.Config{Folder: f.Data, Peppers: f.Peppers, NewKeys: f.NewKeys,
		Several: f.several(), Store: store, Reaches: f.reaches, Log: f.log, Now: f.clock.Now})
	if errors.Is(err, devcells.ErrInUse) {
		return fmt.Errorf("--data %s: another sluice dev uses it: %w", f.Data, err)
	}
	if err != nil {
		return err
	}
	if err = f.openPlans(ctx, store); err != nil {
		return errors.Join(err, f.plane.Close())
	}
	return nil
}

// openPlans reads the plans files. If there are none, it reads the example plans, unless the data folder has plans.
func (f *process) openPlans(ctx context.Context, store limit.Store) error {
	if f.several() { // the cells must exist first, since the files may pin tenants to them
		if _, err := f.plane.Join(ctx, f.Cells); err != nil {
			return err
		}
	}
	if len(f.Plans) == 0 {
		kept, _, err := f.plane.Tables().List(ctx, control.Plans, "", 1)
		if err != nil || len(kept) > 0 {
			return err
		}
	}
	name := f.namesOfFiles()
	confirmed := f.Confirmed // after the start, changes of the files need no confirmation
	var err error
	f.plans, err = planfile.Open(planfile.Config{Files: f.Plans, Source: f.Example, Peppers: f.Peppers,
		Store: store, Log: f.log, Now: f.clock.Now,
		Apply: func(sources []plan.Source) error {
			ctx := context.WithoutCancel(ctx)
			if !confirmed {
				if err := f.confirmPlans(ctx, name, sources); err != nil {
					return err
				}
				confirmed = true
			}
			_, err := f.plane.ApplyFiles(ctx, name, sources)
			return err
		}})
	return err
}

// namesOfFiles returns names for the audit trail, which tell files of different folders apart.
func (f *process) namesOfFiles() string {
	if len(f.Plans) == 0 {
		return f.Example.Name
	}
	var all []string
	for _, file := range f.Plans {
		if path, err := filepath.Abs(file); err == nil { // fails if the working folder no longer exists
			file = path
		}
		all = append(all, file)
	}
	return strings.Join(all, ", ")
}

// confirmPlans refuses plans files that would displace what others wrote to the data folder.
func (f *process) confirmPlans(ctx context.Context, name string, sources []plan.Source) error {
	lines, err := f.plane.Displaced(ctx, name, sources)
	if err != nil || len(lines) == 0 {
		return err
	}
	refused := operate.Refuse(operate.Confirm, "--data %s: operators or other plans files wrote what this start would "+
		"remove, weaken or replace. Nothing was written. Name another folder with --data, leave out --plans to run "+
		"what is kept, or confirm with --yes", f.Data)
	if refused.Problems = lines; len(lines) > maxShown {
		refused.Problems = append(lines[:maxShown:maxShown], fmt.Sprintf("and %d more", len(lines)-maxShown))
	}
	return refused
}

// run serves the cells until the context ends and the requests in flight are done.
func (f *process) run(ctx context.Context, counters *Counters) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if err := f.begin(ctx, counters); err != nil {
		stop()
		f.serving.Wait()
		return err
	}
	background := sync.WaitGroup{}
	defer background.Wait()
	defer stop()
	if f.several() {
		background.Go(func() { f.plane.Balance(ctx, func(names []string) { f.follow(ctx, names) }) })
	}
	if f.plans != nil {
		f.watch(ctx)
	}
	f.greet(f.Out)
	select {
	case <-ctx.Done():
	case err := <-f.failed:
		stop()
		f.serving.Wait()
		return err
	}
	f.serving.Wait()
	select {
	case err := <-f.failed:
		return err
	default:
		return nil
	}
}

// begin starts the cells.
func (f *process) begin(ctx context.Context, counters *Counters) error {
	if f.several() {
		names, err := f.plane.Join(ctx, f.Cells)
		if err == nil {
			if !slices.Equal(names, slices.Sorted(slices.Values(f.Cells))) {
				f.log.Warn("the cells of the data folder run, not the cells of --cells", "cells",
					strings.Join(names, " "))
			}
			err = f.plane.Divide(ctx)
		}
		for _, name := range names {
			if err == nil {
				err = f.startCell(ctx, name)
			}
		}
		return err
	}
	if err := f.warnOfCells(ctx); err != nil {
		counters.Close()
		return err
	}
	c, err := f.add(ctx, AloneCell, counters, f.first)
	if err != nil {
		counters.Close()
		return err
	}
	f.serve(ctx, c)
	return nil
}

// watch reloads the plans when they change or on SIGHUP, in a goroutine that ends with the context.
func (f *process) watch(ctx context.Context) {
	go f.plans.Watch(ctx, f.Hangups(ctx))
}

// stop waits until the requests in flight are done, for at most grace. A second signal ends the wait.
func stop(serving *http.Server, log *slog.Logger) error {
	again := make(chan os.Signal, 1)
	signal.Notify(again, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(again)
	log.Info("stopping: no new connections, requests in flight may finish", "grace", grace)
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- serving.Shutdown(ctx) }()
	select {
	case err := <-done:
		if err != nil {
			_ = serving.Close() // the error below matters more
			return fmt.Errorf("requests were still in flight after %s and were cut off", grace)
		}
		return nil
	case <-again:
		_ = serving.Close() // the error below matters more
		return errors.New("stopped at once by a second signal; requests in flight were cut off")
	}
}
