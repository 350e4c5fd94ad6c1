package identity

import (
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"slices"
	"strings"
	"sync"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// MaxPeppers bounds the number of hashes that checking one key can cost.
const MaxPeppers = 8

// Peppers hash presented keys with each pepper that stored keys may have been hashed with. Peppers are immutable and
// safe for concurrent use.
type Peppers struct{ list []*pepper }

// KeyHash is the stored form of a presented key if it is stored with that pepper.
type KeyHash struct {
	Pepper string // id of the pepper
	Hash   [sha256.Size]byte
}

// NewPeppers prepares peppers, by id, for hashing: at most MaxPeppers, each at least MinPepperBytes long, with an id of
// [A-Za-z0-9._-]{1,64}. If there are none, no key is known, and that is no error. The error joins all problems, and
// contains ids only.
func NewPeppers(peppers map[string][]byte) (*Peppers, error) {
	p := &Peppers{list: make([]*pepper, 0, len(peppers))}
	var errs []error
	if len(peppers) > MaxPeppers {
		errs = append(errs, fmt.Errorf("%d peppers, want at most %d", len(peppers), MaxPeppers))
	}
	for id, secret := range peppers {
		one, err := newPepper(id, secret)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		p.list = append(p.list, one)
	}
	if len(errs) > 0 {
		slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
		return nil, errors.Join(errs...)
	}
	slices.SortFunc(p.list, func(a, b *pepper) int { return strings.Compare(a.id, b.id) })
	return p, nil
}

// Hashes returns the stored form of the presented key with each pepper, by id in ascending order. It returns
// ErrMalformedKey, and computes no hash, if the text cannot be a key.
func (p *Peppers) Hashes(presented string) ([]KeyHash, error) {
	return p.AppendHashes(make([]KeyHash, 0, len(p.list)), presented)
}

// AppendHashes is like Hashes, and appends to out. It allocates nothing if out has room for MaxPeppers.
func (p *Peppers) AppendHashes(out []KeyHash, presented string) ([]KeyHash, error) {
	if err := CheckKey(presented); err != nil {
		return out, err
	}
	for _, one := range p.list {
		out = append(out, KeyHash{Pepper: one.id, Hash: one.hash(presented)})
	}
	return out, nil
}

// find returns the prepared pepper, or nil if there is none with this id.
func (p *Peppers) find(id string) *pepper {
	if i := slices.IndexFunc(p.list, func(one *pepper) bool { return one.id == id }); i >= 0 {
		return p.list[i]
	}
	return nil
}

// pepper keeps keyed hash states for reuse, because making a state costs more than using it.
type pepper struct {
	id   string
	macs sync.Pool
}

type mac struct {
	hash.Hash
	in  [MaxKeyBytes]byte
	out [sha256.Size]byte
}

func newPepper(id string, secret []byte) (*pepper, error) {
	if !limit.ValidID(id) {
		return nil, fmt.Errorf("pepper %.70q: its id is not 1..64 characters of A-Z a-z 0-9 . _ -", id)
	}
	if len(secret) < MinPepperBytes {
		return nil, fmt.Errorf("pepper %q has %d bytes, want at least %d", id, len(secret), MinPepperBytes)
	}
	secret = slices.Clone(secret)
	p := &pepper{id: id}
	p.macs.New = func() any { return &mac{Hash: hmac.New(sha256.New, secret)} }
	return p, nil
}

// hash hashes a key that CheckKey accepted.
func (p *pepper) hash(key string) [sha256.Size]byte {
	m := p.macs.Get().(*mac)
	m.Reset()
	m.Write(m.in[:copy(m.in[:], key)])
	m.Sum(m.out[:0])
	clear(m.in[:len(key)])
	out := m.out
	p.macs.Put(m)
	return out
}
