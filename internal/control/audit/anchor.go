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

// AnchorPrefix begins the names of anchors and of their lists of heads:
//
//	anchors/2026-11-22.json             the anchor of a day
//	anchors/2026-11-22/<SHA-256>.json   a list of heads, which the anchor names by its hash
const AnchorPrefix = "anchors/"

const (
	anchorLayout  = 1
	headsPerList  = 10_000  // of one list; it is then smaller than MaxBytes, whatever the keys are
	maxAnchor     = 1 << 20 // bytes of an anchor
	maxLists      = 4_096   // of one anchor, for 40 million items
	dayForm       = time.DateOnly
	objectSuffix  = ".json"
	hashHexDigits = 2 * sha256.Size
)

// Errors of anchors.
var (
	// ErrAnchor is wrapped by the error for an object that is not an anchor or not a list of heads.
	ErrAnchor = errors.New("not an anchor")

	// ErrAnchorLayout is wrapped by the error for an anchor whose layout this program does not know.
	ErrAnchorLayout = errors.New("an anchor of another version of Sluice")
)

// Signer signs anchors. Nobody who can write the tables or the archive may be able to use its key.
type Signer interface {
	// Sign returns the ECDSA signature over a SHA-256 digest, in ASN.1, by a key on the curve P-256.
	Sign(ctx context.Context, digest [sha256.Size]byte) ([]byte, error)
}

// Anchor is the signed statement of one day: the heads of all chains, as the hashes of their lists, and the previous
// anchor.
type Anchor struct {
	Layout int       `json:"layout"` // 1
	Day    string    `json:"day"`    // in UTC, as in 2026-11-22
	At     time.Time `json:"at"`     // when the tables were read
	Heads  int64     `json:"heads"`
	Lists  []HeadsOf `json:"lists"` // in the order of the items' folders

	// Unread is the number of pages of the tables with an item that cannot be read, whose head is therefore not in the
	// lists.
	Unread int `json:"unread,omitempty"`

	PreviousDay string `json:"previous_day,omitempty"` // day of the previous anchor; empty in the first anchor
	// SHA-256 of the previous anchor's object, in hex; empty in the first anchor
	Previous string `json:"previous,omitempty"`
}

// HeadsOf names a list of heads.
type HeadsOf struct {
	SHA256 string `json:"sha256"` // of the object, in hex
	Heads  int    `json:"heads"`
}

// Head is the newest version of an item. Its hash covers all earlier versions, since each version contains the hash of
// its predecessor.
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

// signedAnchor is the object of an anchor. The statement is a string, so that exactly its bytes are signed, however
// the object is formatted.
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

// sealed is an anchor as it was read from the archive, with its signature.
type sealed struct {
	Anchor
	statement []byte
	signature []byte
	sum       string // of the whole object
}

// decodeAnchor reads the object of the anchor of a day. The error wraps ErrAnchor or ErrAnchorLayout. decodeAnchor
// does not check the signature: see isSignedBy.
func decodeAnchor(day string, data []byte) (*sealed, error) {
	if len(data) > maxAnchor {
		return nil, fmt.Errorf("%w: %d bytes, want at most %d", ErrAnchor, len(data), maxAnchor)
	}
	var object signedAnchor
	if err := decodeStrictly(data, &object); err != nil {
		return nil, err
	}
	s := &sealed{statement: []byte(object.Statement), signature: object.Signature, sum: sumOf(data)}
	if err := decodeStrictly(s.statement, &s.Anchor); err != nil {
		return nil, fmt.Errorf("the statement: %w", err)
	}
	if err := s.check(day); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrAnchor, err)
	}
	return s, nil
}

// decodeStrictly decodes a JSON object with the layout that this program knows.
func decodeStrictly(data []byte, into any) error {
	var form struct {
		Layout *int `json:"layout"`
	}
	if err := json.Unmarshal(data, &form); err != nil || form.Layout == nil {
		return fmt.Errorf("%w: it is not a JSON object with a layout", ErrAnchor)
	}
	if *form.Layout != anchorLayout {
		return fmt.Errorf("%w: it has layout %d, but this program knows only %d: update the program", ErrAnchorLayout,
			*form.Layout,
			anchorLayout)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%w: %w", ErrAnchor, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: something follows the JSON object", ErrAnchor)
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
		return fmt.Errorf("it is the anchor of the day %.20q", a.Day)
	case a.At.UTC().Format(dayForm) != a.Day:
		return fmt.Errorf("it was made at %s, on another day", a.At)
	case len(a.Lists) > maxLists || a.Heads != total || a.Unread < 0:
		return fmt.Errorf("it has %d lists with %d heads, but states %d heads", len(a.Lists), total, a.Heads)
	case a.Previous == "" && a.PreviousDay == "":
		return nil
	case !isHash(a.Previous) || !isDay(a.PreviousDay) || a.PreviousDay >= a.Day:
		return fmt.Errorf("it names an invalid previous anchor: %.20q of the day %.20q", a.Previous, a.PreviousDay)
	}
	return nil
}

// isSignedBy reports whether one of the keys made the signature.
func (s *sealed) isSignedBy(keys []*ecdsa.PublicKey) bool {
	digest := sha256.Sum256(s.statement)
	return slices.ContainsFunc(keys, func(k *ecdsa.PublicKey) bool {
		return k != nil && k.Curve == elliptic.P256() && ecdsa.VerifyASN1(k, digest[:], s.signature)
	})
}

// decodeHeads reads a list of heads.
func decodeHeads(data []byte) ([]Head, error) {
	var list headList
	if err := decodeStrictly(data, &list); err != nil {
		return nil, err
	}
	last := ""
	for i := range list.Heads {
		h := &list.Heads[i]
		if err := errors.Join(events.CheckTable(h.Table), events.CheckKey(h.Table, h.Key)); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrAnchor, err)
		}
		if h.Version < 1 || h.Version > events.MaxVersion || !isHash(h.Hash) || h.folder() <= last {
			return nil, fmt.Errorf("%w: the head of %s/%.140q has no valid version or hash, or is not in order",
				ErrAnchor,
				h.Table, h.Key)
		}
		last = h.folder()
	}
	if len(list.Heads) == 0 || len(list.Heads) > headsPerList {
		return nil, fmt.Errorf("%w: a list has %d heads, want 1..%d", ErrAnchor, len(list.Heads), headsPerList)
	}
	return list.Heads, nil
}

// AnchorConfig says what WriteAnchor reads and writes.
type AnchorConfig struct {
	Archive Archive
	Tables  Tables
	Signer  Signer
	Now     func() time.Time // nil selects time.Now
}

// Anchored is the result of [WriteAnchor].
type Anchored struct {
	Day    string `json:"day"`
	Made   bool   `json:"made"`   // false: today's anchor existed already
	Heads  int64  `json:"heads"`  // 0 unless Made
	Unread int    `json:"unread"` // number of pages of the tables with an item that cannot be read

	// Future is the first object with the name of an anchor of a later day. WriteAnchor ignores such objects; Verify
	// reports each of them. Empty if there is none.
	Future string `json:"future,omitempty"`

	// Bad is an object with the name of an anchor that is not an anchor. WriteAnchor ignores it; Verify reports each
	// of them. It is the newest one between the last anchor and today; empty if there is none.
	Bad string `json:"bad,omitempty"`
}

// WriteAnchor puts the anchor of today, in UTC, unless there is one. It may be called at any time and any number of
// times, but only one call may run at a time: two could both put an anchor over an object that has taken the name.
// After an error, call it again.
//
// An object with the name of an anchor that is not an anchor does not stop WriteAnchor: the chain of anchors leaves it
// out, and today's anchor is put over it. See readAnchor for which version of a name is the anchor.
//
// It reads the tables and not the archive, so that what it signs does not depend on the archiver.
func WriteAnchor(ctx context.Context, c AnchorConfig) (Anchored, error) {
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

// putList puts a list of heads. The name is the hash of the content, so another object with that name is wrong and is
// covered.
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

// putAnchor signs an anchor and puts it, unless a concurrent call was faster. taken says that the name has objects
// that are not anchors; the anchor is then put over them.
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
	// a concurrent call was faster: its signature differs, since signatures are random
	if failed == nil && now.last != nil && now.last.Day == a.Day {
		return false, nil
	}
	return false, errors.Join(err, failed)
}

// standing is the state of an archive's anchors at a time.
type standing struct {
	last   *sealed // the newest anchor up to today; nil if there is none
	taken  bool    // today's name has objects, but none of them is an anchor
	bad    string  // see Anchored.Bad
	future string  // see Anchored.Future
}

// readStanding reads the newest anchor up to the day of now. It leaves out objects of later days and objects that are
// not anchors of their day; otherwise one such object would prevent all later anchors. If the archive received an
// object of a later day after now, the clock of now is wrong, and readStanding returns an error. It also returns an
// error if the archive does not answer, since it must not take an unreadable anchor for an absent one.
func readStanding(ctx context.Context, a Archive, now time.Time) (is standing, err error) {
	var days []*name // up to today
	today := now.Format(dayForm)
	for n, err := range names(ctx, a, AnchorPrefix, "") {
		if err != nil {
			return is, err
		}
		day, list, ok := parseAnchorName(n.name)
		put := cmp.Or(n.oldest(), n.early)
		switch {
		case !ok || list != "" || put == nil:
		case day <= today:
			days = append(days, n)
		case put.PutAt.After(now.Add(MostSkew)):
			return is, fmt.Errorf("%s was put at %s, but the clock of this program says %s: correct that clock",
				n.name, stamp(put.PutAt), stamp(now))
		case is.future == "":
			is.future = n.name
		}
	}
	for _, n := range slices.Backward(days) {
		day, _, _ := parseAnchorName(n.name)
		c, s, err := n.readAnchor(ctx, a, day)
		switch {
		case err != nil:
			return is, err
		case c.gone:
			return is, fmt.Errorf("%s was removed while it was read: %w", n.name, ErrNotFound)
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

// readHeads reads the newest version of every item, sorted by folder. unread is the number of pages with unreadable
// items.
func readHeads(ctx context.Context, tables Tables) (heads []Head, unread int, err error) {
	for _, t := range events.AllTables() {
		for i, err := range control.All(ctx, tables, t) {
			switch {
			case errors.Is(err, control.ErrBadItem):
				unread++
			case err != nil:
				return nil, 0, err
			default:
				heads = append(heads, Head{Table: t, Key: i.Key, Version: i.Version, Hash: i.Hash})
			}
		}
	}
	slices.SortFunc(heads, func(x, y Head) int { return strings.Compare(x.folder(), y.folder()) })
	return slices.CompactFunc(heads, func(x, y Head) bool { return x.folder() == y.folder() }), unread, nil
}
