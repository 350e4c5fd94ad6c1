package simulate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/sluicelimits/sluice/internal/dev/accesslog"
)

// Log is one access log to replay.
type Log struct {
	Name string // for messages and the report

	// Open begins to read the log as it is stored. A gzip log is recognised by its first bytes.
	Open func() (io.ReadCloser, error)

	// Once says that the log is a pipe or a terminal: a read may block for ever, and has to end with the context.
	Once bool
}

// FileLog returns the log in a file, or on standard input if name is "-".
func FileLog(name string) Log {
	if name == "-" {
		open := func() (io.ReadCloser, error) { return io.NopCloser(os.Stdin), nil }
		return Log{Name: "standard input", Once: true, Open: open}
	}
	info, err := os.Stat(name)
	once := err == nil && !info.Mode().IsRegular() // a pipe; an error is reported by Open
	return Log{Name: name, Once: once, Open: func() (io.ReadCloser, error) {
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read the log: %w: correct the name", err)
		}
		if err != nil {
			return nil, fmt.Errorf("read the log: %w", err)
		}
		if info, err := f.Stat(); err == nil && info.IsDir() {
			_ = f.Close() // nothing was read
			return nil, fmt.Errorf("read the log: %s is a directory: give the names of its files", name)
		}
		return f, nil
	}}
}

// open begins to read the log. If the log is a pipe or a terminal, reading ends with the context.
func (l *Log) open(ctx context.Context) (io.ReadCloser, error) {
	in, err := l.Open()
	if err != nil || !l.Once {
		return in, err
	}
	return &interruptible{ctx: ctx, in: in}, nil
}

// interruptible makes reading from a pipe or a terminal end with the context. A read that is under way then goes on in
// the background: only the other side of the pipe can end it.
type interruptible struct {
	ctx  context.Context
	in   io.ReadCloser
	buf  []byte // read from the log and not yet returned
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

// pump reads a chunk whenever it gets a request, until the log or the context ends.
func (r *interruptible) pump() {
	buf := make([]byte, accesslog.MaxLineBytes)
	for {
		select {
		case <-r.asks:
		case <-r.ctx.Done():
			return
		}
		n, err := r.in.Read(buf)
		r.gets <- chunk{buf[:n], err} // never blocks: chunks are requested one at a time
		if err != nil {
			return
		}
	}
}

// Close is that of io.Closer.
func (r *interruptible) Close() error { return r.in.Close() }

// counted reports how many bytes are read.
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
