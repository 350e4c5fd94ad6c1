package control

import (
	"bytes"
	"fmt"
	"time"

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
	at     int64  // the newest version that exists; 0: none yet
	last   Item   // the newest version that can be read; of version 0: none yet
	actual string // the hash computed from the fields of last
}

// NewChain returns a chain that expects version 1 of the item next.
func NewChain(t Table, key string) *Chain { return &Chain{table: t, key: key} }

// At returns the newest version that the chain has; 0: none yet.
func (c *Chain) At() int64 { return c.at }

func (c *Chain) broken(kind BreakKind, version int64, format string, args ...any) Break {
	return Break{kind, c.table, c.key, version, fmt.Sprintf(format, args...)}
}

// Add takes the next version and returns what is wrong up to it. Whether a field or only the stored hash was altered
// can be told only from the following version, so a break may be returned by the next Add or by End.
func (c *Chain) Add(i Item) []Break {
	if i.Table != c.table || i.Key != c.key {
		return []Break{c.broken(OutOfOrder, i.Version, "this is a version of %s/%q", i.Table, i.Key)}
	}
	if i.Version <= c.at {
		return []Break{c.broken(OutOfOrder, i.Version, "this version comes after version %d", c.at)}
	}
	breaks := append(c.follows(i.Version, i.PrevHash), c.Skip(i.Version)...)
	c.last, c.actual = i, i.ComputeHash()
	return breaks
}

// Skip takes a version that exists and cannot be read, so that nothing can be compared with it. It returns the versions
// that are missing before it.
func (c *Chain) Skip(version int64) (missing []Break) {
	if version > c.at+1 {
		missing = []Break{c.broken(MissingVersion, c.at+1, "versions %d to %d are missing", c.at+1, version-1)}
	}
	c.at = version
	return missing
}

// AddRecord is Add for an archived record. It also compares the body that the record says it replaced.
func (c *Chain) AddRecord(r *events.AuditRecord) []Break {
	last, actual := c.last, c.actual
	breaks := c.Add(FromAudit(r))
	if last.Version > 0 && r.ItemVersion == last.Version+1 && last.Hash == actual && !bytes.Equal(r.Before, last.Body) {
		breaks = append(breaks, c.broken(Altered, r.ItemVersion, "its member before is not the body of version %d",
			last.Version))
	}
	return breaks
}

// follows compares the last version that can be read with a later one, which names its predecessor by the hash prev.
func (c *Chain) follows(version int64, prev string) []Break {
	if version != c.last.Version+1 {
		return c.checkLast("")
	}
	return c.checkLink(prev, version)
}

// checkLink compares the hash by which a version names its predecessor with the predecessor.
func (c *Chain) checkLink(prev string, version int64) []Break {
	breaks := c.checkLast(prev)
	switch {
	case c.last.Version == 0 && prev != "":
		breaks = append(breaks, c.broken(BrokenLink, version, "the first version names a predecessor, %s", prev))
	case c.last.Version > 0 && prev != c.last.Hash && prev != c.actual:
		breaks = append(breaks, c.broken(BrokenLink, version, "it names %s as the previous version, whose hash is %s",
			prev, c.last.Hash))
	}
	return breaks
}

// checkLast reports whether the last version was altered. next is the hash by which its successor or the live table
// knows it; empty if neither does.
func (c *Chain) checkLast(next string) []Break {
	switch {
	case c.last.Hash == c.actual:
		return nil
	case next == c.actual:
		return []Break{c.broken(WrongHash, c.last.Version, "the stored hash is %s, but the hash of the fields is %s",
			c.last.Hash, c.actual)}
	}
	return []Break{c.broken(Altered, c.last.Version, "the hash of the fields is %s, but was %s when they were written",
		c.actual, c.last.Hash)}
}

// Head is what a [Chain] needs to know of the newest version of an item in the live table.
type Head struct {
	Version        int64
	ChangedAt      time.Time
	PrevHash, Hash string
	Actual         string // hash computed from the fields
}

// Head returns the item as the head of its chain.
func (i *Item) Head() *Head {
	return &Head{i.Version, i.ChangedAt, i.PrevHash, i.Hash, i.ComputeHash()}
}

// End compares the chain with the newest version in the live table, or nil if the table has no such item. It returns
// what is wrong from the last version on.
func (c *Chain) End(head *Head) []Break {
	switch {
	case c.at == 0 && head == nil:
		return nil
	case c.at == 0:
		return []Break{c.broken(MissingTail, 1, "no version was archived, but the table is at version %d",
			head.Version)}
	case head == nil:
		return append(c.checkLast(""), c.broken(Unknown, c.at, "the table has no such item"))
	case head.Version > c.at:
		return append(c.follows(head.Version, head.PrevHash), c.broken(MissingTail, c.at+1,
			"versions %d to %d of the table were not archived", c.at+1, head.Version))
	case head.Version < c.at:
		return append(c.checkLast(""), c.broken(Unknown, head.Version+1, "the table is at version %d", head.Version))
	case head.Version > c.last.Version:
		return c.follows(head.Version, head.PrevHash)
	}
	breaks := c.checkLast(head.Hash)
	if head.Hash != c.last.Hash && head.Hash != c.actual {
		breaks = append(breaks, c.broken(WrongHead, head.Version, "its hash is %s, but in the table %s", c.last.Hash,
			head.Hash))
	} else if head.Actual != head.Hash {
		breaks = append(breaks, c.broken(WrongHead, head.Version,
			"in the table the hash of its fields is %s, but was %s when they were written", head.Actual, head.Hash))
	}
	return breaks
}
