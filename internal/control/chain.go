package control

import (
	"bytes"
	"fmt"

	"github.com/sluicelimits/sluice/events"
)

// BreakKind says what is wrong at a place of a chain.
type BreakKind string

// The kinds of breaks.
const (
	MissingVersion BreakKind = "missing version" // a version between two that are there, or before the first
	MissingTail    BreakKind = "missing tail"    // the newest versions, which the live table has
	Altered        BreakKind = "altered"         // a field is not what its writer hashed
	WrongHash      BreakKind = "wrong hash"      // the fields are, but the hash beside them is not
	// prev_hash is not the hash of the version before: one of the two was made anew
	BrokenLink BreakKind = "broken link"
	WrongHead  BreakKind = "wrong head"           // the newest version is not the live table's
	Unknown    BreakKind = "unknown to the table" // there are versions that the live table does not have
	// the same version again, or another item: the caller's doing, or the archive's
	OutOfOrder BreakKind = "out of order"
)

// Break is a place where a chain does not hold.
type Break struct {
	Kind    BreakKind
	Table   Table
	Key     string
	Version int64  // where; of several that miss, the first
	Detail  string // for people
}

func (b Break) Error() string {
	return fmt.Sprintf("%s/%q version %d: %s: %s", b.Table, b.Key, b.Version, b.Kind, b.Detail)
}

// Chain follows the versions of one item, oldest first, and keeps only one of them: histories are long. Its zero value
// is not used; see [NewChain].
type Chain struct {
	table  Table
	key    string
	last   *Item  // nil: none yet
	actual string // the hash that last should have
}

// NewChain begins at version 1 of the item.
func NewChain(t Table, key string) *Chain { return &Chain{table: t, key: key} }

func (c *Chain) broken(kind BreakKind, version int64, format string, args ...any) Break {
	return Break{kind, c.table, c.key, version, fmt.Sprintf(format, args...)}
}

// Add takes the next version, and returns what is wrong up to it. Whether an altered field or a wrong hash is at fault
// shows only with the version after, so a break may come with the next Add, or at the End.
func (c *Chain) Add(i Item) []Break {
	if i.Table != c.table || i.Key != c.key {
		return []Break{c.broken(OutOfOrder, i.Version, "it is a version of %s/%q", i.Table, i.Key)}
	}
	at := int64(0)
	if c.last != nil {
		at = c.last.Version
	}
	if i.Version <= at {
		return []Break{c.broken(OutOfOrder, i.Version, "it comes after version %d", at)}
	}
	var breaks []Break
	if i.Version > at+1 {
		breaks = append(c.settle(""), c.broken(MissingVersion, at+1, "versions %d to %d are not there", at+1,
			i.Version-1))
	} else {
		breaks = c.link(i.PrevHash, i.Version)
	}
	c.last, c.actual = &i, i.ComputeHash()
	return breaks
}

// AddRecord is Add for an archived record, which also says what it took the place of.
func (c *Chain) AddRecord(r *events.AuditRecord) []Break {
	last, actual := c.last, c.actual
	breaks := c.Add(FromAudit(r))
	if last != nil && r.ItemVersion == last.Version+1 && last.Hash == actual && !bytes.Equal(r.Before, last.Body) {
		breaks = append(breaks, c.broken(Altered, r.ItemVersion, "what it says was before is not version %d",
			last.Version))
	}
	return breaks
}

// link compares what a version says was before it with what was.
func (c *Chain) link(prev string, version int64) []Break {
	breaks := c.settle(prev)
	switch {
	case c.last == nil && prev != "":
		breaks = append(breaks, c.broken(BrokenLink, version, "the first version names one before it, %s", prev))
	case c.last != nil && prev != c.last.Hash && prev != c.actual:
		breaks = append(breaks, c.broken(BrokenLink, version, "it names %s as the version before, which has %s", prev,
			c.last.Hash))
	}
	return breaks
}

// settle says whether the last version is what its writer wrote. next is the hash that its successor or the live table
// knows it by, empty where nobody does.
func (c *Chain) settle(next string) []Break {
	switch {
	case c.last == nil || c.last.Hash == c.actual:
		return nil
	case next == c.actual:
		return []Break{c.broken(WrongHash, c.last.Version, "it says %s, and its fields have %s", c.last.Hash, c.actual)}
	}
	return []Break{c.broken(Altered, c.last.Version, "its fields have the hash %s, and were written with %s", c.actual,
		c.last.Hash)}
}

// End compares the chain with the newest version in the live table, nil where the table has none, and returns what is
// wrong from the last version on.
func (c *Chain) End(head *Item) []Break {
	switch {
	case c.last == nil && head == nil:
		return nil
	case c.last == nil:
		return []Break{c.broken(MissingTail, 1, "no version is there, and the table is at version %d", head.Version)}
	case head == nil:
		return append(c.settle(""), c.broken(Unknown, c.last.Version, "the table has no such item"))
	case head.Version > c.last.Version+1:
		return append(c.settle(""), c.broken(MissingTail, c.last.Version+1,
			"versions %d to %d are not there, and the table has them", c.last.Version+1, head.Version))
	case head.Version == c.last.Version+1:
		return append(c.link(head.PrevHash, head.Version), c.broken(MissingTail, head.Version,
			"it is not there, and the table has it"))
	case head.Version < c.last.Version:
		return append(c.settle(""), c.broken(Unknown, head.Version+1, "the table is at version %d", head.Version))
	}
	breaks := c.settle(head.Hash)
	if actual := head.ComputeHash(); head.Hash != c.last.Hash && head.Hash != c.actual {
		breaks = append(breaks, c.broken(WrongHead, head.Version, "it has %s, and in the table %s", c.last.Hash,
			head.Hash))
	} else if actual != head.Hash {
		breaks = append(breaks, c.broken(WrongHead, head.Version,
			"in the table its fields have the hash %s, and were written with %s", actual, head.Hash))
	}
	return breaks
}
