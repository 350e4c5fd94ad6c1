package dynamotable

import (
	"bytes"
	"cmp"
	"maps"
	"math/big"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// expression is what a parsed expression needs to be evaluated: the names and values of its aliases, and the item. The
// first error stays in err.
type expression struct {
	names  map[string]string
	values attributes
	item   attributes
	err    error
}

func (e *expression) fail(format string, args ...any) {
	if e.err == nil {
		e.err = invalid(format, args...)
	}
}

// path names an attribute, or a field of an attribute that is a map. A part that begins with # is an alias.
type path struct {
	attribute string
	field     string // "" if the path names the attribute itself
}

// name returns the name that a part of a path stands for.
func (e *expression) name(part string) string {
	if part == "" || part[0] != '#' {
		return part
	}
	name, ok := e.names[part]
	if !ok {
		e.fail("the name %s is not defined", part)
	}
	return name
}

// operand is a value in an expression: the value of an alias, the value at a path, or, for if_not_exists, the value at
// a path with an alias as its default.
type operand struct {
	alias string // begins with a colon; "" if the operand is a path without a default
	path  path   // used unless its attribute is ""
}

// get returns the value of an operand, or nil if there is none.
func (o *operand) get(e *expression) types.AttributeValue {
	if o.path.attribute != "" {
		if v := o.path.get(e); v != nil || o.alias == "" {
			return v
		}
	}
	v, ok := e.values[o.alias]
	if !ok {
		e.fail("the value %s is not defined", o.alias)
	}
	return v
}

// get returns the value that a path names, or nil if there is none.
func (p *path) get(e *expression) types.AttributeValue {
	v := e.item[e.name(p.attribute)]
	if p.field == "" {
		return v
	}
	m, ok := v.(*types.AttributeValueMemberM)
	if !ok {
		return nil
	}
	return m.Value[e.name(p.field)]
}

// condition is a parsed condition or a part of one.
type condition interface{ holds(e *expression) bool }

// allOf holds if all of its parts do, anyOf if one of them does.
type (
	allOf []condition
	anyOf []condition
)

func (c allOf) holds(e *expression) bool {
	for _, part := range c {
		if !part.holds(e) {
			return false
		}
	}
	return true
}

func (c anyOf) holds(e *expression) bool {
	for _, part := range c {
		if part.holds(e) {
			return true
		}
	}
	return false
}

// existence is attribute_exists or, if absent is true, attribute_not_exists.
type existence struct {
	path   path
	absent bool
}

func (c *existence) holds(e *expression) bool { return (c.path.get(e) == nil) == c.absent }

// comparison holds if both operands have a value, both are of the same type, and they compare as the operator says.
type comparison struct {
	left, right operand
	operator    string // = < <= > >=
}

func (c *comparison) holds(e *expression) bool {
	left, right := c.left.get(e), c.right.get(e)
	if left == nil || right == nil {
		return false
	}
	a, ok := left.(*types.AttributeValueMemberN)
	b, both := right.(*types.AttributeValueMemberN)
	if !ok || !both {
		if c.operator != "=" {
			e.fail("only numbers can be ordered")
		}
		return equal(left, right)
	}
	order := e.compare(a.Value, b.Value)
	switch c.operator {
	case "=":
		return order == 0
	case "<":
		return order < 0
	case "<=":
		return order <= 0
	case ">":
		return order > 0
	default:
		return order >= 0
	}
}

// compare compares two whole numbers.
func (e *expression) compare(a, b string) int {
	if a == b {
		return 0
	}
	x, err := strconv.ParseInt(a, 10, 64)
	y, err2 := strconv.ParseInt(b, 10, 64)
	if err == nil && err2 == nil {
		return cmp.Compare(x, y)
	}
	return e.big(a).Cmp(e.big(b))
}

func (e *expression) big(text string) *big.Int {
	n, ok := new(big.Int).SetString(text, 10)
	if !ok {
		e.fail("%.50q is not a whole number", text)
		return new(big.Int)
	}
	return n
}

func equal(a, b types.AttributeValue) bool {
	switch a := a.(type) {
	case *types.AttributeValueMemberN:
		b, ok := b.(*types.AttributeValueMemberN)
		return ok && a.Value == b.Value // whole numbers have one spelling here
	case *types.AttributeValueMemberS:
		b, ok := b.(*types.AttributeValueMemberS)
		return ok && a.Value == b.Value
	case *types.AttributeValueMemberB:
		b, ok := b.(*types.AttributeValueMemberB)
		return ok && bytes.Equal(a.Value, b.Value)
	case *types.AttributeValueMemberM:
		b, ok := b.(*types.AttributeValueMemberM)
		return ok && maps.EqualFunc(a.Value, b.Value, equal)
	}
	return false
}

// update is a parsed update expression.
type update struct {
	sets    []assignment
	removes []path
}

// assignment sets a path to the sum of terms.
type assignment struct {
	to    path
	terms []term
}

type term struct {
	operand
	negative bool
}

// apply makes the assignments. It changes after, which is the item after the update; values come from the item before
// it.
func (u *update) apply(e *expression, after attributes) {
	cloned := map[string]bool{} // the attributes of type M that are a copy already
	for i := range u.sets {
		s := &u.sets[i]
		if v := s.value(e); v != nil {
			u.change(e, after, cloned, s.to, v)
		}
	}
	for _, p := range u.removes {
		u.change(e, after, cloned, p, nil)
	}
}

// change sets what a path names to v, or removes it if v is nil.
func (u *update) change(e *expression, after attributes, cloned map[string]bool, p path, v types.AttributeValue) {
	name, to := e.name(p.attribute), after
	if p.field != "" {
		m, ok := after[name].(*types.AttributeValueMemberM)
		if !ok {
			e.fail("The document path provided in the update expression is invalid for update")
			return
		}
		if !cloned[name] {
			m = &types.AttributeValueMemberM{Value: maps.Clone(m.Value)}
			after[name], cloned[name] = m, true
		}
		to, name = m.Value, e.name(p.field)
	}
	if v == nil {
		delete(to, name)
		return
	}
	to[name] = v
}

// value returns the sum of the terms, or nil after an error.
func (s *assignment) value(e *expression) types.AttributeValue {
	first := s.terms[0].get(e)
	if first == nil {
		e.fail("The provided expression refers to an attribute that does not exist in the item")
		return nil
	}
	if len(s.terms) == 1 {
		return first
	}
	sum := new(big.Int)
	for i := range s.terms {
		n, ok := s.terms[i].get(e).(*types.AttributeValueMemberN)
		if !ok {
			e.fail("An operand in the update expression has an incorrect data type")
			return nil
		}
		if s.terms[i].negative {
			sum.Sub(sum, e.big(n.Value))
		} else {
			sum.Add(sum, e.big(n.Value))
		}
	}
	return &types.AttributeValueMemberN{Value: sum.String()}
}
