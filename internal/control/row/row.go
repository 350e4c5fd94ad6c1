// Package row defines the layout of an item in a DynamoDB table. The client that reads and writes items uses it, and
// the decoder of stream records.
//
// The tables are those of package control, each with the partition key id and no sort key. There is no time to live:
// items and tombstones are never deleted. A table's stream carries new and old images.
//
//	attribute   type  meaning
//	id          S     the item's key
//	layout      N     1. Any other layout is an error
//	version     N     1, 2, 3 …
//	actor       S     who wrote this version
//	reason      S     the reason
//	changed_at  S     the time by the writer's clock: 2026-11-21T18:00:00.000000Z
//	deleted     BOOL  a tombstone
//	body        S     the body in canonical JSON, as it is hashed; absent in a tombstone
//	prev_hash   S     hash of the previous version; empty in version 1
//	hash        S     hex of SHA-256, see package control
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

const layout = "1"

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
	Text string // of S and N
	Bool bool
}

// Row holds the attributes of an item, by name.
type Row map[string]Value

// Of returns the attributes of an item.
func Of(i *control.Item) Row {
	r := Row{
		ID:        {Kind: S, Text: i.Key},
		Layout:    {Kind: N, Text: layout},
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

// Item returns the item of the table that has these attributes. The error wraps control.ErrBadItem and names the
// attribute, and the key if there is one. The hash is not checked.
func (r Row) Item(t control.Table) (control.Item, error) {
	get := reader{row: r}
	i := control.Item{Table: t, Key: get.take(ID, S).Text}
	if l := get.take(Layout, N).Text; l != layout {
		get.fail("layout is %.20q, want %s", l, layout)
	}
	version := get.take(Version, N).Text
	v, err := strconv.ParseInt(version, 10, 64)
	if err != nil {
		get.fail("version is %.40q, want an integer", version)
	}
	i.Version = v
	i.Actor, i.Reason = get.take(Actor, S).Text, get.take(Reason, S).Text
	at := get.take(ChangedAt, S).Text
	if i.ChangedAt, err = time.Parse(control.TimeLayout, at); err != nil ||
		i.ChangedAt.Format(control.TimeLayout) != at {
		get.fail("changed_at is %.40q, want a time like %s", at, control.TimeLayout)
	}
	i.Deleted = get.take(Deleted, Bool).Bool
	i.PrevHash, i.Hash = get.take(PrevHash, S).Text, get.take(Hash, S).Text
	if _, there := r[Body]; there || !i.Deleted {
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

// reader reads attributes and keeps the first error.
type reader struct {
	row Row
	err error
}

func (r *reader) take(name string, k Kind) Value {
	v, ok := r.row[name]
	if !ok {
		r.fail("%s is missing", name)
	} else if v.Kind != k {
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
