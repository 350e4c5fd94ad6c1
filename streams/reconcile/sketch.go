package reconcile

import (
	"encoding/binary"
	"hash/maphash"
)

// The size of a sketch: three tables of 1,024 rows. With near certainty it can show as many differences as two thirds
// of its rows, 2,048. maxDifferences stays below that number, so that the sketch practically always suffices.
const (
	tables         = 3
	rows           = 1024 // in each table
	maxDifferences = 1500 // if there are more, the run compares page by page
	maxID          = 128  // bytes of the longest id of an item
	entryLen       = 1 + 1 + maxID + 8 + 8
)

// entry is a version of a document on one side, as bytes of a fixed length: the kind, the length of the id, the id, the
// version, whether it is deleted, and a hash of its body.
type entry [entryLen]byte

// side says on which side an entry was read.
type side int64

const (
	inControl side = 1
	inCell    side = -1
)

// sketch finds the entries that only one of the two sides has, in memory that does not grow with the number of entries.
// It is an invertible Bloom lookup table (Goodrich and Mitzenmacher, 2011). Each entry is added to one row of each
// table, in any order. Entries that both sides have cancel out. If a single entry is left in a row, the row shows it.
// Removing that entry from its other rows may leave single entries there, and so on.
type sketch struct {
	seed maphash.Seed
	rows [tables * rows]row
}

type row struct {
	count int64  // number of control's entries minus those of the cell
	check uint64 // hashes of the entries, combined by exclusive or
	sum   entry  // the entries, combined by exclusive or
}

func newSketch() *sketch { return &sketch{seed: maphash.MakeSeed()} }

// add adds an entry of a side. Adding the same entry for the other side removes it.
func (s *sketch) add(e *entry, of side) {
	h := maphash.Bytes(s.seed, e[:])
	for t := range tables {
		s.rows[place(h, t)].add(e, h, of)
	}
}

func (r *row) add(e *entry, h uint64, of side) {
	r.count += int64(of)
	r.check ^= h
	for i := 0; i < entryLen; i++ {
		r.sum[i] ^= e[i]
	}
}

// place returns the row of a hash in a table.
func place(h uint64, table int) int {
	h ^= uint64(table+1) * 0x9e3779b97f4a7c15
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	return table*rows + int(h%rows)
}

// differences removes and returns all entries that only one side has. It returns false if they are too many. The sketch
// is empty afterwards.
func (s *sketch) differences() (map[entry]side, bool) {
	found := map[entry]side{}
	look := make([]int, len(s.rows))
	for i := range look {
		look[i] = i
	}
	for len(look) > 0 {
		at := look[len(look)-1]
		look = look[:len(look)-1]
		r := &s.rows[at]
		if r.count != 1 && r.count != -1 || maphash.Bytes(s.seed, r.sum[:]) != r.check {
			continue
		}
		e, of, h := r.sum, side(r.count), r.check
		if _, twice := found[e]; twice || len(found) == maxDifferences {
			return nil, false
		}
		found[e] = of
		for t := range tables {
			p := place(h, t)
			s.rows[p].add(&e, h, -of)
			look = append(look, p)
		}
	}
	for i := range s.rows {
		if r := &s.rows[i]; r.count != 0 || r.check != 0 {
			return nil, false
		}
	}
	return found, true
}

// pack makes an entry. It returns false if the id is longer than any item's.
func (s *sketch) pack(kind int, id string, version int64, deleted bool, body []byte) (e entry, ok bool) {
	if len(id) > maxID {
		return e, false
	}
	e[0], e[1] = byte(kind), byte(len(id))
	copy(e[2:], id)
	v := uint64(version) << 1
	if deleted {
		v |= 1
	}
	binary.BigEndian.PutUint64(e[2+maxID:], v)
	binary.BigEndian.PutUint64(e[2+maxID+8:], maphash.Bytes(s.seed, body))
	return e, true
}

// name returns the kind and the id of an entry.
func (e *entry) name() (kind int, id string) { return int(e[0]), string(e[2 : 2+int(e[1])]) }
