package audit

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
)

// What can be wrong with an archive beside the breaks of a chain, which package control names.
const (
	// the record is there, and whoever asks for it is told that it is not
	Hidden   control.BreakKind = "delete marker"
	Replaced control.BreakKind = "replaced"           // its name has another version, with another content
	BadName  control.BreakKind = "not an item's name" // an object that no item can have
	Unlocked control.BreakKind = "not locked"         // in an archive that locks its objects
	WeakLock control.BreakKind = "weak lock"          // shorter than the archive's own, or of another mode
	NoLock   control.BreakKind = "no default lock"    // the archive can lock objects, and does not lock new ones
	BadHead  control.BreakKind = "unreadable head"    // the live table's newest version cannot be read

	// its writer made it so that nobody who reads the archive can read it
	BadObject control.BreakKind = "unreadable object"

	Late  control.BreakKind = "archived late"              // put later than a stream holds a change
	Early control.BreakKind = "archived before its change" // put before the time that the record says
)

// What is worth knowing about an archive and breaks nothing.
const (
	Delayed    control.BreakKind = "archived with a delay" // put later than usual: the archiver was away
	NoPutTimes control.BreakKind = "put times not known"   // they are those of files, which anybody can set
	LockUnread control.BreakKind = "locks not compared"    // the caller may not ask how the archive locks
)

// What the time at which an object was put is compared with.
const (
	UsualDelay = time.Hour       // of an object after its change; the archiver needs seconds
	MostDelay  = 24 * time.Hour  // a stream holds a change no longer, so the archiver cannot put its object later
	MostSkew   = 5 * time.Minute // by which a writer's clock may be ahead of the archive's
)

// Tables is the part of control.Tables that is compared with.
type Tables interface {
	Get(ctx context.Context, t control.Table, key string) (control.Item, error)
	List(ctx context.Context, t control.Table, after string, most int) (items []control.Item, next string, err error)
}

// VerifyConfig says what to compare. Archive and Tables are required.
type VerifyConfig struct {
	Archive Archive
	Tables  Tables

	// Grace is how long after its write a version may be missing: an archiver needs a moment. Verify waits for one that
	// is younger, by its writer's clock. 0 is 30 s; negative is none.
	Grace time.Duration

	// Late is how long after its change an object may have been put, by the archive's clock. 0 is MostDelay. More is
	// for an archive into which an operator put objects back.
	Late time.Duration

	// EarlierLocks are locks that the archive gave to new objects before it had the one that it has now.
	EarlierLocks []EarlierLock

	// Keys are the public keys of the anchors, on the curve P-256. If empty, signatures are not checked, which is a
	// notice. With a key, an archive without any anchor is a finding.
	Keys []*ecdsa.PublicKey

	// Known are anchors that were seen before, by their days: the SHA-256 of their objects, in hex.
	Known map[string]string

	// Explained are days, as 2026-11-22, without an anchor, of which the reason is known: the function was away.
	Explained []string

	Parallel int                      // objects that are read at once; 0 is 32
	Now      func() time.Time         // nil is time.Now
	Progress func(objects, items int) // told from time to time, by one goroutine; nil is nobody
}

// EarlierLock is what the archive locked objects with until a time.
type EarlierLock struct {
	Lock
	Until time.Time
}

// Finding is what is wrong in one way: the first place, by object name, and how many there are.
type Finding struct {
	control.Break
	Object string // the name that it is about; empty where it is about none
	Count  int64
}

// Report is what was checked, and what is wrong.
type Report struct {
	Objects  int64 // versions of items, each once
	Items    int64 // with an object at least
	Bytes    int64
	From, To time.Time // the oldest and the newest change, by their writers' clocks; zero where there is none

	Locks          bool      // the archive locks its objects
	Modes          []string  // of the locks that were met, sorted
	LockedUntil    time.Time // the first end of a retention; zero where there is none
	Repeated       int64     // versions of objects with the same content as the first
	Rejected       int64     // records that could not be archived and lie beside
	Anchors        int64
	FirstAnchor    time.Time // when it was made; zero where there is none
	LastAnchor     string    // the day of the last one that holds; empty where there is none
	LastAnchorHash string    // the SHA-256 of its object, for [VerifyConfig].Known
	Findings       []Finding // one of each kind, in the order of kinds
	Notices        []Finding // the same of what breaks nothing
}

// OK reports whether the archive holds what was written, all of it, and as it was.
func (r *Report) OK() bool { return len(r.Findings) == 0 }

// Kinds are all kinds of findings, in the order in which they are told.
func Kinds() []control.BreakKind {
	return []control.BreakKind{
		control.MissingVersion, control.MissingTail, control.WrongHash, control.Altered, BadObject, Hidden, Replaced,
		control.BrokenLink, control.WrongHead,
		BadHead, control.Unknown, control.OutOfOrder, BadName, Unlocked, WeakLock, NoLock, Late, Early,
		Rewritten, PutAgain, MissingAnchor, MissedDays, BrokenAnchors, BadSignature, BadAnchor, FutureAnchor,
	}
}

// NoticeKinds are all kinds of notices, in the order in which they are told.
func NoticeKinds() []control.BreakKind {
	return []control.BreakKind{Delayed, NoPutTimes, LockUnread, NoAnchors, NotChecked, LateAnchors, NotAnchored}
}

// Verify walks every version of every object and every item of the tables, and finds what is wrong. It holds a bounded
// number of objects, however many there are. Changes may go on meanwhile: of what is written after the walk has passed
// nothing is told.
//
// The time at which an object was put, by the archive's clock, is compared with the time that its record says, where
// the archive locks its objects. The object must not be older than its change by more than MostSkew, nor younger by
// more than Late. In between a delay of more than UsualDelay is a notice: the archiver was away.
//
// The lock of an object is compared with the one that the archive gives to new objects: it must have the same mode, and
// last as long at least.
//
// Of several versions of an object the oldest that can be read is the record: it was there before whoever wrote the
// others. One that nobody can read is a finding, and the check goes on. Tables are read one item at a time, after the
// item's objects were listed, so that a version that is not in the table has never been.
//
// An error says that the check could not be done, and nothing about the archive.
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
		live: make(map[control.Table][]int32),
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
	if err := names(ctx, c.Archive, RejectedPrefix, "",
		func(*name) bool { v.report.Rejected++; return true }); err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	if err := v.anchors(ctx); err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	if !v.report.Locks && v.report.Objects > 0 {
		v.find(control.Break{Kind: NoPutTimes,
			Detail: "whoever may write this archive may set them, so they are compared with nothing"}, "")
	}
	v.report.Findings, v.report.Notices = v.of(Kinds()), v.of(NoticeKinds())
	return &v.report, nil
}

// readLock reads how the archive locks new objects. If the caller may not know, each object must be locked somehow.
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

// of are the findings of these kinds.
func (v *verifier) of(kinds []control.BreakKind) (all []Finding) {
	for _, k := range kinds {
		if f := v.found[k]; f != nil {
			all = append(all, *f)
		}
	}
	return all
}

// verifier is one run. Its fields are those of the goroutine that called Verify.
type verifier struct {
	VerifyConfig

	report Report
	found  map[control.BreakKind]*Finding
	item   *chain // under way; nil between two

	archiveLock Lock // that of new objects; zero if it is not known

	// live counts the items with objects that their table has, too, by their place. Where a place has fewer than the
	// table has items of it, one of these has no object: so all can be found, however many there are, in little memory.
	live map[control.Table][]int32
	seed maphash.Seed
}

// places is how many places the items of a table are divided among.
const places = 1 << 16

func (v *verifier) place(key string) int { return int(maphash.String(v.seed, key) % places) }

func (v *verifier) met(t control.Table) []int32 {
	if v.live[t] == nil {
		v.live[t] = make([]int32, places)
	}
	return v.live[t]
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

// breaks are those of an item's chain.
func (v *verifier) breaks(all []control.Break) {
	for _, b := range all {
		v.find(b, control.ObjectName(b.Table, b.Key, b.Version))
	}
}

// name is one name of an object with its versions as far as they count.
type name struct {
	name     string
	table    control.Table // empty where it is no name of an item
	key      string
	version  int64
	versions []Entry // with content, the newest first; of many the newest and the oldest
	more     bool    // there are others between these
	hidden   bool    // by a marker somewhere above

	// from is the time before which nobody can have put the object honestly; zero if it is not known. Versions from
	// before are not among the others.
	from  time.Time
	early *Entry // the first of them; nil if there is none
}

// Of one name's versions these many are looked at: the newest, which are compared with the object, and the oldest, of
// which one is the object. Who writes more has replaced it.
const (
	maxNewest = 8
	maxOldest = 8
)

// names puts the entries of a list together by name.
func names(ctx context.Context, a Archive, prefix, after string, yield func(*name) bool) error {
	var n *name
	for e, err := range a.List(ctx, prefix, after) {
		if err != nil {
			return err
		}
		if n != nil && n.name != e.Name {
			if !yield(n) {
				return nil
			}
			n = nil
		}
		if n == nil {
			n = newName(e.Name)
		}
		n.add(e)
	}
	if n != nil {
		yield(n)
	}
	return nil
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

// add takes the next older entry.
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

// oldest is the first version with content; nil if there is none.
func (n *name) oldest() *Entry {
	if len(n.versions) == 0 {
		return nil
	}
	return &n.versions[len(n.versions)-1]
}

// content is what was read of a name.
type content struct {
	*name
	entry    *Entry // the version that is the object; nil: there is nothing but markers
	object   Object
	record   *events.AuditRecord // nil: it has none, and why says so
	why      error
	fetched  bool // object is there
	gone     bool // removed since it was listed
	passed   []passed
	replaced bool
	repeated int64
}

// passed is a version that was passed over: it cannot be read, or is not what its name says.
type passed struct {
	Entry
	why error
	sum string // of its content; empty if that is not known
}

// read reads a name's versions, and the record that they must hold. The record is the first version: it was there
// before whoever wrote the others. Only a version that nobody can read is passed over, since the archiver puts the
// record over such a one, and over no other.
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

// fetch reads a name's versions. The first one that accept takes is the object. Accept is given the version's content,
// or why there is none, which wraps ErrUnreadable, or ErrTooLarge if it has more bytes than most; it returns why the
// version is passed over, or nil. If no version is taken, the object is the first one, without content.
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

// getAtMost reads a version that has no more than so many bytes.
func getAtMost(ctx context.Context, a Archive, e Entry, most int64) (Object, error) {
	if e.SizeBytes > most {
		return Object{}, fmt.Errorf("%w: it has %d bytes, want at most %d", ErrTooLarge, e.SizeBytes, most)
	}
	return a.Get(ctx, e)
}

// compare compares the object with the versions on top of it.
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
		return nil, fmt.Errorf("it holds version %d of %s/%q", r.ItemVersion, r.Table, r.Key)
	}
	return r, nil
}

// step is what the walk does next, in order: a name that was read, or with head the end of an item.
type step struct {
	read *content
	head *head
	err  error
}

// head is the newest version of an item in its table; nil where there is none.
type head struct {
	item *control.Item
	bad  error // it cannot be read
}

// walk goes through the archive. Reads are made side by side, and looked at in order.
func (v *verifier) walk(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	steps := make(chan chan step, v.Parallel) // which bounds what is under way, and waits to be looked at
	var wg sync.WaitGroup
	var listed error // read when steps is closed
	defer func() {
		cancel()
		wg.Wait()
	}()
	wg.Go(func() {
		defer close(steps)
		put := func(work func() step) bool {
			result := make(chan step, 1)
			select {
			case steps <- result:
			case <-ctx.Done():
				return false
			}
			wg.Go(func() { result <- work() })
			return true
		}
		listed = v.produce(ctx, put)
	})
	told := 0
	for result := range steps {
		s := <-result
		if s.err != nil {
			return s.err
		}
		if err := v.step(ctx, s); err != nil {
			return err
		}
		if told++; v.Progress != nil && told%1000 == 0 {
			v.Progress(int(v.report.Objects), int(v.report.Items))
		}
	}
	return errors.Join(listed, ctx.Err())
}

// produce lists the archive, and has each name read, and each item's head behind its last name.
func (v *verifier) produce(ctx context.Context, put func(work func() step) bool) error {
	var last *name
	end := func() bool {
		if last == nil {
			return true
		}
		of := last
		return put(func() step {
			h, err := v.head(ctx, of.table, of.key)
			return step{head: h, err: err}
		})
	}
	going := true
	err := names(ctx, v.Archive, control.ObjectPrefix, "", func(n *name) bool {
		if n.table != "" && (last == nil || last.table != n.table || last.key != n.key) {
			going = end()
		}
		if n.table != "" {
			last = n
		}
		going = going && put(func() step {
			c, err := n.read(ctx, v.Archive)
			return step{read: c, err: err}
		})
		return going
	})
	if err == nil && going {
		end()
	}
	return err
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

func (v *verifier) step(ctx context.Context, s step) error {
	if s.read != nil && s.read.table == "" {
		n := s.read.name
		v.find(control.Break{Kind: BadName, Detail: fmt.Sprintf("%.200q", n.name)}, n.name)
		return nil
	}
	if s.read != nil {
		if v.item == nil {
			v.item = newChain(v, s.read.table, s.read.key)
		}
		return v.item.next(ctx, s.read)
	}
	err := v.item.end(ctx, s.head)
	v.item = nil
	return err
}

// look takes what a name tells beside its record. It reports whether there is an object.
func (v *verifier) look(c *content) bool {
	place := control.Break{Table: c.table, Key: c.key, Version: c.version}
	told := func(kind control.BreakKind, format string, args ...any) {
		b := place
		b.Kind, b.Detail = kind, fmt.Sprintf(format, args...)
		v.find(b, c.name.name)
	}
	v.state(c, told)
	for _, p := range c.passed {
		told(BadObject, "version %s of %s, put at %s: %v", p.Version, c.name.name, stamp(p.PutAt), p.why)
	}
	if c.entry == nil || c.gone {
		return false
	}
	v.report.Objects++
	v.report.Bytes += c.entry.SizeBytes
	v.report.Repeated += c.repeated
	switch {
	case errors.Is(c.why, ErrUnreadable): // which was told
		return true
	case c.record == nil:
		told(control.Altered, "it is no record of this version: %v", c.why)
		return true
	}
	at := c.record.Time
	if v.report.Locks {
		v.putTime(c, told)
	}
	if v.report.From.IsZero() || at.Before(v.report.From) {
		v.report.From = at
	}
	if at.After(v.report.To) {
		v.report.To = at
	}
	return true
}

// state tells what was done to an object's versions and their locks.
func (v *verifier) state(c *content, told func(kind control.BreakKind, format string, args ...any)) {
	if c.hidden {
		told(Hidden, "a delete marker hides it, or did")
	}
	if c.entry == nil || c.gone {
		return
	}
	if c.replaced {
		told(Replaced, "there are other versions of the object with another content, the newest of %s",
			stamp(c.versions[0].PutAt))
	}
	switch {
	case c.fetched && v.report.Locks && !c.object.Locked:
		told(Unlocked, "the object has no retention: it can be removed")
	case c.object.Locked:
		v.lock(c.object)
		v.compareLock(c, told)
	}
}

// compareLock compares an object's lock with the one that the archive gives to new objects, or gave when the object was
// put. Earlier releases of Sluice set the end of the lock by the archiver's clock, which may differ from the archive's.
func (v *verifier) compareLock(c *content, told func(kind control.BreakKind, format string, args ...any)) {
	put, o, want := c.entry.PutAt, &c.object, v.archiveLock
	holds := func(l Lock) bool { return o.LockMode == l.Mode && !o.LockedUntil.Before(put.Add(l.Period-MostSkew)) }
	earlier := func(e EarlierLock) bool { return put.Before(e.Until) && holds(e.Lock) }
	if want.Mode == "" || holds(want) || slices.ContainsFunc(v.EarlierLocks, earlier) {
		return
	}
	told(WeakLock, "%s is locked in %s until %s, and the bucket's default lock for it is %s until %s", c.name.name,
		o.LockMode, stamp(o.LockedUntil), want.Mode, stamp(put.Add(want.Period)))
}

// putTime compares the time at which an object was put with that of its change.
func (v *verifier) putTime(c *content, told func(kind control.BreakKind, format string, args ...any)) {
	const form = time.RFC3339
	put, changed := c.entry.PutAt, c.record.Time
	switch after := put.Sub(changed); {
	case after < -MostSkew:
		told(Early, "it was put at %s, and the change says that it is of %s", put.Format(form), changed.Format(form))
	case after > v.Late:
		told(Late, "it was put at %s, and the change says that it is of %s: the archiver cannot have put it so late",
			put.Format(form), changed.Format(form))
	case after > min(UsualDelay, v.Late):
		told(Delayed, "it was put at %s, %s after its change", put.Format(form), after.Round(time.Second))
	}
}

func (v *verifier) lock(o Object) {
	r := &v.report
	if r.LockedUntil.IsZero() || o.LockedUntil.Before(r.LockedUntil) {
		r.LockedUntil = o.LockedUntil
	}
	for at, m := range r.Modes {
		if m == o.LockMode {
			return
		}
		if m > o.LockMode {
			r.Modes = append(r.Modes[:at], append([]string{o.LockMode}, r.Modes[at:]...)...)
			return
		}
	}
	r.Modes = append(r.Modes, o.LockMode)
}

// table looks for items of a table that have no object. Items are never removed from it, so the walk met all of a place
// where it met as many as there are now.
func (v *verifier) table(ctx context.Context, t control.Table) error {
	there, met := make([]int32, places), v.met(t)
	all := true
	err := v.each(ctx, t, func(items []control.Item) error {
		for i := range items {
			there[v.place(items[i].Key)]++
		}
		return nil
	})
	for at := range there {
		all = all && there[at] <= met[at]
	}
	if err != nil || all {
		return err
	}
	return v.each(ctx, t, func(items []control.Item) error {
		return v.without(ctx, slices.DeleteFunc(items, func(i control.Item) bool {
			at := v.place(i.Key)
			return there[at] <= met[at]
		}))
	})
}

// without finds which of the items have no object.
func (v *verifier) without(ctx context.Context, items []control.Item) error {
	none, failed := make([]bool, len(items)), make([]error, len(items))
	turns := make(chan struct{}, v.Parallel)
	var wg sync.WaitGroup
	for n, i := range items {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			none[n] = true
			for _, err := range v.Archive.List(ctx, control.ObjectFolder(i.Table, i.Key), "") {
				none[n], failed[n] = false, err // there is one: it was met, or is newer than the walk
				break
			}
		})
	}
	wg.Wait()
	if err := errors.Join(failed...); err != nil {
		return err
	}
	for n, i := range items {
		if !none[n] {
			continue
		}
		c := newChain(v, i.Table, i.Key)
		if v.Now().Sub(i.ChangedAt) >= v.Grace {
			c.close(&i)
		} else if err := c.end(ctx, &head{item: &i}); err != nil {
			return err
		}
	}
	return nil
}

// each goes through a table. Items that cannot be read are told of once, where the walk did not meet them.
func (v *verifier) each(ctx context.Context, t control.Table, f func([]control.Item) error) error {
	after := ""
	for {
		items, next, err := v.Tables.List(ctx, t, after, control.MaxPage)
		if errors.Is(err, control.ErrBadItem) {
			if v.found[BadHead] == nil {
				v.find(control.Break{Kind: BadHead, Table: t, Detail: strings.ReplaceAll(err.Error(), "\n", "; ")}, "")
			}
		} else if err != nil {
			return err
		}
		if err := f(items); err != nil {
			return err
		}
		if next == "" {
			return nil
		}
		after = next
	}
}
