package simulate

import (
	"bytes"
	"context"
	"errors"
	"io"

	"github.com/sluicelimits/sluice/internal/dev/accesslog"
)

// The first skipped lines are shown in the report, cut to a length that fits a message.
const (
	oddLinesKept = 10
	oddLineBytes = 200
)

// lines reads the usable lines of one log, and counts the skipped ones.
type lines struct {
	name   string
	file   int
	from   *TenantFrom
	reader *accesslog.Reader
	closer io.Closer
	parser accesslog.Parser
	line   accesslog.Line
	plain  []byte // memory for texts whose escapes are replaced

	read    int64
	skipped map[accesslog.Reason]int64
	odd     []OddLine
	failure error // why the log could not be read to its end
}

// openLines begins to read a log. A log that cannot be read at all, such as one with a broken gzip header, has no lines
// and a failure.
func openLines(ctx context.Context, log *Log, file int, from *TenantFrom, onRead func(int)) (*lines, error) {
	in, err := log.open(ctx)
	if err != nil {
		return nil, err
	}
	if onRead != nil {
		in = &counted{in, onRead}
	}
	l := &lines{name: log.Name, file: file, from: from, closer: in, skipped: make(map[accesslog.Reason]int64)}
	l.reader, l.failure = accesslog.NewReader(log.Name, in)
	return l, nil
}

// close ends the reading. The counts stay.
func (l *lines) close() {
	if l.closer != nil {
		_ = l.closer.Close() // the log was only read
		l.closer, l.reader = nil, nil
	}
}

// next reads the next usable line into r, whose texts are valid until the next call. If the rest of the log cannot be
// read, next ends there and keeps the failure for the report: the lines before it are replayed.
func (l *lines) next(r *record) error {
	for {
		if l.reader == nil {
			return io.EOF
		}
		raw, err := l.reader.Next()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				l.failure = err
			}
			return io.EOF
		}
		l.read++
		why := accesslog.TooLong
		if !raw.TooLong {
			why = l.parser.Parse(raw.Text, &l.line)
		}
		if why != accesslog.OK {
			l.skip(raw, why)
			continue
		}
		l.fill(r, raw.Number)
		return nil
	}
}

func (l *lines) fill(r *record, number int64) {
	in := &l.line
	l.plain = l.plain[:0]
	*r = record{
		time: in.Time, line: number, file: l.file,
		host: in.Host, user: l.unescaped(in.User), method: in.Method, path: l.unescaped(in.Path),
	}
	if l.from.reads() {
		r.tenant = l.from.find(in, r, l.unescaped)
	}
}

// unescaped returns the text as it was before the server escaped it.
func (l *lines) unescaped(text []byte) []byte {
	if bytes.IndexByte(text, '\\') < 0 {
		return text
	}
	from := len(l.plain)
	l.plain = accesslog.Unescape(l.plain, text)
	return l.plain[from:len(l.plain):len(l.plain)]
}

func (l *lines) skip(raw accesslog.Raw, why accesslog.Reason) {
	l.skipped[why]++
	if len(l.odd) < oddLinesKept {
		text := raw.Text[:min(len(raw.Text), oddLineBytes)]
		l.odd = append(l.odd, OddLine{Log: l.name, Line: raw.Number, Reason: why.String(), Text: string(text)})
	}
}
