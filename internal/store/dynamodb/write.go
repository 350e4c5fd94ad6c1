package dynamodb

import (
	"maps"
	"math/big"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// write is one conditional update of one item. It is built as an expression and as steps, which do the same to a
// view.
type write struct {
	key     itemKey
	names   map[string]string
	aliases map[string]string // the reverse of names
	values  map[string]types.AttributeValue
	numbers map[string]string // alias of a number that is there already
	conds   []string
	sets    []string
	removes []string
	steps   []step
	ttl     int64 // set, or 0
	full    bool  // set
}

// step is what one assignment does to a counter.
type step struct {
	counter string
	field   string
	whole   fields   // the counter becomes this
	from    string   // field = from, as it was before the write, + add
	to      *big.Int // field = to
	add     *big.Int // field += add; a missing field is 0
	remove  bool
}

func newWrite(key itemKey) *write {
	return &write{
		key: key, names: map[string]string{}, aliases: map[string]string{},
		values: map[string]types.AttributeValue{}, numbers: map[string]string{},
	}
}

// name is the alias of an attribute.
func (w *write) name(attribute string) string {
	if alias, ok := w.aliases[attribute]; ok {
		return alias
	}
	alias := "#" + strconv.FormatInt(int64(len(w.names)), 36)
	w.names[alias], w.aliases[attribute] = attribute, alias
	return alias
}

// number is the alias of a number.
func (w *write) number(n *big.Int) string {
	text := n.String()
	if alias, ok := w.numbers[text]; ok {
		return alias
	}
	alias := ":" + strconv.FormatInt(int64(len(w.values)), 36)
	w.values[alias], w.numbers[text] = &types.AttributeValueMemberN{Value: text}, alias
	return alias
}

func (w *write) int(n int64) string { return w.number(big.NewInt(n)) }

func (w *write) value(v types.AttributeValue) string {
	alias := ":" + strconv.FormatInt(int64(len(w.values)), 36)
	w.values[alias] = v
	return alias
}

func (w *write) require(cond string) { w.conds = append(w.conds, cond) }

// counter is one counter within a write.
type counter struct {
	*write
	attribute string
	alias     string
}

func (w *write) counter(attribute string) counter { return counter{w, attribute, w.name(attribute)} }

func (c counter) path(field string) string { return c.alias + "." + field }

func (c counter) absent() string { return "attribute_not_exists(" + c.alias + ")" }

func (c counter) without(field string) string { return "attribute_not_exists(" + c.path(field) + ")" }

// compare is a condition on a field.
func (c counter) compare(field, operator string, n *big.Int) string {
	return c.path(field) + operator + c.number(n)
}

func (c counter) mustBe(field string, n *big.Int) { c.require(c.compare(field, "=", n)) }

func (c counter) replace(f fields) {
	c.sets = append(c.sets, c.alias+"="+c.value(f.attribute()))
	c.step(step{whole: f})
}

func (c counter) set(field string, n *big.Int) {
	c.sets = append(c.sets, c.path(field)+"="+c.number(n))
	c.step(step{field: field, to: n})
}

// copy sets a field to what another one was before the write, and more.
func (c counter) copy(field, from string, add *big.Int) {
	text := c.path(field) + "=" + c.path(from)
	if add.Sign() != 0 {
		text += "+" + c.number(add)
	}
	c.sets = append(c.sets, text)
	c.step(step{field: field, from: from, add: add})
}

func (c counter) add(field string, n *big.Int) {
	c.sets = append(c.sets, c.path(field)+"="+c.path(field)+"+"+c.number(n))
	c.step(step{field: field, add: n})
}

// addNew is add for a field that may be missing.
func (c counter) addNew(field string, n *big.Int) {
	path := c.path(field)
	c.sets = append(c.sets, path+"=if_not_exists("+path+","+c.int(0)+")+"+c.number(n))
	c.step(step{field: field, add: n})
}

func (c counter) drop(field string) {
	c.removes = append(c.removes, c.path(field))
	c.step(step{field: field, remove: true})
}

func (c counter) step(s step) {
	s.counter = c.attribute
	c.write.steps = append(c.write.steps, s)
}

// isUnchanged requires the counter to be exactly f, for the rare cases that no inequality fits.
func (c counter) isUnchanged(f fields) {
	if f == nil {
		c.require(c.absent())
		return
	}
	c.require(c.alias + "=" + c.value(f.attribute()))
}

// apply is what the write makes of an item.
func (w *write) apply(v *view) *view {
	out := *v
	out.counters = maps.Clone(v.counters)
	if out.counters == nil {
		out.counters = map[string]fields{}
	}
	fresh := map[string]bool{} // counters that are ours to change
	for _, s := range w.steps {
		if s.whole != nil {
			out.counters[s.counter] = s.whole
			continue
		}
		if !fresh[s.counter] {
			out.counters[s.counter], fresh[s.counter] = maps.Clone(out.counters[s.counter]), true
		}
		f := out.counters[s.counter]
		if f == nil {
			continue
		}
		switch {
		case s.remove:
			delete(f, s.field)
		case s.from != "":
			sum := new(big.Int).Set(s.add)
			if from := v.counters[s.counter][s.from]; from != nil {
				sum.Add(sum, from)
			}
			f[s.field] = sum
		case s.to != nil:
			f[s.field] = s.to
		default:
			sum := new(big.Int).Set(s.add)
			if old := v.counters[s.counter][s.field]; old != nil {
				sum.Add(sum, old)
			}
			f[s.field] = sum
		}
	}
	if w.ttl != 0 {
		out.ttl = w.ttl
	}
	if w.full {
		out.full, out.ttl = true, 0
	}
	out.exists = true
	return &out
}

func (w *write) condition() *string { return aws.String(strings.Join(w.conds, " AND ")) }

func (w *write) expression() *string {
	text := "SET " + strings.Join(w.sets, ",")
	if len(w.removes) > 0 {
		text += " REMOVE " + strings.Join(w.removes, ",")
	}
	return aws.String(text)
}

func (w *write) update(table *string) *dynamodb.UpdateItemInput {
	return &dynamodb.UpdateItemInput{
		TableName: table, Key: w.key.attributes(),
		ConditionExpression: w.condition(), UpdateExpression: w.expression(),
		ExpressionAttributeNames: w.names, ExpressionAttributeValues: w.values,
		ReturnValues:                        types.ReturnValueAllOld,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}
}

func (w *write) transact(table *string) types.TransactWriteItem {
	return types.TransactWriteItem{Update: &types.Update{
		TableName: table, Key: w.key.attributes(),
		ConditionExpression: w.condition(), UpdateExpression: w.expression(),
		ExpressionAttributeNames: w.names, ExpressionAttributeValues: w.values,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}}
}
