package devcells

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/cellconfig"
	"github.com/sluicelimits/sluice/internal/control/admin"
	"github.com/sluicelimits/sluice/internal/plan/shares"
)

// lookEvery is how often the balancer looks without being told to.
const lookEvery = time.Second

// grace is that of cells in one process: their clocks are one, and nothing that is divided is leased from their
// counters. A reader may decide on a copy of this age without looking.
func grace() shares.Settings {
	return shares.Settings{Copy: cellconfig.Fresh, Lease: time.Millisecond, Decision: time.Second,
		Skew: time.Millisecond}
}

// poke has the balancer look.
func (p *Plane) poke() {
	select {
	case p.look <- struct{}{}:
	default:
	}
}

// Join asks the balancer to have the cells serve, unless cells are in the tables from before. It returns the cells that
// are to run.
func (p *Plane) Join(ctx context.Context, names []string) ([]string, error) {
	running, err := p.wanted(ctx)
	if err != nil || len(running) > 0 {
		return running, err
	}
	service, err := p.service(nil)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if _, err := service.AddCell(ctx, FileActor, &admin.AddCellRequest{Cell: name,
			Reason: "cells of sluice dev"}); err != nil {
			return nil, fmt.Errorf("cell %s: %w", name, err)
		}
	}
	return slices.Sorted(slices.Values(names)), nil
}

// Divide has the balancer look once. It comes after Join and before any AddCell: a cell that knows of no shares would
// have all limits alone.
func (p *Plane) Divide(ctx context.Context) error {
	_, err := p.balancer.Run(ctx)
	return err
}

// wanted are the cells that are to run: all but those that were removed.
func (p *Plane) wanted(ctx context.Context) ([]string, error) {
	now, err := p.Shares(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, c := range now.Cells {
		if c.State != "removed" {
			names = append(names, c.Cell)
		}
	}
	return names, nil
}

// Shares are the cells, and where the balancer is.
func (p *Plane) Shares(ctx context.Context) (*admin.CellsResponse, error) {
	service, err := p.service(nil)
	if err != nil {
		return nil, err
	}
	return service.Cells(ctx, FileActor, &admin.CellsRequest{})
}

// Balance changes the shares as operators ask, until ctx ends. each is told which cells are to run, whenever that may
// have changed.
func (p *Plane) Balance(ctx context.Context, each func(names []string)) {
	for {
		wait := lookEvery
		done, err := p.balancer.Run(ctx)
		if err == nil {
			var names []string
			if names, err = p.wanted(ctx); err == nil {
				each(names)
			}
			if !done.Wake.IsZero() {
				wait = min(wait, max(done.Wake.Sub(p.c.Now()), time.Millisecond))
			}
		}
		if err != nil && ctx.Err() == nil {
			p.c.Log.Warn("the shares of the cells cannot be changed; it is tried again", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-p.look:
		case <-time.After(wait):
		}
	}
}
