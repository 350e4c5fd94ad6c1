package dynamodb

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sluicelimits/sluice/internal/limiter/ledger"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// Ledger is a [ledger.Ledger] in the table of a store. An entry is one item, and a call is one read and one write of
// it:
//
//	item            PK                            SK
//	entry           namespace, "l", ledger's key  "l"
//
//	attribute       type   meaning
//	v               N      layout version of the item, 4
//	ttl             N      when DynamoDB may delete the item, seconds since 1970. An item with a limit has none
//	f               N      First of [ledger.Entry]
//	u0, y0          N      Units and From of the first change, if there is one; u1, y1, … of the others
//	p, z            N      Pause and Stated of [ledger.Entry], if they are not 0
//	r, j, b, t, q,  N      Rate, Judged, From, Target, Probe and Held of Learned of [ledger.Entry], if anything was
//	h                      learned
//	w0, l0, g0,     N      window, limit, leased units, need, surprise and contending instances of the first record;
//	n0, s0, c0             w1, l1, … of the others
//	i0, a0, d0      N      interval, accepted and refused of the first sum, if it has replies; i1, a1, … of the others
//
// A call reads the item, lets the core decide what the claim may lease, and writes the result on the condition that the
// units leased so far leave room for the new ones. Calls of many instances at the same time therefore do not disturb
// each other as long as there is room. If the condition does not hold, the reply has the present item, and the call
// decides again with it.
//
// The first record of a window, a judgement, and a change of the limit are written on the condition that everything
// they depend on is unchanged. How much may be leased also depends on what was learned and stated, so units are leased
// on the condition that both are unchanged.
type Ledger struct{ store *Store }

var _ ledger.Ledger = (*Ledger)(nil)

const (
	ledgerSortKey = "l"
	ledgerVersion = 4
	ledgerTries   = 10              // writes of one call, if another call was faster each time
	ledgerKeep    = 2 * 24 * 3600   // seconds for which an item without a limit is kept after its last new window
	ledgerTimeout = 2 * time.Second // of one call, unless its context ends before
	records       = 4               // of an entry
	ledgerFields  = "wlgnsc"        // the attributes of a record
	learnedFields = "rjbtqh"        // the attributes of what was learned
)

// Ledger returns the ledger of the store.
func (s *Store) Ledger() *Ledger { return &Ledger{s} }

// Claim implements [ledger.Ledger].
func (l *Ledger) Claim(ctx context.Context, key string, c ledger.Claim) (lease ledger.Lease, err error) {
	if err := c.Check(); err != nil {
		return lease, err
	}
	err = l.change(ctx, key, func(e *ledger.Entry) (*ledgerUpdate, error) {
		before := *e
		lease = e.Claim(&c)
		return claimUpdate(&before, e, &c, lease.Units), nil
	})
	if err != nil {
		return ledger.Lease{}, err
	}
	return lease, nil
}

// SetLimit implements [ledger.Ledger].
func (l *Ledger) SetLimit(ctx context.Context, key string, units, from int64) error {
	return l.change(ctx, key, func(e *ledger.Entry) (*ledgerUpdate, error) {
		before := *e
		if err := e.SetLimit(units, from); err != nil {
			return nil, err
		}
		u := new(ledgerUpdate)
		for i, r := range before.Records {
			u.expect(field("w", i), r.Window, r.Limit != 0)
		}
		u.expectLearned(&before)
		u.setChanges(&before, e)
		if before.Stated != 0 {
			u.remove = append(u.remove, "z")
		}
		u.setLearned(&before, e)
		u.set(attrVersion, ledgerVersion)
		return u, nil
	})
}

// change reads an entry and writes the update that decide returns for it. It repeats both until the condition of the
// write holds.
func (l *Ledger) change(ctx context.Context, key string, decide func(*ledger.Entry) (*ledgerUpdate, error)) error {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	err := l.tryChange(ctx, key, decide)
	if err != nil && !errors.Is(err, ledger.ErrInvalid) && !errors.Is(err, ledger.ErrTooSoon) &&
		!errors.Is(err, ledger.ErrPlanned) {
		return fmt.Errorf("dynamodb store: ledger %q: %w", key, err)
	}
	return err
}

func (l *Ledger) tryChange(ctx context.Context, key string, decide func(*ledger.Entry) (*ledgerUpdate, error)) error {
	s := l.store
	id := itemKey{string(limit.AppendNetstring([]byte(s.namespace+"l"), key)), ledgerSortKey}
	read, err := s.client.GetItem(ctx, &dynamodb.GetItemInput{TableName: s.tableName, Key: id.attributes(),
		ConsistentRead: aws.Bool(true)}, s.callOptions...)
	if err != nil {
		return err
	}
	item := read.Item
	for range ledgerTries {
		e, err := ledgerEntry(item)
		if err != nil {
			return id.wrapError(err)
		}
		u, err := decide(&e)
		if err != nil || u.empty() {
			return err
		}
		_, err = s.client.UpdateItem(ctx, u.input(s.tableName, id), s.callOptions...)
		var changed *types.ConditionalCheckFailedException
		if !errors.As(err, &changed) {
			return err
		}
		item = changed.Item
	}
	return ErrUndecided
}

// claimUpdate returns the write that changes an entry from before a claim to after it. units is what the claim leases.
func claimUpdate(before, after *ledger.Entry, c *ledger.Claim, units int64) *ledgerUpdate {
	u := new(ledgerUpdate)
	i := int(uint64(c.Window) % records)
	old, r := before.Records[i], after.Records[i]
	if r.Window != c.Window || r.Limit == 0 { // the claim's window is too old to have a record, so nothing changes
		return u
	}
	if *before == *after {
		return u
	}
	u.replace("p", before.Pause, after.Pause)
	u.replace("z", before.Stated, after.Stated)
	if units > 0 || before.Learned != after.Learned {
		u.expectLearned(before)
	}
	if units > 0 && before.Stated == after.Stated {
		u.expect("z", before.Stated, before.Stated != 0)
	}
	u.setLearned(before, after)
	u.addReplies(before, after)
	if before.Changes != after.Changes {
		u.setChanges(before, after)
	}
	if old.Window == r.Window && old.Limit != 0 {
		change := r.Leased - old.Leased
		u.expect(field("w", i), r.Window, true)
		if change > 0 {
			u.atMost(field("g", i), max(after.Most(r.Window, r.Limit), r.Leased)-change)
		} else if change < 0 {
			u.atLeast(field("g", i), -change)
		}
		u.add(field("g", i), change)
		u.add(field("n", i), r.Need-old.Need)
		u.add(field("s", i), r.Surprise-old.Surprise)
		u.add(field("c", i), r.Contend-old.Contend)
		if units > 0 { // the units are leased, so no other claim may have been the first meanwhile
			u.expect("f", before.First, before.First != 0)
		}
		return u
	}
	u.expect(field("w", i), old.Window, old.Limit != 0)
	if before.Changes == after.Changes {
		u.expectChanges(before)
	}
	u.expect("f", before.First, before.First != 0)
	u.set("f", after.First)
	for j, value := range [...]int64{r.Window, r.Limit, r.Leased, r.Need, r.Surprise, r.Contend} {
		u.set(field(ledgerFields[j:j+1], i), value)
	}
	if after.Changes[0].Units == 0 {
		u.set(attrTTL, time.Now().Unix()+ledgerKeep)
	}
	u.set(attrVersion, ledgerVersion)
	return u
}

func field(name string, record int) string { return name + strconv.Itoa(record) }

// ledgerEntry reads an item. If there is no item, it returns an entry without claims.
func ledgerEntry(item map[string]types.AttributeValue) (e ledger.Entry, err error) {
	if len(item) == 0 {
		return e, nil
	}
	number := func(name string) (n int64) {
		value, ok := item[name]
		if !ok || err != nil {
			return 0
		}
		text, ok := value.(*types.AttributeValueMemberN)
		if ok {
			n, err = strconv.ParseInt(text.Value, 10, 64)
		}
		if !ok || err != nil {
			err = fmt.Errorf("%w: attribute %s is %v", ErrBadItem, name, value)
		}
		return n
	}
	if version := number(attrVersion); err == nil && version != ledgerVersion {
		return e, fmt.Errorf("%w: a ledger of version %d", ErrBadItem, version)
	}
	e.First = number("f")
	for i := range e.Changes {
		e.Changes[i] = ledger.Change{Units: number(field("u", i)), From: number(field("y", i))}
	}
	e.Pause, e.Stated = number("p"), number("z")
	e.Learned = ledger.Learned{Rate: number("r"), Judged: number("j"), From: number("b"), Target: number("t"),
		Probe: number("q"), Held: number("h")}
	for i := range e.Sums {
		e.Sums[i] = ledger.Sum{Interval: number(field("i", i)),
			Replies: ledger.Replies{Accepted: number(field("a", i)), Refused: number(field("d", i))}}
	}
	for i := range e.Records {
		e.Records[i] = ledger.Record{Window: number(field("w", i)), Limit: number(field("l", i)),
			Leased: number(field("g", i)), Need: number(field("n", i)), Surprise: number(field("s", i)),
			Contend: number(field("c", i))}
	}
	return e, err
}

// ledgerUpdate builds one write.
type ledgerUpdate struct {
	conditions, sets []string
	remove           []string
	names            map[string]string
	values           map[string]types.AttributeValue
}

func (u *ledgerUpdate) empty() bool { return len(u.sets) == 0 }

// name returns the placeholder of an attribute's name in an expression.
func (u *ledgerUpdate) name(attribute string) string {
	if u.names == nil {
		u.names, u.values = map[string]string{}, map[string]types.AttributeValue{}
	}
	u.names["#"+attribute] = attribute
	return "#" + attribute
}

// value returns a new placeholder of a number in an expression.
func (u *ledgerUpdate) value(n int64) string {
	placeholder := ":" + strconv.Itoa(len(u.values))
	u.values[placeholder] = &types.AttributeValueMemberN{Value: strconv.FormatInt(n, 10)}
	return placeholder
}

// expect requires that an attribute has the value n, or, if exists is false, that it does not exist.
func (u *ledgerUpdate) expect(attribute string, n int64, exists bool) {
	if !exists {
		u.conditions = append(u.conditions, "attribute_not_exists("+u.name(attribute)+")")
		return
	}
	u.conditions = append(u.conditions, u.name(attribute)+" = "+u.value(n))
}

// expectChanges requires that the changes of the limit are those of an entry.
func (u *ledgerUpdate) expectChanges(e *ledger.Entry) {
	for i, c := range e.Changes {
		u.expect(field("u", i), c.Units, c.Units != 0)
		u.expect(field("y", i), c.From, c.Units != 0)
	}
}

// setChanges sets the changes of the limit. It removes the ttl, because an item with a limit never expires.
func (u *ledgerUpdate) setChanges(before, after *ledger.Entry) {
	u.expectChanges(before)
	for i, c := range after.Changes {
		if c.Units != 0 {
			u.set(field("u", i), c.Units)
			u.set(field("y", i), c.From)
		} else if before.Changes[i].Units != 0 {
			u.remove = append(u.remove, field("u", i), field("y", i))
		}
	}
	u.remove = append(u.remove, attrTTL)
}

func (u *ledgerUpdate) atMost(attribute string, n int64) {
	u.conditions = append(u.conditions, u.name(attribute)+" <= "+u.value(n))
}

func (u *ledgerUpdate) atLeast(attribute string, n int64) {
	u.conditions = append(u.conditions, u.name(attribute)+" >= "+u.value(n))
}

func (u *ledgerUpdate) set(attribute string, n int64) {
	u.sets = append(u.sets, u.name(attribute)+" = "+u.value(n))
}

// replace changes an attribute from before to after, if these differ, and requires that it still is before. If before
// is 0, it requires that the attribute does not exist.
func (u *ledgerUpdate) replace(attribute string, before, after int64) {
	if after != before {
		u.expect(attribute, before, before != 0)
		u.set(attribute, after)
	}
}

// expectLearned requires that what was learned is as in an entry.
func (u *ledgerUpdate) expectLearned(e *ledger.Entry) {
	u.expect("j", e.Learned.Judged, e.Learned != ledger.Learned{}) // its attributes are written together
}

// setLearned sets what was learned, if it has changed.
func (u *ledgerUpdate) setLearned(before, after *ledger.Entry) {
	if l := &after.Learned; *l != before.Learned {
		for i, n := range [...]int64{l.Rate, l.Judged, l.From, l.Target, l.Probe, l.Held} {
			u.set(learnedFields[i:i+1], n)
		}
	}
}

// addReplies adds the replies that the claim reports to their sums.
func (u *ledgerUpdate) addReplies(before, after *ledger.Entry) {
	for i, s := range after.Sums {
		old := before.Sums[i]
		switch {
		case s == old:
		case s.Interval == old.Interval && old.Replies != ledger.Replies{}:
			u.expect(field("i", i), s.Interval, true)
			u.add(field("a", i), s.Accepted-old.Accepted)
			u.add(field("d", i), s.Refused-old.Refused)
		default:
			u.expect(field("i", i), old.Interval, old.Replies != ledger.Replies{})
			u.set(field("i", i), s.Interval)
			u.set(field("a", i), s.Accepted)
			u.set(field("d", i), s.Refused)
		}
	}
}

func (u *ledgerUpdate) add(attribute string, n int64) {
	if n != 0 {
		name := u.name(attribute)
		u.sets = append(u.sets, name+" = "+name+" + "+u.value(n))
	}
}

func (u *ledgerUpdate) input(table *string, key itemKey) *dynamodb.UpdateItemInput {
	expression := "SET " + strings.Join(u.sets, ", ")
	for i, attribute := range u.remove {
		expression += [...]string{" REMOVE ", ", "}[min(i, 1)] + u.name(attribute)
	}
	return &dynamodb.UpdateItemInput{
		TableName: table, Key: key.attributes(),
		ConditionExpression: aws.String(strings.Join(u.conditions, " AND ")), UpdateExpression: aws.String(expression),
		ExpressionAttributeNames: u.names, ExpressionAttributeValues: u.values,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}
}
