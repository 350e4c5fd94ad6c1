package simulate

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/sluicelimits/sluice/internal/dev/accesslog"
)

// The first skipped lines are shown in the report, cut to a length that fits a message.
const (
	oddLinesKept = 10
	oddLineBytes = 200
)

// Log is one access log to replay.
type Log struct {
	Name string // for messages and the report

	// Open begins to read the log as it is stored. A gzip log is recognised by its first bytes.
	Open func() (io.ReadCloser, error)
}

// FileLog returns the log in a file, or on standard input if name is "-".
func FileLog(name string) Log {
	if name == "-" {
		open := func() (io.ReadCloser, error) { return io.NopCloser(os.Stdin), nil }
		return Log{Name: "standard input", Open: open}
	}
	return Log{Name: name, Open: func() (io.ReadCloser, error) {
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

// lines reads the usable lines of one log, and counts the skipped ones.
type lines struct {
	name   string
	file   int
	from   *TenantFrom
	reader *accesslog.Reader // nil at the end of the log
	closer io.Closer
	parser accesslog.Parser
	line   accesslog.Line
	buf    []byte // memory for the texts of a record
	held   int    // bytes of the records that are held back

	read    int64
	skipped map[accesslog.Reason]int64
	odd     []OddLine
	failure error // why the log could not be read to its end
}

// openLines begins to read a log. A log that cannot be read at all, such as one with a broken gzip header, has no lines
// and a failure.
func openLines(log *Log, file int, from *TenantFrom) (*lines, error) {
	in, err := log.Open()
	if err != nil {
		return nil, err
	}
	l := &lines{name: log.Name, file: file, from: from, closer: in, skipped: make(map[accesslog.Reason]int64)}
	l.reader, l.failure = accesslog.NewReader(log.Name, in)
	return l, nil
}

// next reads the next usable line into r. If the rest of the log cannot be read, next ends there and keeps the failure
// for the report: the lines before it are replayed.
func (l *lines) next(r *record) error {
	for l.reader != nil {
		raw, err := l.reader.Next()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				l.failure = err
			}
			l.reader = nil
			break
		}
		l.read++
		why := accesslog.TooLong
		if !raw.TooLong {
			why = l.parser.Parse(raw.Text, &l.line)
		}
		if why == accesslog.OK {
			l.fill(r, raw.Number)
			return nil
		}
		l.skip(raw, why)
	}
	return io.EOF
}

// fill copies what a replay needs of the line, without the escapes of the server, into one string.
func (l *lines) fill(r *record, number int64) {
	in := &l.line
	host := len(in.Host)
	user := accesslog.Unescape(append(l.buf[:0], in.Host...), in.User)
	method := append(user, in.Method...)
	path := accesslog.Unescape(method, in.Path)
	l.buf = l.from.appendTenant(path, in, user[host:], path[len(method):])
	text := string(l.buf)
	*r = record{
		time: in.Time, line: number, file: l.file,
		host: text[:host], user: text[host:len(user)], method: text[len(user):len(method)],
		path: text[len(method):len(path)], tenant: text[len(path):],
	}
}

func (l *lines) skip(raw accesslog.Raw, why accesslog.Reason) {
	l.skipped[why]++
	if len(l.odd) < oddLinesKept {
		text := raw.Text[:min(len(raw.Text), oddLineBytes)]
		l.odd = append(l.odd, OddLine{Log: l.name, Line: raw.Number, Reason: why.String(), Text: string(text)})
	}
}
