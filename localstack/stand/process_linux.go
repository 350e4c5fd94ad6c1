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

// Processes are those of a function's environments, where LocalStack runs them as processes of this machine: that of
// localstack/up does.
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

// Kill kills all processes of a function, in the middle of whatever they do. It returns how many there were, when
// LocalStack has noticed: until then it may still give one a call.
func (s *Stand) Kill(ctx context.Context, function string) (int, error) {
	pids, err := s.Processes(function)
	if err != nil {
		return 0, err
	}
	for i, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return i, fmt.Errorf("kill the %s of process %d: %w", function, pid, err)
		}
	}
	return len(pids), Until(ctx, answersIn, time.Millisecond, func(context.Context) error {
		for _, pid := range pids {
			// until its parent, LocalStack, has been told
			if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
				return fmt.Errorf("the %s of process %d is still there", function, pid)
			}
		}
		return nil
	})
}

// KillRedis kills the Redis, and returns when it has gone. localstack/up starts another one.
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
	// The id is that of another process where the Redis is in a container.
	command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if _, port, _ := strings.Cut(s.o.Redis, ":"); err != nil || !bytes.Contains(command, []byte("\x00"+port+"\x00")) {
		return fmt.Errorf("process %d is not the Redis at %s: %.100q: %w", pid, s.o.Redis, command, err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill the Redis of process %d: %w", pid, err)
	}
	return Until(ctx, answersIn, answersIn/100, func(ctx context.Context) error {
		if client.Ping(ctx).Err() == nil {
			return fmt.Errorf("the Redis at %s still answers", s.o.Redis)
		}
		return nil
	})
}
