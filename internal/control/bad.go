package control

import "fmt"

// BadItemError is an item that cannot be read, by its key in the table. It is ErrBadItem.
type BadItemError struct {
	Table Table
	Key   string
	Err   error // what is wrong with the item
}

func (e *BadItemError) Error() string {
	return fmt.Sprintf("%s/%.140q: %s: %v", e.Table, e.Key, ErrBadItem, e.Err)
}

// Unwrap is ErrBadItem, and what is wrong.
func (e *BadItemError) Unwrap() []error { return []error{ErrBadItem, e.Err} }

// BadItems returns the items that an error of List names. It is whole if the error is about these items alone: then
// every other item was listed.
func BadItems(err error) (items []*BadItemError, whole bool) {
	switch e := err.(type) { //nolint:errorlint // this takes the tree of errors apart, which errors.As cannot
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
