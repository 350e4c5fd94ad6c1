package audit

import (
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
)

// Findings about an archive, in addition to the breaks of a chain, which package control defines.
const (
	// the record exists, but a reader is told that it does not
	Hidden   control.BreakKind = "delete marker"
	Replaced control.BreakKind = "replaced"           // the name has another version with another content
	BadName  control.BreakKind = "not an item's name" // an object with a name that no item can have
	Unlocked control.BreakKind = "not locked"         // an unlocked object in an archive that locks its objects
	WeakLock control.BreakKind = "weak lock"          // shorter than the archive's own lock, or in another mode
	NoLock   control.BreakKind = "no default lock"    // the archive can lock objects, but does not lock new ones
	BadHead  control.BreakKind = "unreadable head"    // the newest version in the live table cannot be read

	// the writer made the object so that no reader of the archive can read it
	BadObject control.BreakKind = "unreadable object"

	Late  control.BreakKind = "archived late"              // put after the time for which a stream holds a change
	Early control.BreakKind = "archived before its change" // put before the time that the record states
)

// Notices about an archive.
const (
	Delayed    control.BreakKind = "archived with a delay" // put later than usual: the archiver was unavailable
	NoPutTimes control.BreakKind = "put times not known"   // without locks: replaced objects have other times
	LockUnread control.BreakKind = "locks not compared"    // the caller may not read how the archive locks
)

// Bounds for the time at which an object was put.
const (
	UsualDelay = time.Hour       // after the change; the archiver usually needs seconds
	MostDelay  = 24 * time.Hour  // a stream holds a change for this long, so the archiver cannot put its object later
	MostSkew   = 5 * time.Minute // by which a writer's clock may be ahead of the archive's
)

// Tables is the part of control.Tables that Verify uses.
type Tables interface {
	Get(ctx context.Context, t control.Table, key string) (control.Item, error)
	control.Lister
}

// VerifyConfig says what Verify compares.
type VerifyConfig struct {
	Archive Archive
	Tables  Tables

	// Grace is how long after its write a version may be missing, since the archiver needs time. Verify waits for a
	// version that is younger, by its writer's clock. 0 selects 30 s; a negative Grace means none.
	Grace time.Duration

	// Late is how long after its change an object may have been put, by the archive's clock. 0 selects MostDelay. A
	// larger value is for an archive into which an operator has restored objects.
	Late time.Duration

	// EarlierLocks are locks that the archive gave to new objects before the present one.
	EarlierLocks []EarlierLock

	// Keys are the public keys of the anchors, on the curve P-256. If empty, signatures are not checked, and Verify
	// reports a notice. With a key, an archive without anchors is a finding.
	Keys []*ecdsa.PublicKey

	// Known are anchors that the caller knows: day → SHA-256 of the anchor's object, in hex.
	Known map[string]string

	// Explained are days without an anchor, as in 2026-11-22, for which the operator knows the reason.
	Explained []string

	Now      func() time.Time         // nil selects time.Now
	Progress func(objects, items int) // called from time to time, by one goroutine; may be nil
}

// EarlierLock is the lock that the archive gave to new objects until a time.
type EarlierLock struct {
	Lock
	Until time.Time
}

// Finding is one kind of finding: its first place, in the order of object names, and how often it occurs.
type Finding struct {
	control.Break
	Object string `json:"object,omitempty"` // the name that it is about; empty if it is about no object
	Count  int64  `json:"count"`
}

// Report says what was checked and what was found.
type Report struct {
	Objects int64     `json:"objects"` // versions of items, each counted once
	Items   int64     `json:"items"`   // items with at least one object
	Bytes   int64     `json:"bytes"`
	From    time.Time `json:"from,omitzero"` // when the oldest change was made, by its writer's clock, or zero
	To      time.Time `json:"to,omitzero"`   // when the newest change was made, likewise

	Locks       bool      `json:"object_lock"`           // the archive locks its objects
	Modes       []string  `json:"lock_modes"`            // of the locks that were found, sorted
	LockedUntil time.Time `json:"locked_until,omitzero"` // when the first retention ends; zero if nothing is locked
	Repeated    int64     `json:"repeated"`              // versions of objects with the same content as the record
	Rejected    int64     `json:"rejected"`              // records that could not be archived and were rejected
	Anchors     int64     `json:"anchors"`
	FirstAnchor time.Time `json:"first_anchor,omitzero"`     // when the oldest valid anchor was made, or zero
	LastAnchor  string    `json:"last_anchor_day,omitempty"` // the day of the newest valid anchor, or ""
	// LastAnchorHash is the SHA-256 of that anchor's object, for [VerifyConfig].Known.
	LastAnchorHash string    `json:"last_anchor_hash,omitempty"`
	Findings       []Finding `json:"breaks"`  // one of each kind, in the order of kinds
	Notices        []Finding `json:"notices"` // notices, in the same form
}

// OK reports whether there are no findings: the archive holds everything that was written, unaltered.
func (r *Report) OK() bool { return len(r.Findings) == 0 }

// Kinds returns all kinds of findings, in the order in which they are reported.
func Kinds() []control.BreakKind {
	return []control.BreakKind{
		control.MissingVersion, control.MissingTail, control.WrongHash, control.Altered, BadObject, Hidden, Replaced,
		control.BrokenLink, control.WrongHead,
		BadHead, control.Unknown, control.OutOfOrder, BadName, Unlocked, WeakLock, NoLock, Late, Early,
		Rewritten, PutAgain, MissingAnchor, MissedDays, BrokenAnchors, BadSignature, BadAnchor, FutureAnchor,
	}
}

// NoticeKinds returns all kinds of notices, in the order in which they are reported.
func NoticeKinds() []control.BreakKind {
	return []control.BreakKind{Delayed, NoPutTimes, LockUnread, NoAnchors, NotChecked, LateAnchors, NotAnchored}
}

// Verify checks every version of every object and every item of the tables. It holds in memory a bounded number of
// objects, and some 150 bytes for each item. Changes may be made at the same time; Verify ignores changes to
// the part of the archive that it has already read.
//
// If the archive locks its objects, Verify compares the time at which an object was put, by the archive's clock, with
// the time that its record states. The object must not have been put more than MostSkew before its change, nor more
// than Late after it. A delay of more than UsualDelay is a notice: the archiver was unavailable.
//
// The lock of an object must have the same mode as the lock that the archive gives to new objects, and must last at
// least as long.
//
// Of several versions of an object, the oldest one that can be read is the record, since it was there before anybody
// wrote the others. A version that cannot be read is a finding, and the check continues. If an item has newer objects
// than the table had, the item of the table is read again, so that a version which is not in the table never existed.
//
// An error says that the check could not be completed, and nothing about the archive.
func Verify(ctx context.Context, c VerifyConfig) (*Report, error) {
	if c.Grace == 0 {
		c.Grace = 30 * time.Second
	}
	if c.Late == 0 {
		c.Late = MostDelay
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	v := &verifier{VerifyConfig: c, found: make(map[control.BreakKind]*Finding), heads: make(map[control.Ref]listed),
		report: Report{Modes: []string{}}}
	for _, step := range []func(context.Context) error{
		v.readLock, v.readHeads, v.walk, v.countRejected, v.anchors,
	} {
		if err := step(ctx); err != nil {
			return nil, fmt.Errorf("verify: %w", err)
		}
	}
	if !v.report.Locks && v.report.Objects > 0 {
		v.find(control.Break{Kind: NoPutTimes,
			Detail: "the archive does not lock its objects: whoever may write it may replace them, which changes " +
				"their times. Therefore times are not compared"}, "")
	}
	v.report.Findings, v.report.Notices = v.of(Kinds()), v.of(NoticeKinds())
	return &v.report, nil
}

// readLock reads how the archive locks new objects. If the caller may not read that, each object must have some lock.
func (v *verifier) readLock(ctx context.Context) (err error) {
	v.archiveLock, err = v.Archive.Lock(ctx)
	v.report.Locks = v.archiveLock.Enabled
	switch {
	case errors.Is(err, ErrDenied):
		v.report.Locks = true
		v.find(control.Break{Kind: LockUnread, Detail: "you may not read the bucket's Object Lock configuration, so " +
			"locks that are too short or of another mode are not found: get s3:GetBucketObjectLockConfiguration"}, "")
	case err != nil:
		return err
	case v.archiveLock.Enabled && v.archiveLock.Mode == "":
		v.find(control.Break{Kind: NoLock, Detail: "the bucket has Object Lock and no default retention, so new " +
			"objects are not locked: deploy the control plane again, or set the default retention by hand"}, "")
	}
	return nil
}

// of returns the findings of these kinds.
func (v *verifier) of(kinds []control.BreakKind) []Finding {
	all := []Finding{} // in JSON a list, also if it is empty
	for _, k := range kinds {
		if f := v.found[k]; f != nil {
			all = append(all, *f)
		}
	}
	return all
}

// verifier is one run of Verify. Only the goroutine that called Verify may use its fields.
type verifier struct {
	VerifyConfig

	report      Report
	found       map[control.BreakKind]*Finding
	archiveLock Lock // lock of new objects; zero if unknown

	heads  map[control.Ref]listed // of the items of the tables whose objects have not been checked yet
	unread []control.Break        // one for each page of a table with an item that cannot be read
}

// listed is what Verify keeps of the newest version of each item, while it walks through the archive.
type listed struct {
	version int64
	hash    [sha256.Size]byte // zero if the item has another hash than its fields, and must be read again
}

// readHeads reads the newest version of every item. Items that cannot be read are left out; the walk reports those
// that have an object.
func (v *verifier) readHeads(ctx context.Context) error {
	for _, t := range events.AllTables() {
		for i, err := range control.All(ctx, v.Tables, t) {
			switch {
			case errors.Is(err, control.ErrBadItem):
				v.unread = append(v.unread, control.Break{Kind: BadHead, Table: t,
					Detail: strings.ReplaceAll(err.Error(), "\n", "; ")})
			case err != nil:
				return err
			default:
				v.heads[i.Ref()] = listedOf(i.Head())
			}
		}
	}
	return nil
}

func listedOf(h *control.Head) listed {
	l := listed{version: h.Version}
	if raw, err := hex.DecodeString(h.Hash); err == nil && len(raw) == len(l.hash) && h.Hash == h.Actual {
		copy(l.hash[:], raw)
	}
	return l
}

// countRejected counts the rejected records.
func (v *verifier) countRejected(ctx context.Context) error {
	for _, err := range names(ctx, v.Archive, RejectedPrefix, "") {
		if err != nil {
			return err
		}
		v.report.Rejected++
	}
	return nil
}

func (v *verifier) find(b control.Break, object string) {
	f := v.found[b.Kind]
	if f == nil {
		f = &Finding{Break: b, Object: object}
		v.found[b.Kind] = f
	}
	if f.Object > object {
		f.Break, f.Object = b, object
	}
	f.Count++
}

// breaks adds the breaks of an item's chain.
func (v *verifier) breaks(all []control.Break) {
	for _, b := range all {
		v.find(b, control.ObjectName(b.Table, b.Key, b.Version))
	}
}

// walk checks all objects, and the items of the tables that have none.
func (v *verifier) walk(ctx context.Context) error {
	var at *item
	for c, err := range contents(ctx, v.Archive, control.ObjectPrefix) {
		switch {
		case err != nil:
			return err
		case c.table == "":
			v.find(control.Break{Kind: BadName, Detail: fmt.Sprintf("%.200q", c.name.name)}, c.name.name)
			continue
		case at == nil || at.table != c.table || at.key != c.key:
			if err := at.end(ctx); err != nil {
				return err
			}
			at = v.item(control.Ref{Table: c.table, Key: c.key})
			if v.Progress != nil {
				v.Progress(int(v.report.Objects), int(v.report.Items))
			}
		}
		if err := at.next(ctx, c); err != nil {
			return err
		}
	}
	if err := at.end(ctx); err != nil {
		return err
	}
	for _, ref := range slices.SortedFunc(maps.Keys(v.heads), control.Ref.Compare) {
		if err := v.item(ref).end(ctx); err != nil {
			return err
		}
	}
	if v.found[BadHead] == nil { // items that cannot be read, none of which has an object
		for _, b := range v.unread {
			v.find(b, "")
		}
	}
	return nil
}

// item checks the versions of one item in the archive. [control.Chain] checks the hashes and their links. The archiver
// writes in any order and with a delay, so a missing version may still arrive.
type item struct {
	v     *verifier
	chain *control.Chain
	table control.Table
	key   string
	seen  int64 // the last version that was checked, existing or hidden

	unread bool // the newest version in the archive cannot be read
}

func (v *verifier) item(ref control.Ref) *item {
	return &item{v: v, chain: control.NewChain(ref.Table, ref.Key), table: ref.Table, key: ref.Key}
}

// next checks the next name of the item.
func (i *item) next(ctx context.Context, c *content) error {
	if c.version > i.chain.At()+1 {
		written := time.Time{}
		if c.record != nil {
			written = c.record.Time
		}
		if err := i.fill(ctx, c.version-1, written); err != nil {
			return err
		}
	}
	i.add(c)
	return nil
}

// add checks a name, unless it was checked before.
func (i *item) add(c *content) {
	if c.version <= i.seen {
		return
	}
	i.seen = c.version
	if !i.v.checkObject(c) {
		return
	}
	if i.chain.At() == 0 {
		i.v.report.Items++
	}
	if i.unread = c.record == nil; !i.unread {
		i.v.breaks(i.chain.AddRecord(c.record))
	} else {
		i.v.breaks(i.chain.Skip(c.version))
	}
}

// end compares the item with its version in the table. It reads that version again unless the archive has the same
// version: the item may have changed since the heads were read.
func (i *item) end(ctx context.Context) error {
	if i == nil {
		return nil
	}
	ref := control.Ref{Table: i.table, Key: i.key}
	l := i.v.heads[ref]
	delete(i.v.heads, ref)
	hash := hex.EncodeToString(l.hash[:])
	head := &control.Head{Version: l.version, Hash: hash, Actual: hash}
	if l.hash == [sha256.Size]byte{} || l.version != i.chain.At() || i.unread {
		switch now, err := i.v.Tables.Get(ctx, i.table, i.key); {
		case err == nil:
			head = now.Head()
		case errors.Is(err, control.ErrNotFound):
			head = nil
		case errors.Is(err, control.ErrBadItem):
			i.v.breaks([]control.Break{{Kind: BadHead, Table: i.table, Key: i.key, Version: max(i.chain.At(), 1),
				Detail: err.Error()}})
			return nil
		default:
			return err
		}
	}
	if head != nil && head.Version > i.chain.At() {
		if err := i.fill(ctx, head.Version, head.ChangedAt); err != nil {
			return err
		}
	}
	i.v.breaks(i.chain.End(head))
	return nil
}

// pause is the time between two checks for a version that has not arrived.
const pause = 200 * time.Millisecond

// fill checks the versions up to to that have arrived since the walk listed the item. written is when version to was
// written: until the grace after that time is over, fill waits for missing versions.
func (i *item) fill(ctx context.Context, to int64, written time.Time) error {
	until := written.Add(i.v.Grace)
	if latest := i.v.Now().Add(i.v.Grace); until.After(latest) { // the writer's clock is ahead
		until = latest
	}
	folder := control.ObjectFolder(i.table, i.key)
	after := folder
	if i.seen > 0 {
		after = control.ObjectName(i.table, i.key, i.seen)
	}
	for {
		var arrived []*name
		exist := i.seen
		for n, err := range names(ctx, i.v.Archive, folder, after) {
			if err != nil {
				return err
			}
			if n.version > to {
				break
			}
			if n.table == "" {
				continue // the walk reports a name that no item has
			}
			if arrived = append(arrived, n); n.oldest() != nil {
				exist++
			}
		}
		if exist < to && i.v.Now().Before(until) {
			if err := wait(ctx); err != nil {
				return err
			}
			continue
		}
		for _, n := range arrived {
			c, err := n.read(ctx, i.v.Archive)
			if err != nil {
				return err
			}
			i.add(c)
		}
		return nil
	}
}

// wait waits for one pause. It returns the error of ctx if ctx ends first.
func wait(ctx context.Context) error {
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// checkObject reports findings about a name apart from its record. It returns whether there is an object.
func (v *verifier) checkObject(c *content) bool {
	place := control.Break{Table: c.table, Key: c.key, Version: c.version}
	tell := func(kind control.BreakKind, format string, args ...any) {
		b := place
		b.Kind, b.Detail = kind, fmt.Sprintf(format, args...)
		v.find(b, c.name.name)
	}
	v.state(c, tell)
	for _, p := range c.passed {
		tell(BadObject, "version %s of %s, put at %s: %v", p.Version, c.name.name, stamp(p.PutAt), p.why)
	}
	if c.entry == nil || c.gone {
		return false
	}
	v.report.Objects++
	v.report.Bytes += c.entry.SizeBytes
	v.report.Repeated += c.repeated
	switch {
	case errors.Is(c.why, ErrUnreadable): // reported above
		return true
	case c.record == nil:
		tell(control.Altered, "the object is not the record of this version: %v", c.why)
		return true
	}
	at := c.record.Time
	if v.report.Locks {
		v.putTime(c, tell)
	}
	if v.report.From.IsZero() || at.Before(v.report.From) {
		v.report.From = at
	}
	if at.After(v.report.To) {
		v.report.To = at
	}
	return true
}

// state reports findings about an object's versions and their locks.
func (v *verifier) state(c *content, tell func(kind control.BreakKind, format string, args ...any)) {
	if c.hidden {
		tell(Hidden, "a delete marker hides the object, or has hidden it")
	}
	if c.entry == nil || c.gone {
		return
	}
	if c.replaced {
		tell(Replaced, "the object has other versions with another content, the newest put at %s",
			stamp(c.versions[0].PutAt))
	}
	switch {
	case c.fetched && v.report.Locks && !c.object.Locked:
		tell(Unlocked, "the object has no retention: it can be removed")
	case c.object.Locked:
		v.lock(c.object)
		v.compareLock(c, tell)
	}
}

// compareLock compares an object's lock with the lock that the archive gives to new objects, or gave when the object
// was put. Earlier releases of Sluice computed the end of the lock by the archiver's clock, which may differ from the
// archive's.
func (v *verifier) compareLock(c *content, tell func(kind control.BreakKind, format string, args ...any)) {
	put, o, want := c.entry.PutAt, &c.object, v.archiveLock
	holds := func(l Lock) bool { return o.LockMode == l.Mode && !o.LockedUntil.Before(put.Add(l.Period-MostSkew)) }
	earlier := func(e EarlierLock) bool { return put.Before(e.Until) && holds(e.Lock) }
	if want.Mode == "" || holds(want) || slices.ContainsFunc(v.EarlierLocks, earlier) {
		return
	}
	tell(WeakLock, "%s is locked in mode %s until %s, but the bucket's default lock for it is %s until %s",
		c.name.name, o.LockMode, stamp(o.LockedUntil), want.Mode, stamp(put.Add(want.Period)))
}

// putTime compares the time at which an object was put with the time of its change.
func (v *verifier) putTime(c *content, tell func(kind control.BreakKind, format string, args ...any)) {
	const form = time.RFC3339
	put, changed := c.entry.PutAt, c.record.Time
	switch after := put.Sub(changed); {
	case after < -MostSkew:
		tell(Early, "it was put at %s, before the time %s that the change states", put.Format(form),
			changed.Format(form))
	case after > v.Late:
		tell(Late, "it was put at %s, later than the archiver can have put it: the change states the time %s",
			put.Format(form), changed.Format(form))
	case after > min(UsualDelay, v.Late):
		tell(Delayed, "it was put at %s, %s after its change", put.Format(form), after.Round(time.Second))
	}
}

func (v *verifier) lock(o Object) {
	r := &v.report
	if r.LockedUntil.IsZero() || o.LockedUntil.Before(r.LockedUntil) {
		r.LockedUntil = o.LockedUntil
	}
	if at, found := slices.BinarySearch(r.Modes, o.LockMode); !found {
		r.Modes = slices.Insert(r.Modes, at, o.LockMode)
	}
}
