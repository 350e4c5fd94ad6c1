package simulate

import (
	"errors"
	"fmt"
	"os"
)

// scratch is a directory for temporary files, made when the first is needed. Each file's name is removed as soon as the
// file is open, where the system can do that: then even a process that is killed leaves no data behind.
type scratch struct {
	parent string // "" is the system's directory for temporary files
	dir    string
	files  map[*os.File]struct{}
}

func (s *scratch) file() (*os.File, error) {
	if s.dir == "" {
		dir, err := os.MkdirTemp(s.parent, "sluice-simulate-*")
		if err != nil {
			return nil, fmt.Errorf("make a directory for temporary files: %w", err)
		}
		s.dir, s.files = dir, make(map[*os.File]struct{})
	}
	f, err := os.CreateTemp(s.dir, "*.tmp")
	if err != nil {
		return nil, fmt.Errorf("make a temporary file: %w", err)
	}
	_ = os.Remove(f.Name()) // where it stays, close removes it with the directory
	s.files[f] = struct{}{}
	return f, nil
}

// drop closes a file that is not needed any more.
func (s *scratch) drop(f *os.File) {
	delete(s.files, f)
	_ = f.Close() // its data is of no more use
	_ = os.Remove(f.Name())
}

// close removes everything.
func (s *scratch) close() error {
	if s.dir == "" {
		return nil
	}
	for f := range s.files {
		s.drop(f)
	}
	err := os.RemoveAll(s.dir)
	if err != nil {
		err = fmt.Errorf("remove temporary files: %w", err)
	}
	return errors.Join(err)
}
