package audit

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
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

// VerifyConfig says what Verify compares. Archive and Tables are required.
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

	Parallel int                      // objects that are read concurrently; 0 selects 32
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
// objects, and a hash of 8 bytes for each item. Changes may be made at the same time; Verify ignores changes to the
// part of the archive that it has already read.
//
// If the archive locks its objects, Verify compares the time at which an object was put, by the archive's clock, with
// the time that its record states. The object must not have been put more than MostSkew before its change, nor more
// than Late after it. A delay of more than UsualDelay is a notice: the archiver was unavailable.
//
// The lock of an object must have the same mode as the lock that the archive gives to new objects, and must last at
// least as long.
//
// Of several versions of an object, the oldest one that can be read is the record, since it was there before anybody
// wrote the others. A version that cannot be read is a finding, and the check continues. The item of the table is read
// after its objects were listed, so that a version which is not in the table never existed.
//
// An error says that the check could not be completed, and nothing about the archive.
func Verify(ctx context.Context, c VerifyConfig) (*Report, error) {
	if c.Archive == nil || c.Tables == nil {
		return nil, errors.New("verify: Archive or Tables is missing")
	}
	if c.Grace == 0 {
		c.Grace = 30 * time.Second
	}
	if c.Parallel <= 0 {
		c.Parallel = 32
	}
	if c.Late == 0 {
		c.Late = MostDelay
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	v := &verifier{
		VerifyConfig: c, found: make(map[control.BreakKind]*Finding), seed: maphash.MakeSeed(),
		met: make(map[uint64]struct{}), report: Report{Modes: []string{}},
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := v.readLock(ctx); err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	if err := v.walk(ctx); err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	for _, t := range events.AllTables() {
		if err := v.table(ctx, t); err != nil {
			return nil, fmt.Errorf("verify: %w", err)
		}
	}
	for _, err := range names(ctx, c.Archive, RejectedPrefix, "") {
		if err != nil {
			return nil, fmt.Errorf("verify: %w", err)
		}
		v.report.Rejected++
	}
	if err := v.anchors(ctx); err != nil {
		return nil, fmt.Errorf("verify: %w", err)
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

	report Report
	found  map[control.BreakKind]*Finding
	item   *chain // the item being checked; nil between two items

	archiveLock Lock // lock of new objects; zero if unknown

	// met holds the hashes of the items that have an object. Among a million items, the chance that any two have the
	// same hash, so that a missing object may be overlooked, is 1 in 37 million (n²/2 of 2⁶⁴).
	met  map[uint64]struct{}
	seed maphash.Seed
}

func (v *verifier) hash(t control.Table, key string) uint64 {
	return maphash.String(v.seed, control.ObjectFolder(t, key))
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

// name is one name in the archive, with those of its versions that are checked.
type name struct {
	name     string
	table    control.Table // empty if it is not the name of an item
	key      string
	version  int64
	versions []Entry // versions with content, newest first; if there are many, only the newest and the oldest
	more     bool    // versions between these were left out
	hidden   bool    // a delete marker exists

	// from is the earliest time at which a writer of Sluice can have put the object; zero if unknown. Versions that
	// were put earlier are not in versions.
	from  time.Time
	early *Entry // the first version that was put before from; nil if there is none
}

// Number of versions of a name that are checked: the newest, which are compared with the object, and the oldest, one
// of which is the object. Whoever writes more versions has replaced the object.
const (
	maxNewest = 8
	maxOldest = 8
)

// names groups the entries of a list by name. It ends after an error.
func names(ctx context.Context, a Archive, prefix, after string) iter.Seq2[*name, error] {
	return func(yield func(*name, error) bool) {
		var n *name
		for e, err := range a.List(ctx, prefix, after) {
			if err != nil {
				yield(nil, err)
				return
			}
			if n == nil || n.name != e.Name {
				if n != nil && !yield(n, nil) {
					return
				}
				n = newName(e.Name)
			}
			n.add(e)
		}
		if n != nil {
			yield(n, nil)
		}
	}
}

func newName(of string) *name {
	n := &name{name: of}
	if t, key, version, err := control.ParseObjectName(of); err == nil {
		n.table, n.key, n.version = t, key, version
	} else if day, list, ok := parseAnchorName(of); ok && list == "" {
		at, _ := time.Parse(dayForm, day)
		n.from = at.Add(-MostSkew)
	}
	return n
}

// add adds the next older entry.
func (n *name) add(e Entry) {
	switch {
	case e.DeleteMarker:
		n.hidden = true
		return
	case e.PutAt.Before(n.from):
		n.early = &e
		return
	}
	if n.versions = append(n.versions, e); len(n.versions) > maxNewest+maxOldest {
		n.versions, n.more = slices.Delete(n.versions, maxNewest, maxNewest+1), true
	}
}

// oldest returns the first version with content; nil if there is none.
func (n *name) oldest() *Entry {
	if len(n.versions) == 0 {
		return nil
	}
	return &n.versions[len(n.versions)-1]
}

// content is what was read of a name.
type content struct {
	*name
	entry    *Entry // the version that is the object; nil: the name has only delete markers
	object   Object
	record   *events.AuditRecord // nil: the object holds no valid record, for the reason why
	why      error
	fetched  bool // object was read
	gone     bool // the object was removed after it was listed
	passed   []passed
	replaced bool
	repeated int64
}

// passed is a version that was passed over: it cannot be read, or is not what its name requires.
type passed struct {
	Entry
	why error
	sum string // hash of its content; empty if unknown
}

// read reads a name's versions and the record that they must hold. The record is the first version, since it was there
// before anybody wrote the others. Only a version that cannot be read is passed over, since the archiver puts the
// record over such a version, and over no other.
func (n *name) read(ctx context.Context, a Archive) (*content, error) {
	if n.table == "" {
		return &content{name: n, replaced: n.more}, nil
	}
	c, err := n.fetch(ctx, a, events.MaxAuditBytes, func(_ Object, err error) error {
		if errors.Is(err, ErrUnreadable) {
			return err
		}
		return nil
	})
	if err == nil && c.fetched {
		c.record, c.why = decode(n, c.object.Data)
	}
	return c, err
}

// fetch reads a name's versions. The first version that accept accepts is the object. accept gets the version's
// content, or the reason why there is none, which wraps ErrUnreadable, or ErrTooLarge if the version has more than
// most bytes. It returns nil, or the reason for which the version is passed over. If no version is accepted, the
// object is the first one, without content.
func (n *name) fetch(ctx context.Context, a Archive, most int64, accept func(Object, error) error) (*content, error) {
	c := &content{name: n, replaced: n.more}
	for i, e := range slices.Backward(n.versions) {
		o, err := getAtMost(ctx, a, e, most)
		switch {
		case errors.Is(err, ErrNotFound):
			c.entry, c.gone = &n.versions[i], true
			return c, nil
		case err != nil && !errors.Is(err, ErrUnreadable) && !errors.Is(err, ErrTooLarge):
			return nil, err
		}
		if why := accept(o, err); why != nil {
			p := passed{Entry: e, why: why}
			if err == nil {
				p.sum = sumOf(o.Data)
			}
			c.passed = append(c.passed, p)
			continue
		}
		c.entry, c.object, c.why, c.fetched = &n.versions[i], o, err, err == nil
		return c, c.compare(ctx, a, n.versions[:i])
	}
	if c.entry = n.oldest(); c.entry != nil {
		c.why = c.passed[0].why
	}
	return c, nil
}

// getAtMost reads a version of at most most bytes.
func getAtMost(ctx context.Context, a Archive, e Entry, most int64) (Object, error) {
	if e.SizeBytes > most {
		return Object{}, fmt.Errorf("%w: it has %d bytes, want at most %d", ErrTooLarge, e.SizeBytes, most)
	}
	return a.Get(ctx, e)
}

// compare compares the object with the newer versions.
func (c *content) compare(ctx context.Context, a Archive, newer []Entry) error {
	for _, e := range newer {
		if e.SizeBytes != c.entry.SizeBytes {
			c.replaced = true
			continue
		}
		if !c.fetched {
			continue
		}
		o, err := a.Get(ctx, e)
		switch {
		case errors.Is(err, ErrNotFound):
		case errors.Is(err, ErrUnreadable):
			c.passed = append(c.passed, passed{Entry: e, why: err})
		case err != nil:
			return err
		case bytes.Equal(o.Data, c.object.Data):
			c.repeated++
		default:
			c.replaced = true
		}
	}
	return nil
}

// decode reads the record that an object of this name must hold.
func decode(n *name, data []byte) (*events.AuditRecord, error) {
	e, err := events.Decode(data)
	if err != nil {
		return nil, err
	}
	r, ok := e.(*events.AuditRecord)
	if !ok {
		h := e.Header()
		return nil, fmt.Errorf("it holds %s in version %d, want %s in version %d", h.Type, h.Version,
			events.AuditRecorded, events.Version)
	}
	if r.Table != n.table || r.Key != n.key || r.ItemVersion != n.version {
		return nil, fmt.Errorf("it holds the record of version %d of %s/%q", r.ItemVersion, r.Table, r.Key)
	}
	return r, nil
}

// step is a step of the walk: a name of the archive, or the end of an item, after its last name.
type step struct {
	name *name
	ends *name    // if name is nil: the last name of the item
	read *content // what was read of the name
	head *head    // the item's newest version in its table
}

// head is the newest version of an item in its table. Its item is nil if the table has none.
type head struct {
	item *control.Item
	bad  error // why the item cannot be read
}

// stepsAtOnce is the number of steps whose reads are made before they are checked: enough that the wait for the last
// read of them takes little of the time, and few enough for memory, where they may have up to MaxAuditBytes each.
const stepsAtOnce = 256

// walk checks the archive. It reads objects concurrently and checks them in order. Each item's head is read after the
// item's last name was listed.
func (v *verifier) walk(ctx context.Context) error {
	var steps []*step
	var last *name
	end := func() {
		if last != nil {
			steps = append(steps, &step{ends: last})
		}
	}
	for n, err := range names(ctx, v.Archive, control.ObjectPrefix, "") {
		if err != nil {
			return err
		}
		if n.table != "" {
			if last == nil || last.table != n.table || last.key != n.key {
				end()
			}
			last = n
		}
		if steps = append(steps, &step{name: n}); len(steps) >= stepsAtOnce {
			if err := v.take(ctx, steps); err != nil {
				return err
			}
			steps = steps[:0]
		}
	}
	end()
	return v.take(ctx, steps)
}

// take reads what the steps are about, and then checks them in order.
func (v *verifier) take(ctx context.Context, steps []*step) error {
	err := control.Concurrently(len(steps), v.Parallel, func(i int) (err error) {
		if s := steps[i]; s.name != nil {
			s.read, err = s.name.read(ctx, v.Archive)
		} else {
			s.head, err = v.head(ctx, s.ends.table, s.ends.key)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, s := range steps {
		if err := v.step(ctx, s); err != nil {
			return err
		}
	}
	if v.Progress != nil {
		v.Progress(int(v.report.Objects), int(v.report.Items))
	}
	return ctx.Err()
}

func (v *verifier) head(ctx context.Context, t control.Table, key string) (*head, error) {
	i, err := v.Tables.Get(ctx, t, key)
	switch {
	case err == nil:
		return &head{item: &i}, nil
	case errors.Is(err, control.ErrNotFound):
		return &head{}, nil
	case errors.Is(err, control.ErrBadItem):
		return &head{bad: err}, nil
	}
	return nil, err
}

func (v *verifier) step(ctx context.Context, s *step) error {
	switch {
	case s.name == nil:
		err := v.item.end(ctx, s.head)
		v.item = nil
		return err
	case s.name.table == "":
		v.find(control.Break{Kind: BadName, Detail: fmt.Sprintf("%.200q", s.name.name)}, s.name.name)
		return nil
	case v.item == nil:
		v.item = newChain(v, s.name.table, s.name.key)
	}
	return v.item.next(ctx, s.read)
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

// table looks for items of a table that have no object. Items that cannot be read are reported once, unless the walk
// has reported them.
func (v *verifier) table(ctx context.Context, t control.Table) error {
	var unmet []control.Item
	for i, err := range control.All(ctx, v.Tables, t) {
		switch _, met := v.met[v.hash(t, i.Key)]; {
		case errors.Is(err, control.ErrBadItem) && v.found[BadHead] != nil:
		case errors.Is(err, control.ErrBadItem):
			v.find(control.Break{Kind: BadHead, Table: t, Detail: strings.ReplaceAll(err.Error(), "\n", "; ")}, "")
		case err != nil:
			return err
		case !met:
			unmet = append(unmet, i)
		}
		if len(unmet) == stepsAtOnce {
			if err := v.without(ctx, unmet); err != nil {
				return err
			}
			unmet = unmet[:0]
		}
	}
	return v.without(ctx, unmet)
}

// without reports those of the items that have no object. The others are newer than the walk, or have only objects that
// are hidden.
func (v *verifier) without(ctx context.Context, items []control.Item) error {
	exists := make([]bool, len(items))
	err := control.Concurrently(len(items), v.Parallel, func(n int) error {
		for _, err := range v.Archive.List(ctx, control.ObjectFolder(items[n].Table, items[n].Key), "") {
			exists[n] = true
			return err
		}
		return nil
	})
	if err != nil {
		return err
	}
	for n := range items {
		i := &items[n]
		if exists[n] {
			continue
		}
		c := newChain(v, i.Table, i.Key)
		if v.Now().Sub(i.ChangedAt) >= v.Grace {
			v.breaks(c.of.End(i))
		} else if err := c.end(ctx, &head{item: i}); err != nil {
			return err
		}
	}
	return nil
}
