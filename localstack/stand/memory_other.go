//go:build !linux

package stand

// Memory is an error: see that of Linux.
func (s *Stand) Memory() (float64, error) { return 0, errProcesses }
