package config

import (
	"context"
	"errors"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/limiter/clock"
)

// A document in use is read again when it is renewFrom old, or up to renewSpread older, so that documents that were
// loaded together are not read again together. The read is made after a poll, beside requests. No request waits for it
// unless the document is older than tooOld: then it was not in use, or could not be read. The cost is one read every
// 12 minutes on average (package cost: renewEvery) for each document that an environment uses.
const (
	renewFrom   = 10 * time.Minute
	renewSpread = 4 * time.Minute
	renewAgain  = 20 * time.Second   // the time between tries, after a read that failed
	tooOld      = MaxAge - PollEvery // a request may begin to wait for the table this long before MaxAge
	maxRenewed  = 100                // documents that are read after one poll: one BatchGetItem of DynamoDB
)

// age says when the table was last found to have the same document as the copy.
type age struct {
	read  time.Time     // time of the request that began the read
	renew time.Duration // age from which the document is to be read again
	tried time.Time     // time of the last request that asked for a read
}

func newAge(read time.Time) age { return age{read: read, renew: renewFrom + rand.N(renewSpread)} }

// mustReread reports whether a document of the copy must be read again before it is used. If the document only must be
// read again soon, mustReread adds it to those that are read after the next poll. r.mu is held.
func (r *Reader) mustReread(k cacheKey, a *age) bool {
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

// renew reads documents that are getting old again, beside requests. Documents that cannot be read stay in the copy.
func (r *Reader) renew(keys []cacheKey) {
	if len(keys) == 0 {
		return
	}
	r.mu.Lock()
	// Some may have been dropped from the cache since they were noted.
	keys = slices.DeleteFunc(keys, func(k cacheKey) bool { return !r.known.Contains(k) })
	flights := r.flightsFor(nil, keys)
	r.mu.Unlock()
	for _, f := range flights {
		_ = f.Wait(context.Background()) // the read ends with its budget
	}
}

// extendUse lets the copy's documents be used for another PollEvery, since the table cannot be read. It returns err if
// the copy cannot answer for one of the keys.
func (r *Reader) extendUse(keys []cacheKey, err error) (lacking error) {
	if contradicted(err) {
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

// errUnnamed says that a document was changed without a log entry.
var errUnnamed = errors.New("a document was changed without a log entry")

// contradicted reports whether a read failed because the table contradicts the copy or its own log. The copy must then
// not be used.
func contradicted(err error) bool { return errors.Is(err, errOlder) || errors.Is(err, errUnnamed) }

// expected returns the least version that a read of the document must return, because the log names it; a read of an
// older version is repeated. It returns 0 if the log has named a version for MaxAge without the table having it. r.mu
// is held.
func (r *Reader) expected(e *entry) int64 {
	if e.version >= e.need || clock.Between(e.age.read, r.begun) >= tooOld {
		return 0
	}
	return e.need
}

// unnamed reports whether the table has another document than the copy although the log names no change, or although
// the log has named another version for MaxAge. The copy knows the log up to the document's entry, and d was read later
// than the copy's document. So somebody has changed the table without the log. r.mu is held.
func (r *Reader) unnamed(k cacheKey, d *table.Document) bool {
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

// hasVersion reports whether the copy has a document with this version and content. r.mu is held.
func (r *Reader) hasVersion(k *cacheKey, d *table.Document) bool {
	e, ok := r.known.Peek(*k)
	return ok && e.version == d.Version && e.sum == r.sum(d)
}

// confirm sets the age of a document of the copy to that of a read with the same result. It returns false if the copy
// has another document, or none. r.mu is held.
func (r *Reader) confirm(k cacheKey, d *table.Document, read time.Time) bool {
	if !r.hasVersion(&k, d) {
		return false
	}
	e, _ := r.known.Peek(k)
	e.age = newAge(read)
	return true
}

// sum returns a hash of the content. Its seed is secret, so nobody can construct two contents with equal hashes.
func (r *Reader) sum(d *table.Document) uint64 {
	sum := maphash.Bytes(r.seed, d.Body)
	if d.Deleted {
		sum++
	}
	return sum
}
