package stand

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// Processes returns the ids of the processes of a function's environments. It finds them only if LocalStack runs them
// on this machine, as that of localstack/up does.
func (s *Stand) Processes(function string) ([]int, error) {
	all, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return nil, err
	}
	var found []int
	for _, file := range all {
		environ, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended, or is another user's
		}
		variables := bytes.Split(environ, []byte{0})
		has := func(want string) bool {
			for _, v := range variables {
				if string(v) == want {
					return true
				}
			}
			return false
		}
		if has("AWS_LAMBDA_FUNCTION_NAME="+function) && has("AWS_ENDPOINT_URL="+s.endpoint) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			if err != nil {
				return nil, err
			}
			found = append(found, pid)
		}
	}
	return found, nil
}

// Kill kills all processes of a function, even during a call, and returns how many there were. It waits until
// LocalStack has noticed, because until then LocalStack may still send a call to one of them.
func (s *Stand) Kill(ctx context.Context, function string) (int, error) {
	pids, err := s.Processes(function)
	if err != nil {
		return 0, err
	}
	for i, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return i, fmt.Errorf("kill process %d of %s: %w", pid, function, err)
		}
	}
	return len(pids), Until(ctx, answersIn, time.Millisecond, func(context.Context) error {
		for _, pid := range pids {
			// The process stays in /proc until its parent, LocalStack, has read its exit status.
			if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
				return fmt.Errorf("process %d of %s still exists", pid, function)
			}
		}
		return nil
	})
}

// KillRedis kills the Redis, and waits until it does not answer any more. localstack/up starts another one.
func (s *Stand) KillRedis(ctx context.Context) error {
	client := redis.NewClient(&redis.Options{Addr: s.o.Redis, MaxRetries: -1})
	defer func() { _ = client.Close() }()
	info, err := client.InfoMap(ctx, "server").Result()
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(info["Server"]["process_id"])
	if err != nil {
		return fmt.Errorf("the Redis at %s says that it is process %q", s.o.Redis, info["Server"]["process_id"])
	}
	// If the Redis runs in a container, the id is that of another process on this machine.
	command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if _, port, _ := strings.Cut(s.o.Redis, ":"); err != nil || !bytes.Contains(command, []byte("\x00"+port+"\x00")) {
		return fmt.Errorf("process %d is not the Redis at %s: %.100q: %w", pid, s.o.Redis, command, err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill the Redis with process id %d: %w", pid, err)
	}
	return Until(ctx, answersIn, answersIn/100, func(ctx context.Context) error {
		if client.Ping(ctx).Err() == nil {
			return fmt.Errorf("the Redis at %s still answers", s.o.Redis)
		}
		return nil
	})
}
