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
	// packed records sorted in memory at a time: 1,000 open files hold 16 GiB, some 200 million lines
	sortBytes = 16 << 20
	runBuffer = 64 << 10 // of each run while the runs are merged: 4 MiB of memory for 1 GiB of records
)

// sorter sorts any number of records. It writes sorted runs to temporary files, which it then merges. Records with
// equal times keep the order in which they were added.
type sorter struct {
	scratch  *scratch
	maxBytes int

	data  []byte
	marks []mark
	runs  []*os.File // files of sorted records; the records of a run were all added before those of the next one
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

// spill writes the records in memory as a run.
func (s *sorter) spill() error {
	sortMarks(s.marks)
	f, err := s.scratch.file()
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(f, runBuffer)
	for _, m := range s.marks {
		packed := s.data[m.at:]
		if _, err = out.Write(packed[:packedLength(packed)]); err != nil {
			break
		}
	}
	if err = errors.Join(err, out.Flush()); err != nil {
		return fmt.Errorf("write a temporary file in %s: %w", s.scratch.dir, err)
	}
	s.data, s.marks, s.runs = s.data[:0], s.marks[:0], append(s.runs, f)
	return nil
}

// sorted returns all records that were added, in order. No record may be added after it.
func (s *sorter) sorted() (stream, error) {
	sortMarks(s.marks)
	streams := make([]stream, 0, len(s.runs)+1)
	for _, f := range s.runs {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return nil, fmt.Errorf("read a temporary file: %w", err)
		}
		streams = append(streams, &fileRun{in: bufio.NewReaderSize(f, runBuffer)})
	}
	return newMerged(append(streams, &memoryRun{s.data, s.marks}))
}

// sortAll reads count logs, one after the other, and returns their records in order.
func sortAll(
	ctx context.Context, open func(context.Context, int) (*lines, error), count int, s *sorter,
) (stream, error) {
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

// memoryRun holds sorted records in memory.
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

// fileRun holds sorted records in a file.
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
