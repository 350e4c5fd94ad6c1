package fleet

import (
	"fmt"

	"github.com/sluicelimits/sluice/streams/acknowledge"
	"github.com/sluicelimits/sluice/streams/applier"
)

// cell holds the processes that share a store. Without a control plane, all processes are in one cell.
type cell struct {
	number int // from 1
	live   []*process
	shards []*shard
	lost   bool

	allowed, denied int64 // of the measured time

	// Only with a control plane: the cell's table of configuration, the applier that fills it, and the acknowledger
	// that tells the balancer when new shares are in it.
	table        *configTable
	applier      *applier.Applier
	acknowledger *acknowledge.Acknowledger
}

func (c *cell) name() string { return fmt.Sprintf("cell-%d", c.number) }

// cellName returns the name of a cell for the store chain, or "" if there is no control plane.
func (r *run) cellName(c *cell) string {
	if r.plane == nil {
		return ""
	}
	return c.name()
}

// addCell adds a cell, with its nodes of the store and without processes. With a control plane, its configuration is
// copied to it first.
func (r *run) addCell() (*cell, error) {
	c := &cell{number: len(r.cells) + 1}
	for range r.scenario.Shards {
		sh, err := newShard(c, r.scenario.Store)
		if err != nil {
			return nil, err
		}
		c.shards = append(c.shards, sh)
	}
	if r.plane != nil {
		if err := r.plane.open(c); err != nil {
			return nil, fmt.Errorf("%s: %w", c.name(), err)
		}
	}
	r.cells = append(r.cells, c)
	r.shards = append(r.shards, c.shards...)
	return c, nil
}

// cellOf returns the cell of a process: with several cells, the first Instances processes are those of the first cell,
// and so on.
func (r *run) cellOf(number int) *cell {
	if r.plane == nil {
		return r.cells[0]
	}
	return r.cells[number/r.scenario.Instances]
}

// startInstances starts all processes of a cell.
func (r *run) startInstances(c *cell) error {
	for i := range r.scenario.Instances {
		if err := r.startProcess((c.number-1)*r.scenario.Instances + i); err != nil {
			return err
		}
	}
	return nil
}

// cellFor returns the cell to which a request of a tenant comes. The random bits u choose among the tenant's cells.
func (r *run) cellFor(tenant int, u uint64) *cell {
	if r.plane == nil {
		return r.cells[0]
	}
	cells := r.tenants[tenant].cells
	return cells[uint64(uint32(u))*uint64(len(cells))>>32]
}

func (c *cell) shardOf(owner string) *shard { return c.shards[hashName(owner)%uint64(len(c.shards))] }

// loseCell ends a cell with all its processes and its store.
func (r *run) loseCell(c *cell) {
	c.lost = true
	for len(c.live) > 0 {
		r.die(c.live[0].number)
	}
	for i := range r.scenario.Instances { // processes that are not in live, as they have not read their configuration
		if p := r.processes[(c.number-1)*r.scenario.Instances+i]; p != nil {
			r.die(p.number)
		}
	}
	for _, s := range c.shards {
		s.away = true
	}
}

// leaveCell moves the requests that come to a lost cell: to the other cells that serve the tenant, or, if there are
// none, to the next cell.
func (r *run) leaveCell(lost *cell) {
	for i := range r.tenants {
		t := &r.tenants[i]
		var left []*cell
		for _, c := range t.cells {
			if c != lost {
				left = append(left, c)
			}
		}
		if len(left) == 0 {
			left = []*cell{r.nextCell(lost)}
		}
		t.cells = left
	}
}

// nextCell returns the first cell after the given one that is not lost. After the last cell comes the first.
func (r *run) nextCell(after *cell) *cell {
	for i := range r.cells {
		if c := r.cells[(after.number+i)%len(r.cells)]; !c.lost {
			return c
		}
	}
	return after
}

// enterCell lets the requests of tenants that every cell serves come to a cell too.
func (r *run) enterCell(c *cell) {
	for i := range r.tenants {
		if t := &r.tenants[i]; t.pin == nil {
			t.cells = append(t.cells[:len(t.cells):len(t.cells)], c)
		}
	}
}
