package dynamo

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

// KeyOf returns the key of the row that holds the item with this key.
func KeyOf(key string) Row { return Row{ID: text(key)} }

func text(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }

func number(s string) types.AttributeValue { return &types.AttributeValueMemberN{Value: s} }

// RowOf returns the attributes of an item.
func RowOf(i *control.Item) Row {
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

// ItemOf converts the attributes of a row of table t to an item. The error wraps control.ErrBadItem. It names the first
// attribute that is missing or wrong, or else the first field that is out of bounds ([control.Item.Check]), and the key
// if there is one. ItemOf does not check the hash: the caller does so with [control.Item.Verify].
func ItemOf(t control.Table, r Row) (control.Item, error) {
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
