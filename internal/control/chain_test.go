package control_test

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/control"
)

// follow checks the versions in the archive and the table's head.
func follow(items []control.Item, head *control.Item) []control.Break {
	chain := control.NewChain(control.Tenants, "acme")
	var breaks []control.Break
	for i := range items {
		breaks = append(breaks, chain.Add(items[i])...)
	}
	if head == nil {
		return append(breaks, chain.End(nil)...)
	}
	return append(breaks, chain.End(head.Head())...)
}

// rehash sets the hash that fits the item's fields, as somebody who hides a change would do.
func rehash(i *control.Item) { i.Hash = i.ComputeHash() }

// Guarantees that each way of tampering with the archive is reported by kind and place. A break that is not reported
// is a record that was rewritten without being noticed.
func TestChain(t *testing.T) {
	forge := func(i *control.Item) { i.Body = json.RawMessage(`{"n":1000}`) }
	zero := strings.Repeat("0", 64)
	tests := []struct {
		name   string
		tamper func(items []control.Item) []control.Item // of versions 1 to 5
		kind   control.BreakKind
		at     int64
		also   []control.BreakKind
	}{
		{"nothing", func(v []control.Item) []control.Item { return v }, "", 0, nil},
		{"the first removed", func(v []control.Item) []control.Item { return v[1:] }, control.MissingVersion, 1, nil},
		{"one removed", func(v []control.Item) []control.Item { return slices.Delete(v, 2, 3) },
			control.MissingVersion, 3, nil},
		{"two removed", func(v []control.Item) []control.Item { return slices.Delete(v, 1, 3) },
			control.MissingVersion, 2, nil},
		{"the last removed", func(v []control.Item) []control.Item { return v[:4] }, control.MissingTail, 5, nil},
		{"the tail removed", func(v []control.Item) []control.Item { return v[:2] }, control.MissingTail, 3, nil},
		{"all removed", func([]control.Item) []control.Item { return nil }, control.MissingTail, 1, nil},
		{"a body altered", func(v []control.Item) []control.Item { forge(&v[2]); return v }, control.Altered, 3, nil},
		{"the last body altered", func(v []control.Item) []control.Item { forge(&v[4]); return v }, control.Altered, 5,
			nil},
		{"the first body altered", func(v []control.Item) []control.Item { forge(&v[0]); return v }, control.Altered,
			1, nil},
		{"an actor altered", func(v []control.Item) []control.Item { v[2].Actor = "another"; return v },
			control.Altered, 3, nil},
		{"a hash altered", func(v []control.Item) []control.Item { v[2].Hash = zero; return v }, control.WrongHash, 3,
			nil},
		{"the last hash altered", func(v []control.Item) []control.Item { v[4].Hash = zero; return v },
			control.WrongHash, 5, nil},
		{"rewritten with its hash", func(v []control.Item) []control.Item { forge(&v[2]); rehash(&v[2]); return v },
			control.BrokenLink, 4, nil},
		{"the last rewritten with its hash", func(v []control.Item) []control.Item {
			forge(&v[4])
			rehash(&v[4])
			return v
		}, control.WrongHead, 5, nil},
		{"rewritten to the end", func(v []control.Item) []control.Item {
			forge(&v[2])
			rehash(&v[2])
			for n := 3; n < 5; n++ {
				v[n].PrevHash = v[n-1].Hash
				rehash(&v[n])
			}
			return v
		}, control.WrongHead, 5, nil},
		{"a link altered", func(v []control.Item) []control.Item { v[2].PrevHash = zero; return v },
			control.BrokenLink, 3, []control.BreakKind{control.Altered}},
		{"a first that names one before", func(v []control.Item) []control.Item {
			v[0].PrevHash = zero
			rehash(&v[0])
			return v
		}, control.BrokenLink, 1, []control.BreakKind{control.BrokenLink}},
		{"altered, and the next removed", func(v []control.Item) []control.Item {
			forge(&v[1])
			return slices.Delete(v,
				2, 3)
		},
			control.Altered, 2, []control.BreakKind{control.MissingVersion}},
		{"altered, and the tail removed", func(v []control.Item) []control.Item { forge(&v[1]); return v[:2] },
			control.Altered, 2, []control.BreakKind{control.MissingTail}},
		{"the last but one altered, and the last removed",
			func(v []control.Item) []control.Item { forge(&v[3]); return v[:4] },
			control.Altered, 4, []control.BreakKind{control.MissingTail}},
		{"one twice", func(v []control.Item) []control.Item { return slices.Insert(v, 2, v[1]) }, control.OutOfOrder,
			2, nil},
		{"of another item", func(v []control.Item) []control.Item {
			other := v[2]
			other.Key = "other"
			return slices.Insert(v, 2, other)
		}, control.OutOfOrder, 3, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			items := history(t, 5)
			head := items[4]
			breaks := follow(tt.tamper(slices.Clone(items)), &head)
			want := []control.BreakKind{tt.kind}
			if tt.kind == "" {
				want = nil
			}
			want = append(want, tt.also...)
			var got []control.BreakKind
			for _, b := range breaks {
				got = append(got, b.Kind)
			}
			if !slices.Equal(got, want) || len(breaks) > 0 &&
				(breaks[0].Version != tt.at || !strings.Contains(breaks[0].Error(), `tenants/"acme"`)) {
				t.Errorf("found %v, want %v, the first at version %d", breaks, want, tt.at)
			}
		})
	}
}

// Guarantees that the archive reveals a live table that was altered or is behind.
func TestChainAgainstTheTable(t *testing.T) {
	items := history(t, 3)
	altered := items[2]
	altered.Body = json.RawMessage(`{"n":1000}`)
	forged := altered
	rehash(&forged)
	tests := []struct {
		name string
		head *control.Item
		kind control.BreakKind
		at   int64
	}{
		{"altered", &altered, control.WrongHead, 3},
		{"altered with its hash", &forged, control.WrongHead, 3},
		{"behind", &items[1], control.Unknown, 3},
		{"gone", nil, control.Unknown, 3},
	}
	for _, tt := range tests {
		if got := follow(items, tt.head); len(got) != 1 || got[0].Kind != tt.kind || got[0].Version != tt.at {
			t.Errorf("a table that is %s: found %v, want %s at version %d", tt.name, got, tt.kind, tt.at)
		}
	}
	if got := follow(nil, nil); len(got) > 0 {
		t.Errorf("no item and no record: %v, want nothing", got)
	}
}

// Guarantees that a record with an altered before member is found, although no hash covers it.
func TestChainOfRecords(t *testing.T) {
	items := history(t, 3)
	chain := control.NewChain(control.Tenants, "acme")
	var old *control.Item
	for n := range items {
		r := control.Record{Old: old, New: items[n]}
		audit := r.Audit()
		if n == 2 {
			audit.Before = json.RawMessage(`{"n":9}`) // as long as the right one
		}
		got := chain.AddRecord(audit)
		if n < 2 && len(got) > 0 || n == 2 && (len(got) != 1 || got[0].Kind != control.Altered || got[0].Version != 3) {
			t.Errorf("version %d: got the breaks %v, want none before version 3, and that version 3 was altered", n+1,
				got)
		}
		old = &items[n]
	}
	if got := chain.End(items[2].Head()); len(got) > 0 {
		t.Errorf("at the end: got the breaks %v, want none", got)
	}
}

// Guarantees that every single change of a bit, a field or a position is found, and that an unaltered chain has no
// breaks.
func TestChainFindsAnyChange(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 2000 {
		items := history(t, 1+r.IntN(6))
		head := items[len(items)-1]
		if got := follow(items, &head); len(got) > 0 {
			t.Fatalf("an untouched history: got the breaks %v, want none", got)
		}
		tampered := slices.Clone(items)
		n := r.IntN(len(items))
		i := &tampered[n]
		switch r.IntN(7) {
		case 0:
			i.Reason += "x"
		case 1:
			i.ChangedAt = i.ChangedAt.Add(1000)
		case 2:
			i.Body = json.RawMessage(`{"n":0}`)
		case 3:
			i.Hash = strings.Repeat("f", 64)
		case 4:
			i.PrevHash = strings.Repeat("f", 64)
		case 5:
			i.Body = json.RawMessage(`{"n":0}`)
			rehash(i)
		case 6:
			tampered = slices.Delete(tampered, n, n+1)
		}
		if got := follow(tampered, &head); len(got) == 0 {
			t.Fatalf("version %d of %d was changed: got no break, want one\\n%+v", n+1, len(items), tampered)
		}
	}
}
