package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/internal/control"
)

// Findings about an archive and its anchors.
const (
	Rewritten control.BreakKind = "not as anchored" // a version is missing, or differs from an anchor
	// the object that existed when the anchor was made was removed
	PutAgain control.BreakKind = "put after its anchor"
	// a later anchor names it, or the newest anchor is too old
	MissingAnchor control.BreakKind = "missing anchor"
	MissedDays    control.BreakKind = "days without an anchor"  // between two consecutive anchors
	BrokenAnchors control.BreakKind = "broken chain of anchors" // an anchor does not follow the previous one
	BadSignature  control.BreakKind = "bad signature"           // of an anchor; none of the keys made it
	// an object is not the anchor of its day, or not the list of heads that was signed
	BadAnchor control.BreakKind = "unreadable anchor"
	// an object was put before the day that it names, so that nobody can have made that day's anchor
	FutureAnchor control.BreakKind = "anchor of a later day"
)

// Notices about the anchors of an archive.
const (
	// the archive was written by an earlier version of Sluice, or is a folder
	NoAnchors   control.BreakKind = "no anchors"
	NotChecked  control.BreakKind = "signatures not checked" // no key was given
	LateAnchors control.BreakKind = "anchored later"         // some changes were made long before the first anchor
	NotAnchored control.BreakKind = "heads not anchored"     // an item could not be read when an anchor was made
)

// anchorDay holds the objects of one day in the archive: its anchor, and lists of heads by their hashes.
type anchorDay struct {
	day    string
	anchor *name // nil: there are only lists, of an anchor that was not finished
	lists  map[string]*name
}

// anchorWalk checks the anchors from the first one on.
type anchorWalk struct {
	v        *verifier
	day, sum string               // of the last anchor; empty before the first
	heads    map[control.Ref]Head // of the last anchor whose heads were compared; nil before the first
	known    map[string]string    // the entries of VerifyConfig.Known that were not found yet

	// bad holds the days since the last anchor that have objects but no anchor. They have been reported.
	bad map[string]bool
}

// anchors checks the anchors and compares the archive with them.
func (v *verifier) anchors(ctx context.Context) error {
	w := &anchorWalk{v: v, known: make(map[string]string), bad: make(map[string]bool)}
	for day, sum := range v.Known {
		w.known[day] = sum
	}
	now := &anchorDay{}
	today := v.Now().UTC().Add(MostSkew).Format(dayForm)
	for n, err := range names(ctx, v.Archive, AnchorPrefix, "") {
		if err != nil {
			return err
		}
		day, list, ok := parseAnchorName(n.name)
		switch {
		case !ok:
			v.find(control.Break{Kind: BadName, Detail: fmt.Sprintf("%.200q", n.name)}, n.name)
			continue
		case day > today:
			v.find(control.Break{Kind: FutureAnchor, Detail: n.name + " names a day that has not begun by this " +
				"machine's clock, so it is not an anchor; on that day the anchor is put over it"}, n.name)
			continue
		case day != now.day:
			if err := w.next(ctx, now); err != nil {
				return err
			}
			now = &anchorDay{day: day, lists: make(map[string]*name)}
		}
		if list == "" {
			now.anchor = n
		} else {
			now.lists[list] = n
		}
	}
	if err := w.next(ctx, now); err != nil {
		return err
	}
	w.end()
	return nil
}

// reporter returns a function that adds a finding about an object.
func (w *anchorWalk) reporter(object string) func(kind control.BreakKind, format string, args ...any) {
	return func(kind control.BreakKind, format string, args ...any) {
		w.v.find(control.Break{Kind: kind, Detail: fmt.Sprintf(format, args...)}, object)
	}
}

// readAnchor reads the anchor of a day among the versions of its name. The anchor is the first version that was put on
// its day or later and is a valid anchor of that day; earlier versions were put by somebody else and are passed over.
// WriteAnchor and Verify both use this rule, so that they agree on the chain. s is nil if no version is an anchor.
func (n *name) readAnchor(ctx context.Context, a Archive, day string) (c *content, s *sealed, err error) {
	c, err = n.fetch(ctx, a, maxAnchor, func(o Object, err error) error {
		if err == nil {
			s, err = decodeAnchor(day, o.Data)
		}
		return err
	})
	return c, s, err
}

// next checks the next day. A day without an anchor has only lists, or is the zero day.
func (w *anchorWalk) next(ctx context.Context, d *anchorDay) error {
	if d.anchor == nil {
		return nil
	}
	v, tell := w.v, w.reporter(d.anchor.name)
	c, s, err := d.anchor.readAnchor(ctx, v.Archive, d.day)
	if err != nil {
		return err
	}
	v.state(c, tell)
	if e := d.anchor.early; e != nil {
		tell(FutureAnchor, "version %s of %s was put at %s, before its day, so it is not an anchor", e.Version, e.Name,
			stamp(e.PutAt))
	}
	for _, p := range c.passed {
		tell(BadAnchor, "version %s of the anchor of %s, put at %s: %v", p.Version, d.day, stamp(p.PutAt), p.why)
		w.noteKnown(d.day, p.sum)
	}
	if c.gone || c.entry == nil && d.anchor.early == nil {
		return nil // treated as absent: the next anchor names it
	}
	v.report.Anchors++
	if s == nil {
		w.bad[d.day] = true
		return nil
	}
	w.noteKnown(d.day, s.sum)
	if v.report.Locks {
		w.putTime(c, s, tell)
	}
	w.follows(s, tell)
	w.day, w.sum = d.day, s.sum
	clear(w.bad)
	if len(v.Keys) > 0 && !s.isSignedBy(v.Keys) {
		tell(BadSignature, "none of the %d keys signed the anchor of %s; its heads are not compared", len(v.Keys),
			d.day)
		return nil
	}
	if v.report.FirstAnchor.IsZero() {
		v.report.FirstAnchor = s.At
	}
	v.report.LastAnchor, v.report.LastAnchorHash = d.day, s.sum
	if s.Unread > 0 {
		tell(NotAnchored, "an item of a table could not be read when the anchor of %s was made", d.day)
	}
	return w.compare(ctx, d, s)
}

// noteKnown removes an object of a day from the known anchors that are still to be found.
func (w *anchorWalk) noteKnown(day, sum string) {
	if want, asked := w.known[day]; asked && want == sum {
		delete(w.known, day)
	}
}

// putTime compares the time at which an anchor was put with the time that it states.
func (w *anchorWalk) putTime(c *content, s *sealed, tell func(control.BreakKind, string, ...any)) {
	switch after := c.entry.PutAt.Sub(s.At); {
	case after < -MostSkew:
		tell(Early, "the anchor of %s was put at %s, before the time %s that it states", s.Day, stamp(c.entry.PutAt),
			stamp(s.At))
	case after > UsualDelay:
		tell(Late, "the anchor of %s was put at %s, long after the time %s that it states", s.Day,
			stamp(c.entry.PutAt), stamp(s.At))
	}
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// follows compares an anchor with the previous one.
func (w *anchorWalk) follows(s *sealed, tell func(control.BreakKind, string, ...any)) {
	switch {
	case s.PreviousDay > w.day && !w.bad[s.PreviousDay]:
		w.reporter(anchorName(s.PreviousDay))(MissingAnchor, "the anchor of %s names the anchor of %s as the previous "+
			"one, which is missing", s.Day, s.PreviousDay)
	case s.PreviousDay != w.day:
		tell(BrokenAnchors, "the anchor of %s names %q as the day of the previous anchor, which is of %s", s.Day,
			s.PreviousDay, cmp.Or(w.day, "no day: nothing readable comes before"))
	case s.Previous != w.sum:
		tell(BrokenAnchors, "the anchor of %s is not the one that the anchor of %s names: it was replaced", w.day,
			s.Day)
	case w.day != "":
		w.missed(w.day, s.Day)
	}
}

// missed reports the days without an anchor between two anchors, except for days that were explained. The later anchor
// names the earlier one, so none was made in between, or all of them were removed before the later one was made.
func (w *anchorWalk) missed(from, to string) {
	for day := nextDay(from); day < to; day = nextDay(day) {
		if !w.bad[day] && !slices.Contains(w.v.Explained, day) {
			w.reporter(anchorName(day))(MissedDays, "there is no anchor of %s: the anchor of %s follows that of %s",
				day,
				to, from)
		}
	}
}

// nextDay returns the following day, in the form of anchors.
func nextDay(day string) string {
	at, _ := time.Parse(dayForm, day)
	return at.AddDate(0, 0, 1).Format(dayForm)
}

// end reports findings about all anchors together.
func (w *anchorWalk) end() {
	v, r, tell := w.v, &w.v.report, w.reporter("")
	for day, sum := range w.known {
		w.reporter(anchorName(day))(BrokenAnchors, "the known anchor of %s with the hash %.12s… is missing", day, sum)
	}
	yesterday := v.Now().UTC().AddDate(0, 0, -1).Format(dayForm)
	switch {
	case r.Anchors == 0 && len(v.Keys)+len(v.Known) > 0:
		tell(MissingAnchor, "there is no anchor at all")
	case r.Anchors == 0 && r.Objects > 0:
		tell(NoAnchors, "there are no anchors: whoever can write the archive and the tables could have rewritten both")
	case r.Anchors > 0 && r.LastAnchor == "":
		tell(MissingAnchor, "none of the %d anchors is valid", r.Anchors)
	case r.Anchors > 0 && r.LastAnchor < yesterday && !slices.Contains(v.Explained, yesterday):
		w.reporter(anchorName(r.LastAnchor))(MissingAnchor,
			"the newest valid anchor is of %s: later ones are missing or not valid", r.LastAnchor)
	}
	if r.Anchors == 0 {
		return
	}
	if len(v.Keys) == 0 {
		tell(NotChecked, "no public key was given: whoever can write the archive could have made the anchors")
	}
	if first := r.FirstAnchor; !first.IsZero() && r.From.Before(first.Add(-MostDelay)) {
		tell(LateAnchors, "changes before %s are proved only from that time on", stamp(first))
	}
}

// compare compares the heads of an anchor with the archive, except for those that the previous anchor has too.
func (w *anchorWalk) compare(ctx context.Context, d *anchorDay, s *sealed) error {
	heads := make(map[control.Ref]Head, s.Heads)
	var changed []Head
	for _, of := range s.Lists {
		list, err := w.readList(ctx, d, of)
		if err != nil {
			return err
		}
		for _, h := range list {
			ref := control.Ref{Table: h.Table, Key: h.Key}
			old, was := w.heads[ref]
			if heads[ref] = h; was && old == h {
				continue
			}
			if changed = append(changed, h); was && old.Version > h.Version {
				w.v.find(control.Break{Kind: Rewritten, Table: h.Table, Key: h.Key, Version: h.Version,
					Detail: fmt.Sprintf("the table was at version %d in the anchor before that of %s, in which it is "+
						"at version %d", old.Version, s.Day, h.Version)}, h.object())
			}
		}
	}
	w.heads = heads
	return w.v.comparedWith(ctx, s, changed)
}

func (h *Head) object() string { return control.ObjectName(h.Table, h.Key, h.Version) }

// readList reads a list of heads. A list that is missing, or is not the signed one, is reported and gives no heads.
func (w *anchorWalk) readList(ctx context.Context, d *anchorDay, of HeadsOf) ([]Head, error) {
	tell := w.reporter(listName(d.day, of.SHA256))
	n := d.lists[of.SHA256]
	if n == nil {
		tell(BadAnchor, "a list of heads of %s is missing", d.day)
		return nil, nil
	}
	c, err := n.fetch(ctx, w.v.Archive, MaxBytes, func(o Object, err error) error {
		if err == nil && sumOf(o.Data) != of.SHA256 {
			return errors.New("it is not the list that was signed")
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	w.v.state(c, tell)
	for _, p := range c.passed {
		tell(BadAnchor, "version %s of a list of heads of %s, put at %s: %v", p.Version, d.day, stamp(p.PutAt),
			p.why)
	}
	if c.entry == nil || c.gone {
		tell(BadAnchor, "a list of heads of %s is missing", d.day)
	}
	if !c.fetched {
		return nil, nil
	}
	heads, err := decodeHeads(c.object.Data)
	if err != nil || len(heads) != of.Heads {
		tell(BadAnchor, "a list of heads of %s has %d heads: %v", d.day, len(heads), err)
		return nil, nil
	}
	return heads, nil
}

// comparedWith compares heads of an anchor with the archive, several at a time.
func (v *verifier) comparedWith(ctx context.Context, s *sealed, heads []Head) error {
	found := make([]control.Break, len(heads))
	err := control.Concurrently(len(heads), parallel, func(i int) (err error) {
		found[i], err = v.anchored(ctx, s, &heads[i])
		return err
	})
	for i, b := range found {
		if b.Kind != "" {
			b.Table, b.Key, b.Version = heads[i].Table, heads[i].Key, heads[i].Version
			v.find(b, heads[i].object())
		}
	}
	return err
}

// anchored compares one head with the archive. While the anchor is younger than the grace, a missing object may still
// arrive, and anchored waits for it.
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
			b.Kind, b.Detail = Rewritten, fmt.Sprintf("the version is in the anchor of %s, but not in the archive",
				s.Day)
		case c.record == nil: // reported by the walk
		case c.record.Hash != h.Hash:
			b.Kind = Rewritten
			b.Detail = fmt.Sprintf("its hash is %.12s… in the anchor of %s, but %.12s… in the archive", h.Hash, s.Day,
				c.record.Hash)
		case v.report.Locks && c.entry.PutAt.After(s.At.Add(v.Late)):
			b.Kind = PutAgain
			b.Detail = fmt.Sprintf("it was put at %s, after the anchor of %s that has it: the object that the "+
				"archiver put was removed", stamp(c.entry.PutAt), s.Day)
		}
		return b, nil
	}
}

// named reads the object of a record by its name; nil if there is none.
func (v *verifier) named(ctx context.Context, object string) (*content, error) {
	for n, err := range names(ctx, v.Archive, object, "") {
		if err != nil || n.name != object || n.oldest() == nil {
			return nil, err
		}
		if c, err := n.read(ctx, v.Archive); err != nil || !c.gone {
			return c, err
		}
		break
	}
	return nil, nil //nolint:nilnil // callers check for nil
}
