package reconcile

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// Guarantees that a sketch finds exactly the entries that only one side has, in whatever order they are added, up to
// its bound of maxDifferences entries, and that it reports if there are more.
func TestSketch(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, odd := range []int{0, 1, 2, 50, 500, maxDifferences, maxDifferences + 1, 3000, 20_000} {
		s := newSketch()
		want := map[entry]side{}
		type added struct {
			e  entry
			of side
		}
		var all []added
		for i := range 2000 + odd {
			e, ok := s.pack(i%3, fmt.Sprintf("id-%d", i), int64(1+i%7), i%11 == 0, []byte{byte(i)})
			if !ok {
				t.Fatal("an id of an item is too long")
			}
			of := inControl
			switch {
			case i >= odd:
				all = append(all, added{e, inCell})
			case i%2 == 0:
				of = inCell
				want[e] = of
			default:
				want[e] = of
			}
			all = append(all, added{e, of})
		}
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		for _, a := range all {
			s.add(&a.e, a.of)
		}
		got, ok := s.differences()
		if ok != (odd <= maxDifferences) {
			t.Fatalf("%d differences: got shown %t, want %t", odd, ok, odd <= maxDifferences)
		}
		if !ok {
			continue
		}
		if len(got) != len(want) {
			t.Fatalf("got %d differences, want %d", len(got), len(want))
		}
		for e, of := range want {
			if got[e] != of {
				kind, id := e.name()
				t.Fatalf("kind %d, id %q: got side %d, want %d", kind, id, got[e], of)
			}
		}
	}
}

// Guarantees that two versions, two bodies, and a tombstone of one document are different entries, and that no two
// names give the same entry.
func TestEntries(t *testing.T) {
	s := newSketch()
	seen := map[entry]string{}
	for _, kind := range []int{0, 1} {
		for _, id := range []string{"", "a", "a\x00", "aa"} {
			for _, version := range []int64{1, 2, 1<<53 - 1} {
				for _, deleted := range []bool{false, true} {
					for _, body := range []string{"", "x"} {
						e, _ := s.pack(kind, id, version, deleted, []byte(body))
						name := fmt.Sprintf("%d %q %d %t %q", kind, id, version, deleted, body)
						if other, twice := seen[e]; twice {
							t.Errorf("%s and %s have the same entry, want different ones", name, other)
						}
						seen[e] = name
						if k, i := e.name(); k != kind || i != id {
							t.Errorf("%s: got the name %d %q of its entry, want its own kind and id", name, k, i)
						}
					}
				}
			}
		}
	}
	if _, ok := s.pack(0, string(make([]byte, maxID+1)), 1, false, nil); ok {
		t.Error("an id that is too long has an entry, want that pack refuses it")
	}
}
