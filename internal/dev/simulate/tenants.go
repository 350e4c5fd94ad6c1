package simulate

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/sluicelimits/sluice/internal/plan"
)

// MaxTenants bounds how many tenants [ReadTenants] finds.
const MaxTenants = 1_000_000

// Asker is a tenant of which logs have requests, and which has limits.
type Asker struct {
	Name   string       // as its counters are called: a hash, if the name is too long for an owner
	Plan   string       // id
	Tenant *plan.Tenant // nil if the plans file does not name the tenant
	Limits *plan.Set    // those of the default plan, if Tenant is nil
}

// Lines counts the lines of logs.
type Lines struct {
	Read          int64 `json:"read"`
	Unusable      int64 `json:"unusable"`      // for one of the reasons of package accesslog
	WithoutTenant int64 `json:"withoutTenant"` // the line names no tenant
	UnknownTenant int64 `json:"unknownTenant"` // the plans file does not name the tenant, and there is no default plan
	Suspended     int64 `json:"suspended"`     // the tenant is suspended
}

// ReadTenants calls each for every line whose tenant has limits, in the order of the logs and of their lines, with the
// time of the line in µs since 1970. Tenants are found as [Run] finds them. The pointer is the same for all lines of a
// tenant.
func ReadTenants(ctx context.Context, o Options, each func(at int64, who *Asker) error) (Lines, error) {
	t := &tenantReader{replay: &replay{Options: o}, askers: make(map[*person]*Asker), each: each}
	if len(o.Logs) == 0 {
		return t.counts, ErrNoLogs
	}
	err := t.resolve()
	if err == nil {
		t.engine, err = newEngine(&t.Options, &t.from, t.planID, t.defaults)
	}
	if err != nil {
		return t.counts, err
	}
	t.engine.tenants = newPeople(MaxTenants + 1)
	for i := range t.Logs {
		if err := t.readLog(ctx, i); err != nil {
			return t.counts, err
		}
	}
	return t.counts, nil
}

type tenantReader struct {
	*replay

	askers map[*person]*Asker
	each   func(at int64, who *Asker) error
	counts Lines
}

// readLog reads the log with index i to its end.
func (t *tenantReader) readLog(ctx context.Context, i int) error {
	in, err := t.open(ctx, i)
	if err != nil {
		return err
	}
	defer in.close()
	var r record
	for n := 1; ; n++ {
		if n%checkEvery == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err := in.next(&r)
		if err == nil {
			err = t.addRecord(&r)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	t.counts.Read += in.read
	for _, n := range in.skipped {
		t.counts.Unusable += n
	}
	return in.failure
}

// addRecord adds a record to the counts of its tenant.
func (t *tenantReader) addRecord(r *record) error {
	e := t.engine
	who := e.tenant(r, e.addresses.address(r.host, e.config.IPv6Prefix()))
	if who == nil {
		t.counts.WithoutTenant++
		return nil
	}
	if len(e.tenants.byName) > MaxTenants {
		return fmt.Errorf("%s, line %d: there are more than %d tenants", t.Logs[r.file].Name, r.line, MaxTenants)
	}
	p := &who.policy
	switch {
	case p.tenant != nil && p.tenant.Suspended:
		t.counts.Suspended++
		return nil
	case p.unknown || p.tenant == nil && p.set == nil:
		t.counts.UnknownTenant++
		return nil
	}
	asker := t.askers[who]
	if asker == nil {
		asker = &Asker{Name: who.owner, Plan: p.plan, Tenant: p.tenant, Limits: p.set}
		t.askers[who] = asker
	}
	return t.each(r.time, asker)
}
