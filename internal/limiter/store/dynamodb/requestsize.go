package dynamodb

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// What DynamoDB accepts in one request, from "Quotas in Amazon DynamoDB". How operators are counted is not documented.
// DynamoDB Local counts each comparison, AND, OR and function of a condition, and each +, − and function of an update.
const (
	maxExpressionBytes   = 4096    // bytes of a condition, and of an update
	maxOperators         = 300     // of a condition, and of an update
	maxSubstitutionBytes = 2 << 20 // of all names and values
	maxItemBytes         = 400 << 10
	maxTransactItems     = 100 - 1 // DynamoDB takes 100; one is left for the item that remembers a refund
)

// expressionSize holds the sizes of an update that DynamoDB limits.
type expressionSize struct{ conditionBytes, conditionOperators, updateBytes, updateOperators, substitutionBytes int }

// size measures the update as it would be sent.
func (u *itemUpdate) size() (s expressionSize) {
	condition, update := *u.conditionExpression(), *u.updateExpression()
	s = expressionSize{
		conditionBytes: len(condition), conditionOperators: countOperators(condition, "=<>"),
		updateBytes: len(update), updateOperators: countOperators(update, "+-"),
	}
	for alias, name := range u.names {
		s.substitutionBytes += len(alias) + len(name)
	}
	for alias, v := range u.values {
		s.substitutionBytes += len(alias) + maxBytesOf(v)
	}
	return s
}

// countOperators counts the operators of an expression: the symbols ("<=" and ">=" count as one each), AND and
// OR, and the functions.
func countOperators(text, symbols string) int {
	n := strings.Count(text, " AND ") + strings.Count(text, " OR ")
	for i := range len(text) {
		switch {
		case text[i] == '(' && i > 0 && text[i-1] >= 'a' && text[i-1] <= 'z':
			n++
		case strings.IndexByte(symbols, text[i]) >= 0 && (text[i] != '=' || i == 0 || text[i-1] != '<' &&
			text[i-1] != '>'):
			n++
		}
	}
	return n
}

// maxBytesOf returns the most bytes that DynamoDB may count for a value.
func maxBytesOf(v types.AttributeValue) int {
	switch v := v.(type) {
	case *types.AttributeValueMemberM:
		n := 3
		for name, value := range v.Value {
			n += 1 + len(name) + maxBytesOf(value)
		}
		return n
	case *types.AttributeValueMemberN:
		return len(v.Value)
	default:
		return estimatedBytes(v)
	}
}

// check returns an error that wraps limit.ErrTooLarge and names the first limit of DynamoDB that the update exceeds. No
// other function decides what fits.
func (s expressionSize) check() error {
	for _, bound := range [...]struct {
		n, most int
		what    string
	}{
		{s.conditionBytes, maxExpressionBytes, "bytes in a condition"},
		{s.updateBytes, maxExpressionBytes, "bytes in an update"},
		{s.conditionOperators, maxOperators, "operators in a condition"},
		{s.updateOperators, maxOperators, "operators in an update"},
		{s.substitutionBytes, maxSubstitutionBytes, "bytes of names and values"},
	} {
		if bound.n > bound.most {
			return fmt.Errorf("%w: a write has %d %s, and DynamoDB takes at most %d",
				limit.ErrTooLarge, bound.n, bound.what, bound.most)
		}
	}
	return nil
}

// minus returns s without the sizes of another.
func (s expressionSize) minus(other expressionSize) expressionSize {
	return expressionSize{
		s.conditionBytes - other.conditionBytes, s.conditionOperators - other.conditionOperators,
		s.updateBytes - other.updateBytes, s.updateOperators - other.updateOperators,
		s.substitutionBytes - other.substitutionBytes,
	}
}

// checkItemCount returns an error if a transaction cannot write so many items.
func checkItemCount(items int) error {
	if items > maxTransactItems {
		return fmt.Errorf("%w: the counters may lie in %d items, and a transaction of DynamoDB writes at most %d of "+
			"them",
			limit.ErrTooLarge, items, maxTransactItems)
	}
	return nil
}

// counterEdit adds the change of one counter to an update. If whole is true, addTo compares and replaces the counter's
// whole map, which takes few bytes. Otherwise it adds conditions that stay true while other processes charge the
// counter.
type counterEdit struct {
	name  string
	addTo func(u counterUpdate, whole bool)
}

// composeUpdate makes the update of one item. finish adds to it what concerns no counter. If the conditions of all
// counters are too large for DynamoDB, those with the most operators become comparisons of whole counters. If the
// update is too large even then, the error says which limit it exceeds.
func composeUpdate(key itemKey, counters []counterEdit, finish func(*itemUpdate)) (*itemUpdate, error) {
	whole := make([]bool, len(counters))
	for {
		u, sizes := newItemUpdate(key), make([]expressionSize, len(counters))
		for i := range counters {
			conds, sets, removes := len(u.conditions), len(u.sets), len(u.removes)
			counters[i].addTo(u.counterUpdate(counters[i].name), whole[i])
			sizes[i] = estimateSize(u.conditions[conds:], u.sets[sets:], u.removes[removes:])
		}
		finish(u)
		if len(u.sets) == 0 {
			return u, nil
		}
		total := u.size()
		err := total.check()
		if err == nil || !compareWidestWhole(total, sizes, whole) {
			return u, err
		}
	}
}

// compareWidestWhole marks in whole the counters whose conditions have the most operators, as many as needed for the
// rest to fit. It reports false if all were marked before.
func compareWidestWhole(total expressionSize, sizes []expressionSize, whole []bool) bool {
	order := make([]int, 0, len(sizes))
	for i := range sizes {
		if !whole[i] {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(sizes[b].conditionOperators, sizes[a].conditionOperators),
			cmp.Compare(sizes[b].conditionBytes, sizes[a].conditionBytes))
	})
	for n, i := range order {
		if n > 0 && total.check() == nil {
			break
		}
		whole[i] = true
		asWhole := expressionSize{
			conditionBytes: len(" AND #zz=:zz"), conditionOperators: 2, updateBytes: len(",#zz=:zz"),
		}
		total = total.minus(sizes[i].minus(asWhole))
	}
	return len(order) > 0
}

// estimateSize returns the size of parts of an update's expressions, without their names and values.
func estimateSize(conds, sets, removes []string) (s expressionSize) {
	for _, cond := range conds {
		s.conditionBytes += len(" AND ") + len(cond)
		s.conditionOperators += 1 + countOperators(cond, "=<>")
	}
	for _, set := range sets {
		s.updateBytes += 1 + len(set)
		s.updateOperators += countOperators(set, "+-")
	}
	for _, remove := range removes {
		s.updateBytes += 1 + len(remove)
	}
	return s
}

// AcceptsPlan implements [limit.PlanAccepter].
func (s *Store) AcceptsPlan(all []*limit.Limit, together ...[]*limit.Limit) error {
	return AcceptsPlan(all, together...)
}

// AcceptsPlan returns an error, which wraps limit.ErrTooLarge, unless two things hold whatever the counters contain:
// the counters that the limits in all have for one value fit into one item; and for each list in together, a decision
// over its limits and the refund of that decision fit into one operation.
func AcceptsPlan(all []*limit.Limit, together ...[]*limit.Limit) error {
	bytes := map[string]int{}
	for _, l := range all {
		for i := range l.Tiers {
			if t := &l.Tiers[i]; !isInSharedItem(l) {
				bytes[l.Per] += len(t.AppendName(nil)) + estimatedBytes(largestFieldsOf(t).attribute())
			}
		}
	}
	for per, n := range bytes {
		if n += 2 * maxSortKeyBytes; n > maxItemBytes {
			return fmt.Errorf("%w: the counters of the limits per %s have up to %d bytes for one value, "+
				"and an item of DynamoDB at most %d: use fewer limits, or fewer buckets",
				limit.ErrTooLarge, per, n, maxItemBytes)
		}
	}
	for _, limits := range together {
		if err := checkTogether(limits); err != nil {
			return fmt.Errorf("%w. %d limits can apply to one request (%s): "+
				"use fewer, or put them into a group of which one applies", err, len(limits), listIDs(limits))
		}
	}
	return nil
}

// checkTogether returns an error if a decision over all these limits may not fit into one operation. In the worst case
// each shared counter lies in another item of the chain, and each per-value kind has two items: one of the value, and
// one of the values beyond a limit's MaxValues.
func checkTogether(limits []*limit.Limit) error {
	tiers, ofPer, items := map[string][]*limit.Tier{}, map[string]int{}, 0
	for _, l := range limits {
		per := l.Per
		if isInSharedItem(l) {
			per = ""
			items += len(l.Tiers)
		} else if ofPer[per]++; ofPer[per] <= 2 {
			items++
		}
		for i := range l.Tiers {
			tiers[per] = append(tiers[per], &l.Tiers[i])
		}
	}
	if err := checkItemCount(items); err != nil {
		return err
	}
	for per, perTiers := range tiers {
		for _, known := range [...]bool{false, true} {
			if err := largestUpdate(perTiers, per == "", known).size().check(); err != nil {
				return err
			}
		}
	}
	return nil
}

// largestUpdate returns an update of one item with these counters that is at least as large as any that composeUpdate
// makes of them: all counters are compared as a whole. If known is true, every counter exists before, else none.
func largestUpdate(tiers []*limit.Tier, shared, known bool) *itemUpdate {
	u := newItemUpdate(itemKey{})
	for i, t := range tiers {
		name := string(t.AppendName(nil)) + strings.Repeat("=", 1+maxInlineValue) + fmt.Sprint(i)
		u, old := u.counterUpdate(name), fields(nil)
		if known {
			old = largestFieldsOf(t)
		}
		u.requireUnchanged(old)
		u.replace(largestFieldsOf(t))
	}
	u.requireLayout(&itemCopy{}, shared, true)
	u.raiseTTL(&itemCopy{}, math.MaxInt64/4, 0)
	u.require("attribute_exists(" + u.nameAlias(attrFull) + ")")
	return u
}

// largestFieldsOf returns algorithm.largestFields of a tier, or no fields if [Store.Accepts] refuses its algorithm.
func largestFieldsOf(t *limit.Tier) fields {
	if a := algorithmOf(t); a != nil {
		return a.largestFields(t)
	}
	return fields{}
}

// listIDs returns the ids of the first few limits, for an error message.
func listIDs(limits []*limit.Limit) string {
	const some = 5
	var ids []string
	for _, l := range limits {
		if len(ids) == some {
			return strings.Join(ids, ", ") + fmt.Sprintf(" and %d more", len(limits)-some)
		}
		ids = append(ids, l.ID)
	}
	return strings.Join(ids, ", ")
}
