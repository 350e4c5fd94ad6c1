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

// itemUpdate is one conditional UpdateItem call. The algorithms build it through [counterUpdate]. Its assignments exist
// twice: as text for DynamoDB, and as values that applyTo carries out on the copy of the item.
type itemUpdate struct {
	key           itemKey
	names         map[string]string               // attribute names by alias, as in "#0"
	aliases       map[string]string               // aliases by attribute name
	values        map[string]types.AttributeValue // by alias, as in ":0"
	numberAliases map[string]string               // aliases of the numbers in values, by their digits
	conditions    []string                        // joined by AND
	sets          []string                        // the SET clause
	removes       []string                        // the REMOVE clause
	assignments   []assignment                    // what sets and removes do to counters, in the same order
	newTTL        int64                           // the ttl that is set, or 0
	marksFull     bool                            // sets the attribute "full" and removes the ttl
}

// assignment is the effect of one assignment on a counter. Like DynamoDB, it reads fields as they were before the
// update.
type assignment struct {
	counter   string   // name of the counter's attribute
	field     string   // unless replaceBy is set
	replaceBy fields   // the new fields of the whole counter
	copyFrom  string   // field = this other field + addUnits
	setTo     *big.Int // field = setTo
	addUnits  *big.Int // field = field + addUnits; a missing field counts as 0
	remove    bool     // the field is removed
}

func newItemUpdate(key itemKey) *itemUpdate {
	return &itemUpdate{
		key: key, names: map[string]string{}, aliases: map[string]string{},
		values: map[string]types.AttributeValue{}, numberAliases: map[string]string{},
	}
}

// nameAlias returns the alias of an attribute name.
func (u *itemUpdate) nameAlias(attribute string) string {
	if alias, ok := u.aliases[attribute]; ok {
		return alias
	}
	alias := "#" + strconv.FormatInt(int64(len(u.names)), 36)
	u.names[alias], u.aliases[attribute] = attribute, alias
	return alias
}

// numberAlias returns the alias of a number. Equal numbers share an alias.
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

// valueAlias returns a new alias of a value.
func (u *itemUpdate) valueAlias(v types.AttributeValue) string {
	alias := ":" + strconv.FormatInt(int64(len(u.values)), 36)
	u.values[alias] = v
	return alias
}

// require adds a condition to those that must hold.
func (u *itemUpdate) require(cond string) { u.conditions = append(u.conditions, cond) }

// counterUpdate is the part of an itemUpdate that concerns one counter. Its methods that return text return a condition
// for require; the others add a condition or an assignment.
type counterUpdate struct {
	*itemUpdate
	attribute string
	alias     string // of the attribute
}

// counterUpdate returns the part of the update that concerns the counter with this attribute.
func (u *itemUpdate) counterUpdate(attribute string) counterUpdate {
	return counterUpdate{u, attribute, u.nameAlias(attribute)}
}

// path returns a field as an expression names it.
func (u counterUpdate) path(field string) string { return u.alias + "." + field }

func (u counterUpdate) isAbsent() string { return "attribute_not_exists(" + u.alias + ")" }

func (u counterUpdate) fieldIsAbsent(field string) string {
	return "attribute_not_exists(" + u.path(field) + ")"
}

// compare returns the condition "field operator n".
func (u counterUpdate) compare(field, operator string, n *big.Int) string {
	return u.path(field) + operator + u.numberAlias(n)
}

// requireEqual requires that a field equals n.
func (u counterUpdate) requireEqual(field string, n *big.Int) { u.require(u.compare(field, "=", n)) }

// replace sets the whole counter.
func (u counterUpdate) replace(f fields) {
	u.sets = append(u.sets, u.alias+"="+u.valueAlias(f.attribute()))
	u.assign(assignment{replaceBy: f})
}

func (u counterUpdate) setField(field string, n *big.Int) {
	u.sets = append(u.sets, u.path(field)+"="+u.numberAlias(n))
	u.assign(assignment{field: field, setTo: n})
}

// copyField sets a field to the sum of another field, as it was before the update, and add.
func (u counterUpdate) copyField(field, from string, add *big.Int) {
	text := u.path(field) + "=" + u.path(from)
	if add.Sign() != 0 {
		text += "+" + u.numberAlias(add)
	}
	u.sets = append(u.sets, text)
	u.assign(assignment{field: field, copyFrom: from, addUnits: add})
}

// addToField adds n to a field that exists.
func (u counterUpdate) addToField(field string, n *big.Int) {
	u.sets = append(u.sets, u.path(field)+"="+u.path(field)+"+"+u.numberAlias(n))
	u.assign(assignment{field: field, addUnits: n})
}

// addOrCreate adds n to a field, which counts as 0 if it is missing.
func (u counterUpdate) addOrCreate(field string, n *big.Int) {
	path := u.path(field)
	u.sets = append(u.sets, path+"=if_not_exists("+path+","+u.intAlias(0)+")+"+u.numberAlias(n))
	u.assign(assignment{field: field, addUnits: n})
}

func (u counterUpdate) removeField(field string) {
	u.removes = append(u.removes, u.path(field))
	u.assign(assignment{field: field, remove: true})
}

// assign notes the effect of an assignment for applyTo.
func (u counterUpdate) assign(s assignment) {
	s.counter = u.attribute
	u.itemUpdate.assignments = append(u.itemUpdate.assignments, s)
}

// requireUnchanged requires that the whole counter is exactly f, or that it does not exist if f is nil. It serves the
// rare cases for which no inequality is right.
func (u counterUpdate) requireUnchanged(f fields) {
	if f == nil {
		u.require(u.isAbsent())
		return
	}
	u.require(u.alias + "=" + u.valueAlias(f.attribute()))
}

// applyTo returns the copy of the item after the update, given the copy before it.
func (u *itemUpdate) applyTo(before *itemCopy) *itemCopy {
	after := *before
	after.counters = maps.Clone(before.counters)
	if after.counters == nil {
		after.counters = map[string]fields{}
	}
	cloned := map[string]bool{} // counters whose fields are a copy of before's already
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
