// Package reconcile compares the control tables with a cell's copy on a schedule, repairs what the cell lacks, and
// reports what it finds.
//
// A run reads every document of the cell and every item of the control tables once, both in pages and in any order. It
// keeps a hash of each of the cell's documents of one table at a time, some 100 bytes each, and the items that differ.
// These are compared once more, because many differences are changes on their way. If nothing differs, there is one
// read for each item, and no write.
//
//	missing     the cell has never had the item         applied
//	older       the cell has an older version           applied
//	ahead       the cell has a newer version            replaced by the item: it was forged, or the control tables
//	                                                    were restored to an earlier time
//	unknown     no item of the control tables, or a     removed: it was forged
//	            row of the cell that is no document
//	altered     the same version with other content     replaced by the item: it was forged
//	            a sequence number above the last entry  written again with the number of a new entry
//	            of the cell's log
//	unreadable  an item that is not as it was written,   reported: it reaches no cell
//	            or shares or a placement that no cell of
//	            this version can read
//	refused     the cell's table does not take it       reported
//
// Differences that are only reported are left as they are. A version that is younger than Config.Grace may still be on
// its way to the cell: it does not count as drift, and the run does not write it.
//
// # What was forged
//
// The control tables decide what is right. A run makes the cell's documents match them, even if the right version is
// lower ([table.Repair] says how readers accept a lower version), at once and without a grace. A document that is
// ahead is never a change on its way: the cell's document is read before the item, with consistent reads, and an event
// is published only after its item was written. A repair writes only if the document is still the one that was read.
// The item is read once more after the repair, because an event that arrived in between was compared with the forged
// version, and was ignored as old.
//
// A control table never loses an item, because a deletion is a version, too. If a table has no item except the canary's
// mark, and the cell has more than ten documents of it, the table was therefore lost, or is not the right one. The cell
// keeps these documents, and they are reported as unknown. Up to ten documents are removed, because the table of a
// deployment may really be empty while somebody forges documents in the cell: a deployment whose callers send tokens
// has no API keys. If there are more, an operator decides: once the operator has written any one item to the table,
// which shows that it is the right one, the next run removes all other documents. A run cannot decide this by itself:
// the cell's table may be the forged one, the other control tables say nothing about this one, and waiting does not
// help, because a lost table stays lost.
//
// A document whose number is above that of the last log entry prevents readers that start from loading the
// configuration. A run writes it again with the number of a new entry. Such a document is not a change on its way: the
// head is read after the document.
//
// Rows that are not documents ([table.BadRow]) are deleted when a run reads them, and the run goes on.
//
// # Cells and tenants
//
// The control table of the cells is compared before that of tenants: a cell must not know a tenant before it knows its
// shares. If the cell has no shares yet, they are written last, after the placement of every tenant, because with
// shares alone the cell would grant units to a tenant that is pinned to other cells. The shares are therefore not
// written if an item of that table cannot be read or was refused, because it may be a placement, or if a placement is
// taken to be on its way. If an item can be read but not its body, such a cell stores that it does not know this
// placement ([table.Unknown]), and serves all other tenants. A cell that has shares keeps its shares and
// placements until newer ones can be read.
//
// # Keys
//
// A cell has each API key a second time, as a document under the key's hash. No item corresponds to that document. A
// run compares it with the key's own document, after it has repaired the keys. A document without a key is removed as
// unknown, one with another content is replaced, and a missing one is written.
//
// # Time
//
// A run ends before the time of its call does. If it is not finished, reconcile_unfinished reports it, and the next run
// starts again. It finds less to repair then, because the documents that were written do not differ any more.
//
// Metrics: drift (all differences except changes on their way; at least 1 if the run failed, because what it did not
// compare may differ), drift_missing and one for each other kind, reconcile_items, reconcile_reads, reconcile_repaired,
// reconcile_under_way, reconcile_unfinished.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/streams/delivery"
)

// Tables is the part of [control.Tables] that reconcile uses.
type Tables interface {
	Get(ctx context.Context, t control.Table, key string) (control.Item, error)
	List(ctx context.Context, t control.Table, after string, most int) (items []control.Item, next string, err error)
}

// Config sets up a Reconciler. All fields but the last four are required.
type Config struct {
	Tables Tables
	Store  table.Store // of the cell
	Meter  delivery.Meter

	Log *slog.Logger     // default slog.Default()
	Now func() time.Time // default time.Now
	// Grace is the age below which a version may be on its way to the cell, by the clocks of its writer and of this
	// process; 0 or more.
	Grace time.Duration
	Spare time.Duration // the part of a run's time that is reserved for its end; 0 means 5 s
}

// Drift is a kind of difference.
type Drift string

// The kinds of differences.
const (
	Missing    Drift = "missing"
	Older      Drift = "older"
	Ahead      Drift = "ahead"
	Unknown    Drift = "unknown"
	Altered    Drift = "altered"
	Unreadable Drift = "unreadable"
	Refused    Drift = "refused"
)

// Drifts returns all kinds of differences.
func Drifts() []Drift { return []Drift{Missing, Older, Ahead, Unknown, Altered, Unreadable, Refused} }

// Result says what a run did and found.
type Result struct {
	Items        int64 // of the control tables that were read, and that cells receive
	Documents    int64 // of the cell that were read
	ControlReads int64 // of items; a page counts as the number of its items
	CellReads    int64 // of documents, counted in the same way, including those before a write
	Repaired     int64 // documents that were written
	UnderWay     int64 // differences that may be changes on their way
	Drift        map[Drift]int64
	Finished     bool
}

// ReadsPerItem returns how often an item or document was read, on average. It returns 0 if there is none.
func (r *Result) ReadsPerItem() float64 {
	if r.Items+r.Documents == 0 {
		return 0
	}
	return float64(r.ControlReads+r.CellReads) / float64(r.Items+r.Documents)
}

// Reconciler reconciles one cell. Make it with New.
type Reconciler struct{ c Config }

// New makes a reconciler.
func New(c Config) *Reconciler {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Spare == 0 {
		c.Spare = 5 * time.Second
	}
	return &Reconciler{c}
}

// order returns the control tables in the order in which they are compared: a table comes before the tables that refer
// to it.
func order() []control.Table {
	return []control.Table{control.Plans, control.Cells, control.Tenants, control.Keys}
}

// run is one run.
type run struct {
	*Reconciler
	result *Result
	store  table.Store

	table control.Table // that is compared; the fields below are about it
	// lacking says that the cell may lack something of the table, because an item cannot be read, was refused, or is a
	// placement on its way. It delays the cell's first shares.
	lacking bool
	lost    bool  // the table has no items, but the cell has many documents of it: they are not removed
	last    int64 // the number of the last log entry, when the head was last read
}

// maxRemovedOfEmpty is the largest number of a cell's documents that a run removes because their control table is
// empty. If there are more, the table counts as lost: see the package comment.
const maxRemovedOfEmpty = 10

// cell is the cell's store, as a run uses it. It counts reads. It reports and deletes rows that are not documents, so
// that they do not end the run.
type cell struct {
	table.Store
	run *run
}

// Get implements [table.Table].
func (c *cell) Get(ctx context.Context, refs ...table.Ref) ([]table.Document, error) {
	c.run.result.CellReads += int64(len(refs))
	for {
		got, err := c.Store.Get(ctx, refs...)
		var bad *table.BadRow
		if !errors.As(err, &bad) {
			return got, err
		}
		if err := c.run.discard(ctx, []table.BadRow{*bad}); err != nil {
			return nil, err
		}
	}
}

// List implements [table.Lister]. When a list was read to its end, all its bad rows are deleted.
func (c *cell) List(ctx context.Context, kind table.Kind) iter.Seq2[table.Document, error] {
	return func(yield func(table.Document, error) bool) {
		var rows []table.BadRow
		for d, err := range c.Store.List(ctx, kind) {
			var bad *table.BadRow
			if !errors.As(err, &bad) {
				if err == nil {
					c.run.result.CellReads++
				}
				if !yield(d, err) {
					return
				}
				continue
			}
			if rows = append(rows, *bad); len(rows) < page {
				continue
			}
			if err := c.run.discard(ctx, rows); err != nil {
				yield(table.Document{}, err)
				return
			}
			rows = nil
		}
		if err := c.run.discard(ctx, rows); err != nil {
			yield(table.Document{}, err)
		}
	}
}

// discard reports and deletes rows of the cell's table that are not documents.
func (r *run) discard(ctx context.Context, rows []table.BadRow) error {
	for i := range rows {
		r.report(ctx, Unknown, shown(table.Ref{Kind: rows[i].Kind, ID: rows[i].Key[1]}), rows[i].Err)
	}
	n, err := table.DeleteRows(ctx, r.c.Store, rows, r.c.Now)
	r.result.Repaired += int64(n)
	return err
}

// shown returns a name without the hash of a key, which must not be logged.
func shown(ref table.Ref) table.Ref {
	if ref.Kind == table.KindKeyHash {
		ref.ID = ""
	}
	return ref
}

// errTimeOver is the cause with which the context of a run ends before the time of the call does.
var errTimeOver = errors.New("the time is over")

// Run compares and repairs, and returns what it did. If the time is over before everything is compared, the result is
// not Finished, and there is no error. Concurrent runs do no harm.
func (r *Reconciler) Run(ctx context.Context) (Result, error) {
	result := Result{Drift: map[Drift]int64{}}
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, deadline.Add(-r.c.Spare), errTimeOver)
		defer cancel()
	}
	var err error
	for _, t := range order() {
		one := run{Reconciler: r, result: &result, table: t}
		one.store = &cell{r.c.Store, &one}
		if err = one.compare(ctx); err != nil {
			break
		}
	}
	if err != nil && errors.Is(context.Cause(ctx), errTimeOver) {
		r.c.Log.WarnContext(ctx, "the time is over before everything was compared; the next run starts again")
		err = nil
	} else {
		result.Finished = err == nil
	}
	r.count(&result, err)
	return result, err
}

// count reports the result of a run, which ended with err, to the meter.
func (r *Reconciler) count(result *Result, err error) {
	m := r.c.Meter
	all := int64(0)
	for _, d := range Drifts() {
		all += result.Drift[d]
		m.Count("drift_"+string(d), result.Drift[d])
	}
	if err != nil {
		all = max(all, 1)
	}
	m.Count("drift", all)
	m.Count("reconcile_items", result.Items)
	m.Count("reconcile_reads", result.ControlReads+result.CellReads)
	m.Count("reconcile_repaired", result.Repaired)
	m.Count("reconcile_under_way", result.UnderWay)
	unfinished := int64(1)
	if result.Finished {
		unfinished = 0
	}
	m.Count("reconcile_unfinished", unfinished)
}

// read reads documents of the cell.
func (r *run) read(ctx context.Context, refs ...table.Ref) ([]table.Document, error) {
	got, err := r.store.Get(ctx, refs...)
	if err == nil && len(got) != len(refs) {
		err = fmt.Errorf("the store returned %d documents for %d names", len(got), len(refs))
	}
	return got, err
}

// compare compares the table with the cell's documents, and repairs what differs.
func (r *run) compare(ctx context.Context) error {
	found, err := r.documents(ctx)
	if err != nil {
		return err
	}
	differ, err := r.compareItems(ctx, found)
	if err != nil {
		return err
	}
	// Wrong documents are first, because a key may need the hash of a forged key.
	for _, refs := range [][]table.Ref{differ.wrong, differ.missing, differ.shares} {
		for some := range slices.Chunk(refs, page) {
			if err := r.repair(ctx, some, differ.items); err != nil {
				return err
			}
		}
	}
	return r.repairHashes(ctx, found)
}

// foundDocuments are the documents of a cell that belong to a table, as a run finds them.
type foundDocuments struct {
	seed   maphash.Seed
	all    map[table.Ref]foundDocument // except those under the hashes of keys
	keys   map[string]foundKey         // by their hashes
	hashes map[string]foundDocument    // the documents under the hashes of keys
}

type foundDocument struct {
	version, seq int64
	deleted      bool
	body         uint64 // a hash
}

type foundKey struct {
	id   string
	body uint64 // a hash
}

// kinds returns the kinds of the cell's documents that belong to the table.
func (r *run) kinds() []table.Kind {
	kinds := events.KindsIn(r.table)
	if r.table == control.Keys {
		kinds = append(kinds, table.KindKeyHash)
	}
	return kinds
}

// documents lists the cell's documents of the table. The head is read last, so that a document that is written
// meanwhile is not above it.
func (r *run) documents(ctx context.Context) (*foundDocuments, error) {
	found := &foundDocuments{seed: maphash.MakeSeed(), all: map[table.Ref]foundDocument{},
		keys: map[string]foundKey{}, hashes: map[string]foundDocument{}}
	for _, kind := range r.kinds() {
		for d, err := range r.store.List(ctx, kind) {
			if err != nil {
				return nil, fmt.Errorf("list each %s of the cell: %w", kind, err)
			}
			r.result.Documents++
			f := foundDocument{d.Version, d.Seq, d.Deleted, maphash.Bytes(found.seed, d.Body)}
			if kind == table.KindKeyHash {
				found.hashes[d.ID] = f
				continue
			}
			found.all[d.Ref] = f
			if hash := d.KeyHash(); hash != "" && !d.Deleted {
				found.keys[hash] = foundKey{d.ID, f.body}
			}
		}
	}
	return found, r.readHead(ctx)
}

// readHead reads the number of the last log entry.
func (r *run) readHead(ctx context.Context) error {
	head, err := r.store.Head(ctx)
	if err != nil && !errors.Is(err, table.ErrEmpty) {
		return fmt.Errorf("read the head of the cell: %w", err)
	}
	r.last = head.Seq
	return nil
}

// isAboveHead returns why a document must be written again with the number of a new log entry: its number is above that
// of the last one. It returns nil for all other documents. The head is read after the document.
func (r *run) isAboveHead(ctx context.Context, d *table.Document) (forged, err error) {
	if d.Seq > r.last {
		err = r.readHead(ctx)
	}
	if err != nil || d.Seq <= r.last {
		return nil, err
	}
	return fmt.Errorf("its sequence number is %d, and that of the last log entry is %d: it was forged, and is written "+
		"again", d.Seq, r.last), nil
}

// differences are those between a control table and the cell's documents.
type differences struct {
	missing []table.Ref                 // documents that the cell lacks, or has an older version of
	items   map[table.Ref]*control.Item // the items of missing
	wrong   []table.Ref                 // the other documents that differ, and those without an item
	shares  []table.Ref                 // the shares, written last: a cell must know all placements before them
}

// compareItems reads the items of the control table that cells receive, and compares them with the cell's documents.
func (r *run) compareItems(ctx context.Context, found *foundDocuments) (d differences, err error) {
	d.items = map[table.Ref]*control.Item{}
	inCell, items := len(found.all), 0 // items without the canary's mark
	for after := ""; ; {
		all, next, err := r.c.Tables.List(ctx, r.table, after, page)
		if errors.Is(err, control.ErrBadItem) {
			r.badItems(ctx, err)
			err = nil
		}
		if err != nil {
			return d, fmt.Errorf("list %s: %w", r.table, err)
		}
		for i := range all {
			ref, ok := table.RefOf(r.table, all[i].Key)
			if ref.Kind != table.KindCanary {
				items++
			}
			if !ok {
				continue
			}
			r.result.Items++
			r.result.ControlReads++
			have := found.all[ref]
			want := foundDocument{all[i].Version, have.seq, all[i].Deleted, maphash.Bytes(found.seed, all[i].Body)}
			switch differs := have != want || have.seq > r.last; {
			case differs && ref.Kind == table.KindShares:
				d.shares = append(d.shares, ref)
			case have.version < want.version:
				d.missing, d.items[ref] = append(d.missing, ref), &all[i]
			case differs:
				d.wrong = append(d.wrong, ref)
			}
			delete(found.all, ref)
		}
		if after = next; next == "" {
			break
		}
	}
	r.lost = items == 0 && inCell > maxRemovedOfEmpty
	d.wrong = slices.AppendSeq(d.wrong, maps.Keys(found.all))
	return d, nil
}

// badItems reports items of the control table that cannot be read, by their keys. An item that cells never receive,
// such as a cell's acknowledgement, does not set Lacking.
func (r *run) badItems(ctx context.Context, err error) {
	items, whole := control.BadItems(err)
	if !whole {
		r.report(ctx, Unreadable, table.Ref{}, err)
		return
	}
	for _, item := range items {
		if ref, ok := table.RefOf(r.table, item.Key); ok {
			r.report(ctx, Unreadable, ref, item)
		} else {
			r.unreadable(ctx, table.Ref{}, item)
		}
	}
}

// repairs holds the documents that must be written to the cell.
type repairs struct {
	newer    []table.Document    // documents that are newer than the cell's
	replaced []table.Replacement // documents of the cell that are wrong
}

// add adds the right document in place of the cell's.
func (r *repairs) add(want table.Document, have *table.Document) {
	if want.Version > have.Version {
		r.newer = append(r.newer, want)
		return
	}
	r.replaced = append(r.replaced, table.Replacement{Found: *have, Want: want})
}

// write writes the repairs, and replaces wrong documents first: a key may need the hash of a forged key.
func (r *run) write(ctx context.Context, m *repairs) error {
	return errors.Join(r.replace(ctx, m.replaced), r.apply(ctx, m.newer))
}

// repair reads the documents and their items again, because the differences may be gone, and repairs what still
// differs. Items that were listed are not read again for documents that are older than they are.
func (r *run) repair(ctx context.Context, refs []table.Ref, listed map[table.Ref]*control.Item) error {
	// The cell is read first: whatever it has then, the control tables have when they are read, unless it is forged.
	got, err := r.read(ctx, refs...)
	if err != nil {
		return fmt.Errorf("read %d documents of the cell: %w", len(refs), err)
	}
	var all, shares repairs // shares holds the cell's first shares, which are written separately
	for i, ref := range refs {
		have, item, err := &got[i], listed[ref], error(nil)
		if item == nil || have.Version >= item.Version {
			item, err = r.item(ctx, ref)
		}
		if err != nil && !errors.Is(err, control.ErrBadItem) {
			return err
		}
		var want table.Document
		differs := false
		if err == nil { // an item that cannot be read has been reported
			want, differs = r.wanted(ctx, item, have)
		}
		forged, err := r.isAboveHead(ctx, have)
		if err != nil {
			return err
		}
		switch {
		case forged != nil && !differs:
			r.report(ctx, Altered, ref, forged)
			want = *have
		case !differs:
			continue
		}
		if firstShares(ref, have) {
			shares.add(want, have)
		} else {
			all.add(want, have)
		}
	}
	if err := r.write(ctx, &all); err != nil {
		return err
	}
	if r.lacking && len(shares.newer)+len(shares.replaced) > 0 {
		r.c.Log.ErrorContext(ctx, "the cell does not receive its first shares, because it may lack a placement: "+
			"it grants nothing until a later run writes them. See what this run "+
			"reports as unreadable or refused")
		return nil
	}
	return r.write(ctx, &shares)
}

// firstShares reports whether ref names the shares, and the cell has never had shares that it could read. A tombstone
// only says that shares exist.
func firstShares(ref table.Ref, have *table.Document) bool {
	return ref.Kind == table.KindShares && (have.Version == 0 || have.Deleted)
}

// item returns the item of a document, or nil if there is none.
func (r *run) item(ctx context.Context, ref table.Ref) (*control.Item, error) {
	t, key, ok := table.ItemOf(ref)
	if !ok {
		return nil, nil //nolint:nilnil // no item is an answer
	}
	r.result.ControlReads++
	item, err := r.c.Tables.Get(ctx, t, key)
	switch {
	case errors.Is(err, control.ErrNotFound):
		return nil, nil //nolint:nilnil // no item is an answer
	case err != nil:
		return nil, fmt.Errorf("read %s/%.140q: %w", t, key, err)
	}
	return &item, nil
}

// wanted compares an item, or its absence (nil), with the cell's document. It returns true if the returned document
// must replace the cell's. If that document has version 0, the cell's must be removed.
func (r *run) wanted(ctx context.Context, item *control.Item, have *table.Document) (table.Document, bool) {
	if item == nil {
		return r.unknown(ctx, have)
	}
	want := table.DocumentOf(item.Event())
	switch {
	case have.Version >= want.Version:
		return want, r.mustReplace(ctx, item, &want, have)
	case r.c.Now().Sub(item.ChangedAt).Abs() < r.c.Grace:
		r.result.UnderWay++
		r.lacking = r.lacking || want.Kind == table.KindPlacement
		return want, false
	}
	if err := item.Verify(); err != nil { // as in the publisher: an item that Sluice did not write reaches no cell
		r.report(ctx, Unreadable, want.Ref, err)
		return want, false
	}
	if err := table.Readable(&want); err != nil {
		return r.keepReadable(ctx, want, have, err)
	}
	switch have.Version {
	case 0:
		r.report(ctx, Missing, want.Ref, nil)
	default:
		r.report(ctx, Older, want.Ref, nil)
	}
	return want, true
}

// errLost is reported with documents that have no item, and that are not removed because their control table counts as
// lost.
var errLost = errors.New(
	"the control table is empty: it was lost, or is not the right one; nothing of it is removed from the cell. " +
		"If it is meant to be empty, write any one item to it, and the next run removes these documents: see the " +
		"runbook about forged cell documents")

// unknown reports a document that has no item. It returns true if the document must be removed.
func (r *run) unknown(ctx context.Context, have *table.Document) (none table.Document, remove bool) {
	none.Ref = have.Ref
	switch {
	case have.Version == 0:
		return none, false
	case r.lost:
		r.report(ctx, Unknown, have.Ref, errLost)
		return none, false
	}
	r.report(ctx, Unknown, have.Ref, nil)
	return none, true
}

// mustReplace handles a document whose version is the item's or newer. It returns true if the item must replace the
// document.
func (r *run) mustReplace(ctx context.Context, item *control.Item, want, have *table.Document) bool {
	if err := table.Readable(want); err != nil {
		r.unreadable(ctx, want.Ref, err)
		return false
	}
	drift := Ahead
	if have.Version == want.Version {
		if sameContent(item, have) {
			return false
		}
		drift = Altered
	}
	if err := item.Verify(); err != nil {
		r.report(ctx, Unreadable, want.Ref, err)
		return false
	}
	r.report(ctx, drift, want.Ref, nil)
	return true
}

// unreadable reports an item that cannot be read. It does not set Lacking, because there is nothing better that the
// cell could receive: shares or a placement that cells of this version cannot read, or an item that cells never
// receive.
func (r *run) unreadable(ctx context.Context, ref table.Ref, why error) {
	lacking := r.lacking
	r.report(ctx, Unreadable, ref, why)
	r.lacking = lacking
}

// keepReadable is called if the newest shares, or a placement, cannot be read. The cell then keeps the version that it
// has. Only a cell without shares stores a tombstone, which says that the document exists and is unknown. Otherwise the
// cell could conclude that there are no shares, or that every cell serves the tenant of the placement.
func (r *run) keepReadable(
	ctx context.Context, want table.Document, have *table.Document, why error,
) (table.Document, bool) {
	if want.Kind == table.KindShares {
		r.unreadable(ctx, want.Ref, why)
		return table.Unknown(want), have.Version == 0
	}
	shares := table.Ref{Kind: table.KindShares, ID: table.SharesID}
	got, err := r.read(ctx, shares)
	if err != nil {
		r.report(ctx, Unreadable, want.Ref, errors.Join(why, err))
		return want, false
	}
	r.unreadable(ctx, want.Ref, why)
	return table.Unknown(want), firstShares(shares, &got[0])
}

// page is how many items are requested at a time.
const page = 500

// logged is how many differences of each kind a run logs; it only counts the others.
const logged = 20

func (r *run) report(ctx context.Context, d Drift, ref table.Ref, err error) {
	r.result.Drift[d]++
	if d == Unreadable || d == Refused {
		r.lacking = true
	}
	if r.result.Drift[d] > logged {
		return
	}
	level := slog.LevelError
	if d == Missing || d == Older {
		level = slog.LevelWarn // because it is repaired
	}
	attrs := []slog.Attr{slog.String("drift", string(d)), slog.String("table", string(r.table))}
	if ref.Kind != "" {
		attrs = append(attrs, slog.String("kind", string(ref.Kind)),
			slog.String("document", fmt.Sprintf("%.140q", ref.ID)))
	}
	if err != nil {
		attrs = append(attrs, slog.Any("error", err))
	}
	r.c.Log.LogAttrs(ctx, level, "the cell differs from the control tables", attrs...)
}

// apply writes documents as an applier does. A document that the store refuses is reported, and the others are written
// nevertheless.
func (r *run) apply(ctx context.Context, documents []table.Document) error {
	if len(documents) == 0 {
		return nil
	}
	n, err := table.Apply(ctx, r.store, documents, r.c.Now)
	r.result.Repaired += int64(n)
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, table.ErrInvalid):
		return err
	case len(documents) == 1:
		r.report(ctx, Refused, documents[0].Ref, err)
		return nil
	}
	half := len(documents) / 2
	return errors.Join(r.apply(ctx, documents[:half]), r.apply(ctx, documents[half:]))
}

// replace replaces wrong documents of the cell by items. An item that the store refuses is reported, and the others are
// written nevertheless.
func (r *run) replace(ctx context.Context, all []table.Replacement) error {
	if len(all) == 0 {
		return nil
	}
	n, err := table.Repair(ctx, r.store, all, r.c.Now)
	r.result.Repaired += int64(n)
	switch {
	case err == nil:
		return r.applyNewer(ctx, all)
	case !errors.Is(err, table.ErrInvalid):
		return err
	case len(all) == 1:
		r.report(ctx, Refused, shown(all[0].Want.Ref), err)
		return nil
	}
	half := len(all) / 2
	return errors.Join(r.replace(ctx, all[:half]), r.replace(ctx, all[half:]))
}

// applyNewer reads the items of repaired documents once more, and applies those that have changed since. The event of
// such a change may have arrived while the cell still had a forged, higher version, and was then ignored as old.
func (r *run) applyNewer(ctx context.Context, all []table.Replacement) error {
	var newer []table.Document
	for i := range all {
		item, err := r.item(ctx, all[i].Want.Ref)
		if errors.Is(err, control.ErrBadItem) {
			continue
		}
		if err != nil {
			return err
		}
		if item == nil || item.Version <= all[i].Want.Version || item.Verify() != nil {
			continue
		}
		if d := table.DocumentOf(item.Event()); table.Readable(&d) == nil {
			newer = append(newer, d)
		}
	}
	return r.apply(ctx, newer)
}

// sameContent reports whether a document has the content of its item.
func sameContent(item *control.Item, d *table.Document) bool {
	return item.Deleted == d.Deleted && string(item.Body) == string(d.Body)
}
