// Package simulate replays access logs against a plans file. It uses the times in the logs and the core that production
// uses, and reports what each limit would have allowed and denied. With it, a limit can be tried on last week's
// requests before it affects anybody.
//
// Records are replayed in the order of time, and those with equal times in the order of the logs. Servers write lines
// nearly in order, so each log is read through a window of bounded memory. A line that is older than what has left the
// window is an error, which names the line.
package simulate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/sluicelimits/sluice/internal/dev/accesslog"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
)

const (
	checkEvery = 1024 // records between two checks of whether to stop

	// DefaultStoreBytes is the bound on the memory of the counters if Options do not set one.
	DefaultStoreBytes = 1 << 30
)

// Options say what to replay, and against which plans.
type Options struct {
	Config *plan.Config // required
	Logs   []Log        // at least one

	// TenantFrom says how the tenant of a line is found. If nil, the tenant is the user if the plans file has tenants,
	// and otherwise there are no tenants.
	TenantFrom *TenantFrom
	// DefaultPlan is the plan of tenants that the plans file does not name. If it is "", the plan is the file's only
	// plan if the file has one plan and no tenants and TenantFrom is set; otherwise these tenants are unknown.
	DefaultPlan string

	Top        int   // tenants and addresses listed individually; 0 means 20
	StoreBytes int64 // bound on the memory of the counters; 0 means DefaultStoreBytes

	windowBytes int // of each log, for tests; 0 selects windowBytes and leastWindowBytes
}

// Errors of options, which the command line tells apart from other errors.
var (
	ErrNoLogs        = errors.New("no log to replay")
	ErrUnknownPlan   = errors.New("no such plan in the plans file")
	ErrUnknownTenant = errors.New("no such tenant in the plans file")
)

// Run replays the logs. If a log cannot be read to its end, the report's Incomplete says so, and the rest is replayed.
// Any other failure is an error. If ctx ends, Run returns at once: a read from a pipe, which only the other side can
// end, then goes on in the background.
func Run(ctx context.Context, o Options) (*Report, error) {
	if len(o.Logs) == 0 {
		return nil, ErrNoLogs
	}
	r := &replay{Options: o}
	if err := r.resolve(); err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	go func() { done <- r.run(ctx) }()
	select {
	case err := <-done:
		if err == nil {
			err = context.Cause(ctx) // an interrupted replay also ends without an error
		}
		if err != nil {
			return nil, err
		}
		return r.report(), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// replay is the state of one Run.
type replay struct {
	Options
	from     TenantFrom
	planID   string // of defaults
	defaults *plan.Set
	notes    []string

	lines  []*lines
	engine *engine
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
		r.windowBytes = max(windowBytes/len(r.Logs), leastWindowBytes)
	}
	r.from = TenantFrom{kind: noTenant}
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
	if countsPlaces(r.Config) {
		r.notes = append(r.notes, notInFlight)
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

const notInFlight = "limits with concurrency are left out: the logs do not say when a request has ended"

// countsPlaces reports whether a plan limits requests in flight.
func countsPlaces(c *plan.Config) bool {
	return slices.ContainsFunc(c.Plans(), func(p *plan.Plan) bool {
		return p.Set().UnitCosts()[limit.ConcurrentRequests] > 0
	})
}

// checkFixed returns an error if all requests are of one fixed tenant and this tenant has no limits: every request
// would be refused.
func (r *replay) checkFixed() error {
	if r.from.kind != alwaysTheSame {
		return nil
	}
	if _, ok := r.Config.Tenant(r.from.name); !ok {
		return fmt.Errorf("tenant %q: %w, and there is no default plan", r.from.name, ErrUnknownTenant)
	}
	return nil
}

// run replays the records of all logs, until ctx ends.
func (r *replay) run(ctx context.Context) (err error) {
	defer func() {
		for _, l := range r.lines {
			_ = l.closer.Close() // the log was only read
		}
	}()
	if r.engine, err = newEngine(&r.Options, &r.from, r.planID, r.defaults); err != nil {
		return err
	}
	in, err := r.records()
	if err != nil {
		return err
	}
	for n := 1; n%checkEvery != 0 || ctx.Err() == nil; n++ {
		rec, err := in.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := r.engine.replay(rec); err != nil {
			return fmt.Errorf("replay %s, line %d: %w", r.Logs[rec.file].Name, rec.line, err)
		}
	}
	return nil
}

// records begins to read all logs at the same time.
func (r *replay) records() (*order, error) {
	for i := range r.Logs {
		l, err := openLines(&r.Logs[i], i, &r.from)
		if err != nil {
			return nil, err
		}
		r.lines = append(r.lines, l)
	}
	return newOrder(r.lines, r.windowBytes), nil
}

// report makes the report from what the engine counted, and from the counts of the lines that were read.
func (r *replay) report() *Report {
	out := r.engine.tally.end()
	out.Tenants, out.Addresses = r.engine.tenants.report(r.Top), r.engine.addresses.report(r.Top)
	out.Skipped, out.OddLines, out.Logs, out.Incomplete = map[string]int64{}, []OddLine{}, []string{}, []string{}
	for _, reason := range accesslog.Reasons() {
		out.Skipped[reason.String()] = 0
	}
	for _, l := range r.lines {
		out.Logs = append(out.Logs, l.name)
		out.Lines += l.read
		for reason, n := range l.skipped {
			out.Skipped[reason.String()] += n
			out.SkippedLines += n
		}
		out.OddLines = append(out.OddLines, l.odd[:min(len(l.odd), oddLinesKept-len(out.OddLines))]...)
		if l.failure != nil {
			out.Incomplete = append(out.Incomplete, l.failure.Error())
		}
	}
	out.Notes = append([]string{}, r.notes...)
	if out.Requests > 0 && r.engine.tally.noPlanApplied() {
		out.Notes = append(out.Notes, "no limit of a plan applied to any request, so the report does not show what "+
			"the plans would deny. Say with --tenant-from where the tenant of a line is found, and with "+
			"--default-plan which plan a tenant gets that the plans file does not name")
	}
	return out
}
