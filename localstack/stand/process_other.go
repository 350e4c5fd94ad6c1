//go:build !linux

package stand

import (
	"context"
	"errors"
)

var errProcesses = errors.New("the processes of functions are found on Linux alone")

// Processes is an error: see that of Linux.
func (s *Stand) Processes(string) ([]int, error) { return nil, errProcesses }

// Kill is an error: see that of Linux.
func (s *Stand) Kill(context.Context, string) (int, error) { return 0, errProcesses }

// KillRedis is an error: see that of Linux.
func (s *Stand) KillRedis(context.Context) error { return errProcesses }
