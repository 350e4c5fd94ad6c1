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

// A server writes a line when the answer is complete, but the line often has the time at which the request began. Such
// a line comes too late by the duration of its request: seconds, seldom minutes. Few lines therefore need to be held
// back. A single log of up to some 300,000 lines is held back as a whole, so its lines may be in any order.
const (
	windowBytes      = 64 << 20 // memory for the lines that are held back, divided among the logs
	leastWindowBytes = 4 << 20  // for each log at least, also if all then take more than windowBytes: some 20,000 lines
	recordBytes      = 128      // memory of a record beside its text, rounded up
)

// record holds the parts of a line that a replay needs.
type record struct {
	time                             int64 // µs since 1970
	line                             int64 // number in its log, from 1
	file                             int   // index of its log in order.logs
	host, user, method, path, tenant string
}

// bytes is the memory of the record.
func (r *record) bytes() int {
	return recordBytes + len(r.host) + len(r.user) + len(r.method) + len(r.path) + len(r.tenant)
}

// order returns the records of all logs in the order of time. It reads ahead in each log, within a bounded memory.
// Records with equal times come in the order of logs and lines, unless the memory does not hold all lines of a second.
// Most logs give times in whole seconds. Records are therefore kept in a bucket for each second, and sorted only within
// their bucket.
type order struct {
	logs     []*lines
	maxBytes int // memory for the records of each log

	buckets  map[int64]*bucket
	oldest   bucketHeap // the buckets of the map, the oldest one first
	recent   *bucket    // the bucket to which a record was last added; spares a look into the map for most lines
	ready    []record   // the records of the oldest second that are still to be returned
	replayed int64      // time of the record that was last returned
}

// bucket holds the records of one second.
type bucket struct {
	second  int64
	records []record
}

func newOrder(logs []*lines, maxBytes int) *order {
	return &order{logs: logs, maxBytes: maxBytes, buckets: make(map[int64]*bucket)}
}

// next returns the next record, which is valid until the next call. It returns io.EOF after the last one, and an error
// if a line is older than the record that was last returned.
func (o *order) next() (*record, error) {
	if len(o.ready) == 0 {
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

// fill reads each log until its records that are held back take maxBytes, or until the log ends. A log that has ended
// returns io.EOF again when it is read again.
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
				return fmt.Errorf("%s, line %d: the line is %v older than a line that was replayed before it. Only "+
					"one log of some 300,000 lines may be in any order, and less of each of several logs: sort the "+
					"log by time, or give each of its parts a --log of its own", l.name, r.line,
					time.Duration(o.replayed-r.time)*time.Microsecond)
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
			b = &bucket{second: second}
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
	o.ready = b.records
}

type bucketHeap []*bucket

func (h bucketHeap) Len() int           { return len(h) }
func (h bucketHeap) Less(i, j int) bool { return h[i].second < h[j].second }
func (h bucketHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *bucketHeap) Push(b any) { *h = append(*h, b.(*bucket)) }

// Pop implements heap.Interface.
func (h *bucketHeap) Pop() any {
	last := len(*h) - 1
	b := (*h)[last]
	(*h)[last] = nil // so that the memory of the bucket is free
	*h = (*h)[:last]
	return b
}
