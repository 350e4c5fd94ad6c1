// Package row defines how an item of a control table is stored as the attributes of a row in DynamoDB, and decodes the
// records of the tables' streams, which contain such rows. Package dynamo is the client that reads and writes rows.
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

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

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

// Row holds the attributes of an item, by name.
type Row = map[string]types.AttributeValue

// Key returns the key of the row that holds the item with this key.
func Key(key string) Row { return Row{ID: text(key)} }

func text(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }

func number(s string) types.AttributeValue { return &types.AttributeValueMemberN{Value: s} }

// Of returns the attributes of an item.
func Of(i *control.Item) Row {
	r := Row{
		ID:        text(i.Key),
		Layout:    number(layoutNumber),
		Version:   number(strconv.FormatInt(i.Version, 10)),
		Actor:     text(i.Actor),
		Reason:    text(i.Reason),
		ChangedAt: text(i.ChangedAt.Format(control.TimeLayout)),
		Deleted:   &types.AttributeValueMemberBOOL{Value: i.Deleted},
		PrevHash:  text(i.PrevHash),
		Hash:      text(i.Hash),
	}
	if !i.Deleted {
		r[Body] = text(string(i.Body))
	}
	return r
}

// Item converts the attributes of a row of table t to an item. The error wraps control.ErrBadItem. It names the first
// attribute that is missing or wrong, or else the first field that is out of bounds ([control.Item.Check]), and the key
// if there is one. Item does not check the hash: the caller does so with [control.Item.Verify].
func Item(t control.Table, r Row) (control.Item, error) {
	get := reader{row: r}
	i := control.Item{Table: t, Key: get.text(ID)}
	if l := get.number(Layout); l != layoutNumber {
		get.fail("layout is %.20q, want %s", l, layoutNumber)
	}
	version := get.number(Version)
	v, err := strconv.ParseInt(version, 10, 64)
	if err != nil {
		get.fail("version is %.40q, want an integer", version)
	}
	i.Version = v
	i.Actor, i.Reason = get.text(Actor), get.text(Reason)
	at := get.text(ChangedAt)
	// Parse accepts several spellings of one time, and the hash would be the same for all of them. Only the spelling
	// that Format writes is valid.
	if i.ChangedAt, err = time.Parse(control.TimeLayout, at); err != nil ||
		i.ChangedAt.Format(control.TimeLayout) != at {
		get.fail("changed_at is %.40q, want a time like %s", at, control.TimeLayout)
	}
	i.Deleted = take[types.AttributeValueMemberBOOL](&get, Deleted, "BOOL").Value
	i.PrevHash, i.Hash = get.text(PrevHash), get.text(Hash)
	if _, exists := r[Body]; exists || !i.Deleted { // Check refuses a tombstone that has a body
		i.Body = []byte(get.text(Body))
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

func (r *reader) text(name string) string {
	return take[types.AttributeValueMemberS](r, name, "S").Value
}

func (r *reader) number(name string) string {
	return take[types.AttributeValueMemberN](r, name, "N").Value
}

// take returns the value of an attribute; the zero value if the attribute is missing or has another type. kind names
// the type A in errors.
func take[A any, P interface {
	*A
	types.AttributeValue
}](r *reader, name, kind string) A {
	switch v := r.row[name].(type) {
	case P:
		return *v
	case nil:
		r.fail("%s is missing", name)
	default:
		r.fail("%s is not of type %s", name, kind)
	}
	var none A
	return none
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}
