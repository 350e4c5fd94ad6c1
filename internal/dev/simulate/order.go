package simulate

import (
	"cmp"
	"container/heap"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// A server writes a line when the answer is complete, so a line is late by the duration of its request: seconds, seldom
// minutes. Few lines therefore need to be held back. These bounds put a smaller log, of some 300,000 lines, in order
// whatever the order of its lines.
const (
	windowBytes      = 64 << 20 // memory for the lines that are held back, of all logs together
	leastWindowBytes = 4 << 20  // the same of each log, however many logs there are: some 20,000 lines
	recordBytes      = 128      // memory of a record beside its text
)

// record holds the parts of a line that a replay needs.
type record struct {
	time                             int64 // µs since 1970
	line                             int64 // number in its log, from 1
	file                             int   // index of its log
	host, user, method, path, tenant string
}

// bytes is the memory of the record.
func (r *record) bytes() int {
	return recordBytes + len(r.host) + len(r.user) + len(r.method) + len(r.path) + len(r.tenant)
}

// order returns the records of all logs in the order of time, and those with equal times in the order of logs and
// lines. It reads ahead in each log, within a bounded memory. Logs count time in seconds, so records are kept by their
// second: only the records of one second are compared with each other.
type order struct {
	logs     []*lines
	maxBytes int // memory for the records of each log

	buckets  map[int64]*bucket
	oldest   bucketHeap // the same buckets
	recent   *bucket    // the bucket to which a record was last added
	current  *bucket    // the bucket whose records are being returned
	ready    []record   // those that are left of it
	spare    []*bucket
	replayed int64 // time of the record that was last returned
}

// bucket holds the records of one second.
type bucket struct {
	second  int64
	records []record
}

func newOrder(logs []*lines, maxBytes int) *order {
	return &order{logs: logs, maxBytes: maxBytes, buckets: make(map[int64]*bucket), current: new(bucket)}
}

// next returns the next record, which is valid until the next call. It returns io.EOF after the last one. A line that
// comes too late is an error.
func (o *order) next() (*record, error) {
	if len(o.ready) == 0 {
		o.recycle()
		if err := o.fill(); err != nil {
			return nil, err
		}
		if len(o.oldest) == 0 {
			return nil, io.EOF
		}
		o.openOldest()
	}
	r := &o.ready[0]
	o.ready, o.replayed = o.ready[1:], r.time
	return r, nil
}

// fill reads each log until as much as possible of it is held back, or it ends.
func (o *order) fill() error {
	var r record
	for _, l := range o.logs {
		for l.held < o.maxBytes {
			err := l.next(&r)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			if r.time < o.replayed {
				return fmt.Errorf("%s, line %d: the line is %v older than a line that has been replayed already, and "+
					"only a log of some 300,000 lines may be in any order: sort it by time, or give each of its parts "+
					"a --log of its own", l.name, r.line, time.Duration(o.replayed-r.time)*time.Microsecond)
			}
			l.held += r.bytes()
			o.add(&r)
		}
	}
	return nil
}

func (o *order) add(r *record) {
	second := r.time / 1_000_000
	b := o.recent
	if b == nil || b.second != second {
		if b = o.buckets[second]; b == nil {
			b = new(bucket)
			if n := len(o.spare); n > 0 {
				b, o.spare = o.spare[n-1], o.spare[:n-1]
			}
			b.second = second
			o.buckets[second] = b
			heap.Push(&o.oldest, b)
		}
		o.recent = b
	}
	b.records = append(b.records, *r)
}

// openOldest begins to return the records of the oldest second.
func (o *order) openOldest() {
	b := heap.Pop(&o.oldest).(*bucket)
	delete(o.buckets, b.second)
	if o.recent == b {
		o.recent = nil
	}
	for i := range b.records {
		o.logs[b.records[i].file].held -= b.records[i].bytes()
	}
	slices.SortFunc(b.records, func(a, b record) int {
		return cmp.Or(cmp.Compare(a.time, b.time), cmp.Compare(a.file, b.file), cmp.Compare(a.line, b.line))
	})
	o.current, o.ready = b, b.records
}

// recycle keeps the memory of the current bucket for reuse, unless it is much larger than usual.
func (o *order) recycle() {
	b := o.current
	clear(b.records)
	b.records = b.records[:0]
	if n := cap(b.records); n > 0 && n <= 4096 && len(o.spare) < 64 {
		o.spare = append(o.spare, b)
	}
	o.current = new(bucket)
}

type bucketHeap []*bucket

func (h bucketHeap) Len() int           { return len(h) }
func (h bucketHeap) Less(i, j int) bool { return h[i].second < h[j].second }
func (h bucketHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *bucketHeap) Push(b any) { *h = append(*h, b.(*bucket)) }

// Pop implements heap.Interface.
func (h *bucketHeap) Pop() any {
	b := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return b
}
