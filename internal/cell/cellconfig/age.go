package cellconfig

import (
	"context"
	"errors"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/clock"
)

// A document in use is read again when it is renewFrom old, or up to renewSpread more, so that what was loaded at once
// is not read at once. That is beside requests, with a poll. Nobody waits for it unless the document is tooOld: then it
// was not in use, or could not be read. What it costs is one read every 12 minutes (package cost: renewEvery) for each
// document that an environment uses.
const (
	renewFrom   = 10 * time.Minute
	renewSpread = 4 * time.Minute
	renewAgain  = 20 * time.Second   // after a read that failed
	tooOld      = MaxAge - PollEvery // a request may begin to wait for the table this long before MaxAge
	maxRenewed  = 100                // documents of one poll: one read of DynamoDB
)

// age is how long ago the table was found to have what the copy has.
type age struct {
	read  time.Time     // when the request began that had it read
	renew time.Duration // the age from which it is to be read again
	tried time.Time     // the last request that asked for that
}

func newAge(read time.Time) age { return age{read: read, renew: renewFrom + rand.N(renewSpread)} }

// old reports whether what the copy says of a document must be read again before it is used. What must be read again
// soon is noted for the next poll. r.mu is held.
func (r *Reader) old(k cacheKey, a *age) bool {
	passed := clock.Between(a.read, r.begun)
	if passed < a.renew {
		return false
	}
	tried := clock.Between(a.tried, r.begun)
	if passed >= tooOld {
		return tried >= PollEvery
	}
	if tried >= renewAgain && len(r.aging) < maxRenewed {
		a.tried = r.begun
		r.aging = append(r.aging, k)
	}
	return false
}

// renew reads documents again which are getting old, beside requests. Those that cannot be read stay.
func (r *Reader) renew(keys []cacheKey) {
	if len(keys) == 0 {
		return
	}
	r.mu.Lock()
	keys = slices.DeleteFunc(keys, func(k cacheKey) bool { return !r.known.Contains(k) }) // pushed out meanwhile
	flights := r.depart(nil, keys)
	r.mu.Unlock()
	for _, f := range flights {
		_ = f.Wait(context.Background()) // its budget ends it
	}
}

// keep has the copy's answers be used for another PollEvery, since the table could not be asked. It returns the error
// unless there is one to each key.
func (r *Reader) keep(keys []cacheKey, err error) (lacking error) {
	if denied(err) {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range keys {
		e, known := r.known.Peek(k)
		a, absent := r.absent.Peek(k)
		switch {
		case known && e.version >= e.need:
			e.age.tried = r.begun
		case absent:
			a.tried = r.begun
		default:
			lacking = err
		}
	}
	return lacking
}

// errUnnamed is a document that was changed past the log.
var errUnnamed = errors.New("a document was changed without a log entry")

// denied reports whether the table has answered, and not with what the copy has: then the copy is not used.
func denied(err error) bool { return errors.Is(err, errOlder) || errors.Is(err, errUnnamed) }

// expected is the version that a document must have at least, since the log names it, or else its read is tried again.
// What the log has named for MaxAge, and the table does not have, is not expected any more. r.mu is held.
func (r *Reader) expected(e *entry) int64 {
	if e.version >= e.need || clock.Between(e.age.read, r.begun) >= tooOld {
		return 0
	}
	return e.need
}

// unnamed reports whether a document is another one than the copy has, and the log did not say so, or has said for
// MaxAge what the table does not have. The log is known up to the document's entry, and the document was read after
// what the copy has of it, so somebody has written past the log. r.mu is held.
func (r *Reader) unnamed(k cacheKey, d *Document) bool {
	if _, ok := r.absent.Peek(k); ok {
		return d.Version > 0 && !d.Deleted
	}
	e, ok := r.known.Peek(k)
	if !ok {
		return false
	}
	if e.version < e.need {
		return d.Version != e.need
	}
	return d.Version != e.version || r.sum(d) != e.sum
}

// has reports whether the copy has a document with the content of this one. r.mu is held.
func (r *Reader) has(k *cacheKey, d *Document) bool {
	e, ok := r.known.Peek(*k)
	return ok && e.version == d.Version && e.sum == r.sum(d)
}

// confirm has a document be as young as its last read; false where the copy does not have it. r.mu is held.
func (r *Reader) confirm(k cacheKey, d *Document, read time.Time) bool {
	if !r.has(&k, d) {
		return false
	}
	e, _ := r.known.Peek(k)
	e.age = newAge(read)
	return true
}

// sum tells contents apart. Nobody else knows the seed, so nobody can make two contents of one sum.
func (r *Reader) sum(d *Document) uint64 {
	sum := maphash.Bytes(r.seed, d.Body)
	if d.Deleted {
		sum++
	}
	return sum
}
