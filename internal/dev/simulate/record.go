package simulate

import (
	"encoding/binary"
	"slices"
)

// record holds the parts of a line that a replay needs. Its texts share memory with what it was read from.
type record struct {
	time                             int64 // µs since 1970
	line                             int64 // number in its log, from 1
	file                             int   // index of its log
	host, user, method, path, tenant []byte
}

// headerBytes is the size of the fixed part of a packed record: time, line, log, and the lengths of the texts. A line
// is at most 64 KiB long, so 16 bits are enough for each length.
const headerBytes = 8 + 8 + 4 + 5*2

// pack appends the record to dst.
func (r *record) pack(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, uint64(r.time))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(r.line))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(r.file))
	texts := [...][]byte{r.host, r.user, r.method, r.path, r.tenant}
	for _, text := range texts {
		dst = binary.LittleEndian.AppendUint16(dst, uint16(len(text)))
	}
	for _, text := range texts {
		dst = append(dst, text...)
	}
	return dst
}

// unpack reads the record at the start of src and returns what follows it. The texts point into src.
func (r *record) unpack(src []byte) (rest []byte) {
	header := src[:headerBytes]
	r.time = packedTime(header)
	r.line = int64(binary.LittleEndian.Uint64(header[8:]))
	r.file = int(binary.LittleEndian.Uint32(header[16:]))
	rest = src[headerBytes:]
	for i, text := range [...]*[]byte{&r.host, &r.user, &r.method, &r.path, &r.tenant} {
		n := binary.LittleEndian.Uint16(header[20+2*i:])
		*text, rest = rest[:n:n], rest[n:]
	}
	return rest
}

func packedTime(header []byte) int64 { return int64(binary.LittleEndian.Uint64(header)) }

// packedLength returns the length of the whole record that begins with header.
func packedLength(header []byte) int {
	n := headerBytes
	for i := range 5 {
		n += int(binary.LittleEndian.Uint16(header[20+2*i:]))
	}
	return n
}

// mark is the position of a packed record, and its time.
type mark struct {
	time int64
	at   int
}

// sortMarks sorts by time, and keeps the order of equal times.
func sortMarks(marks []mark) {
	slices.SortStableFunc(marks, func(a, b mark) int {
		switch {
		case a.time < b.time:
			return -1
		case a.time > b.time:
			return 1
		}
		return 0
	})
}

// stream returns records in the order of time, and those with equal times in the order of logs and lines.
type stream interface {
	// next reads the next record into r, whose texts are valid until the next call. It returns io.EOF after the last
	// one.
	next(r *record) error
}
