package stand

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// folder returns the folder in which localstack/up keeps the process ids and the files of the LocalStack on this port.
func (s *Stand) folder() (string, error) {
	u, err := url.Parse(s.endpoint)
	if err != nil {
		return "", err
	}
	home := os.Getenv("SLUICE_LOCALSTACK_HOME")
	if home == "" {
		if home, err = os.UserCacheDir(); err != nil {
			return "", err
		}
		home = filepath.Join(home, "sluice", "localstack")
	}
	return filepath.Join(home, "run-"+u.Port()), nil
}

// Ours reports whether localstack/up started this LocalStack on this machine. If it did, the LocalStack can be
// restarted, and its functions and its Redis are processes that can be killed.
func (s *Stand) Ours() bool {
	folder, err := s.folder()
	if err != nil {
		return false
	}
	_, err = os.Stat(filepath.Join(folder, "localstack.pid"))
	return err == nil
}

// Up runs localstack/up for this LocalStack, which starts what has ended, or everything with --fresh. The error
// contains what it printed.
func (s *Stand) Up(ctx context.Context, args ...string) error {
	u, err := url.Parse(s.endpoint)
	if err != nil {
		return err
	}
	_, redis, err := net.SplitHostPort(s.o.Redis)
	if err != nil {
		return err
	}
	c := exec.CommandContext(ctx, filepath.Join(s.o.Root, "localstack", "up"), args...) //nolint:gosec // its own
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "SLUICE_LOCALSTACK=") && !strings.HasPrefix(v, "SLUICE_LOCALSTACK_REDIS=") {
			c.Env = append(c.Env, v)
		}
	}
	c.Env = append(c.Env, "SLUICE_LOCALSTACK_PORT="+u.Port(), "SLUICE_LOCALSTACK_REDIS_PORT="+redis)
	var said bytes.Buffer
	c.Stderr = &said
	if err := c.Run(); err != nil {
		return fmt.Errorf("localstack/up: %w: %s", err, said.String())
	}
	s.logf("%s", strings.TrimSpace(said.String()))
	return nil
}

// Logs returns what all environments of a function have written, including those that have ended. It works only if Ours
// returns true.
func (s *Stand) Logs(function string) (string, error) {
	folder, err := s.folder()
	if err != nil {
		return "", err
	}
	files, err := filepath.Glob(filepath.Join(folder, "lambda", function+"-*", "output.log"))
	if err != nil {
		return "", err
	}
	if len(files) == 0 {
		return "", errors.New("there is no log of " + function)
	}
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		all.Write(text)
	}
	return all.String(), nil
}

// Answers returns an error unless LocalStack answers a call.
func (s *Stand) Answers(ctx context.Context) error { return s.readAccount(ctx) }
