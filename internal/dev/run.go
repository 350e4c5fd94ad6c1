package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/planfile"
	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/dev/devcells"
	"github.com/sluicelimits/sluice/internal/gateway"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
	"github.com/sluicelimits/sluice/internal/limiter/store/router"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/shares"
	"github.com/sluicelimits/sluice/internal/server"
	"github.com/sluicelimits/sluice/internal/stores"
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
	Cells     string      // cells that share the limits, their number or names; "": AloneCell has all limits
	Peppers   map[string][]byte
	NewKeys   string // id of the pepper of new keys
	Tokens    gateway.Tokens

	Listen      string             // address of the first cell
	Upstreams   []gateway.Upstream // none: the echo
	TrustedHops int
	Audience    gateway.Audience
	Admin       bool // operators' calls are answered

	Stores stores.Options // of AloneCell

	Out io.Writer // gets what is printed at the start
	Log *slog.Logger
}

// Check checks the options without opening anything. Its errors are about the command line. Call it before [Run].
func (o *Options) Check() error {
	if err := server.CheckAddress("--listen", o.Listen, server.EveryAddress); err != nil {
		return err
	}
	if err := o.Tokens.Check(); err != nil {
		return err
	}
	if _, err := o.parseCells(); err != nil {
		return err
	}
	return o.Stores.Check()
}

// parseCells parses --cells, and returns the names of the cells: none if --cells is not given.
func (o *Options) parseCells() ([]string, error) {
	text := o.Cells
	switch {
	case text == "":
		return nil, nil
	case o.Stores.Redis != "" || o.Stores.DynamoDB != "":
		return nil, errors.New("--cells cannot be combined with --redis or --dynamodb: each cell counts in memory, " +
			"behind a gateway of its own")
	}
	var names []string
	if n, err := strconv.Atoi(text); err == nil {
		if n < 1 || n > shares.MaxCells {
			return nil, fmt.Errorf("--cells %d is outside 1..%d", n, shares.MaxCells)
		}
		for i := range n {
			names = append(names, fmt.Sprintf("cell-%d", i+1))
		}
		return names, nil
	}
	for name := range strings.SplitSeq(text, ",") {
		if events.CheckKey(events.Cells, name) != nil || shares.Reserved(name) || slices.Contains(names, name) ||
			len(names) == shares.MaxCells {
			return nil, fmt.Errorf("--cells %.80q: want a number, or at most %d different names, each of 1 to 64 "+
				"characters A-Z a-z 0-9 . _ -", text, shares.MaxCells)
		}
		names = append(names, name)
	}
	return names, nil
}

// Run serves until the context ends and the requests in flight are done.
func Run(ctx context.Context, o Options) error {
	pageOff := o.Audience == gateway.Off
	if pageOff { // operators' calls from this machine are still answered
		o.Audience = gateway.Loopback
	}
	names, err := o.parseCells()
	if err != nil {
		return err
	}
	f := &process{Options: o, names: names, pageOff: pageOff, log: o.Log,
		homes: map[string]*memory.Store{}, away: map[string]*router.Store{},
		cells: map[string]*servedCell{}, failed: make(chan error, 1)}
	if o.Tokens.Issuers != "" {
		tokens, err := o.Tokens.Open(o.Log)
		if err != nil {
			return err
		}
		defer tokens.Close()
		f.tokens = tokens
	}
	listener, err := f.open() // before anything else begins, which would log that it is interrupted
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }() // for a start that fails; a second close does nothing
	counters, err := o.Stores.Open(ctx, o.Log)
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

// several reports whether Options.Cells names any, so that cells share the limits.
func (f *process) several() bool { return len(f.names) > 0 }

// open listens at the address of --listen.
func (f *process) open() (net.Listener, error) {
	return server.ListenTCP("--listen", f.Listen)
}

// serve serves until the context ends and the requests in flight are done.
func (f *process) serveGateway(
	ctx context.Context, listener net.Listener, handler http.Handler, log *slog.Logger,
) error {
	serving := gateway.NewServer(handler, log)
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
		if _, err := f.plane.Join(ctx, f.names); err != nil {
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
func (f *process) run(ctx context.Context, counters *stores.Counters) error {
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
func (f *process) begin(ctx context.Context, counters *stores.Counters) error {
	if f.several() {
		names, err := f.plane.Join(ctx, f.names)
		if err == nil {
			if !slices.Equal(names, slices.Sorted(slices.Values(f.names))) {
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
	go f.plans.Watch(ctx, configfile.Hangups(ctx))
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
