package redis

import (
	"hash/maphash"
	"sync/atomic"
)

// seenPacks remembers which packs decisions of this process have used, without their keys. The first use of a pack
// that generated scripts do not make is decided by decide.lua at once: a generated script would decline it, which
// takes a second round trip and more of the server's time. Two packs may share a bit; then the first decision about
// the second pack takes both scripts. The zero value is empty.
type seenPacks struct {
	words [1 << 14]atomic.Uint64 // a bit for each pack: 128 KB
	count atomic.Int64           // bits that are set
}

var packSeed = maphash.MakeSeed()

// bit returns the word and the bit of the packs with these keys.
func (s *seenPacks) bit(keys []byte) (*atomic.Uint64, uint64) {
	h := maphash.Bytes(packSeed, keys)
	return &s.words[h>>6%uint64(len(s.words))], 1 << (h & 63)
}

// has reports whether the packs with these keys were probably used before.
func (s *seenPacks) has(keys []byte) bool {
	word, bit := s.bit(keys)
	return word.Load()&bit != 0
}

// add remembers the packs with these keys. When half of all bits are set, it forgets every pack.
func (s *seenPacks) add(keys []byte) {
	word, bit := s.bit(keys)
	if word.Or(bit)&bit != 0 {
		return
	}
	if s.count.Add(1) > int64(len(s.words))*64/2 {
		s.count.Store(0)
		for i := range s.words {
			s.words[i].Store(0)
		}
	}
}
