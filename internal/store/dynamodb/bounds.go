package dynamodb

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/limit"
)

// DynamoDB's bounds on one request, from "Quotas in Amazon DynamoDB". How operators are counted is not said there: DynamoDB
// Local counts each comparison, AND, OR and function of a condition, and each +, − and function of an update.
const (
	maxExpression    = 4096    // bytes of a condition, and of an update
	maxOperators     = 300     // of a condition, and of an update
	maxSubstitutions = 2 << 20 // bytes of all names and values
	maxItem          = 400 << 10
	maxTransactItems = 100 - 1 // a refund writes its own item, too
)

// size is what DynamoDB bounds of a write.
type size struct{ condition, conditionOperators, update, updateOperators, substitutions int }

// size counts what the write would send.
func (w *write) size() (s size) {
	condition, update := *w.condition(), *w.expression()
	s = size{condition: len(condition), conditionOperators: operators(condition, "=<>"), update: len(update), updateOperators: operators(update, "+-")}
	for alias, name := range w.names {
		s.substitutions += len(alias) + len(name)
	}
	for alias, v := range w.values {
		s.substitutions += len(alias) + bytesOf(v)
	}
	return s
}

// operators counts the operators of an expression: the symbols, where <= and the like are one, the words and the functions.
func operators(text, symbols string) int {
	n := strings.Count(text, " AND ") + strings.Count(text, " OR ")
	for i := range len(text) {
		switch {
		case text[i] == '(' && i > 0 && text[i-1] >= 'a' && text[i-1] <= 'z':
			n++
		case strings.IndexByte(symbols, text[i]) >= 0 && (text[i] != '=' || i == 0 || text[i-1] != '<' && text[i-1] != '>'):
			n++
		}
	}
	return n
}

// bytesOf is how many bytes of an attribute DynamoDB may count, at most.
func bytesOf(v types.AttributeValue) int {
	switch v := v.(type) {
	case *types.AttributeValueMemberM:
		n := 3
		for name, value := range v.Value {
			n += 1 + len(name) + bytesOf(value)
		}
		return n
	case *types.AttributeValueMemberN:
		return len(v.Value)
	default:
		return sizeOf(v)
	}
}

// check is the only judge of whether DynamoDB takes a write: an error wraps limit.ErrTooLarge and names the bound.
func (s size) check() error {
	for _, b := range [...]struct {
		n, most int
		what    string
	}{
		{s.condition, maxExpression, "bytes in a condition"}, {s.update, maxExpression, "bytes in an update"},
		{s.conditionOperators, maxOperators, "operators in a condition"}, {s.updateOperators, maxOperators, "operators in an update"},
		{s.substitutions, maxSubstitutions, "bytes of names and values"},
	} {
		if b.n > b.most {
			return fmt.Errorf("%w: a write has %d %s, and DynamoDB takes at most %d", limit.ErrTooLarge, b.n, b.what, b.most)
		}
	}
	return nil
}

func (s size) less(o size) size {
	return size{s.condition - o.condition, s.conditionOperators - o.conditionOperators, s.update - o.update,
		s.updateOperators - o.updateOperators, s.substitutions - o.substitutions}
}

// checkItems is check for a transaction.
func checkItems(items int) error {
	if items > maxTransactItems {
		return fmt.Errorf("%w: the counters may lie in %d items, and a transaction of DynamoDB writes at most %d of them", limit.ErrTooLarge,
			items, maxTransactItems)
	}
	return nil
}

// counterWrite is what a write does to one counter. add adds it to the write: as a whole it compares and sets the counter's
// whole map, in a few bytes; else it adds conditions that charges by others do not disturb.
type counterWrite struct {
	name string
	add  func(c counter, whole bool)
}

// compose makes a write of an item that DynamoDB takes. finish adds what is not a counter's. Where the conditions of all
// counters do not fit, the widest are compared as a whole. The error says which bound they exceed even so.
func compose(key itemKey, counters []counterWrite, finish func(*write)) (*write, error) {
	whole := make([]bool, len(counters))
	for {
		w, sizes := newWrite(key), make([]size, len(counters))
		for i := range counters {
			conds, sets, removes := len(w.conds), len(w.sets), len(w.removes)
			counters[i].add(w.counter(counters[i].name), whole[i])
			sizes[i] = roughly(w.conds[conds:], w.sets[sets:], w.removes[removes:])
		}
		finish(w)
		if len(w.sets) == 0 {
			return w, nil
		}
		total := w.size()
		err := total.check()
		if err == nil || !shorten(total, sizes, whole) {
			return w, err
		}
	}
}

// shorten marks the widest counters, so many that the rest may fit. It reports false if all are marked.
func shorten(total size, sizes []size, whole []bool) bool {
	order := make([]int, 0, len(sizes))
	for i := range sizes {
		if !whole[i] {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(sizes[b].conditionOperators, sizes[a].conditionOperators), cmp.Compare(sizes[b].condition, sizes[a].condition))
	})
	for n, i := range order {
		if n > 0 && total.check() == nil {
			break
		}
		whole[i] = true
		total = total.less(sizes[i].less(size{condition: len(" AND #zz=:zz"), conditionOperators: 2, update: len(",#zz=:zz")}))
	}
	return len(order) > 0
}

// roughly is the size of parts of a write's expressions, without their names and values.
func roughly(conds, sets, removes []string) (s size) {
	for _, cond := range conds {
		s.condition += len(" AND ") + len(cond)
		s.conditionOperators += 1 + operators(cond, "=<>")
	}
	for _, set := range sets {
		s.update += 1 + len(set)
		s.updateOperators += operators(set, "+-")
	}
	for _, remove := range removes {
		s.update += 1 + len(remove)
	}
	return s
}

// AcceptsPlan implements [limit.PlanAccepter].
func (s *Store) AcceptsPlan(all []*limit.Limit, together ...[]*limit.Limit) error {
	return AcceptsPlan(all, together...)
}

// AcceptsPlan says whether the counters that all these limits have for one value fit into an item, and whether a decision over
// the limits of each list, and its refund, fit into one operation, whatever the counters hold. The error wraps
// limit.ErrTooLarge.
func AcceptsPlan(all []*limit.Limit, together ...[]*limit.Limit) error {
	bytes := map[string]int{}
	for _, l := range all {
		for i := range l.Tiers {
			if t := &l.Tiers[i]; !inShared(l) {
				bytes[l.Per] += len(t.AppendName(nil)) + sizeOf(widest(t).attribute())
			}
		}
	}
	for per, n := range bytes {
		if n += 2 * maxSK; n > maxItem {
			return fmt.Errorf("%w: the counters of the limits per %s have up to %d bytes for one value, and an item of DynamoDB at most %d: "+
				"use fewer limits, or fewer buckets", limit.ErrTooLarge, per, n, maxItem)
		}
	}
	for _, limits := range together {
		if err := decidable(limits); err != nil {
			return fmt.Errorf("%w. %d limits can apply to one request (%s): use fewer, or put them into a group of which one applies", err,
				len(limits), named(limits))
		}
	}
	return nil
}

// decidable says whether a decision over all these limits can be made. A shared counter may lie in any item of the chain, and
// so each in another one; values beyond the bound of one limit, but not of another, have an item of their own.
func decidable(limits []*limit.Limit) error {
	tiers, ofPer, items := map[string][]*limit.Tier{}, map[string]int{}, 0
	for _, l := range limits {
		per := l.Per
		if inShared(l) {
			per = ""
			items += len(l.Tiers)
		} else if ofPer[per]++; ofPer[per] <= 2 {
			items++
		}
		for i := range l.Tiers {
			tiers[per] = append(tiers[per], &l.Tiers[i])
		}
	}
	if err := checkItems(items); err != nil {
		return err
	}
	for per, of := range tiers {
		for _, known := range [...]bool{false, true} {
			if err := worst(of, per == "", known).size().check(); err != nil {
				return err
			}
		}
	}
	return nil
}

// worst is a write to one item with these counters that is at least as large as any that compose makes of them: all are
// compared as a whole, and either none of them is known or each is.
func worst(tiers []*limit.Tier, shared, known bool) *write {
	w := newWrite(itemKey{})
	for i, t := range tiers {
		name := string(t.AppendName(nil)) + strings.Repeat("=", 1+inlineValue) + fmt.Sprint(i)
		c, old := w.counter(name), fields(nil)
		if known {
			old = widest(t)
		}
		c.isUnchanged(old)
		c.replace(widest(t))
	}
	w.head(&view{}, shared, true)
	w.arm(&view{}, math.MaxInt64/4, 0)
	w.require("attribute_exists(" + w.name(attrFull) + ")")
	return w
}

// widest is algorithm.widest; nothing for an algorithm that Accepts refuses.
func widest(t *limit.Tier) fields {
	if a := of(t); a != nil {
		return a.widest(t)
	}
	return fields{}
}

func named(limits []*limit.Limit) string {
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
