package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sluicelimits/sluice/internal/control"
)

// What can be wrong between an archive and its anchors.
const (
	Rewritten     control.BreakKind = "not as anchored"         // a version is missing, or another than an anchor has
	PutAgain      control.BreakKind = "put after its anchor"    // what was there when the anchor was made was removed
	MissingAnchor control.BreakKind = "missing anchor"          // a later one names it, or the newest is too old
	MissedDays    control.BreakKind = "days without an anchor"  // between two that follow each other
	BrokenAnchors control.BreakKind = "broken chain of anchors" // one does not follow the one before it
	BadSignature  control.BreakKind = "bad signature"           // of an anchor, by none of the keys
	// no anchor of its day, or no list of heads that was signed
	BadAnchor control.BreakKind = "unreadable anchor"
	// than that on which it was put: nobody can have made it
	FutureAnchor control.BreakKind = "anchor of a later day"
)

// What is worth knowing about the anchors of an archive and breaks nothing.
const (
	NoAnchors   control.BreakKind = "no anchors"             // of an earlier version of Sluice, or of a folder
	NotChecked  control.BreakKind = "signatures not checked" // no key was given
	LateAnchors control.BreakKind = "anchored later"         // there are changes long before the first anchor
	NotAnchored control.BreakKind = "heads not anchored"     // an item could not be read when an anchor was made
)

// headsAtOnce is how many heads are compared before more are read.
const headsAtOnce = 256

// anchorDay is what the archive has of a day: its anchor, and lists of heads by their hashes.
type anchorDay struct {
	day    string
	anchor *name // nil: lists alone, of an anchor that was not finished
	lists  map[string]*name
}

// anchorWalk goes through the anchors from the first one on.
type anchorWalk struct {
	v        *verifier
	day, sum string     // of the last one; empty before the first
	heads    *anchorDay // the last one whose heads were compared, with what it lists; nil before the first
	listed   []HeadsOf
	known    map[string]string // of VerifyConfig.Known, what was not met

	// bad are the days since the last one that have objects and no anchor, with the hash of the first of these, empty
	// if it cannot be read. They were told of. Earlier releases named it as the one before: so that it, too, is in what
	// was signed.
	bad map[string]string
}

// anchors compares the archive with its anchors.
func (v *verifier) anchors(ctx context.Context) error {
	w := &anchorWalk{v: v, known: make(map[string]string), bad: make(map[string]string)}
	for day, sum := range v.Known {
		w.known[day] = sum
	}
	now := &anchorDay{}
	today := v.Now().UTC().Add(MostSkew).Format(dayForm)
	var failed error
	end := func() bool {
		if now.anchor != nil {
			failed = w.next(ctx, now)
		}
		return failed == nil
	}
	err := names(ctx, v.Archive, AnchorPrefix, "", func(n *name) bool {
		day, list, ok := parseAnchorName(n.name)
		if !ok {
			v.find(control.Break{Kind: BadName, Detail: fmt.Sprintf("%.200q", n.name)}, n.name)
			return true
		}
		if day > today {
			v.find(control.Break{Kind: FutureAnchor, Detail: n.name + " is of a day that has not come by " +
				"this machine's clock, so it is no anchor; on that day the anchor is put over it"}, n.name)
			return true
		}
		if day != now.day {
			if !end() {
				return false
			}
			now = &anchorDay{day: day, lists: make(map[string]*name)}
		}
		if list == "" {
			now.anchor = n
		} else {
			now.lists[list] = n
		}
		return true
	})
	if failed == nil && err == nil {
		end()
	}
	if err := errors.Join(failed, err); err != nil {
		return err
	}
	w.end()
	return nil
}

// tell finds something about an anchor.
func (w *anchorWalk) tell(object string) func(kind control.BreakKind, format string, args ...any) {
	return func(kind control.BreakKind, format string, args ...any) {
		w.v.find(control.Break{Kind: kind, Detail: fmt.Sprintf(format, args...)}, object)
	}
}

// readAnchor reads the anchor of a day among the versions of its name: the first version that was put on its day or
// later, and is an anchor of that day. Those before it, which are none, are what somebody put in its place, and are
// passed over. The function that makes anchors, and Verify, both read anchors so: one chains to what the other finds.
// The anchor is nil if no version is one.
func (n *name) readAnchor(ctx context.Context, a Archive, day string) (c *content, s *sealed, err error) {
	c, err = n.fetch(ctx, a, maxAnchor, func(o Object, err error) error {
		if err == nil {
			s, err = decodeAnchor(day, o.Data)
		}
		return err
	})
	return c, s, err
}

// firstSum is the hash of a name's first version; empty if it cannot be read.
func (n *name) firstSum(ctx context.Context, a Archive) (string, error) {
	o, err := getAtMost(ctx, a, *cmp.Or(n.early, n.oldest()), MaxBytes)
	switch {
	case err == nil:
		return sumOf(o.Data), nil
	case errors.Is(err, ErrTooLarge), errors.Is(err, ErrUnreadable), errors.Is(err, ErrNotFound):
		return "", nil
	}
	return "", err
}

// next takes the next day that has an anchor.
func (w *anchorWalk) next(ctx context.Context, d *anchorDay) error {
	v, tell := w.v, w.tell(d.anchor.name)
	c, s, err := d.anchor.readAnchor(ctx, v.Archive, d.day)
	if err != nil {
		return err
	}
	v.state(c, tell)
	if e := d.anchor.early; e != nil {
		tell(FutureAnchor, "version %s of %s was put at %s, before its day, so it is no anchor", e.Version, e.Name,
			stamp(e.PutAt))
	}
	for _, p := range c.passed {
		tell(BadAnchor, "version %s of the anchor of %s, put at %s: %v", p.Version, d.day, stamp(p.PutAt), p.why)
		w.meet(d.day, p.sum)
	}
	if c.gone || c.entry == nil && d.anchor.early == nil {
		return nil // as if it were not there: the next one names it
	}
	v.report.Anchors++
	if s == nil {
		w.bad[d.day], err = d.anchor.firstSum(ctx, v.Archive)
		return err
	}
	w.meet(d.day, s.sum)
	if v.report.Locks {
		w.putTime(c, s, tell)
	}
	w.follows(s, tell)
	w.day, w.sum = d.day, s.sum
	clear(w.bad)
	if len(v.Keys) > 0 && !s.verifies(v.Keys) {
		tell(BadSignature, "the anchor of %s was signed by none of the %d keys; its heads are not compared", d.day,
			len(v.Keys))
		return nil
	}
	if v.report.FirstAnchor.IsZero() {
		v.report.FirstAnchor = s.At
	}
	v.report.LastAnchor, v.report.LastAnchorHash = d.day, s.sum
	if s.Unread > 0 {
		tell(NotAnchored, "when the anchor of %s was made, an item of a table could not be read", d.day)
	}
	if err := w.compare(ctx, d, s); err != nil {
		return err
	}
	w.heads, w.listed = d, s.Lists
	return nil
}

// meet takes note of an object of a day, which may be one that the caller knows.
func (w *anchorWalk) meet(day, sum string) {
	if want, asked := w.known[day]; asked && want == sum {
		delete(w.known, day)
	}
}

// putTime compares the time at which an anchor was put with that which it says.
func (w *anchorWalk) putTime(c *content, s *sealed, tell func(control.BreakKind, string, ...any)) {
	switch after := c.entry.PutAt.Sub(s.At); {
	case after < -MostSkew:
		tell(Early, "the anchor of %s was put at %s, before %s, of which it says that it is", s.Day,
			stamp(c.entry.PutAt), stamp(s.At))
	case after > UsualDelay:
		tell(Late, "the anchor of %s was put at %s, and says that it is of %s", s.Day, stamp(c.entry.PutAt),
			stamp(s.At))
	}
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// follows compares an anchor with the one before it.
func (w *anchorWalk) follows(s *sealed, tell func(control.BreakKind, string, ...any)) {
	sum, bad := w.bad[s.PreviousDay]
	switch {
	case bad && sum != "" && sum == s.Previous && w.day == "":
	case bad && sum != "" && sum == s.Previous:
		w.missed(w.day, s.Day)
	case s.PreviousDay > w.day && !bad:
		w.tell(anchorName(s.PreviousDay))(MissingAnchor, "the anchor of %s names that of %s as the one before it",
			s.Day, s.PreviousDay)
	case s.PreviousDay != w.day:
		tell(BrokenAnchors, "the anchor of %s names %q as the day of the one before it, which is of %s", s.Day,
			s.PreviousDay, w.day)
	case s.Previous != w.sum:
		tell(BrokenAnchors, "the anchor of %s is not the one that the anchor of %s names: it was exchanged", w.day,
			s.Day)
	case w.day != "":
		w.missed(w.day, s.Day)
	}
}

// missed tells of the days between two without an anchor that nobody has explained. The later anchor follows the
// earlier one, so none was made, or all of them were removed before the later one was made.
func (w *anchorWalk) missed(from, to string) {
	for day := nextDay(from); day < to; day = nextDay(day) {
		if _, bad := w.bad[day]; !bad && !slices.Contains(w.v.Explained, day) {
			w.tell(anchorName(day))(MissedDays, "there is none of %s, and the next one, of %s, follows that of %s",
				day, to, from)
		}
	}
}

// nextDay is the day after one that is as anchors have it.
func nextDay(day string) string {
	at, _ := time.Parse(dayForm, day)
	return at.AddDate(0, 0, 1).Format(dayForm)
}

// end says what can only be said of all anchors.
func (w *anchorWalk) end() {
	v, r, tell := w.v, &w.v.report, w.tell("")
	for day, sum := range w.known {
		w.tell(anchorName(day))(BrokenAnchors, "the anchor of %s with the hash %.12s…, which is known, is not there",
			day, sum)
	}
	yesterday := v.Now().UTC().AddDate(0, 0, -1).Format(dayForm)
	switch {
	case r.Anchors == 0 && len(v.Keys)+len(v.Known) > 0:
		tell(MissingAnchor, "there is no anchor at all")
	case r.Anchors == 0 && r.Objects > 0:
		tell(NoAnchors, "whoever can write the archive and the tables could have rewritten both")
	case r.Anchors > 0 && r.LastAnchor == "":
		tell(MissingAnchor, "none of the %d anchors holds", r.Anchors)
	case r.Anchors > 0 && r.LastAnchor < yesterday && !slices.Contains(v.Explained, yesterday):
		w.tell(anchorName(r.LastAnchor))(MissingAnchor,
			"the newest anchor that holds is of %s: those after it are not there, or do not hold", r.LastAnchor)
	}
	if r.Anchors == 0 {
		return
	}
	if len(v.Keys) == 0 {
		tell(NotChecked, "no public key was given: whoever can write the archive could have made the anchors")
	}
	if first := r.FirstAnchor; !first.IsZero() && r.From.Before(first.Add(-MostDelay)) {
		tell(LateAnchors, "what was changed before %s is proved as it was from then on only", stamp(first))
	}
}

// compare compares the heads of an anchor with the archive, but those that the anchor before had, too.
func (w *anchorWalk) compare(ctx context.Context, d *anchorDay, s *sealed) error {
	heads := &headReader{w: w, day: d, lists: s.Lists}
	before := &headReader{w: w, day: w.heads, lists: w.listed, quiet: true}
	old, err := before.next(ctx)
	var changed []Head
	for err == nil {
		var h *Head
		if h, err = heads.next(ctx); err != nil || h == nil {
			break
		}
		for err == nil && old != nil && old.folder() < h.folder() {
			old, err = before.next(ctx)
		}
		switch {
		case old == nil || old.folder() != h.folder():
		case *old == *h:
			continue
		case old.Version > h.Version:
			w.v.find(control.Break{Kind: Rewritten, Table: h.Table, Key: h.Key, Version: h.Version, Detail: fmt.Sprintf(
				"the table was at version %d in the anchor before %s, and at %d in that", old.Version, s.Day,
				h.Version)}, h.object())
		}
		if changed = append(changed, *h); len(changed) == headsAtOnce && err == nil {
			err = w.v.comparedWith(ctx, s, changed)
			changed = changed[:0]
		}
	}
	if err != nil {
		return err
	}
	return w.v.comparedWith(ctx, s, changed)
}

func (h *Head) object() string { return control.ObjectName(h.Table, h.Key, h.Version) }

// headReader reads the heads of an anchor, one list at a time.
type headReader struct {
	w     *anchorWalk
	day   *anchorDay
	lists []HeadsOf
	quiet bool // what is wrong was told before
	heads []Head
}

// next is the next head; nil where there is none.
func (r *headReader) next(ctx context.Context) (*Head, error) {
	for len(r.heads) == 0 {
		if len(r.lists) == 0 {
			return nil, nil //nolint:nilnil // there is none
		}
		of := r.lists[0]
		r.lists = r.lists[1:]
		heads, err := r.read(ctx, of)
		if err != nil {
			return nil, err
		}
		r.heads = heads
	}
	h := &r.heads[0]
	r.heads = r.heads[1:]
	return h, nil
}

// read reads a list. One that is not what was signed is told of, and has no heads.
func (r *headReader) read(ctx context.Context, of HeadsOf) ([]Head, error) {
	object := listName(r.day.day, of.SHA256)
	tell := r.w.tell(object)
	if r.quiet {
		tell = func(control.BreakKind, string, ...any) {}
	}
	n := r.day.lists[of.SHA256]
	if n == nil {
		tell(BadAnchor, "a list of heads of %s is not there", r.day.day)
		return nil, nil
	}
	c, err := n.fetch(ctx, r.w.v.Archive, MaxBytes, func(o Object, err error) error {
		if err == nil && sumOf(o.Data) != of.SHA256 {
			return errors.New("it is not the one that was signed")
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	r.w.v.state(c, tell)
	for _, p := range c.passed {
		tell(BadAnchor, "version %s of a list of heads of %s, put at %s: %v", p.Version, r.day.day, stamp(p.PutAt),
			p.why)
	}
	if c.entry == nil || c.gone {
		tell(BadAnchor, "a list of heads of %s is not there", r.day.day)
	}
	if !c.fetched {
		return nil, nil
	}
	heads, err := decodeHeads(c.object.Data)
	if err != nil || len(heads) != of.Heads {
		tell(BadAnchor, "a list of heads of %s has %d heads: %v", r.day.day, len(heads), err)
		return nil, nil
	}
	return heads, nil
}

// comparedWith compares heads of an anchor with the archive, several at once.
func (v *verifier) comparedWith(ctx context.Context, s *sealed, heads []Head) error {
	found, failed := make([]control.Break, len(heads)), make([]error, len(heads))
	turns := make(chan struct{}, v.Parallel)
	var wg sync.WaitGroup
	for i := range heads {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			found[i], failed[i] = v.anchored(ctx, s, &heads[i])
		})
	}
	wg.Wait()
	for i, b := range found {
		if b.Kind != "" {
			b.Table, b.Key, b.Version = heads[i].Table, heads[i].Key, heads[i].Version
			v.find(b, heads[i].object())
		}
	}
	return errors.Join(failed...)
}

// anchored compares one head with the archive. An object that is missing may be on its way, as long as the anchor is
// younger than the grace.
func (v *verifier) anchored(ctx context.Context, s *sealed, h *Head) (b control.Break, err error) {
	for {
		var c *content
		if c, err = v.named(ctx, h.object()); err != nil {
			return b, err
		}
		switch {
		case c == nil && v.Now().Before(s.At.Add(v.Grace)):
			if err := wait(ctx); err != nil {
				return b, err
			}
			continue
		case c == nil:
			b.Kind, b.Detail = Rewritten, fmt.Sprintf("the anchor of %s has it, and it is not there", s.Day)
		case c.record == nil: // the walk has said so
		case c.record.Hash != h.Hash:
			b.Kind = Rewritten
			b.Detail = fmt.Sprintf("the anchor of %s has the hash %.12s…, and the record %.12s…", s.Day, h.Hash,
				c.record.Hash)
		case v.report.Locks && c.entry.PutAt.After(s.At.Add(v.Late)):
			b.Kind = PutAgain
			b.Detail = fmt.Sprintf("it was put at %s, and the anchor of %s has it: what the archiver put was removed",
				stamp(c.entry.PutAt), s.Day)
		}
		return b, nil
	}
}

// named reads the object of a record by its name; nil where there is none.
func (v *verifier) named(ctx context.Context, object string) (c *content, err error) {
	var failed error
	err = names(ctx, v.Archive, object, "", func(n *name) bool {
		if n.name == object && n.oldest() != nil {
			c, failed = n.read(ctx, v.Archive)
		}
		return n.name != object
	})
	if c != nil && c.gone {
		c = nil
	}
	return c, errors.Join(failed, err)
}
