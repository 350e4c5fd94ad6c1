package simulate

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

const (
	sortBytes  = 64 << 20 // packed records sorted in memory at a time
	mergeWidth = 64       // runs of one size that are merged into one, which bounds the open files
	runBuffer  = 64 << 10
)

// sorter orders any number of records in bounded memory: sorted runs go to temporary files and are merged. Equal times
// keep the order in which they were added.
type sorter struct {
	scratch  *scratch
	maxBytes int

	data  []byte
	marks []mark
	runs  []sortedFile // each holds only records added before those of the next one
}

// sortedFile is a run: sorted records in a temporary file. Its level says how often its records have been merged.
type sortedFile struct {
	file  *os.File
	level int
}

func (s *sorter) add(r *record) error {
	if len(s.data) >= s.maxBytes {
		if err := s.spill(); err != nil {
			return err
		}
	}
	s.marks = append(s.marks, mark{r.time, len(s.data)})
	s.data = r.pack(s.data)
	return nil
}

// spill writes what is in memory as a run.
func (s *sorter) spill() error {
	sortMarks(s.marks)
	f, err := s.write(&memoryRun{s.data, s.marks})
	if err != nil {
		return err
	}
	s.data, s.marks = s.data[:0], s.marks[:0]
	s.runs = append(s.runs, sortedFile{f, 0})
	return s.compact()
}

// compact merges the last runs while there are mergeWidth of one level.
func (s *sorter) compact() error {
	for {
		last := len(s.runs) - 1
		first := last
		for first >= 0 && s.runs[first].level == s.runs[last].level {
			first--
		}
		first++
		if last-first+1 < mergeWidth {
			return nil
		}
		m, err := s.merge(s.runs[first:])
		if err != nil {
			return err
		}
		f, err := s.write(m)
		if err != nil {
			return err
		}
		level := s.runs[last].level + 1
		for _, r := range s.runs[first:] {
			s.scratch.drop(r.file)
		}
		s.runs = append(s.runs[:first], sortedFile{f, level})
	}
}

func (s *sorter) merge(runs []sortedFile) (*merged, error) {
	streams := make([]stream, 0, len(runs)+1)
	for _, r := range runs {
		if _, err := r.file.Seek(0, io.SeekStart); err != nil {
			return nil, fmt.Errorf("read a temporary file: %w", err)
		}
		streams = append(streams, &fileRun{in: bufio.NewReaderSize(r.file, runBuffer)})
	}
	if len(s.marks) > 0 {
		streams = append(streams, &memoryRun{s.data, s.marks})
	}
	return newMerged(streams)
}

// write puts a stream into a temporary file.
func (s *sorter) write(from stream) (*os.File, error) {
	f, err := s.scratch.file()
	if err != nil {
		return nil, err
	}
	out := bufio.NewWriterSize(f, runBuffer)
	var r record
	var packed []byte
	for {
		err := from.next(&r)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		packed = r.pack(packed[:0])
		if _, err := out.Write(packed); err != nil {
			return nil, fmt.Errorf("write a temporary file in %s: %w", s.scratch.dir, err)
		}
	}
	if err := out.Flush(); err != nil {
		return nil, fmt.Errorf("write a temporary file in %s: %w", s.scratch.dir, err)
	}
	return f, nil
}

// sorted is all that was added, in order. Nothing may be added after it.
func (s *sorter) sorted() (stream, error) {
	sortMarks(s.marks)
	return s.merge(s.runs)
}

// sortAll reads count logs, one after the other, and returns their lines in order.
func sortAll(ctx context.Context, open func(context.Context, int) (*lines, error), count int, s *sorter) (stream, error) {
	var r record
	n := 0
	for i := range count {
		log, err := open(ctx, i)
		if err != nil {
			return nil, err
		}
		for err = log.next(&r); !errors.Is(err, io.EOF); err = log.next(&r) {
			if err != nil {
				return nil, err
			}
			if n++; n%checkEvery == 0 && ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if err := s.add(&r); err != nil {
				return nil, err
			}
		}
		log.close()
	}
	return s.sorted()
}

// memoryRun is sorted records in memory.
type memoryRun struct {
	data  []byte
	marks []mark
}

func (m *memoryRun) next(r *record) error {
	if len(m.marks) == 0 {
		return io.EOF
	}
	r.unpack(m.data[m.marks[0].at:])
	m.marks = m.marks[1:]
	return nil
}

// fileRun is sorted records in a file.
type fileRun struct {
	in   *bufio.Reader
	text []byte
}

func (f *fileRun) next(r *record) error {
	header, err := f.in.Peek(headerBytes)
	if err != nil {
		if errors.Is(err, io.EOF) && len(header) == 0 {
			return io.EOF
		}
		return fmt.Errorf("read a temporary file: %w", errors.Join(io.ErrUnexpectedEOF, err))
	}
	n := packedLength(header)
	if cap(f.text) < n {
		f.text = make([]byte, 2*n)
	}
	f.text = f.text[:n]
	if _, err := io.ReadFull(f.in, f.text); err != nil {
		return fmt.Errorf("read a temporary file: %w", err)
	}
	r.unpack(f.text)
	return nil
}
