package devcells

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/config"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/plan/shares"
)

// lookEvery is how often the balancer runs if nothing signals a change.
const lookEvery = time.Second

// grace returns the balancer's settings for cells in one process. Such cells share one clock, and lease no units of
// divided limits. Therefore the balancer only has to wait as long as a reader may decide by an old copy.
func grace() shares.Settings {
	return shares.Settings{Copy: config.Fresh, Lease: time.Millisecond, Decision: time.Second,
		Skew: time.Millisecond}
}

// wakeBalancer makes the balancer run at once.
func (p *Plane) wakeBalancer() {
	select {
	case p.cellsChanged <- struct{}{}:
	default:
	}
}

// Join asks the balancer to let the named cells serve, unless the tables already have cells. It returns the names of
// the cells that should run.
func (p *Plane) Join(ctx context.Context, names []string) ([]string, error) {
	running, err := p.wanted(ctx)
	if err != nil || len(running) > 0 {
		return running, err
	}
	service := p.service(nil)
	for _, name := range names {
		if _, err := service.AddCell(ctx, FileActor, &operate.AddCellRequest{Cell: name,
			Reason: "cells of sluice dev"}); err != nil {
			return nil, fmt.Errorf("cell %s: %w", name, err)
		}
	}
	return slices.Sorted(slices.Values(names)), nil
}

// Divide runs the balancer once. Call it after Join and before any AddCell: a cell that does not know any shares grants
// all limits whole.
func (p *Plane) Divide(ctx context.Context) error {
	_, err := p.balancer.Run(ctx)
	return err
}

// wanted returns the cells that should run: all that were not removed.
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

// Shares returns the cells and the progress of the balancer.
func (p *Plane) Shares(ctx context.Context) (*operate.CellsResponse, error) {
	service := p.service(nil)
	return service.Cells(ctx, FileActor, &operate.CellsRequest{})
}

// Balance changes the shares as operators ask, until ctx ends. It calls each with the names of the cells that should
// run whenever they may have changed.
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
			p.c.Log.Warn("the shares of the cells cannot be changed; the balancer tries again", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-p.cellsChanged:
		case <-time.After(wait):
		}
	}
}
