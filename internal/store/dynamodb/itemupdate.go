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
type itemUpdate struct {
	key           itemKey
	names         map[string]string
	aliases       map[string]string // the reverse of names
	values        map[string]types.AttributeValue
	numberAliases map[string]string // alias of a number that is there already
	conditions    []string
	sets          []string
	removes       []string
	assignments   []assignment
	newTTL        int64 // set, or 0
	marksFull     bool  // set
}

// step is what one assignment does to a counter.
type assignment struct {
	counter   string
	field     string
	replaceBy fields   // the counter becomes this
	copyFrom  string   // field = from, as it was before the write, + add
	setTo     *big.Int // field = to
	addUnits  *big.Int // field += add; a missing field is 0
	remove    bool
}

func newItemUpdate(key itemKey) *itemUpdate {
	return &itemUpdate{
		key: key, names: map[string]string{}, aliases: map[string]string{},
		values: map[string]types.AttributeValue{}, numberAliases: map[string]string{},
	}
}

// name is the alias of an attribute.
func (u *itemUpdate) nameAlias(attribute string) string {
	if alias, ok := u.aliases[attribute]; ok {
		return alias
	}
	alias := "#" + strconv.FormatInt(int64(len(u.names)), 36)
	u.names[alias], u.aliases[attribute] = attribute, alias
	return alias
}

// number is the alias of a number.
func (u *itemUpdate) numberAlias(n *big.Int) string {
	text := n.String()
	if alias, ok := u.numberAliases[text]; ok {
		return alias
	}
	alias := ":" + strconv.FormatInt(int64(len(u.values)), 36)
	u.values[alias], u.numberAliases[text] = &types.AttributeValueMemberN{Value: text}, alias
	return alias
}

func (u *itemUpdate) intAlias(n int64) string { return u.numberAlias(big.NewInt(n)) }

func (u *itemUpdate) valueAlias(v types.AttributeValue) string {
	alias := ":" + strconv.FormatInt(int64(len(u.values)), 36)
	u.values[alias] = v
	return alias
}

func (u *itemUpdate) require(cond string) { u.conditions = append(u.conditions, cond) }

// counter is one counter within a write.
type counterUpdate struct {
	*itemUpdate
	attribute string
	alias     string
}

func (u *itemUpdate) counterUpdate(attribute string) counterUpdate {
	return counterUpdate{u, attribute, u.nameAlias(attribute)}
}

func (u counterUpdate) path(field string) string { return u.alias + "." + field }

func (u counterUpdate) isAbsent() string { return "attribute_not_exists(" + u.alias + ")" }

func (u counterUpdate) fieldIsAbsent(field string) string {
	return "attribute_not_exists(" + u.path(field) + ")"
}

// compare is a condition on a field.
func (u counterUpdate) compare(field, operator string, n *big.Int) string {
	return u.path(field) + operator + u.numberAlias(n)
}

func (u counterUpdate) requireEqual(field string, n *big.Int) { u.require(u.compare(field, "=", n)) }

func (u counterUpdate) replace(f fields) {
	u.sets = append(u.sets, u.alias+"="+u.valueAlias(f.attribute()))
	u.assign(assignment{replaceBy: f})
}

func (u counterUpdate) setField(field string, n *big.Int) {
	u.sets = append(u.sets, u.path(field)+"="+u.numberAlias(n))
	u.assign(assignment{field: field, setTo: n})
}

// copy sets a field to what another one was before the write, and more.
func (u counterUpdate) copyField(field, from string, add *big.Int) {
	text := u.path(field) + "=" + u.path(from)
	if add.Sign() != 0 {
		text += "+" + u.numberAlias(add)
	}
	u.sets = append(u.sets, text)
	u.assign(assignment{field: field, copyFrom: from, addUnits: add})
}

func (u counterUpdate) addToField(field string, n *big.Int) {
	u.sets = append(u.sets, u.path(field)+"="+u.path(field)+"+"+u.numberAlias(n))
	u.assign(assignment{field: field, addUnits: n})
}

// addNew is add for a field that may be missing.
func (u counterUpdate) addOrCreate(field string, n *big.Int) {
	path := u.path(field)
	u.sets = append(u.sets, path+"=if_not_exists("+path+","+u.intAlias(0)+")+"+u.numberAlias(n))
	u.assign(assignment{field: field, addUnits: n})
}

func (u counterUpdate) removeField(field string) {
	u.removes = append(u.removes, u.path(field))
	u.assign(assignment{field: field, remove: true})
}

func (u counterUpdate) assign(s assignment) {
	s.counter = u.attribute
	u.itemUpdate.assignments = append(u.itemUpdate.assignments, s)
}

// isUnchanged requires the counter to be exactly f, for the rare cases that no inequality fits.
func (u counterUpdate) requireUnchanged(f fields) {
	if f == nil {
		u.require(u.isAbsent())
		return
	}
	u.require(u.alias + "=" + u.valueAlias(f.attribute()))
}

// apply is what the write makes of an item.
func (u *itemUpdate) applyTo(before *itemCopy) *itemCopy {
	after := *before
	after.counters = maps.Clone(before.counters)
	if after.counters == nil {
		after.counters = map[string]fields{}
	}
	cloned := map[string]bool{} // counters that are ours to change
	for _, s := range u.assignments {
		if s.replaceBy != nil {
			after.counters[s.counter] = s.replaceBy
			continue
		}
		if !cloned[s.counter] {
			after.counters[s.counter], cloned[s.counter] = maps.Clone(after.counters[s.counter]), true
		}
		f := after.counters[s.counter]
		if f == nil {
			continue
		}
		switch {
		case s.remove:
			delete(f, s.field)
		case s.copyFrom != "":
			sum := new(big.Int).Set(s.addUnits)
			if from := before.counters[s.counter][s.copyFrom]; from != nil {
				sum.Add(sum, from)
			}
			f[s.field] = sum
		case s.setTo != nil:
			f[s.field] = s.setTo
		default:
			sum := new(big.Int).Set(s.addUnits)
			if old := before.counters[s.counter][s.field]; old != nil {
				sum.Add(sum, old)
			}
			f[s.field] = sum
		}
	}
	if u.newTTL != 0 {
		after.ttl = u.newTTL
	}
	if u.marksFull {
		after.full, after.ttl = true, 0
	}
	after.exists = true
	return &after
}

func (u *itemUpdate) conditionExpression() *string {
	return aws.String(strings.Join(u.conditions, " AND "))
}

func (u *itemUpdate) updateExpression() *string {
	text := "SET " + strings.Join(u.sets, ",")
	if len(u.removes) > 0 {
		text += " REMOVE " + strings.Join(u.removes, ",")
	}
	return aws.String(text)
}

func (u *itemUpdate) updateInput(table *string) *dynamodb.UpdateItemInput {
	return &dynamodb.UpdateItemInput{
		TableName: table, Key: u.key.attributes(),
		ConditionExpression: u.conditionExpression(), UpdateExpression: u.updateExpression(),
		ExpressionAttributeNames: u.names, ExpressionAttributeValues: u.values,
		ReturnValues:                        types.ReturnValueAllOld,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}
}

func (u *itemUpdate) transactionItem(table *string) types.TransactWriteItem {
	return types.TransactWriteItem{Update: &types.Update{
		TableName: table, Key: u.key.attributes(),
		ConditionExpression: u.conditionExpression(), UpdateExpression: u.updateExpression(),
		ExpressionAttributeNames: u.names, ExpressionAttributeValues: u.values,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}}
}
