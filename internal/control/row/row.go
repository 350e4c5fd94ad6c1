// Package row defines how an item of a control table is stored as the attributes of a row in DynamoDB. The client that
// reads and writes items uses it (package dynamo), and the decoder of stream records (package streamrecord).
//
// The tables are those of package control, each with the partition key id and no sort key. There is no time to live:
// items and tombstones are never deleted. A table's stream carries new and old images.
//
//	attribute   type  meaning
//	id          S     the item's key
//	layout      N     the number of this list of attributes: always 1; another number is an error
//	version     N     1, 2, 3 …
//	actor       S     who wrote this version
//	reason      S     the reason
//	changed_at  S     the time by the writer's clock: 2026-11-21T18:00:00.000000Z
//	deleted     BOOL  a tombstone
//	body        S     the body in canonical JSON, as it is hashed; absent in a tombstone
//	prev_hash   S     hash of the previous version; empty in version 1
//	hash        S     hex of SHA-256 over the other fields of the item, see package control
//
// Other attributes are ignored.
package row

import (
	"fmt"
	"strconv"
	"time"

	"github.com/sluicelimits/sluice/internal/control"
)

// Names of the attributes.
const (
	ID        = "id"
	Layout    = "layout"
	Version   = "version"
	Actor     = "actor"
	Reason    = "reason"
	ChangedAt = "changed_at"
	Deleted   = "deleted"
	Body      = "body"
	PrevHash  = "prev_hash"
	Hash      = "hash"
)

const layoutNumber = "1" // the only value of the attribute Layout

// Kind is the type of an attribute.
type Kind string

// The kinds that the attributes of items have. An attribute of any other type has the kind Other and no value.
const (
	S     Kind = "S"
	N     Kind = "N"
	Bool  Kind = "BOOL"
	Other Kind = ""
)

// Value is the value of an attribute.
type Value struct {
	Kind Kind
	Text string // if Kind is S or N
	Bool bool   // if Kind is Bool
}

// Row holds the attributes of an item, by name.
type Row map[string]Value

// Of returns the attributes of an item.
func Of(i *control.Item) Row {
	r := Row{
		ID:        {Kind: S, Text: i.Key},
		Layout:    {Kind: N, Text: layoutNumber},
		Version:   {Kind: N, Text: strconv.FormatInt(i.Version, 10)},
		Actor:     {Kind: S, Text: i.Actor},
		Reason:    {Kind: S, Text: i.Reason},
		ChangedAt: {Kind: S, Text: i.ChangedAt.Format(control.TimeLayout)},
		Deleted:   {Kind: Bool, Bool: i.Deleted},
		PrevHash:  {Kind: S, Text: i.PrevHash},
		Hash:      {Kind: S, Text: i.Hash},
	}
	if !i.Deleted {
		r[Body] = Value{Kind: S, Text: string(i.Body)}
	}
	return r
}

// Item converts the attributes of a row of table t to an item. The error wraps control.ErrBadItem. It names the first
// attribute that is missing or wrong, or else the first field that is out of bounds ([control.Item.Check]), and the key
// if there is one. Item does not check the hash: the caller does so with [control.Item.Verify].
func (r Row) Item(t control.Table) (control.Item, error) {
	get := reader{row: r}
	i := control.Item{Table: t, Key: get.take(ID, S).Text}
	if l := get.take(Layout, N).Text; l != layoutNumber {
		get.fail("layout is %.20q, want %s", l, layoutNumber)
	}
	version := get.take(Version, N).Text
	v, err := strconv.ParseInt(version, 10, 64)
	if err != nil {
		get.fail("version is %.40q, want an integer", version)
	}
	i.Version = v
	i.Actor, i.Reason = get.take(Actor, S).Text, get.take(Reason, S).Text
	at := get.take(ChangedAt, S).Text
	// Parse accepts several spellings of one time, and the hash would be the same for all of them. Only the spelling
	// that Format writes is valid.
	if i.ChangedAt, err = time.Parse(control.TimeLayout, at); err != nil ||
		i.ChangedAt.Format(control.TimeLayout) != at {
		get.fail("changed_at is %.40q, want a time like %s", at, control.TimeLayout)
	}
	i.Deleted = get.take(Deleted, Bool).Bool
	i.PrevHash, i.Hash = get.take(PrevHash, S).Text, get.take(Hash, S).Text
	if _, exists := r[Body]; exists || !i.Deleted { // Check refuses a tombstone that has a body
		i.Body = []byte(get.take(Body, S).Text)
	}
	if get.err != nil {
		return control.Item{}, &control.BadItemError{Table: t, Key: i.Key, Err: get.err}
	}
	if err := i.Check(); err != nil {
		return control.Item{}, err
	}
	return i, nil
}

// reader reads attributes. It keeps the first error and ignores later ones, which may only follow from the first: a
// missing attribute is read as "".
type reader struct {
	row Row
	err error
}

// take returns the value of an attribute; the zero Value if the attribute is missing or has another kind.
func (r *reader) take(name string, k Kind) Value {
	v, ok := r.row[name]
	switch {
	case !ok:
		r.fail("%s is missing", name)
		return Value{}
	case v.Kind != k:
		r.fail("%s is not of type %s", name, k)
		return Value{}
	}
	return v
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}
