// Package addresskey names addresses with a key that all processes share whose counters are in one store. Without it,
// each process would name an address in a way of its own, and so have a counter of its own for it.
//
// The store itself keeps the key. The first process that needs it makes it, and the store lets only one of several
// processes do so. Until a process has read the key, because the store is away, it uses a random key of its own.
//
// The key is kept in this form, so that a program that knows other forms can tell them apart:
//
//	{"version": 1, "key": "<base64 of 32 to 1024 bytes>"}
//
// A process refuses any other version, and logs that. To replace the key, delete it in the store: the next process that
// reads it makes another one, and all processes use that within 72 s. Counters of addresses then start afresh.
package addresskey

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/refresh"
	"github.com/sluicelimits/sluice/internal/limiter/store"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

const (
	name    = "addresskey" // under which the store keeps the key
	version = 1            // of the form in which it is kept

	maxKeyBytes = 1024 // as many as the addressKey of a cell's secret may have

	// refreshAfter is the age at which a process reads the key again, to which up to a fifth is added. Only somebody
	// who replaces the key makes that necessary.
	refreshAfter = time.Minute

	// firstWait is how long requests wait for the first read of the key. A server that is there answers in
	// milliseconds; the wait is for the time in which the first connection is made.
	firstWait = time.Second
)

// errForm is wrapped by the error for a value that the store keeps and that is not a key in the known form.
var errForm = errors.New("the kept key cannot be used")

// Names names addresses by the key in a store. It is safe for concurrent use. Make it with [New].
type Names struct {
	keeper store.Keeper
	log    *slog.Logger
	kept   *refresh.Cache[kept]
	own    *identity.Anonymiser // used until the key was read
	failed atomic.Bool          // a read has failed, so requests wait for no other one
}

// kept is the key that the store keeps.
type kept struct {
	*identity.Anonymiser

	text  string
	place string
}

// New makes Names. It reads the key when the first address is named. Close it before the store.
func New(k store.Keeper, log *slog.Logger) *Names {
	n := &Names{keeper: k, log: log, own: identity.NewAnonymiser()}
	n.kept = refresh.New(refresh.Config[kept]{Read: n.read, Ended: n.ended, Wait: firstWait, Refresh: refreshAfter,
		Cooldown: refreshAfter})
	return n
}

// Close ends a read in progress and waits for its end.
func (n *Names) Close() { n.kept.Close() }

// Anonymise returns the name of an address, see [identity.Anonymiser.Anonymise]. The first calls wait for the key, for
// a second at most. If it cannot be read, the name is one that only this process uses, until a later read succeeds.
func (n *Names) Anonymise(addr netip.Addr) string {
	now := time.Now()
	key := n.kept.Value()
	switch {
	case key == nil && !n.failed.Load():
		key, _ = n.kept.First(context.Background(), now) // the log has the error
	default:
		n.kept.Upkeep(now)
	}
	if key == nil {
		return n.own.Anonymise(addr)
	}
	return key.Anonymise(addr)
}

// read reads the key, and makes one if there is none.
func (n *Names) read(ctx context.Context, before *kept) (*kept, error) {
	random := make([]byte, identity.MinAddressKeyBytes)
	rand.Read(random)
	text, place, err := n.keeper.Keep(ctx, name, write(random))
	if err != nil {
		return nil, err
	}
	if before != nil && before.text == string(text) {
		return before, nil
	}
	names, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errForm, place, err)
	}
	return &kept{names, string(text), place}, nil
}

// stored is the form in which the key is kept.
type stored struct {
	Version int    `json:"version"`
	Key     string `json:"key"`
}

func write(key []byte) []byte {
	text, _ := json.Marshal(stored{version, base64.StdEncoding.EncodeToString(key)}) // cannot fail for these types
	return text
}

// parse reads the form in which the key is kept. The error never contains the key.
func parse(text []byte) (*identity.Anonymiser, error) {
	var s stored
	if json.Unmarshal(text, &s) != nil { // the error would contain a part of the text
		return nil, errors.New(`it is not of the form {"version": 1, "key": "…"}`)
	}
	if s.Version != version {
		return nil, fmt.Errorf("it has version %d, and this program knows version %d only: use the program that wrote "+
			"it, or delete it there, and a new key is made", s.Version, version)
	}
	key, err := base64.StdEncoding.Strict().DecodeString(s.Key)
	switch {
	case err != nil:
		return nil, errors.New("its key is not base64")
	case len(key) > maxKeyBytes:
		return nil, fmt.Errorf("its key has %d bytes, want at most %d", len(key), maxKeyBytes)
	}
	return identity.NewAnonymiserFrom(key)
}

// ended logs how a read ended, if operators should know. Reads that fail are a second to a minute apart.
func (n *Names) ended(end refresh.End[kept]) {
	switch {
	case errors.Is(end.Err, errForm):
		n.failed.Store(true)
		n.log.Error("the key that names addresses is refused; "+n.meanwhile(end.Before), "error", end.Err)
	case end.Err != nil:
		n.failed.Store(true)
		n.log.Warn("the key that names addresses cannot be read from the store of counters; "+n.meanwhile(end.Before),
			"error", end.Err)
	case end.Before != nil && end.Before.text != end.Value.text:
		n.log.Warn("the key that names addresses was replaced in the store: counters of addresses start afresh",
			"place", end.Value.place)
	case end.Failures > 0:
		n.log.Info("the key that names addresses was read from the store", "place", end.Value.place)
	}
}

// meanwhile says what names addresses after a read that failed.
func (n *Names) meanwhile(before *kept) string {
	if before != nil {
		return "the last one that was read stays in use"
	}
	return "until it is read, this process counts addresses by itself"
}

// Format hides the key, whatever the verb.
func (n *Names) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, "address key of a store") }
