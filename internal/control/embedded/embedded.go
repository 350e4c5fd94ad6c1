// Package embedded stores the control tables in one file, for a program that runs everything in one process.
//
// A Put, its version in the history and its place in the feed are one transaction, which is on disk before Put
// returns: a crash between a write and its delivery loses nothing. Only one process can open the file at a time. The
// whole history is kept, so that every consumer can start at the beginning; it grows by about twice the size of each
// body that is written.
//
// # File
//
// The file is a bbolt database (go.etcd.io/bbolt). Items are written by control.Item.Encode.
//
//	bucket    key                                         value
//	items     table 0 key                                 the newest version
//	versions  table 0 key 0 version (8 bytes, big endian)  that version
//	feed      sequence (8 bytes, big endian)              key in versions
//	cursors   consumer                                    sequence
//
// Table names and keys contain no zero byte.
package embedded

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
)

var (
	_ control.Tables = (*Tables)(nil)
	_ control.Feed   = (*Tables)(nil)
)

// ErrInUse is wrapped by the error of Open if another process has the file open.
var ErrInUse = errors.New("in use by another process")

// Buckets.
var (
	items    = []byte("items")
	versions = []byte("versions")
	feed     = []byte("feed")
	cursors  = []byte("cursors")
)

const (
	lockTimeout = time.Second
	// batchDelay is how long a Put waits for other Puts to share a write to disk.
	batchDelay       = time.Millisecond
	maxConsumerBytes = 64
)

// Tables are the control tables in a file. They are safe for concurrent use.
type Tables struct {
	db *bolt.DB

	mu      sync.Mutex
	changed chan struct{} // closed at the next change
}

// Open opens the file, or creates it, readable only by its owner. If another process has it open, the error wraps
// ErrInUse after one second.
func Open(path string) (*Tables, error) {
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: lockTimeout, FreelistType: bolt.FreelistMapType})
	if errors.Is(err, bolterrors.ErrTimeout) {
		err = ErrInUse
	}
	if err != nil {
		return nil, fmt.Errorf("open the control tables in %s: %w", path, err)
	}
	db.MaxBatchDelay = batchDelay
	err = db.Update(func(tx *bolt.Tx) error {
		for _, name := range [][]byte{items, versions, feed, cursors} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the control tables in %s: %w", path, err), db.Close())
	}
	return &Tables{db: db, changed: make(chan struct{})}, nil
}

// Unsynced lets Puts return before they are on disk, for a file that is not needed after the process ends. Call it
// before any Put.
func (t *Tables) Unsynced() { t.db.NoSync = true }

// Close closes the file after calls in progress. Later calls, and calls that wait, return errors.
func (t *Tables) Close() error {
	err := t.db.Close()
	t.wake()
	return err
}

// Get implements [control.Tables].
func (t *Tables) Get(ctx context.Context, table control.Table, key string) (i control.Item, err error) {
	if err := control.CheckGet(table, key); err != nil {
		return control.Item{}, err
	}
	if err := ctx.Err(); err != nil {
		return control.Item{}, err
	}
	err = t.db.View(func(tx *bolt.Tx) error {
		current, err := get(tx, table, key)
		if err == nil && current == nil {
			err = control.ErrNotFound
		}
		if err == nil {
			i = *current
		}
		return err
	})
	if err != nil {
		return control.Item{}, fmt.Errorf("get %s/%q: %w", table, key, err)
	}
	return i, nil
}

// get returns nil if there is no item.
func get(tx *bolt.Tx, table control.Table, key string) (*control.Item, error) {
	data := tx.Bucket(items).Get(itemKey(table, key))
	if data == nil {
		return nil, nil //nolint:nilnil // callers check for nil
	}
	i, err := control.DecodeItem(data)
	if err == nil && (i.Table != table || i.Key != key) {
		err = fmt.Errorf("%w: the stored item is %s/%q", control.ErrBadItem, i.Table, i.Key)
	}
	return &i, err
}

// List implements [control.Tables], in the order of the keys' bytes.
func (t *Tables) List(
	ctx context.Context, table control.Table, after string, most int,
) ([]control.Item, string, error) {
	if err := control.CheckList(table, most); err != nil {
		return nil, "", err
	}
	if err := ctx.Err(); err != nil {
		return nil, "", err
	}
	var (
		page []control.Item
		next string
		bad  []error
	)
	err := t.db.View(func(tx *bolt.Tx) error {
		prefix := itemKey(table, "")
		c := tx.Bucket(items).Cursor()
		from := itemKey(table, after)
		k, v := c.Seek(from)
		if after != "" && bytes.Equal(k, from) {
			k, v = c.Next()
		}
		last := ""
		for n := 0; bytes.HasPrefix(k, prefix); k, v = c.Next() {
			if n++; n > most {
				next = last
				return nil
			}
			last = string(k[len(prefix):])
			i, err := control.DecodeItem(v)
			if err != nil {
				bad = append(bad, fmt.Errorf("%s/%q: %w", table, last, err))
				continue
			}
			page = append(page, i)
		}
		return nil
	})
	if err != nil {
		return nil, "", fmt.Errorf("list %s: %w", table, err)
	}
	return page, next, errors.Join(bad...)
}

// Put implements [control.Tables].
func (t *Tables) Put(ctx context.Context, c control.Change) (control.Item, error) {
	c, err := c.Check()
	if err != nil {
		return control.Item{}, err
	}
	if err := ctx.Err(); err != nil {
		return control.Item{}, err
	}
	var (
		next   control.Item
		answer error // of this Put only: it must not undo other Puts in the same transaction
	)
	err = t.db.Batch(func(tx *bolt.Tx) error {
		var done bool
		if next, done, answer = step(tx, c); answer != nil || done {
			return nil //nolint:nilerr // answer is returned to its own caller below
		}
		return put(tx, &next)
	})
	if err != nil {
		return control.Item{}, fmt.Errorf("put %s/%q version %d: %w", c.Table, c.Key, c.Expect+1, err)
	}
	if answer != nil {
		return control.Item{}, answer
	}
	t.wake()
	return next, nil
}

// step applies control.Next to the stored item.
func step(tx *bolt.Tx, c control.Change) (next control.Item, done bool, err error) {
	current, err := get(tx, c.Table, c.Key)
	if err != nil {
		return control.Item{}, false, fmt.Errorf("put %s/%q: %w", c.Table, c.Key, err)
	}
	return control.Next(current, c)
}

func put(tx *bolt.Tx, next *control.Item) error {
	data, err := next.Encode()
	if err != nil {
		return err
	}
	f := tx.Bucket(feed)
	sequence, err := f.NextSequence()
	if err != nil {
		return err
	}
	version := versionKey(next.Table, next.Key, next.Version)
	return errors.Join(
		tx.Bucket(items).Put(itemKey(next.Table, next.Key), data),
		tx.Bucket(versions).Put(version, data),
		f.Put(binary.BigEndian.AppendUint64(nil, sequence), version),
	)
}

func (t *Tables) wake() {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.changed)
	t.changed = make(chan struct{})
}

// Read implements [control.Feed].
func (t *Tables) Read(ctx context.Context, after string, most int) ([]control.Delivery, error) {
	if most < 1 || most > control.MaxPage {
		return nil, fmt.Errorf("%w: read %d records of the feed, want 1..%d", control.ErrInvalid, most, control.MaxPage)
	}
	from, err := position(after)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var page []control.Delivery
	err = t.db.View(func(tx *bolt.Tx) error {
		c := tx.Bucket(feed).Cursor()
		for k, v := c.Seek(binary.BigEndian.AppendUint64(nil, from+1)); k != nil && len(page) < most; k, v = c.Next() {
			page = append(page, delivery(tx, binary.BigEndian.Uint64(k), v))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the feed: %w", err)
	}
	return page, nil
}

// delivery returns the delivery of the version with this key.
func delivery(tx *bolt.Tx, sequence uint64, version []byte) control.Delivery {
	d := control.Delivery{Sequence: strconv.FormatUint(sequence, 10)}
	table, key, n := splitVersion(version)
	data := tx.Bucket(versions).Get(version)
	next, err := control.DecodeItem(data)
	r := &control.Record{Sequence: d.Sequence, New: next}
	if err == nil && next.Version > 1 {
		var old control.Item
		old, err = control.DecodeItem(tx.Bucket(versions).Get(versionKey(table, key, n-1)))
		r.Old = &old
	}
	if err == nil {
		err = r.Check()
	}
	if err != nil {
		d.Err = &control.RecordError{Table: table, Key: key, Sequence: d.Sequence, Err: err}
		d.Raw = bytes.Clone(data)
		return d
	}
	d.Record = r
	return d
}

// Wait implements [control.Feed].
func (t *Tables) Wait(ctx context.Context, after string) error {
	for {
		t.mu.Lock()
		changed := t.changed
		t.mu.Unlock()
		// Read after taking the channel: a change in between closes the channel.
		if page, err := t.Read(ctx, after, 1); err != nil || len(page) > 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// Cursor implements [control.Feed].
func (t *Tables) Cursor(ctx context.Context, consumer string) (after string, err error) {
	if err := checkConsumer(ctx, consumer); err != nil {
		return "", err
	}
	err = t.db.View(func(tx *bolt.Tx) error {
		after = string(tx.Bucket(cursors).Get([]byte(consumer)))
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("cursor of %s: %w", consumer, err)
	}
	return after, nil
}

// Commit implements [control.Feed].
func (t *Tables) Commit(ctx context.Context, consumer, after string) error {
	if err := checkConsumer(ctx, consumer); err != nil {
		return err
	}
	at, err := position(after)
	if err != nil {
		return err
	}
	err = t.db.Batch(func(tx *bolt.Tx) error {
		if last := tx.Bucket(feed).Sequence(); at > last {
			return fmt.Errorf("%w: position %d is after the end of the feed, %d", control.ErrInvalid, at, last)
		}
		return tx.Bucket(cursors).Put([]byte(consumer), []byte(after))
	})
	if err != nil {
		return fmt.Errorf("commit of %s: %w", consumer, err)
	}
	return nil
}

func checkConsumer(ctx context.Context, consumer string) error {
	if consumer == "" || len(consumer) > maxConsumerBytes {
		return fmt.Errorf("%w: a consumer's name has %d bytes, want 1..%d", control.ErrInvalid, len(consumer),
			maxConsumerBytes)
	}
	return ctx.Err()
}

// position reads the Sequence of a record; "" gives 0, the position before all records.
func position(after string) (uint64, error) {
	if after == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(after, 10, 63)
	if err != nil || strconv.FormatUint(n, 10) != after {
		return 0, fmt.Errorf("%w: %.40q is not a position in this feed", control.ErrInvalid, after)
	}
	return n, nil
}

func itemKey(t control.Table, key string) []byte {
	return append(append([]byte(t), 0), key...)
}

func versionKey(t control.Table, key string, version int64) []byte {
	return binary.BigEndian.AppendUint64(append(itemKey(t, key), 0), uint64(version))
}

func splitVersion(k []byte) (t control.Table, key string, version int64) {
	table, rest, _ := bytes.Cut(k, []byte{0})
	if len(rest) < 9 {
		return "", "", 0
	}
	at := len(rest) - 9
	return events.Table(table), string(rest[:at]), int64(binary.BigEndian.Uint64(rest[at+1:]))
}
