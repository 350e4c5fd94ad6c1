package control

import (
	"bytes"
	"fmt"

	"github.com/sluicelimits/sluice/events"
)

// BreakKind says what is wrong in a chain.
type BreakKind string

// The kinds of breaks.
const (
	MissingVersion BreakKind = "missing version" // a version before the first one, or between two that exist
	MissingTail    BreakKind = "missing tail"    // the newest versions of the live table are absent
	Altered        BreakKind = "altered"         // the hash of the fields is not the hash that their writer computed
	WrongHash      BreakKind = "wrong hash"      // the fields are unaltered, but the hash stored with them is wrong
	// prev_hash is not the hash of the previous version: one of the two was replaced
	BrokenLink BreakKind = "broken link"
	WrongHead  BreakKind = "wrong head"           // the newest version differs from the live table's
	Unknown    BreakKind = "unknown to the table" // there are versions that the live table does not have
	// the same version twice, or a version of another item: an error of the caller or of the archive
	OutOfOrder BreakKind = "out of order"
)

// Break is a place at which a chain is not intact.
type Break struct {
	Kind    BreakKind `json:"kind"`
	Table   Table     `json:"table,omitempty"`
	Key     string    `json:"key,omitempty"`
	Version int64     `json:"version,omitempty"` // of several missing versions, the first
	Detail  string    `json:"detail"`            // for people
}

func (b Break) Error() string {
	return fmt.Sprintf("%s/%q version %d: %s: %s", b.Table, b.Key, b.Version, b.Kind, b.Detail)
}

// Chain checks the hashes of the versions of one item, and that each version has the hash of the one before. It takes
// the versions oldest first. It keeps only one version in memory, since histories are long.
// Use [NewChain] to make one.
type Chain struct {
	table  Table
	key    string
	last   *Item  // nil: no version yet
	actual string // the hash computed from the fields of last
}

// NewChain returns a chain that expects version 1 of the item next.
func NewChain(t Table, key string) *Chain { return &Chain{table: t, key: key} }

func (c *Chain) broken(kind BreakKind, version int64, format string, args ...any) Break {
	return Break{kind, c.table, c.key, version, fmt.Sprintf(format, args...)}
}

// Add takes the next version and returns what is wrong up to it. Whether a field or only the stored hash was altered
// can be told only from the following version, so a break may be returned by the next Add or by End.
func (c *Chain) Add(i Item) []Break {
	if i.Table != c.table || i.Key != c.key {
		return []Break{c.broken(OutOfOrder, i.Version, "this is a version of %s/%q", i.Table, i.Key)}
	}
	at := int64(0)
	if c.last != nil {
		at = c.last.Version
	}
	if i.Version <= at {
		return []Break{c.broken(OutOfOrder, i.Version, "this version comes after version %d", at)}
	}
	var breaks []Break
	if i.Version > at+1 {
		breaks = append(c.checkLast(""), c.broken(MissingVersion, at+1, "versions %d to %d are missing", at+1,
			i.Version-1))
	} else {
		breaks = c.checkLink(i.PrevHash, i.Version)
	}
	c.last, c.actual = &i, i.ComputeHash()
	return breaks
}

// AddRecord is Add for an archived record. It also compares the body that the record says it replaced.
func (c *Chain) AddRecord(r *events.AuditRecord) []Break {
	last, actual := c.last, c.actual
	breaks := c.Add(FromAudit(r))
	if last != nil && r.ItemVersion == last.Version+1 && last.Hash == actual && !bytes.Equal(r.Before, last.Body) {
		breaks = append(breaks, c.broken(Altered, r.ItemVersion, "its member before is not the body of version %d",
			last.Version))
	}
	return breaks
}

// checkLink compares the hash by which a version names its predecessor with the predecessor.
func (c *Chain) checkLink(prev string, version int64) []Break {
	breaks := c.checkLast(prev)
	switch {
	case c.last == nil && prev != "":
		breaks = append(breaks, c.broken(BrokenLink, version, "the first version names a predecessor, %s", prev))
	case c.last != nil && prev != c.last.Hash && prev != c.actual:
		breaks = append(breaks, c.broken(BrokenLink, version, "it names %s as the previous version, whose hash is %s",
			prev, c.last.Hash))
	}
	return breaks
}

// checkLast reports whether the last version was altered. next is the hash by which its successor or the live table
// knows it; empty if neither does.
func (c *Chain) checkLast(next string) []Break {
	switch {
	case c.last == nil || c.last.Hash == c.actual:
		return nil
	case next == c.actual:
		return []Break{c.broken(WrongHash, c.last.Version, "the stored hash is %s, but the hash of the fields is %s",
			c.last.Hash, c.actual)}
	}
	return []Break{c.broken(Altered, c.last.Version, "the hash of the fields is %s, but was %s when they were written",
		c.actual, c.last.Hash)}
}

// End compares the chain with the newest version in the live table, or nil if the table has no such item. It returns
// what is wrong from the last version on.
func (c *Chain) End(head *Item) []Break {
	switch {
	case c.last == nil && head == nil:
		return nil
	case c.last == nil:
		return []Break{c.broken(MissingTail, 1, "no version was archived, but the table is at version %d",
			head.Version)}
	case head == nil:
		return append(c.checkLast(""), c.broken(Unknown, c.last.Version, "the table has no such item"))
	case head.Version > c.last.Version+1:
		return append(c.checkLast(""), c.broken(MissingTail, c.last.Version+1,
			"versions %d to %d of the table were not archived", c.last.Version+1, head.Version))
	case head.Version == c.last.Version+1:
		return append(c.checkLink(head.PrevHash, head.Version), c.broken(MissingTail, head.Version,
			"this version of the table was not archived"))
	case head.Version < c.last.Version:
		return append(c.checkLast(""), c.broken(Unknown, head.Version+1, "the table is at version %d", head.Version))
	}
	breaks := c.checkLast(head.Hash)
	if actual := head.ComputeHash(); head.Hash != c.last.Hash && head.Hash != c.actual {
		breaks = append(breaks, c.broken(WrongHead, head.Version, "its hash is %s, but in the table %s", c.last.Hash,
			head.Hash))
	} else if actual != head.Hash {
		breaks = append(breaks, c.broken(WrongHead, head.Version,
			"in the table the hash of its fields is %s, but was %s when they were written", actual, head.Hash))
	}
	return breaks
}
