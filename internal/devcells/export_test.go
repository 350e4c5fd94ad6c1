package devcells

import "github.com/sluicelimits/sluice/internal/cellconfig"

// Store is the cell's table, for tests that write past the control plane.
func (c *Cell) Store() cellconfig.Store { return c.store }
