package simulate

import (
	"container/heap"
	"errors"
	"fmt"
	"io"
	"time"
)

// A server writes a line when the answer is complete, so a line is late by the duration of its request: seconds, seldom
// minutes. A window therefore need not be large. These bounds put a smaller log, of some 300,000 lines, in order
// whatever the order of its lines.
const (
	windowBytes      = 32 << 20 // memory for the lines that are held back, of all logs together
	leastWindowBytes = 2 << 20  // the same of each log, however many logs there are: some 20,000 lines
	bucketBytes      = 256      // memory of a bucket beside its records: the structure, its places in heap and map
)

// window sorts the lines of one log within a bounded time. Logs count time in seconds, so lines are kept by their
// second, in the order in which they came: no line is compared with another.
type window struct {
	lines    *lines
	maxBytes int

	buckets  bucketHeap
	bySecond map[int64]*bucket
	recent   *bucket // the bucket to which a record was last added
	bytes    int
	ended    bool

	current *bucket // the bucket whose records are being returned
	rest    []byte
	marks   []mark // of current, if its records had to be sorted
	last    int64  // time of the record that was last returned
	spare   []*bucket
}

// bucket is the records of one second.
type bucket struct {
	second int64
	data   []byte
	last   int64 // time of the last record
	mixed  bool  // the records are not in the order of time, which is possible in logs with fractions of a second
}

func newWindow(in *lines, maxBytes int) *window {
	return &window{lines: in, maxBytes: maxBytes, bySecond: make(map[int64]*bucket)}
}

// next implements stream. A line that comes too late is an error.
func (w *window) next(r *record) error {
	for {
		switch {
		case len(w.marks) > 0:
			r.unpack(w.current.data[w.marks[0].at:])
			w.marks = w.marks[1:]
			w.last = r.time
			return nil
		case len(w.rest) > 0:
			w.rest = r.unpack(w.rest)
			w.last = r.time
			return nil
		}
		w.recycle()
		if err := w.fill(r); err != nil {
			return err
		}
		if len(w.buckets) == 0 {
			return io.EOF
		}
		w.openOldest()
	}
}

// fill reads lines until the window is full or the log ends. It reads them into r.
func (w *window) fill(r *record) error {
	for !w.ended && w.bytes < w.maxBytes {
		err := w.lines.next(r)
		if errors.Is(err, io.EOF) {
			w.ended = true
			break
		}
		if err != nil {
			return err
		}
		if r.time < w.last {
			return fmt.Errorf("%s, line %d: the line is %v older than a line that has been replayed already, and only "+
				"a log of some 300,000 lines may be in any order: sort it by time, or give each of its parts a "+
				"--log of its own", w.lines.name, r.line, time.Duration(w.last-r.time)*time.Microsecond)
		}
		w.add(r)
	}
	return nil
}

func (w *window) add(r *record) {
	second := r.time / 1_000_000
	b := w.recent
	if b == nil || b.second != second {
		if b = w.bySecond[second]; b == nil {
			b = w.open(second)
		}
		w.recent = b
	}
	before := len(b.data)
	b.data = r.pack(b.data)
	w.bytes += len(b.data) - before
	b.mixed = b.mixed || r.time < b.last
	b.last = max(b.last, r.time)
}

func (w *window) open(second int64) *bucket {
	b := new(bucket)
	if n := len(w.spare); n > 0 {
		b, w.spare = w.spare[n-1], w.spare[:n-1]
	}
	*b = bucket{second: second, data: b.data[:0]}
	w.bySecond[second] = b
	w.bytes += bucketBytes
	heap.Push(&w.buckets, b)
	return b
}

// openOldest begins to return the records of the oldest second.
func (w *window) openOldest() {
	b := heap.Pop(&w.buckets).(*bucket)
	delete(w.bySecond, b.second)
	if w.recent == b {
		w.recent = nil
	}
	w.bytes -= len(b.data) + bucketBytes
	w.current = b
	if !b.mixed {
		w.rest = b.data
		return
	}
	w.marks = w.marks[:0]
	for at := 0; at < len(b.data); at += packedLength(b.data[at:]) {
		w.marks = append(w.marks, mark{packedTime(b.data[at:]), at})
	}
	sortMarks(w.marks)
}

// recycle keeps the memory of a bucket for reuse, unless it is much larger than usual.
func (w *window) recycle() {
	if w.current == nil {
		return
	}
	if cap(w.current.data) <= w.maxBytes/64 && len(w.spare) < 64 {
		w.spare = append(w.spare, w.current)
	}
	w.current, w.rest = nil, nil
}

type bucketHeap []*bucket

func (h bucketHeap) Len() int           { return len(h) }
func (h bucketHeap) Less(i, j int) bool { return h[i].second < h[j].second }
func (h bucketHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *bucketHeap) Push(b any) { *h = append(*h, b.(*bucket)) }

// Pop implements heap.Interface.
func (h *bucketHeap) Pop() any {
	old := *h
	b := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return b
}

// merged merges the streams of several logs into one. Each of them is in order, so the result is.
type merged struct {
	heads mergeHeap
	begun bool
}

type head struct {
	from stream
	file int // index of the log, which orders equal times
	r    record
}

func newMerged(streams []stream) (*merged, error) {
	m := new(merged)
	for i, s := range streams {
		h := &head{from: s, file: i}
		switch err := s.next(&h.r); {
		case errors.Is(err, io.EOF):
		case err != nil:
			return nil, err
		default:
			m.heads = append(m.heads, h)
		}
	}
	heap.Init(&m.heads)
	return m, nil
}

// next implements stream.
func (m *merged) next(r *record) error {
	if m.begun { // not earlier, because the record returned last shares memory with the head
		h := m.heads[0]
		switch err := h.from.next(&h.r); {
		case errors.Is(err, io.EOF):
			heap.Pop(&m.heads)
		case err != nil:
			return err
		default:
			heap.Fix(&m.heads, 0)
		}
	}
	m.begun = len(m.heads) > 0
	if !m.begun {
		return io.EOF
	}
	*r = m.heads[0].r
	return nil
}

type mergeHeap []*head

func (h mergeHeap) Len() int { return len(h) }
func (h mergeHeap) Less(i, j int) bool {
	return h[i].r.time < h[j].r.time || h[i].r.time == h[j].r.time && h[i].file < h[j].file
}
func (h mergeHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *mergeHeap) Push(x any) { *h = append(*h, x.(*head)) }

// Pop implements heap.Interface.
func (h *mergeHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return x
}
