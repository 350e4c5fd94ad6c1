package stand

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// Processes are those of a function's environments, where LocalStack runs them as processes of this machine: that of localstack/up does.
func (s *Stand) Processes(function string) ([]int, error) {
	all, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return nil, err
	}
	var found []int
	for _, file := range all {
		environ, err := os.ReadFile(file) //nolint:gosec // of a process
		if err != nil {
			continue // it has ended, or is another user's
		}
		variables := bytes.Split(environ, []byte{0})
		is := func(want string) bool {
			for _, v := range variables {
				if string(v) == want {
					return true
				}
			}
			return false
		}
		if is("AWS_LAMBDA_FUNCTION_NAME="+function) && is("AWS_ENDPOINT_URL="+s.endpoint) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			if err != nil {
				return nil, err
			}
			found = append(found, pid)
		}
	}
	return found, nil
}

// Kill kills all processes of a function, in the middle of whatever they do. It returns how many there were.
func (s *Stand) Kill(function string) (int, error) {
	pids, err := s.Processes(function)
	if err != nil {
		return 0, err
	}
	for i, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return i, fmt.Errorf("kill the %s of process %d: %w", function, pid, err)
		}
	}
	return len(pids), nil
}
