package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

const checkLong = `Check plans files. All files together are one configuration; "-" is standard
input. A file for "sluice serve --config", which has the key domain, is checked as that command does.

Problems are printed on standard error, one per line, as file:line:column: path: message, and the
exit status is then 1. Warnings fail the check only with --strict, which is for files that go to
production. See docs/plans.md.`

const checkExample = `  sluice check plans.yaml tenants.yaml
  sluice check --effective --tenant acme --at 2026-12-24T00:00:00Z plans.yaml`

// checkFlags is the command line of check.
type checkFlags struct {
	effective, json, quiet, strict bool
	tenant                         string
	at                             time.Time
}

func newCheckCommand() *cobra.Command {
	var f checkFlags
	c := &cobra.Command{
		Use:     "check FILE...",
		Short:   "Check plans files, and show each tenant's limits",
		Long:    checkLong,
		Example: checkExample,
		RunE:    func(c *cobra.Command, files []string) error { return f.run(c, files) },
	}
	flags := c.Flags()
	flags.BoolVar(&f.effective, "effective", false, "print the effective limits of all tenants, and where each "+
		"value comes from")
	flags.StringVar(&f.tenant, "tenant", "", "with --effective: show only the tenant `ID`")
	timeFlag(flags, &f.at, "at", "with --effective: use the boosts that are active at `TIME`, such as "+
		"2026-12-24T00:00:00Z (default: now)")
	flags.BoolVar(&f.json, "json", false, "print problems, warnings and limits as one JSON document on standard output")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "print nothing but problems")
	flags.BoolVar(&f.strict, "strict", false, "fail on warnings, and also warn of example keys and missing ipLimits")
	return c
}

// checked is the output of --json.
type checked struct {
	OK        bool            `json:"ok"`
	Problems  []plan.Problem  `json:"problems"`
	Warnings  []plan.Problem  `json:"warnings"`
	Files     []plan.File     `json:"files,omitempty"`
	Effective []effectiveJSON `json:"effective,omitempty"`
}

type effectiveJSON struct {
	Owner     string      `json:"owner"` // tenant, anonymous or address
	Tenant    string      `json:"tenant,omitempty"`
	Plan      string      `json:"plan,omitempty"`
	Suspended bool        `json:"suspended,omitempty"`
	Limits    []limitJSON `json:"limits"`
}

type limitJSON struct {
	ID       string       `json:"id"`
	Settings []plan.Value `json:"settings"`
}

func (f *checkFlags) run(c *cobra.Command, files []string) error {
	if areLimitsFiles(files) {
		return f.checkLimits(c, files)
	}
	if !f.effective && (f.tenant != "" || !f.at.IsZero()) {
		return usagef("--tenant and --at need --effective")
	}
	at := timeOrNow(f.at)
	config, err := loadPlans(c, files)
	if err != nil {
		return f.refuse(c, err)
	}
	report := checked{OK: true, Problems: []plan.Problem{}, Warnings: config.Warnings(), Files: config.Files()}
	if f.strict {
		report.Warnings = append(report.Warnings, notForProduction(config)...)
		report.OK = len(report.Warnings) == 0
	}
	if f.effective {
		if report.Effective, err = effectiveOf(config, f.tenant, at); err != nil {
			return err
		}
	}
	if err := f.print(c, &report); err != nil {
		return err
	}
	if !report.OK {
		return fmt.Errorf("%s, which --strict makes fail the check", count(len(report.Warnings), "warning"))
	}
	return nil
}

// fileNames joins the names of all files of a configuration, for a problem that no single file causes.
func fileNames(config *plan.Config) string {
	var names []string
	for _, file := range config.Files() {
		names = append(names, file.Name)
	}
	return strings.Join(names, ", ")
}

// notForProduction returns a warning for each API key of the example, and one for plans without ipLimits.
func notForProduction(config *plan.Config) []plan.Problem {
	var out []plan.Problem
	warn := func(path, format string, args ...any) {
		out = append(out, plan.Problem{File: fileNames(config), Path: path, Message: fmt.Sprintf(format, args...)})
	}
	public := map[string]string{} // the tenant of each example key, by its hash
	tenants := []string{"acme", "globex", "initech"}
	for _, t := range config.Tenants() {
		tenants = append(tenants, t.ID)
	}
	for _, tenant := range tenants {
		public[identity.HashKey(identity.DevPepper(), identity.ExampleKey(tenant))] = tenant
	}
	for _, k := range config.Keys() {
		if tenant, ok := public[k.Hash]; ok && !k.Revoked {
			warn("keys."+k.ID, "this is the example key of tenant %s, which anyone can compute: "+
				"remove it, and create another key with `sluice key create`", tenant)
		}
	}
	if len(config.Plans()) > 0 && len(config.IPLimits().Limits) == 0 {
		warn("ipLimits", "there are plans and no ipLimits, so attempts to guess an API key are not limited: add a "+
			"limit for each address, such as { id: per-address, algorithm: token_bucket, rate: 50, period: 1s, "+
			"burst: 100 }")
	}
	return out
}

// loadPlans reads files as one configuration; "-" is the command's standard input.
func loadPlans(c *cobra.Command, files []string) (*plan.Config, error) {
	sources, err := configyaml.ReadFiles(c.InOrStdin(), files...)
	if err != nil {
		return nil, err
	}
	return plan.Parse(sources...)
}

// refuse prints the problems of a configuration, and returns an error that counts them.
func (f *checkFlags) refuse(c *cobra.Command, err error) error {
	var bad *plan.Error
	if !errors.As(err, &bad) {
		return err
	}
	if f.json {
		if err := writeJSON(c.OutOrStdout(), checked{Problems: bad.Problems, Warnings: []plan.Problem{}}); err != nil {
			return err
		}
	} else {
		for _, p := range bad.Problems {
			fmt.Fprintln(c.ErrOrStderr(), p)
		}
	}
	return errors.New(count(len(bad.Problems), "problem"))
}

func (f *checkFlags) print(c *cobra.Command, report *checked) error {
	if f.json {
		return writeJSON(c.OutOrStdout(), report)
	}
	if !f.quiet || !report.OK {
		for _, w := range report.Warnings {
			fmt.Fprintf(c.ErrOrStderr(), "%s (warning)\n", w)
		}
	}
	if f.quiet {
		return nil
	}
	if f.effective {
		return writeEffective(c.OutOrStdout(), report.Effective)
	}
	for _, file := range report.Files {
		if _, err := fmt.Fprintf(c.OutOrStdout(), "%s: ok: %s\n", file.Name, contents(&file)); err != nil {
			return err
		}
	}
	return nil
}

// contents counts the entries of a file, as text.
func contents(f *plan.File) string {
	var parts []string
	for _, p := range []struct {
		n    int
		what string
	}{
		{f.Plans, "plan"}, {f.Limits, "limit"}, {f.SLAs, "SLA"}, {f.Tenants, "tenant"},
		{f.IPLimits, "IP limit"}, {f.Routes, "route"}, {f.Keys, "key"},
	} {
		if p.n > 0 {
			parts = append(parts, count(p.n, p.what))
		}
	}
	if len(parts) == 0 {
		return "empty"
	}
	return strings.Join(parts, ", ")
}

// count returns a number of things, such as "1 limit" or "2 limits".
func count[N int | int64](n N, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// effectiveOf lists the limits of every owner, or of one tenant if tenant is not "".
func effectiveOf(config *plan.Config, tenant string, at time.Time) ([]effectiveJSON, error) {
	if tenant != "" {
		t, err := findTenant(config, tenant)
		if err != nil {
			return nil, err
		}
		return []effectiveJSON{effectiveTenant(t, at)}, nil
	}
	out := []effectiveJSON{}
	for _, t := range config.Tenants() {
		out = append(out, effectiveTenant(t, at))
	}
	if set := config.Anonymous(); set != nil {
		out = append(out, effectiveJSON{Owner: "anonymous", Plan: config.AnonymousPlan(), Limits: limitsOf(set)})
	}
	if set := config.IPLimits(); len(set.Limits) > 0 {
		out = append(out, effectiveJSON{Owner: "address", Limits: limitsOf(set)})
	}
	return out, nil
}

func effectiveTenant(t *plan.Tenant, at time.Time) effectiveJSON {
	return effectiveJSON{Owner: "tenant", Tenant: t.ID, Plan: t.Plan, Suspended: t.Suspended,
		Limits: limitsOf(t.Limits(at))}
}

func limitsOf(set *plan.Set) []limitJSON {
	out := make([]limitJSON, len(set.Limits))
	for i, e := range set.Limits {
		out[i] = limitJSON{ID: e.Limit.ID, Settings: e.Values()}
	}
	return out
}

// findTenant looks up a tenant. The error for an unknown tenant names a similar id.
func findTenant(config *plan.Config, id string) (*plan.Tenant, error) {
	if t, ok := config.Tenant(id); ok {
		return t, nil
	}
	switch near := config.NearestTenant(id); {
	case len(config.Tenants()) == 0:
		return nil, fmt.Errorf("there is no tenant %q: the files have no tenants", id)
	case near != "":
		return nil, fmt.Errorf("there is no tenant %q (did you mean %q?)", id, near)
	}
	return nil, fmt.Errorf("there is no tenant %q: number of tenants in the files: %d", id, len(config.Tenants()))
}

func writeEffective(w io.Writer, all []effectiveJSON) error {
	var rows [][]string
	for _, e := range all {
		owner := e.Owner
		switch {
		case e.Suspended:
			owner = shown(e.Tenant) + " (suspended)"
		case e.Tenant != "":
			owner = e.Tenant
		}
		if len(e.Limits) == 0 {
			rows = append(rows, []string{owner, "", "", "no limits", "plan " + e.Plan})
		}
		for _, l := range e.Limits {
			for _, v := range l.Settings {
				rows = append(rows, []string{owner, l.ID, v.Name, v.Text, v.Origin.String()})
			}
		}
	}
	return table(w, "OWNER LIMIT SETTING VALUE FROM", rows)
}

// shown returns a text that is safe to print on a terminal: quoted if it contains a character that is not graphic.
func shown(s string) string {
	if strings.ContainsFunc(s, func(c rune) bool { return !unicode.IsGraphic(c) || c == unicode.ReplacementChar }) {
		return strconv.Quote(s)
	}
	return s
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
