package accesslog

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
)

// MaxLineBytes is the length of the longest line that is read, with its line end. A longer line is skipped,
// and is never in memory as a whole.
const MaxLineBytes = 64 << 10

// shownBytes is how much of a line that is too long is still reported.
const shownBytes = 256

// Raw is one line of a log, unchanged.
type Raw struct {
	Text    []byte // without line end; valid until the next call. If the line is too long, only its beginning
	Number  int64  // from 1
	TooLong bool
}

// Reader reads the lines of a log, plain or gzip (it looks at the first bytes), with any line end, and with or without
// a byte order mark. It takes about 64 KiB of memory, whatever the log contains.
type Reader struct {
	name   string
	lines  *bufio.Reader
	number int64
	prefix []byte
}

// NewReader begins to read the log called name. It returns an error if the first read fails, or if a gzip header is
// broken.
func NewReader(name string, r io.Reader) (*Reader, error) {
	lines := bufio.NewReaderSize(r, MaxLineBytes)
	magic, err := lines.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if len(magic) == 2 && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(lines)
		if err != nil {
			return nil, fmt.Errorf("read %s: begins like gzip, but its header is broken: %w", name, err)
		}
		lines = bufio.NewReaderSize(z, MaxLineBytes)
	}
	if mark, _ := lines.Peek(3); string(mark) == "\xef\xbb\xbf" {
		_, _ = lines.Discard(len(mark)) // cannot fail, as Peek has returned these bytes
	}
	return &Reader{name: name, lines: lines}, nil
}

// Next returns the next line, or io.EOF after the last one. Any other error names the log and the line that could not
// be read; a line that such an error cuts short is not returned.
func (r *Reader) Next() (Raw, error) {
	text, err := r.lines.ReadSlice('\n')
	if err == nil {
		r.number++
		return Raw{Text: trimEnd(text), Number: r.number}, nil
	}
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return r.skipRest(text)
	case errors.Is(err, io.EOF) && len(text) > 0:
		r.number++
		return Raw{Text: trimEnd(text), Number: r.number}, nil
	}
	return Raw{}, r.explain(err)
}

// skipRest skips the rest of a line that is too long.
func (r *Reader) skipRest(text []byte) (Raw, error) {
	r.prefix = append(r.prefix[:0], text[:shownBytes]...)
	for {
		switch _, err := r.lines.ReadSlice('\n'); {
		case errors.Is(err, bufio.ErrBufferFull):
		case err == nil || errors.Is(err, io.EOF):
			r.number++
			return Raw{Text: r.prefix, Number: r.number, TooLong: true}, nil
		default:
			return Raw{}, r.explain(err)
		}
	}
}

func (r *Reader) explain(err error) error {
	switch {
	case errors.Is(err, io.EOF):
		return io.EOF
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("read %s, line %d: the compressed data ends early: %w", r.name, r.number+1, err)
	case errors.Is(err, gzip.ErrHeader), errors.Is(err, gzip.ErrChecksum):
		return fmt.Errorf("read %s, line %d: the compressed data is damaged: %w", r.name, r.number+1, err)
	default:
		return fmt.Errorf("read %s, line %d: %w", r.name, r.number+1, err)
	}
}

func trimEnd(text []byte) []byte { return bytes.TrimRight(text, "\r\n") }
