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

	// Once says that Open can be called only once (a pipe). Its lines are sorted, in temporary files if they do not fit
	// in memory: it could not be read again if they were too far out of order for a window.
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

// open begins to read the log. Reading what can be opened only once ends with the context.
func (l *Log) open(ctx context.Context) (io.ReadCloser, error) {
	in, err := l.Open()
	if err != nil || !l.Once {
		return in, err
	}
	return &interruptible{ctx: ctx, in: in}, nil
}

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
