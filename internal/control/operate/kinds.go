package operate

import (
	"context"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/plan"
)

// kinds holds what the service does for each kind of document. TestKinds fails if a kind is missing.
var kinds = map[plan.Kind]struct {
	// check reports the problems of an edit that is not a deletion.
	check func(*preview, context.Context, *edit) error
	// compare lists the effects of replacing the first document with the second. Neither is deleted.
	compare func(*effects, plan.Document, plan.Document) error
}{
	plan.KindPlan:     {(*preview).checkPlan, (*effects).plan},
	plan.KindTenant:   {(*preview).checkTenant, (*effects).tenant},
	plan.KindKey:      {(*preview).checkKey, (*effects).key},
	plan.KindSettings: {(*preview).checkSettings, (*effects).settings},
}

func (w *preview) checkPlan(ctx context.Context, e *edit) error {
	_, err := w.plan(ctx, e.Key)
	return err
}

func (w *preview) checkTenant(ctx context.Context, e *edit) error {
	return w.checkTenantDocument(ctx, e.doc, true)
}

func (w *preview) checkKey(ctx context.Context, e *edit) error {
	key, err := plan.CompileKey(e.doc)
	if err != nil {
		w.addProblems(err)
		return nil
	}
	tenant, err := w.bodyAfter(ctx, control.Tenants, key.Tenant)
	if err != nil {
		return err
	}
	if tenant == nil {
		w.problem("%s: there is no tenant %q", e.doc.Name(), key.Tenant)
	}
	if !e.absent() && !key.Revoked {
		old := e.doc
		old.Body = e.have.Body
		if was, err := plan.CompileKey(old); err == nil && was.Revoked {
			w.problem("%s: a revoked key cannot be restored: create another", e.doc.Name())
		}
	}
	return nil
}

func (w *preview) checkSettings(_ context.Context, e *edit) error {
	settings, err := plan.CompileSettings(e.doc)
	if err != nil {
		w.addProblems(err)
		return nil
	}
	w.checkAccepted(e.doc.Name(), settings.IPLimits())
	return nil
}
