//go:build !linux

package stand

import (
	"context"
	"errors"
)

var errProcesses = errors.New("the processes of functions can be found on Linux only")

// Processes returns an error, because only Linux is supported.
func (s *Stand) Processes(string) ([]int, error) { return nil, errProcesses }

// Kill returns an error, because only Linux is supported.
func (s *Stand) Kill(context.Context, string) (int, error) { return 0, errProcesses }

// KillRedis returns an error, because only Linux is supported.
func (s *Stand) KillRedis(context.Context) error { return errProcesses }
