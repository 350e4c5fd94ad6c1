package accesslog_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/sluicelimits/sluice/internal/dev/accesslog"
)

// readAll reads every line. It returns the numbers of the lines that are too long.
func readAll(t *testing.T, in io.Reader) (lines []string, tooLong []int64, err error) {
	t.Helper()
	r, err := accesslog.NewReader("test.log", in)
	if err != nil {
		return nil, nil, err
	}
	for want := int64(1); ; want++ {
		raw, err := r.Next()
		if errors.Is(err, io.EOF) {
			return lines, tooLong, nil
		}
		if err != nil {
			return lines, tooLong, err
		}
		if raw.Number != want {
			t.Fatalf("line number %d, want %d", raw.Number, want)
		}
		if raw.TooLong {
			tooLong = append(tooLong, raw.Number)
		}
		lines = append(lines, string(raw.Text))
	}
}

func zip(t *testing.T, parts ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	for _, part := range parts {
		z := gzip.NewWriter(&b)
		if _, err := z.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

// Guarantees that the same lines are read whatever the form of the log: line ends, a byte order mark, gzip in one or
// more members, reads of one byte. A line that is lost would be missing in the simulation.
func TestReader(t *testing.T) {
	cases := []struct {
		name string
		in   []byte
		want []string
	}{
		{"nothing", nil, nil},
		{"one byte", []byte("a"), []string{"a"}},
		{"no last line end", []byte("a\nb"), []string{"a", "b"}},
		{"CRLF", []byte("a\r\nb\r\n"), []string{"a", "b"}},
		{"blank lines", []byte("\n\na\n"), []string{"", "", "a"}},
		{"byte order mark", []byte("\xef\xbb\xbfa\n\xef\xbb\xbfb\n"), []string{"a", "\xef\xbb\xbfb"}},
		{"gzip", zip(t, "a\nb\n"), []string{"a", "b"}},
		{"gzip in parts", zip(t, "a\nb", "c\n"), []string{"a", "bc"}},
		{"gzip with a byte order mark", zip(t, "\xef\xbb\xbfa\n"), []string{"a"}},
		{"empty gzip", zip(t, ""), nil},
	}
	for _, c := range cases {
		for _, in := range []io.Reader{bytes.NewReader(c.in), iotest.OneByteReader(bytes.NewReader(c.in))} {
			got, tooLong, err := readAll(t, in)
			if err != nil || tooLong != nil || !slices.Equal(got, c.want) {
				t.Errorf("%s: %q gives %q, too long %v, %v; want %q", c.name, c.in, got, tooLong, err, c.want)
			}
		}
	}
}

// Guarantees the bound on memory: a line of any length is skipped, and the lines before and after it are read
// correctly.
func TestReaderLongLines(t *testing.T) {
	fits := strings.Repeat("f", accesslog.MaxLineBytes-1)
	giant := io.MultiReader(strings.NewReader("a\n"+fits+"\n"), io.LimitReader(zeros{}, 200<<20),
		strings.NewReader("\nb\n"))
	got, tooLong, err := readAll(t, giant)
	if err != nil || len(got) != 4 || !slices.Equal(tooLong, []int64{3}) {
		t.Fatalf("%d lines, too long %v, %v; want 4 lines, the third too long", len(got), tooLong, err)
	}
	if got[0] != "a" || got[1] != fits || len(got[2]) > 1024 || got[3] != "b" {
		t.Errorf("lines of %d, %d, %d, %d bytes; the neighbours of a long line are damaged", len(got[0]), len(got[1]),
			len(got[2]), len(got[3]))
	}
	if got, tooLong, err := readAll(t, io.LimitReader(zeros{}, 1<<20)); err != nil || len(got) != 1 ||
		len(tooLong) != 1 {
		t.Errorf("one giant line without end gives %d lines, too long %v, %v; want one, too long", len(got), tooLong,
			err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// Guarantees that damaged data is an error that names the log and the line, and that everything before it is read.
func TestReaderBroken(t *testing.T) {
	var text strings.Builder
	random := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		text.WriteString(strings.Repeat(string(rune('a'+random.IntN(26))), random.IntN(9)) + "\n")
	}
	whole := zip(t, text.String())
	got, _, err := readAll(t, bytes.NewReader(whole[:len(whole)/2]))
	if !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), "test.log, line ") || len(got) < 1000 {
		t.Errorf("half a gzip file gives %d lines and %v; want thousands and where it ends", len(got), err)
	}
	damaged := bytes.Clone(whole)
	damaged[len(damaged)-6] ^= 1
	if _, _, err := readAll(t, bytes.NewReader(damaged)); !errors.Is(err, gzip.ErrChecksum) {
		t.Errorf("a wrong checksum gives %v, want gzip.ErrChecksum", err)
	}
	if _, _, err := readAll(t, strings.NewReader("\x1f\x8brubbish, certainly")); err == nil ||
		!strings.Contains(err.Error(), "test.log") {
		t.Errorf("a broken gzip header gives %v, want an error that names the log", err)
	}
	failing := io.MultiReader(strings.NewReader("a\nb"), iotest.ErrReader(errors.New("disk on fire")))
	if got, _, err := readAll(t, failing); len(got) != 1 || err == nil ||
		!strings.Contains(err.Error(), "test.log, line 2: disk on fire") {
		t.Errorf("a failing disk gives %q, %v; want line 1 and the place of the error", got, err)
	}
}
