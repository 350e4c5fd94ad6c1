package simulate

import (
	"errors"
	"fmt"
	"os"
)

// scratch is a folder for temporary files. It is made when the first file is needed. If the system allows it, the name
// of a file is removed as soon as the file is open: then even a process that is killed leaves no data behind.
type scratch struct {
	parent string // "" is the system's directory for temporary files
	dir    string
	files  []*os.File
}

func (s *scratch) file() (*os.File, error) {
	if s.dir == "" {
		dir, err := os.MkdirTemp(s.parent, "sluice-simulate-*")
		if err != nil {
			return nil, fmt.Errorf("make a directory for temporary files: %w", err)
		}
		s.dir = dir
	}
	f, err := os.CreateTemp(s.dir, "*.tmp")
	if err != nil {
		return nil, fmt.Errorf("make a temporary file: %w", err)
	}
	_ = os.Remove(f.Name()) // if this fails, close removes the file with the folder
	s.files = append(s.files, f)
	return f, nil
}

// close removes everything.
func (s *scratch) close() error {
	if s.dir == "" {
		return nil
	}
	var errs []error
	for _, f := range s.files {
		errs = append(errs, f.Close())
	}
	if err := errors.Join(append(errs, os.RemoveAll(s.dir))...); err != nil {
		return fmt.Errorf("remove temporary files: %w", err)
	}
	return nil
}
