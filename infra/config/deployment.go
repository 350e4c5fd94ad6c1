package config

import (
	"time"

	"github.com/sluicelimits/sluice/internal/configfile"
)

// deployment reads the content of a file. [Deployment.Complete] checks it afterwards.
func (r *reader) deployment(root value) *Deployment {
	d := &Deployment{}
	r.mapping(root, "a deployment", keys{
		"prefix":  r.text(&d.Prefix),
		"account": r.text(&d.Account), "architecture": r.text(&d.Architecture),
		"control": func(v value) { r.control(v, &d.Control) },
		"cells": func(v value) {
			r.list(v, "cells", func(v value) {
				d.Cells = append(d.Cells, Cell{})
				r.cell(v, &d.Cells[len(d.Cells)-1])
			})
		},
		"retired": func(v value) {
			r.list(v, "cells", func(v value) {
				d.Retired = append(d.Retired, Retired{})
				gone := &d.Retired[len(d.Retired)-1]
				r.mapping(v, "a cell that is gone", keys{"id": r.text(&gone.ID), "region": r.text(&gone.Region)})
			})
		},
		"alarms": func(v value) {
			r.mapping(v, "the alarms", keys{"set": r.text(&d.Alarms.Set), "email": r.text(&d.Alarms.Email),
				"topics": r.texts(&d.Alarms.Topics)})
		},
		"operators": func(v value) {
			let := &d.Operators
			r.mapping(v, "the operators", keys{
				"principals": r.texts(&let.Principals), "addresses": r.texts(&let.Addresses),
				"accessLogs": r.boolean(&let.AccessLogs),
			})
		},
		"dashboards": r.boolean(&d.Dashboards),
	})
	return d
}

func (r *reader) control(v value, c *Control) {
	r.mapping(v, "the control plane", keys{
		"region": r.text(&c.Region),
		"audit": func(v value) {
			r.mapping(v, "the audit trail", keys{
				"mode": r.text(&c.Audit.Mode), "retentionDays": r.number(&c.Audit.RetentionDays),
				"confirm": r.text(&c.Audit.Confirm),
				"anchors": r.boolean(&c.Audit.Anchors), "breakGlass": r.text(&c.Audit.BreakGlass),
			})
		},
		"trail": r.negated(&c.NoTrail), "pepper": r.text(&c.Pepper),
		"metricsNamespace": r.text(&c.MetricsNamespace), "logLevel": r.text(&c.LogLevel),
		"logDays":       r.number(&c.LogDays),
		"canaryMinutes": r.number(&c.CanaryMinutes), "platformLogs": r.negated(&c.NoPlatformLogs),
	})
}

func (r *reader) cell(v value, c *Cell) {
	r.mapping(v, "a cell", keys{
		"id": r.text(&c.ID), "region": r.text(&c.Region), "profile": r.text(&c.Profile),
		"maxInstances": r.number(&c.MaxInstances), "memoryMB": r.number(&c.MemoryMB),
		"trustedHops": r.numberOrZero(&c.TrustedHops), "retryJitter": r.numberOrZero(&c.RetryJitter),
		"leases": r.negated(&c.NoLeases),
		"issuers": func(v value) {
			r.list(v, "issuers", func(v value) {
				c.Issuers = append(c.Issuers, Issuer{})
				r.issuer(v, &c.Issuers[len(c.Issuers)-1])
			})
		},
		"claims": r.texts(&c.Claims), "passDenials": r.texts(&c.PassDenials),
		"deadlines": func(v value) {
			r.mapping(v, "the deadlines", keys{
				"redis": r.duration(&c.Deadlines.Redis), "dynamodb": r.duration(&c.Deadlines.DynamoDB),
				"home": r.duration(&c.Deadlines.Home),
			})
		},
		"cache": r.cache(&c.Cache), "network": r.network(&c.Network), "attach": r.attach(&c.Attach),
		"killSwitch": r.negated(&c.NoKillSwitch), "rollbackAlarms": r.texts(&c.RollbackAlarms),
		"waf": func(v value) {
			c.WAF = &WAF{}
			r.mapping(v, "a firewall", keys{"rate": r.number(&c.WAF.Rate), "stages": r.texts(&c.WAF.Stages)})
		},
	})
}

func (r *reader) issuer(v value, i *Issuer) {
	r.mapping(v, "an issuer", keys{
		"issuer": r.text(&i.Issuer), "audiences": r.texts(&i.Audiences), "jwksUrl": r.text(&i.JWKSURL),
		"algorithms":    r.texts(&i.Algorithms),
		"audienceClaim": r.text(&i.AudienceClaim), "tenantClaim": r.text(&i.TenantClaim),
		"subjectClaim": r.text(&i.SubjectClaim),
		"tenants":      r.texts(&i.Tenants), "allTenants": r.boolean(&i.AllTenants),
	})
}

// text reads a string that is not empty.
func (r *reader) text(to *string) func(value) {
	return func(v value) {
		switch text, ok := r.Text(v); {
		case ok && text == "":
			r.Problem(v, "is empty: leave it out for the default")
		case ok:
			*to = text
		}
	}
}

func (r *reader) texts(to *[]string) func(value) {
	return func(v value) {
		r.list(v, "strings", func(v value) {
			var one string
			r.text(&one)(v)
			*to = append(*to, one)
		})
	}
}

func (r *reader) boolean(to *bool) func(value) {
	return func(v value) {
		if on, ok := r.Boolean(v); ok {
			*to = on
		}
	}
}

// duration reads a time with its unit, and refuses 0, which would be taken for "use the default".
func (r *reader) duration(to *time.Duration) func(value) {
	return func(v value) {
		d, err := time.ParseDuration(v.Node.Text)
		if err != nil || d == 0 {
			r.Problem(v, "want a time such as 8ms or 2s, got %s", configfile.Describe(v.Node))
			return
		}
		*to = d
	}
}

// negated reads a key whose default is true into a field that means the opposite.
func (r *reader) negated(to *bool) func(value) {
	return func(v value) {
		is := true
		r.boolean(&is)(v)
		*to = !is
	}
}
