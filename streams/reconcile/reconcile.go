// Package reconcile compares the control tables with a cell's copy on a schedule, repairs what the cell lacks, and
// reports what it finds.
//
// A run reads every document of the cell and every item of the control tables once, both in pages and in any order. It
// holds the cell's documents of one table at a time, and compares each item with them. If nothing differs, there is one
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
// its way to the cell: it does not count as drift, and the run does not write it. Before a run writes documents that
// the cell lacks, it reads the cell's once more, since they may have arrived in the meantime.
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
// configuration. Such a document is not a change on its way: the head is read after the document.
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
	"bytes"
	"context"
	"errors"
	"fmt"
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
	lacking   bool
	lost      bool  // the table has no items, but the cell has many documents of it: they are not removed
	last      int64 // the number of the last log entry, after the documents were read
	hasShares bool  // the cell has shares that it could read
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

// discard reports and deletes rows of the cell's table that are not documents.
func (r *run) discard(ctx context.Context, rows []table.BadRow) error {
	for i := range rows {
		r.report(ctx, Unknown, shown(table.Ref{Kind: rows[i].Kind, ID: rows[i].Key[1]}), rows[i].Err)
	}
	n, err := table.DeleteRows(ctx, r.c.Store, rows, r.c.Now)
	r.result.Repaired += int64(n)
	return err
}

// documents are documents of a cell by their names.
type documents map[table.Ref]*table.Document

// of returns the document with a name; one of version 0 if the cell has none.
func (d documents) of(ref table.Ref) *table.Document {
	if have := d[ref]; have != nil {
		return have
	}
	return &table.Document{Ref: ref}
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

// list reads the cell's documents of the table. Those under the hashes of keys are read before the keys: each of them
// then has a key in the result, unless somebody writes it meanwhile. The head is read last, so that no document that is
// written meanwhile is above it.
func (r *run) list(ctx context.Context) (documents, error) {
	kinds := events.KindsIn(r.table)
	if r.table == control.Keys {
		kinds = append([]table.Kind{table.KindKeyHash}, kinds...)
	}
	found, rows := documents{}, []table.BadRow(nil)
	for _, kind := range kinds {
		for d, err := range r.store.List(ctx, kind) {
			var bad *table.BadRow
			switch {
			case errors.As(err, &bad):
				rows = append(rows, *bad)
				continue
			case err != nil:
				return nil, fmt.Errorf("list each %s of the cell: %w", kind, err)
			}
			r.result.CellReads++
			r.result.Documents++
			found[d.Ref] = &d
		}
	}
	if err := r.discard(ctx, rows); err != nil {
		return nil, err
	}
	head, err := r.store.Head(ctx)
	if err != nil && !errors.Is(err, table.ErrEmpty) {
		return nil, fmt.Errorf("read the head of the cell: %w", err)
	}
	r.last = head.Seq
	return found, nil
}

// read reads documents of the cell again.
func (r *run) read(ctx context.Context, refs []table.Ref) ([]table.Document, error) {
	got, err := r.store.Get(ctx, refs...)
	if err == nil && len(got) != len(refs) {
		err = fmt.Errorf("the store returned %d documents", len(got))
	}
	if err != nil {
		return nil, fmt.Errorf("read %d documents of the cell: %w", len(refs), err)
	}
	return got, nil
}

// repairs are differences between a control table and the cell's documents.
type repairs struct {
	wrong []table.Replacement // documents of the cell that must be replaced or removed
	newer []*control.Item     // items that the cell lacks, or has an older version of
}

// compare compares the table with the cell's documents, and repairs what differs.
func (r *run) compare(ctx context.Context) error {
	found, err := r.list(ctx)
	if err != nil {
		return err
	}
	has := found.of(table.Ref{Kind: table.KindShares, ID: table.SharesID})
	r.hasShares = has.Version > 0 && !has.Deleted // a tombstone only says that shares exist
	all, shares, err := r.compareItems(ctx, found)
	if err != nil {
		return err
	}
	before := r.result.Repaired
	// Wrong documents are first, because a key may need the hash of a forged key.
	if err := r.replace(ctx, all.wrong); err != nil {
		return err
	}
	for some := range slices.Chunk(all.newer, page) {
		wanted, err := r.wanted(ctx, some)
		if err == nil {
			err = r.apply(ctx, wanted)
		}
		if err != nil {
			return err
		}
	}
	if err := r.writeShares(ctx, shares); err != nil || r.table != control.Keys {
		return err
	}
	if r.result.Repaired > before { // the keys were repaired together with what is under their hashes
		if found, err = r.list(ctx); err != nil {
			return err
		}
	}
	return r.repairHashes(ctx, found)
}

// compareItems reads the items of the control table that cells receive, and compares them with the cell's documents.
// The differences of the shares are separate, because they are written last.
func (r *run) compareItems(ctx context.Context, found documents) (all, shares repairs, err error) {
	items, unlisted := 0, maps.Clone(found) // items without the canary's mark; documents whose item was not listed
	maps.DeleteFunc(unlisted, func(ref table.Ref, _ *table.Document) bool { return ref.Kind == table.KindKeyHash })
	inCell := len(unlisted)
	for after := ""; ; {
		some, next, err := r.c.Tables.List(ctx, r.table, after, page)
		if errors.Is(err, control.ErrBadItem) {
			r.badItems(ctx, err)
		} else if err != nil {
			return all, shares, fmt.Errorf("list %s: %w", r.table, err)
		}
		for i := range some {
			ref, ok := table.RefOf(r.table, some[i].Key)
			if ref.Kind != table.KindCanary {
				items++
			}
			if !ok {
				continue
			}
			r.result.Items++
			r.result.ControlReads++
			delete(unlisted, ref)
			to := &all
			if ref.Kind == table.KindShares {
				to = &shares
			}
			r.compareItem(ctx, &some[i], found.of(ref), to)
		}
		if after = next; next == "" {
			break
		}
	}
	r.lost = items == 0 && inCell > maxRemovedOfEmpty
	for _, have := range unlisted {
		item, err := r.item(ctx, have.Ref)
		switch {
		case errors.Is(err, control.ErrBadItem): // it has been reported
			r.compareNumber(ctx, have, &all)
		case err != nil:
			return all, shares, err
		default:
			r.compareItem(ctx, item, have, &all)
		}
	}
	return all, shares, nil
}

// compareItem compares a document with its item, or with the absence of one (nil), and adds what must be repaired.
func (r *run) compareItem(ctx context.Context, item *control.Item, have *table.Document, to *repairs) {
	drift, want := Unknown, table.Document{Ref: have.Ref}
	if item != nil {
		if drift, want = Ahead, table.DocumentOf(item.Event()); have.Version == want.Version {
			drift = Altered
		}
	}
	switch {
	case item == nil && r.lost:
		r.report(ctx, Unknown, have.Ref, errLost)
	case have.Version < want.Version:
		to.newer = append(to.newer, item)
	case have.Version == want.Version && have.Deleted == want.Deleted && bytes.Equal(have.Body, want.Body):
	case item == nil || r.isReadable(ctx, &want) && r.isVerified(ctx, item, want.Ref):
		r.report(ctx, drift, have.Ref, nil)
		to.wrong = append(to.wrong, table.Replacement{Found: *have, Want: want})
		return
	}
	r.compareNumber(ctx, have, to)
}

// compareNumber has a document written again if its number is above that of the last log entry.
func (r *run) compareNumber(ctx context.Context, have *table.Document, to *repairs) {
	if have.Seq > r.last {
		r.report(ctx, Altered, have.Ref, r.forgedNumber(have))
		to.wrong = append(to.wrong, table.Replacement{Found: *have, Want: *have})
	}
}

func (r *run) forgedNumber(d *table.Document) error {
	return fmt.Errorf("its sequence number is %d, and that of the last log entry is %d: it was forged, and is written "+
		"again", d.Seq, r.last)
}

// isVerified reports an item that Sluice did not write. As in the publisher, such an item reaches no cell.
func (r *run) isVerified(ctx context.Context, item *control.Item, ref table.Ref) bool {
	err := item.Verify()
	if err != nil {
		r.lacking = true
		r.report(ctx, Unreadable, ref, err)
	}
	return err == nil
}

// isReadable reports shares or a placement that cells of this version cannot read. The cell lacks nothing then, because
// there is nothing better that it could receive.
func (r *run) isReadable(ctx context.Context, d *table.Document) bool {
	err := table.Readable(d)
	if err != nil {
		r.report(ctx, Unreadable, d.Ref, err)
	}
	return err == nil
}

// badItems reports items of the control table that cannot be read, by their keys. Cells never receive some of them,
// such as a cell's acknowledgement.
func (r *run) badItems(ctx context.Context, err error) {
	items, whole := control.BadItems(err)
	if !whole {
		r.lacking = true
		r.report(ctx, Unreadable, table.Ref{}, err)
		return
	}
	for _, item := range items {
		ref, ok := table.RefOf(r.table, item.Key)
		if !ok {
			ref = table.Ref{}
		}
		r.lacking = r.lacking || ok
		r.report(ctx, Unreadable, ref, item)
	}
}

// wanted reads the documents of newer items again, since they may have arrived meanwhile, and returns those that must
// be written.
func (r *run) wanted(ctx context.Context, items []*control.Item) (wanted []table.Document, err error) {
	refs := make([]table.Ref, len(items))
	for i, item := range items {
		refs[i], _ = table.RefOf(item.Table, item.Key)
	}
	got, err := r.read(ctx, refs)
	if err != nil {
		return nil, err
	}
	for i, item := range items {
		have, want := &got[i], table.DocumentOf(item.Event())
		switch {
		case have.Version >= want.Version:
			continue
		case r.c.Now().Sub(item.ChangedAt).Abs() < r.c.Grace:
			r.result.UnderWay++
			r.lacking = r.lacking || want.Kind == table.KindPlacement
			continue
		case !r.isVerified(ctx, item, want.Ref):
			continue
		case !r.isReadable(ctx, &want):
			// The cell keeps the version that it has. Only a cell without shares stores that the document is unknown.
			// Otherwise it could conclude that there are no shares, or that every cell serves the placement's tenant.
			if !r.hasShares && (want.Kind == table.KindPlacement || have.Version == 0) {
				wanted = append(wanted, table.Unknown(want))
			}
			continue
		case have.Version == 0:
			r.report(ctx, Missing, want.Ref, nil)
		default:
			r.report(ctx, Older, want.Ref, nil)
		}
		wanted = append(wanted, want)
	}
	return wanted, nil
}

// writeShares repairs the shares. A cell does not receive its first shares while it may lack a placement.
func (r *run) writeShares(ctx context.Context, shares repairs) error {
	if len(shares.wrong)+len(shares.newer) == 0 {
		return nil
	}
	wanted, err := r.wanted(ctx, shares.newer)
	if err != nil {
		return err
	}
	if !r.hasShares && r.lacking {
		r.c.Log.ErrorContext(ctx, "the cell does not receive its first shares, because it may lack a placement: "+
			"it grants nothing until a later run writes them. See what this run "+
			"reports as unreadable or refused")
		return nil
	}
	return errors.Join(r.replace(ctx, shares.wrong), r.apply(ctx, wanted))
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

// errLost is reported with documents that have no item, and that are not removed because their control table counts as
// lost.
var errLost = errors.New(
	"the control table is empty: it was lost, or is not the right one; nothing of it is removed from the cell. " +
		"If it is meant to be empty, write any one item to it, and the next run removes these documents: see the " +
		"runbook about forged cell documents")

// page is how many items are requested at a time.
const page = 500

// logged is how many differences of each kind a run logs; it only counts the others.
const logged = 20

func (r *run) report(ctx context.Context, d Drift, ref table.Ref, err error) {
	r.result.Drift[d]++
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

// apply writes documents as an applier does.
func (r *run) apply(ctx context.Context, documents []table.Document) error {
	return writeEach(ctx, r, documents, func(d *table.Document) table.Ref { return d.Ref },
		func(some []table.Document) (int, error) { return table.Apply(ctx, r.store, some, r.c.Now) })
}

// replace replaces wrong documents of the cell. It then reads their items once more, and applies those that have
// changed since. The event of such a change may have arrived while the cell still had a forged, higher version, and was
// then ignored as old.
func (r *run) replace(ctx context.Context, all []table.Replacement) error {
	err := writeEach(ctx, r, all, func(one *table.Replacement) table.Ref { return one.Want.Ref },
		func(some []table.Replacement) (int, error) { return table.Repair(ctx, r.store, some, r.c.Now) })
	if err != nil {
		return err
	}
	var newer []table.Document
	for i := range all {
		item, err := r.item(ctx, all[i].Want.Ref)
		if err != nil && !errors.Is(err, control.ErrBadItem) {
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

// writeEach calls write with all. If the table refuses one of them, it is reported, and the others are written.
func writeEach[T any](
	ctx context.Context, r *run, all []T, ref func(*T) table.Ref, write func(some []T) (int, error),
) error {
	if len(all) == 0 {
		return nil
	}
	n, err := write(all)
	r.result.Repaired += int64(n)
	switch {
	case !errors.Is(err, table.ErrInvalid):
		return err
	case len(all) == 1:
		r.lacking = true
		r.report(ctx, Refused, shown(ref(&all[0])), err)
		return nil
	}
	half := len(all) / 2
	return errors.Join(writeEach(ctx, r, all[:half], ref, write), writeEach(ctx, r, all[half:], ref, write))
}

// repairHashes repairs the documents that the cell has under hashes of keys. Each key of the cell must have one, which
// equals the key's own document. All others are removed.
func (r *run) repairHashes(ctx context.Context, found documents) error {
	keys, refs := map[string]*table.Document{}, map[table.Ref]bool{} // keys by their hashes; documents under hashes
	for ref, d := range found {
		if hash := d.KeyHash(); hash != "" {
			keys[hash] = d
			refs[table.Ref{Kind: table.KindKeyHash, ID: hash}] = true
		} else if ref.Kind == table.KindKeyHash {
			refs[ref] = true
		}
	}
	var wrong []table.Replacement
	for ref := range refs {
		have, key := found.of(ref), keys[ref.ID]
		there := have.Version > 0 && !have.Deleted
		drift, why, want := Altered, error(nil), table.Document{Ref: ref}
		shown := table.Ref{Kind: ref.Kind} // the hash must not be logged
		if key != nil {
			want.Version, want.Body, shown.ID = 1, key.Body, key.ID
		}
		switch {
		case have.Seq > r.last:
			why = r.forgedNumber(have)
		case key == nil && !there, key != nil && there && bytes.Equal(have.Body, key.Body):
			continue
		case key == nil:
			drift = Unknown
		case !there:
			drift = Missing
		}
		// Whoever writes a key writes what is under its hash, too: if that is newer now, a later run compares the two.
		got, err := r.read(ctx, []table.Ref{ref})
		if err != nil {
			return err
		}
		if got[0].Seq == have.Seq {
			r.report(ctx, drift, shown, why)
			wrong = append(wrong, table.Replacement{Found: *have, Want: want})
		}
	}
	return r.replace(ctx, wrong)
}
