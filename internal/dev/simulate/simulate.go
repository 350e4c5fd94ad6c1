// Package simulate replays access logs against a plans file, on the logs' own clock and through the core that
// production runs, and reports what each limit would have allowed and denied. This is how a limit is tried on last
// week's traffic before anyone feels it.
//
// Records are replayed in order of time, equal times in the order of the logs. A log whose lines are nearly in order,
// as servers write them, streams through a bounded window. If the window proves too small, the replay begins anew with
// all lines sorted, in temporary files if they do not fit in memory. The lines of a pipe are sorted at once.
package simulate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/sluicelimits/sluice/internal/plan"
)

const (
	checkEvery  = 1024 // records between looks at whether to stop
	maxOpenLogs = 64   // more logs than this are sorted, instead of all open at a time

	// DefaultStoreBytes bounds the memory of the counters where Options do not.
	DefaultStoreBytes = 1 << 30
)

// Options say what to replay against what.
type Options struct {
	Config *plan.Config // required
	Logs   []Log        // at least one

	// TenantFrom says how a line's tenant is found. nil is by the user where the plans file has tenants, else not at
	// all.
	TenantFrom *TenantFrom
	// DefaultPlan is the plan of tenants that the plans file does not name. "" is the file's only plan, where it has
	// one plan and no tenants and TenantFrom is set; else such tenants are unknown.
	DefaultPlan string

	Top        int    // tenants and addresses reported one by one; 0 means 20
	TempDir    string // where lines are sorted that do not fit in memory; "" is the system's directory
	StoreBytes int64  // bound on the memory of the counters; 0 means DefaultStoreBytes

	OnRead    func(bytes int) // called for everything read, as stored (compressed); may be nil
	OnRestart func()          // called when the logs are read again, to be sorted; may be nil

	windowBytes int // for tests; 0 means windowBytes
	sortBytes   int // for tests; 0 means sortBytes
}

// Errors of options, for the command line to tell from others.
var (
	ErrNoLogs        = errors.New("no log to replay")
	ErrUnknownPlan   = errors.New("no such plan in the plans file")
	ErrUnknownTenant = errors.New("no such tenant in the plans file")
)

// Run replays the logs. What cannot be read of a log is told in the report's Incomplete, and the rest is replayed; any
// other failure is an error.
func Run(ctx context.Context, o Options) (report *Report, err error) {
	if len(o.Logs) == 0 {
		return nil, ErrNoLogs
	}
	r := &replay{Options: o, scratch: &scratch{parent: o.TempDir}}
	if err := r.resolve(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.scratch.close()) }()
	if err := r.run(ctx); err != nil {
		return nil, err
	}
	return r.report(), nil
}

// replay is one Run.
type replay struct {
	Options
	from     TenantFrom
	planID   string // of defaults
	defaults *plan.Set
	notes    []string

	scratch *scratch
	lines   []*lines // of the current pass
	engine  *engine  // of the current pass
	order   string
}

// resolve fills in the defaults and checks the names.
func (r *replay) resolve() error {
	if r.Top == 0 {
		r.Top = 20
	}
	if r.StoreBytes == 0 {
		r.StoreBytes = DefaultStoreBytes
	}
	if r.windowBytes == 0 {
		r.windowBytes = windowBytes
	}
	if r.sortBytes == 0 {
		r.sortBytes = sortBytes
	}
	plans, hasTenants := r.Config.Plans(), len(r.Config.Tenants()) > 0
	switch {
	case r.TenantFrom != nil:
		r.from = *r.TenantFrom
	case hasTenants:
		r.from = TenantFrom{kind: fromUser}
	}
	r.planID = r.DefaultPlan
	if r.planID == "" && !hasTenants && len(plans) == 1 && r.from.kind != noTenant {
		r.planID = plans[0].ID
		r.notes = append(r.notes, fmt.Sprintf("the plans file has no tenants and one plan, so every tenant gets "+
			"plan %s", r.planID))
	}
	if r.planID == "" {
		return r.checkFixed()
	}
	for _, p := range plans {
		if p.ID == r.planID {
			r.defaults = p.Set()
			return nil
		}
	}
	return fmt.Errorf("default plan %q: %w", r.planID, ErrUnknownPlan)
}

// checkFixed refuses a fixed tenant that has no limits: every request would be refused.
func (r *replay) checkFixed() error {
	if r.from.kind != alwaysTheSame {
		return nil
	}
	if _, ok := r.Config.Tenant(r.from.name); !ok {
		return fmt.Errorf("tenant %q: %w, and there is no default plan", r.from.name, ErrUnknownTenant)
	}
	return nil
}

// run replays in one pass if the logs are nearly in order, else in a second one. What can be read only once is sorted
// in the first.
func (r *replay) run(ctx context.Context) error {
	if len(r.Logs) <= maxOpenLogs && !slices.ContainsFunc(r.Logs, func(l Log) bool { return l.Once }) {
		r.order = "streamed"
		err := r.pass(ctx, r.streamed)
		if !errors.Is(err, errDisorder) {
			return err
		}
		if r.OnRestart != nil {
			r.OnRestart()
		}
	}
	r.order = "sorted"
	return r.pass(ctx, func(ctx context.Context) (stream, error) {
		s := &sorter{scratch: r.scratch, maxBytes: r.sortBytes}
		return sortAll(ctx, r.open, len(r.Logs), s)
	})
}

// pass replays all records of a stream with a fresh engine.
func (r *replay) pass(ctx context.Context, records func(context.Context) (stream, error)) (err error) {
	r.lines = nil
	defer func() {
		for _, l := range r.lines {
			l.close()
		}
	}()
	if r.engine, err = newEngine(&r.Options, &r.from, r.planID, r.defaults); err != nil {
		return err
	}
	in, err := records(ctx)
	if err != nil {
		return err
	}
	var rec record
	for n := 1; ; n++ {
		if n%checkEvery == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err := in.next(&rec)
		if errors.Is(err, io.EOF) {
			return context.Cause(ctx) // a reader that was interrupted ends too
		}
		if err != nil {
			return err
		}
		if err := r.engine.replay(&rec); err != nil {
			return fmt.Errorf("replay %s, line %d: %w", r.Logs[rec.file].Name, rec.line, err)
		}
	}
}

// streamed reads all logs side by side.
func (r *replay) streamed(ctx context.Context) (stream, error) {
	streams := make([]stream, len(r.Logs))
	for i := range r.Logs {
		in, err := r.open(ctx, i)
		if err != nil {
			return nil, err
		}
		streams[i] = newWindow(in, max(r.windowBytes/len(r.Logs), 1))
	}
	if len(streams) == 1 {
		return streams[0], nil
	}
	return newMerged(streams)
}

// open begins to read log i.
func (r *replay) open(ctx context.Context, i int) (*lines, error) {
	l, err := openLines(ctx, &r.Logs[i], i, &r.from, r.OnRead)
	if err == nil {
		r.lines = append(r.lines, l)
	}
	return l, err
}
