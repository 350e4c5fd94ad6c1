package simulate

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/sluicelimits/sluice/internal/dev/accesslog"
)

// Log is one access log to replay.
type Log struct {
	Name string // for messages and the report

	// Open begins to read the log, as it is: gzip is told by its first bytes.
	Open func() (io.ReadCloser, error)

	// Once says that Open can be called only once (a pipe). What is read is kept in a temporary file, for the case that
	// the lines are so far out of order that they have to be read again.
	Once bool
}

// FileLog is the log in a file, or on standard input for "-".
func FileLog(name string) Log {
	if name == "-" {
		open := func() (io.ReadCloser, error) { return io.NopCloser(os.Stdin), nil }
		return Log{Name: "standard input", Once: true, Open: open}
	}
	info, err := os.Stat(name)
	once := err == nil && !info.Mode().IsRegular() // a pipe; an error is Open's to report
	return Log{Name: name, Once: once, Open: func() (io.ReadCloser, error) {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("read the log: %w", err)
		}
		if info, err := f.Stat(); err == nil && info.IsDir() {
			_ = f.Close() // nothing was read
			return nil, fmt.Errorf("read the log: %s is a directory", name)
		}
		return f, nil
	}}
}

// spooled is a Log that can be opened again.
type spooled struct {
	Log
	scratch *scratch
	copy    *os.File // what has been read, where the log can be read only once
	first   io.ReadCloser
}

// open reads the log from its beginning.
func (s *spooled) open(ctx context.Context) (io.ReadCloser, error) {
	if !s.Once {
		return s.Open()
	}
	if s.copy == nil {
		in, err := s.Open()
		if err != nil {
			return nil, err
		}
		if s.copy, err = s.scratch.file(); err != nil {
			return nil, err
		}
		s.first = &interruptible{ctx: ctx, in: in}
		return &tee{s}, nil
	}
	if _, err := s.copy.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("read the copy of %s: %w", s.Name, err)
	}
	// What was read once, and then the rest of the pipe. Nobody will ask a third time.
	return readCloser{io.MultiReader(s.copy, s.first), s.first}, nil
}

type readCloser struct {
	io.Reader
	io.Closer
}

// tee copies what is read. Closing leaves the log open: it may be read on after the copy.
type tee struct{ s *spooled }

// Read is that of io.Reader.
func (t *tee) Read(p []byte) (int, error) {
	n, err := t.s.first.Read(p)
	if n > 0 {
		if _, werr := t.s.copy.Write(p[:n]); werr != nil {
			return 0, fmt.Errorf("keep a copy of %s in %s: %w", t.s.Name, t.s.scratch.dir, werr)
		}
	}
	return n, err
}

// Close is that of io.Closer.
func (t *tee) Close() error { return nil }

// interruptible makes reading from a pipe or a terminal end with the context. The read that is under way then is left
// behind: nothing can end it but the other side.
type interruptible struct {
	ctx  context.Context
	in   io.ReadCloser
	buf  []byte // read and not yet handed out
	err  error
	asks chan struct{}
	gets chan chunk
}

type chunk struct {
	data []byte
	err  error
}

// Read is that of io.Reader.
func (r *interruptible) Read(p []byte) (int, error) {
	if r.asks == nil {
		r.asks, r.gets = make(chan struct{}), make(chan chunk, 1)
		go r.pump()
	}
	if len(r.buf) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		select {
		case r.asks <- struct{}{}:
		case <-r.ctx.Done():
			return 0, context.Cause(r.ctx)
		}
		select {
		case c := <-r.gets:
			r.buf, r.err = c.data, c.err
		case <-r.ctx.Done():
			r.err = context.Cause(r.ctx)
		}
		if len(r.buf) == 0 {
			return 0, r.err
		}
	}
	n := copy(p, r.buf)
	r.buf = r.buf[n:]
	return n, nil
}

// pump reads when it is asked, until the log ends or the context does.
func (r *interruptible) pump() {
	buf := make([]byte, accesslog.MaxLineBytes)
	for {
		select {
		case <-r.asks:
		case <-r.ctx.Done():
			return
		}
		n, err := r.in.Read(buf)
		r.gets <- chunk{buf[:n], err} // never blocks: it is asked for one at a time
		if err != nil {
			return
		}
	}
}

// Close is that of io.Closer.
func (r *interruptible) Close() error { return r.in.Close() }

// counted reports how much is read.
type counted struct {
	io.ReadCloser
	onRead func(n int)
}

// Read is that of io.Reader.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.onRead(n)
	return n, err
}
