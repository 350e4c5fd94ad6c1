package dynamotable

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/cell/table"
)

// item reads the attributes of an item; bad is the first error.
type item struct {
	attributes map[string]types.AttributeValue
	bad        error
}

func (i *item) text(name string) string {
	s, ok := i.attributes[name].(*types.AttributeValueMemberS)
	if !ok || s.Value == "" {
		i.refuse(name, "no text")
		return ""
	}
	return s.Value
}

// number returns an attribute that is a number of at least 0.
func (i *item) number(name string) int64 {
	s, ok := i.attributes[name].(*types.AttributeValueMemberN)
	if !ok {
		i.refuse(name, "no number")
		return 0
	}
	n, err := strconv.ParseInt(s.Value, 10, 64)
	if err != nil || n < 0 {
		i.refuse(name, "no whole number from 0 up")
		return 0
	}
	return n
}

func (i *item) boolean(name string) bool {
	b, ok := i.attributes[name].(*types.AttributeValueMemberBOOL)
	return ok && b.Value
}

func (i *item) refuse(name, why string) {
	if i.bad == nil {
		i.bad = fmt.Errorf("an item does not have this layout: its attribute %s is %s", name, why)
	}
}

// refOf returns the name of a document by its item's key. The error is a *table.BadRow if no document can have
// that key. Without this check, an item in another shard than its id's would be mistaken for the document with that
// id, which Get reads elsewhere.
func refOf(attributes map[string]types.AttributeValue) (table.Ref, error) {
	i := item{attributes, nil}
	pk, sk := i.text("pk"), i.text("sk")
	kind, _, _ := strings.Cut(pk, "#")
	ref := table.Ref{Kind: table.Kind(kind), ID: sk}
	if i.bad == nil && rowKey(documentKey(ref)) != [2]string{pk, sk} {
		i.refuse("pk", "not the partition of its sk")
	}
	if i.bad != nil {
		return table.Ref{}, &table.BadRow{Kind: ref.Kind, Key: [2]string{pk, sk}, Err: i.bad}
	}
	return ref, nil
}

// rowKey returns the key of an item as text.
func rowKey(attributes map[string]types.AttributeValue) [2]string {
	i := item{attributes, nil}
	return [2]string{i.text("pk"), i.text("sk")}
}

// documentOf returns the document of an item; if there is no item, a document of version 0. The error is a
// *table.BadRow.
func documentOf(ref table.Ref, attributes map[string]types.AttributeValue) (table.Document, error) {
	d := table.Document{Ref: ref}
	if len(attributes) == 0 {
		return d, nil
	}
	i := item{attributes, nil}
	d.Version, d.Seq, d.Deleted = i.number("v"), i.number("n"), i.boolean("d")
	if packed, ok := attributes["gz"].(*types.AttributeValueMemberB); ok {
		var err error
		if d.Body, err = unpack(packed.Value); err != nil {
			i.refuse("gz", "no gzip of a body")
		}
	} else if body, ok := attributes["body"].(*types.AttributeValueMemberB); ok {
		d.Body = body.Value
	} else if !d.Deleted {
		i.refuse("body", "missing")
	}
	if d.Version == 0 {
		i.refuse("v", "no version: it would pass for a document that never was")
	}
	if i.bad != nil {
		bad := &table.BadRow{Kind: ref.Kind, Ref: ref, Key: rowKey(documentKey(ref)), Err: i.bad}
		return table.Document{Ref: ref}, bad
	}
	return d, nil
}

var errTooLarge = errors.New("the body is larger than the limit")

// unpack decompresses a body. It uses no more memory than the largest body takes.
func unpack(packed []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(r, table.MaxBodyBytes+1))
	if err == nil && len(body) > table.MaxBodyBytes {
		err = errTooLarge
	}
	return body, err
}

func entryOf(attributes map[string]types.AttributeValue) (table.Entry, error) {
	i := item{attributes, nil}
	var e table.Entry
	var err error
	if e.Seq, err = strconv.ParseInt(i.text("sk"), 10, 64); err != nil {
		i.refuse("sk", "no number")
	}
	e.At = time.UnixMicro(i.number("at")).UTC()
	list, ok := attributes["changes"].(*types.AttributeValueMemberL)
	if !ok {
		i.refuse("changes", "no list")
		return e, i.bad
	}
	for _, one := range list.Value {
		m, ok := one.(*types.AttributeValueMemberM)
		if !ok {
			i.refuse("changes", "no list of maps")
			break
		}
		c := item{m.Value, nil}
		e.Changes = append(e.Changes, table.Change{
			Ref:     table.Ref{Kind: table.Kind(c.text("k")), ID: c.text("i")},
			Version: c.number("v"), Deleted: c.boolean("d"),
		})
		if c.bad != nil && i.bad == nil {
			i.bad = c.bad
		}
	}
	return e, i.bad
}
