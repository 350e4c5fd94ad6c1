package control

import (
	"fmt"
	"slices"
)

// BadItemError says why an item cannot be read. It wraps ErrBadItem.
type BadItemError struct {
	Table Table
	Key   string
	Err   error // what is wrong with the item
}

func (e *BadItemError) Error() string {
	return fmt.Sprintf("%s/%.140q: %s: %v", e.Table, e.Key, ErrBadItem, e.Err)
}

// Unwrap returns ErrBadItem and the reason.
func (e *BadItemError) Unwrap() []error { return []error{ErrBadItem, e.Err} }

// BadItems returns the items that an error of List names. whole is true if the error is about these items only: List
// has then returned every other item.
func BadItems(err error) (items []*BadItemError, whole bool) {
	switch e := err.(type) { //nolint:errorlint // errors.As cannot list all errors of a tree
	case nil:
		return nil, true
	case *BadItemError:
		return []*BadItemError{e}, true
	case interface{ Unwrap() []error }:
		whole = true
		for _, one := range e.Unwrap() {
			some, ok := BadItems(one)
			items, whole = append(items, some...), whole && ok
		}
		return items, whole
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			return BadItems(inner)
		}
	}
	return nil, false
}

// MayHide reports whether an item whose key satisfies is may be among those that List left out because of an error. A
// function may be permitted to write only some keys of a table: an item under one of these that cannot be read must not
// be taken for another.
func MayHide(err error, is func(key string) bool) bool {
	items, whole := BadItems(err)
	return !whole || slices.ContainsFunc(items, func(i *BadItemError) bool { return is(i.Key) })
}
