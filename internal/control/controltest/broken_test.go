package controltest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/controltest"
)

// fault is one way in which tables can be broken.
type fault string

const (
	none              fault = ""
	versionIgnored    fault = "a Put ignores the version"
	versionSkipped    fault = "every third version is left out"
	race              fault = "the version is looked at apart from the write"
	haveForgotten     fault = "a conflict carries no version"
	conflictWrites    fault = "a conflict writes all the same"
	repeatConflicts   fault = "a repeated Put is a conflict"
	repeatWrites      fault = "a repeated Put makes another version"
	deleteRemoves     fault = "a delete removes the item"
	deleteOfNone      fault = "a delete of nothing makes a tombstone"
	linkForgotten     fault = "prev_hash is empty"
	hashStale         fault = "the hash is that of another body"
	clockDecides      fault = "an older time is refused"
	clockRaised       fault = "the time never goes back"
	bodyAsGiven       fault = "the body is kept as it is given"
	boundsIgnored     fault = "nothing is checked"
	keyChanges        fault = "an API key may change its hash"
	tablesJoined      fault = "tables share their items"
	keysFolded        fault = "keys are the same in lower case"
	getStale          fault = "Get is a version behind"
	listShort         fault = "the last item of a page is left out"
	listTwice         fault = "an item is listed twice"
	listOffset        fault = "a page begins at a number of items"
	tombstonesHidden  fault = "tombstones are not listed"
	recordLost        fault = "every seventh record is lost"
	recordTwice       fault = "a record comes twice, under one sequence"
	recordsSwapped    fault = "two records of a key are swapped"
	oldForgotten      fault = "a record holds no old image"
	feedOnce          fault = "the feed cannot be had from the beginning again"
	contextIgnored    fault = "a Put goes on after its context"
	tombstoneWithBody fault = "a tombstone keeps its body"
)

// naive are tables that are obviously correct except for their fault: everything is in memory, under one lock.
type naive struct {
	fault fault
	mu    sync.Mutex
	items map[string][]control.Item // every version
	feed  []control.Delivery
	read  bool
}

func (n *naive) name(t control.Table, key string) string {
	switch n.fault {
	case tablesJoined:
		t = ""
	case keysFolded:
		key = strings.ToLower(key)
	}
	return string(t) + "/" + key
}

func (n *naive) head(t control.Table, key string) *control.Item {
	versions := n.items[n.name(t, key)]
	if len(versions) == 0 {
		return nil
	}
	i := versions[len(versions)-1]
	return &i
}

func (n *naive) Get(ctx context.Context, t control.Table, key string) (control.Item, error) {
	if err := errors.Join(control.CheckGet(t, key), ctx.Err()); err != nil {
		return control.Item{}, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	versions := n.items[n.name(t, key)]
	if n.fault == getStale && len(versions) > 1 {
		versions = versions[:len(versions)-1]
	}
	if len(versions) == 0 {
		return control.Item{}, control.ErrNotFound
	}
	return versions[len(versions)-1], nil
}

func (n *naive) List(ctx context.Context, t control.Table, after string, most int) ([]control.Item, string, error) {
	if err := errors.Join(control.CheckList(t, most), ctx.Err()); err != nil {
		return nil, "", err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []control.Item
	for _, versions := range n.items {
		i := versions[len(versions)-1]
		if i.Table == t && (n.fault != tombstonesHidden || !i.Deleted) {
			all = append(all, i)
		}
	}
	slices.SortFunc(all, func(a, b control.Item) int { return strings.Compare(a.Key, b.Key) })
	if n.fault == listOffset {
		return offset(all, after, most)
	}
	all = slices.DeleteFunc(all, func(i control.Item) bool { return after != "" && i.Key <= after })
	next := ""
	if len(all) > most {
		all, next = all[:most], all[most-1].Key
	}
	switch {
	case n.fault == listShort && len(all) > 2:
		all = all[:len(all)-1]
	case n.fault == listTwice && next != "":
		next = next[:len(next)-1]
	}
	return all, next, nil
}

// offset is a frequent mistake in lists: an item that is created before the position shifts all later ones.
func offset(all []control.Item, after string, most int) ([]control.Item, string, error) {
	from, _ := strconv.Atoi(after) // "" is the beginning
	from = min(from, len(all))
	to := min(from+most, len(all))
	if to == len(all) {
		return all[from:to], "", nil
	}
	return all[from:to], strconv.Itoa(to), nil
}

// check is Change.Check with the fault.
func (n *naive) check(c control.Change) (control.Change, error) {
	checked, err := c.Check()
	switch {
	case err != nil && n.fault == boundsIgnored:
		return c, nil
	case err == nil && n.fault == bodyAsGiven && !c.Delete:
		checked.Body = c.Body
	}
	return checked, err
}

func (n *naive) Put(ctx context.Context, c control.Change) (control.Item, error) {
	c, err := n.check(c)
	if err != nil {
		return control.Item{}, err
	}
	if err := ctx.Err(); err != nil && n.fault != contextIgnored {
		return control.Item{}, err
	}
	if n.fault == race {
		n.mu.Lock()
		head := n.head(c.Table, c.Key)
		n.mu.Unlock()
		for range 100 { // time for others
			runtime.Gosched()
		}
		i, done, err := control.Next(head, c)
		if err != nil || done {
			return i, err
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.write(head, i), nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	head := n.head(c.Table, c.Key)
	c = n.bend(head, c)
	i, done, err := n.next(head, c)
	var lost *control.ConflictError
	switch {
	case errors.As(err, &lost) && n.fault == haveForgotten:
		lost.Have = 0
	case errors.As(err, &lost) && n.fault == conflictWrites && head != nil:
		c.Expect = head.Version
		if i, _, again := control.Next(head, c); again == nil {
			n.write(head, i)
		}
	case done && n.fault == repeatConflicts:
		return control.Item{}, &control.ConflictError{Table: c.Table, Key: c.Key, Expect: c.Expect, Have: head.Version}
	}
	if err != nil || done {
		return i, err
	}
	if head != nil && n.fault == clockDecides && c.Now.Before(head.ChangedAt) {
		return control.Item{}, fmt.Errorf("%w: the time is before that of version %d", control.ErrInvalid, head.Version)
	}
	return n.write(head, i), nil
}

// bend changes the request if the fault requires it.
func (n *naive) bend(head *control.Item, c control.Change) control.Change {
	if head == nil {
		return c
	}
	switch {
	case n.fault == versionIgnored, n.fault == repeatWrites && c.Expect == head.Version-1 &&
		string(c.Body) == string(head.Body) && c.Reason == head.Reason:
		c.Expect = head.Version
	case n.fault == clockRaised && c.Now.Before(head.ChangedAt):
		c.Now = head.ChangedAt
	}
	return c
}

// next is control.Next with the fault.
func (n *naive) next(head *control.Item, c control.Change) (control.Item, bool, error) {
	i, done, err := control.Next(head, c)
	forced := errors.Is(err, control.ErrNotFound) && n.fault == deleteOfNone && head != nil ||
		errors.Is(err, control.ErrInvalid) && n.fault == keyChanges
	if forced {
		i = control.Item{
			Table: c.Table, Key: c.Key, Version: c.Expect + 1, Actor: c.Actor, Reason: c.Reason, ChangedAt: c.Now,
			Deleted: c.Delete, Body: c.Body, PrevHash: head.Hash,
		}
		i.Hash = i.ComputeHash()
		return i, false, nil
	}
	return i, done, err
}

// write stores the item, changed by the fault, and its record.
func (n *naive) write(head *control.Item, i control.Item) control.Item {
	switch n.fault {
	case versionSkipped:
		if i.Version%3 == 0 {
			i.Version++
		}
	case linkForgotten:
		i.PrevHash = ""
	case tombstoneWithBody:
		if i.Deleted {
			i.Body = []byte(`{}`)
		}
	}
	i.Hash = i.ComputeHash()
	if n.fault == hashStale && i.Version == 3 {
		i.Hash = strings.Repeat("0", 64)
	}
	name := n.name(i.Table, i.Key)
	n.items[name] = append(n.items[name], i)
	if n.fault == deleteRemoves && i.Deleted {
		delete(n.items, name)
	}
	sequence := strconv.Itoa(len(n.feed) + 1)
	r := &control.Record{Sequence: sequence, Old: head, New: i}
	if n.fault == oldForgotten {
		r.Old = nil
	}
	n.feed = append(n.feed, control.Delivery{Sequence: sequence, Record: r})
	return i
}

func feedOf(_ context.Context, tables control.Tables, _ int) ([]control.Delivery, error) {
	n := tables.(*naive)
	n.mu.Lock()
	defer n.mu.Unlock()
	all := slices.Clone(n.feed)
	switch {
	case n.fault == recordLost && len(all) > 6:
		all = slices.Delete(all, 6, 7)
	case n.fault == recordTwice && len(all) > 1:
		all[1] = all[0]
	case n.fault == recordsSwapped && len(all) > 1:
		all[0], all[1] = all[1], all[0]
	case n.fault == feedOnce && n.read:
		return nil, nil
	}
	n.read = true
	return all, nil
}

func config(f fault) controltest.Config {
	return controltest.Config{
		New:  func(testing.TB) control.Tables { return &naive{fault: f, items: make(map[string][]control.Item)} },
		Feed: feedOf,
	}
}

// Guarantees that correct tables pass, including ones that were not written together with the cases.
func TestContractOfNaiveTables(t *testing.T) { controltest.Run(t, config(none)) }

// TestBrokenTables guarantees that the cases detect each fault.
func TestBrokenTables(t *testing.T) {
	for _, f := range []fault{
		versionIgnored, versionSkipped, race, haveForgotten, conflictWrites, repeatConflicts, repeatWrites,
		deleteRemoves,
		deleteOfNone, linkForgotten, hashStale, clockDecides, clockRaised, bodyAsGiven, boundsIgnored, keyChanges,
		tablesJoined,
		keysFolded, getStale, listShort, listTwice, listOffset, tombstonesHidden, recordLost, recordTwice,
		recordsSwapped,
		oldForgotten, feedOnce, contextIgnored, tombstoneWithBody,
	} {
		t.Run(string(f), func(t *testing.T) {
			found := controltest.Broken(t, config(f))
			if len(found) == 0 {
				t.Fatalf("the contract passes tables with this fault, want that it fails: %s", f)
			}
			for name, err := range found {
				t.Logf("%s: %.200s", name, err)
			}
		})
	}
}
