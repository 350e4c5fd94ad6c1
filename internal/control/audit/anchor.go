package audit

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
)

// AnchorPrefix is what the names of anchors and of their lists of heads begin with:
//
//	anchors/2026-11-22.json             the anchor of a day
//	anchors/2026-11-22/<SHA-256>.json   a list of heads, which the anchor names by its hash
const AnchorPrefix = "anchors/"

const (
	anchorLayout  = 1
	headsPerList  = 10_000 // at most; a list is then below MaxBytes whatever the keys are
	maxAnchor     = 1 << 20
	maxLists      = 4_096 // of an anchor, which is 40 million items
	dayForm       = time.DateOnly
	objectSuffix  = ".json"
	hashHexDigits = 2 * sha256.Size
)

// Errors of anchors.
var (
	// ErrAnchor is wrapped by the error for an object that is no anchor, or no list of heads.
	ErrAnchor = errors.New("not an anchor")

	// ErrAnchorLayout is wrapped by the error for an anchor in a form that this program does not know.
	ErrAnchorLayout = errors.New("an anchor of another version of Sluice")
)

// Signer signs anchors. Nobody who can write the tables or the archive may be able to use its key.
type Signer interface {
	// Sign returns the ECDSA signature over a SHA-256 digest, in ASN.1, by a key on the curve P-256.
	Sign(ctx context.Context, digest [sha256.Size]byte) ([]byte, error)
}

// Anchor is what was signed on one day: the heads of all chains, by the hashes of their lists, and the anchor before.
type Anchor struct {
	Layout int       `json:"layout"` // 1
	Day    string    `json:"day"`    // in UTC, as 2026-11-22
	At     time.Time `json:"at"`     // when the tables were read
	Heads  int64     `json:"heads"`
	Lists  []HeadsOf `json:"lists"` // in the order of the items' folders

	// Unread is how many pages of the tables held an item that cannot be read, and so has no head here.
	Unread int `json:"unread,omitempty"`

	PreviousDay string `json:"previous_day,omitempty"` // of the anchor before; empty in the first one
	Previous    string `json:"previous,omitempty"`     // SHA-256 of its object, in hex; empty in the first one
}

// HeadsOf names a list of heads.
type HeadsOf struct {
	SHA256 string `json:"sha256"` // of the object, in hex
	Heads  int    `json:"heads"`
}

// Head is the newest version of an item. Its hash stands for all versions before, since each has the hash of the one
// before.
type Head struct {
	Table   control.Table `json:"table"`
	Key     string        `json:"key"`
	Version int64         `json:"version"`
	Hash    string        `json:"hash"`
}

func (h *Head) folder() string { return control.ObjectFolder(h.Table, h.Key) }

// headList is the object of a list of heads.
type headList struct {
	Layout int    `json:"layout"`
	Heads  []Head `json:"heads"` // sorted by folder, each item once
}

// signedAnchor is the object of an anchor. The statement is a text, so that its bytes are what was signed, however
// the object is printed.
type signedAnchor struct {
	Layout    int    `json:"layout"`
	Statement string `json:"statement"` // an Anchor, in JSON
	Signature []byte `json:"signature"` // over the SHA-256 of the statement's bytes
}

func anchorName(day string) string { return AnchorPrefix + day + objectSuffix }

func listName(day, sum string) string { return AnchorPrefix + day + "/" + sum + objectSuffix }

// parseAnchorName returns the day of an anchor, or the day and the hash of a list of heads.
func parseAnchorName(name string) (day, list string, ok bool) {
	rest, prefixed := strings.CutPrefix(name, AnchorPrefix)
	rest, suffixed := strings.CutSuffix(rest, objectSuffix)
	day, list, isList := strings.Cut(rest, "/")
	if !prefixed || !suffixed || !isDay(day) || isList && !isHash(list) {
		return "", "", false
	}
	return day, list, true
}

func isDay(s string) bool {
	at, err := time.Parse(dayForm, s)
	return err == nil && at.Format(dayForm) == s
}

func isHash(s string) bool {
	raw, err := hex.DecodeString(s)
	return err == nil && len(s) == hashHexDigits && hex.EncodeToString(raw) == s
}

func sumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// sealed is an anchor as it was read.
type sealed struct {
	Anchor
	statement []byte
	signature []byte
	sum       string // of the whole object
}

// decodeAnchor reads the object of an anchor of a day. The error wraps ErrAnchor or ErrAnchorLayout. Signatures are
// for verifies.
func decodeAnchor(day string, data []byte) (*sealed, error) {
	if len(data) > maxAnchor {
		return nil, fmt.Errorf("%w: %d bytes, want at most %d", ErrAnchor, len(data), maxAnchor)
	}
	var object signedAnchor
	if err := strictly(data, &object); err != nil {
		return nil, err
	}
	s := &sealed{statement: []byte(object.Statement), signature: object.Signature, sum: sumOf(data)}
	if err := strictly(s.statement, &s.Anchor); err != nil {
		return nil, fmt.Errorf("its statement: %w", err)
	}
	if err := s.check(day); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrAnchor, err)
	}
	return s, nil
}

// strictly reads a form in JSON whose layout is known.
func strictly(data []byte, into any) error {
	var form struct {
		Layout *int `json:"layout"`
	}
	if err := json.Unmarshal(data, &form); err != nil || form.Layout == nil {
		return fmt.Errorf("%w: it is not an object in JSON with a layout", ErrAnchor)
	}
	if *form.Layout != anchorLayout {
		return fmt.Errorf("%w: layout %d, and this program knows %d: update it", ErrAnchorLayout, *form.Layout,
			anchorLayout)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%w: %w", ErrAnchor, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: something follows it", ErrAnchor)
	}
	return nil
}

func (a *Anchor) check(day string) error {
	total := int64(0)
	for _, l := range a.Lists {
		if !isHash(l.SHA256) || l.Heads < 1 || l.Heads > headsPerList {
			return errors.New("a list of heads has no hash, or no number of heads")
		}
		total += int64(l.Heads)
	}
	switch {
	case a.Day != day:
		return fmt.Errorf("it is of the day %.20q", a.Day)
	case a.At.UTC().Format(dayForm) != a.Day:
		return fmt.Errorf("it was made at %s, on another day", a.At)
	case len(a.Lists) > maxLists || a.Heads != total || a.Unread < 0:
		return fmt.Errorf("it has %d lists of %d heads, and says that it has %d", len(a.Lists), total, a.Heads)
	case a.Previous == "" && a.PreviousDay == "":
		return nil
	case !isHash(a.Previous) || !isDay(a.PreviousDay) || a.PreviousDay >= a.Day:
		return fmt.Errorf("the one before is %.20q of the day %.20q", a.Previous, a.PreviousDay)
	}
	return nil
}

// verifies reports whether one of the keys made the signature.
func (s *sealed) verifies(keys []*ecdsa.PublicKey) bool {
	digest := sha256.Sum256(s.statement)
	return slices.ContainsFunc(keys, func(k *ecdsa.PublicKey) bool {
		return k != nil && k.Curve == elliptic.P256() && ecdsa.VerifyASN1(k, digest[:], s.signature)
	})
}

// decodeHeads reads a list of heads.
func decodeHeads(data []byte) ([]Head, error) {
	var list headList
	if err := strictly(data, &list); err != nil {
		return nil, err
	}
	last := ""
	for i := range list.Heads {
		h := &list.Heads[i]
		if err := errors.Join(events.CheckTable(h.Table), events.CheckKey(h.Table, h.Key)); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrAnchor, err)
		}
		if h.Version < 1 || h.Version > events.MaxVersion || !isHash(h.Hash) || h.folder() <= last {
			return nil, fmt.Errorf("%w: the head of %s/%.140q has no version or hash, or is not in order", ErrAnchor,
				h.Table, h.Key)
		}
		last = h.folder()
	}
	if len(list.Heads) == 0 || len(list.Heads) > headsPerList {
		return nil, fmt.Errorf("%w: a list has %d heads, want 1..%d", ErrAnchor, len(list.Heads), headsPerList)
	}
	return list.Heads, nil
}

// AnchorConfig says what is anchored. Archive, Tables and Signer are required.
type AnchorConfig struct {
	Archive Archive
	Tables  Tables
	Signer  Signer
	Now     func() time.Time // nil is time.Now
}

// Anchored is what [WriteAnchor] did.
type Anchored struct {
	Day    string `json:"day"`
	Made   bool   `json:"made"`   // false: the day had its anchor
	Heads  int64  `json:"heads"`  // 0 where not Made
	Unread int    `json:"unread"` // pages of the tables with an item that cannot be read

	// Future is the first object that claims to be the anchor of a day after today, and was left out; empty if there is
	// none. Verify reports each of them.
	Future string `json:"future,omitempty"`

	// Bad is an object that has the name of an anchor, is none, and was passed over: of the newest day from the last
	// anchor up to today; empty if there is none. Verify reports each of them.
	Bad string `json:"bad,omitempty"`
}

// WriteAnchor puts the anchor of today, in UTC, if there is none. It is safe to call it at any time and as often as one
// likes; call it one at a time, because two at once may both put an anchor over an object that took its name. After an
// error call it again.
//
// An object with the name of an anchor that is none does not stop it (readAnchor says which version of a name is the
// anchor): in the chain it is passed over, and today's anchor is put over it.
//
// It reads the tables and not the archive, so what it signs does not depend on the archiver.
func WriteAnchor(ctx context.Context, c AnchorConfig) (Anchored, error) {
	if c.Archive == nil || c.Tables == nil || c.Signer == nil {
		return Anchored{}, errors.New("anchor: Archive, Tables or Signer is missing")
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	at := c.Now().UTC()
	today := at.Format(dayForm)
	now, err := readStanding(ctx, c.Archive, at)
	done := Anchored{Day: today, Future: now.future, Bad: now.bad}
	if err != nil {
		return done, fmt.Errorf("anchor: %w", err)
	}
	a := Anchor{Layout: anchorLayout, Day: today, At: at, Lists: []HeadsOf{}}
	if now.last != nil {
		if now.last.Day == today {
			return done, nil
		}
		a.PreviousDay, a.Previous = now.last.Day, now.last.sum
	}
	heads, unread, err := readHeads(ctx, c.Tables)
	if err != nil {
		return done, fmt.Errorf("anchor: %w", err)
	}
	a.Heads, a.Unread = int64(len(heads)), unread
	for list := range slices.Chunk(heads, headsPerList) {
		of, err := putList(ctx, c.Archive, today, list)
		if err != nil {
			return done, fmt.Errorf("anchor: %w", err)
		}
		a.Lists = append(a.Lists, of)
	}
	if done.Made, err = putAnchor(ctx, &c, &a, now.taken); err != nil {
		return done, fmt.Errorf("anchor: %w", err)
	}
	if done.Made {
		done.Heads, done.Unread = a.Heads, a.Unread
	}
	return done, nil
}

// putList puts a list of heads. Its name is its hash, so whatever else has that name is covered.
func putList(ctx context.Context, a Archive, day string, heads []Head) (of HeadsOf, err error) {
	data, err := json.Marshal(headList{Layout: anchorLayout, Heads: heads})
	if err != nil {
		return of, err
	}
	of = HeadsOf{SHA256: sumOf(data), Heads: len(heads)}
	object := listName(day, of.SHA256)
	_, err = a.Put(ctx, object, data)
	if errors.Is(err, ErrUnequal) || errors.Is(err, ErrUnreadable) {
		err = a.Cover(ctx, object, data)
	}
	return of, err
}

// putAnchor signs an anchor and puts it, unless another one was faster; if its name is taken by what is no anchor, over
// that.
func putAnchor(ctx context.Context, c *AnchorConfig, a *Anchor, taken bool) (made bool, err error) {
	statement, err := json.Marshal(a)
	if err != nil {
		return false, err
	}
	signature, err := c.Signer.Sign(ctx, sha256.Sum256(statement))
	if err != nil {
		return false, fmt.Errorf("sign the anchor of %s: %w", a.Day, err)
	}
	data, err := json.Marshal(signedAnchor{anchorLayout, string(statement), signature})
	if err != nil {
		return false, err
	}
	object := anchorName(a.Day)
	if taken {
		err = c.Archive.Cover(ctx, object, data)
		return err == nil, err
	}
	made, err = c.Archive.Put(ctx, object, data)
	if !errors.Is(err, ErrUnequal) && !errors.Is(err, ErrUnreadable) {
		return made, err
	}
	now, failed := readStanding(ctx, c.Archive, a.At)
	if failed == nil && now.last != nil && now.last.Day == a.Day { // signatures differ each time
		return false, nil
	}
	return false, errors.Join(err, failed)
}

// standing is which anchors an archive has at a time.
type standing struct {
	last   *sealed // the newest up to today; nil if there is none
	taken  bool    // today's name has objects, of which none is an anchor
	bad    string  // see Anchored.Bad
	future string  // see Anchored.Future
}

// readStanding reads the newest anchor of the days up to that of now. Objects of later days, and what is no anchor of
// its day, are left out, because otherwise one such object would stop all anchors after it. An object of a later day
// that the archive took after now is an error: the clock of now is wrong. So is an archive that does not answer: what
// it would have said must not be left out.
func readStanding(ctx context.Context, a Archive, now time.Time) (is standing, err error) {
	var days []*name // up to today
	var clock error
	today := now.Format(dayForm)
	err = names(ctx, a, AnchorPrefix, "", func(n *name) bool {
		day, list, ok := parseAnchorName(n.name)
		put := cmp.Or(n.oldest(), n.early)
		switch {
		case !ok || list != "" || put == nil:
		case day <= today:
			days = append(days, n)
		case put.PutAt.After(now.Add(MostSkew)):
			clock = fmt.Errorf("%s was put at %s, and it is %s by the clock of this program: set that clock right",
				n.name, stamp(put.PutAt), stamp(now))
		case is.future == "":
			is.future = n.name
		}
		return clock == nil
	})
	if err := errors.Join(err, clock); err != nil {
		return is, err
	}
	for _, n := range slices.Backward(days) {
		day, _, _ := parseAnchorName(n.name)
		c, s, err := n.readAnchor(ctx, a, day)
		switch {
		case err != nil:
			return is, err
		case c.gone:
			return is, fmt.Errorf("%s was removed a moment ago: %w", n.name, ErrNotFound)
		}
		if bad := n.early != nil || len(c.passed) > 0; bad && is.bad == "" {
			is.bad = n.name
		}
		if s != nil {
			is.last = s
			return is, nil
		}
		is.taken = is.taken || day == today
	}
	return is, nil
}

// readHeads reads the newest version of every item, sorted by folder.
func readHeads(ctx context.Context, tables Tables) (heads []Head, unread int, err error) {
	for _, t := range events.AllTables() {
		after := ""
		for {
			items, next, err := tables.List(ctx, t, after, control.MaxPage)
			if errors.Is(err, control.ErrBadItem) {
				unread++
			} else if err != nil {
				return nil, 0, err
			}
			for i := range items {
				heads = append(heads, Head{Table: t, Key: items[i].Key, Version: items[i].Version, Hash: items[i].Hash})
			}
			if next == "" {
				break
			}
			after = next
		}
	}
	slices.SortFunc(heads, func(x, y Head) int { return strings.Compare(x.folder(), y.folder()) })
	return slices.CompactFunc(heads, func(x, y Head) bool { return x.folder() == y.folder() }), unread, nil
}
