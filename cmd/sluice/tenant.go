package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/admin"
	"github.com/sluicelimits/sluice/internal/control/call"
	"github.com/sluicelimits/sluice/internal/plan"
)

func newTenantCommand() *cobra.Command {
	c := group("tenant", "Show tenants, set their plans and overrides, suspend them")
	c.AddCommand(newTenantListCommand(), newTenantGetCommand(), newTenantSetCommand(), newTenantSuspendCommand(false),
		newTenantSuspendCommand(true))
	return c
}

// tenantBody holds the settings of a tenant that 'sluice tenant list' prints.
type tenantBody struct {
	Plan      string
	Suspended bool
	Cells     []string
	Overrides []json.RawMessage
	Boosts    []struct {
		ID          string
		Factor      json.Number
		From, Until time.Time
	}
}

func newTenantListCommand() *cobra.Command {
	var r remote
	c := &cobra.Command{
		Use: "list", Short: "List the tenants",
		Long: "Lists the stored tenants, with who last changed each of them.",
		Example: "  sluice tenant list\n  sluice tenant list --json | jq -r '.items[] | select(.body.suspended) | " +
			".key'",
		Args: usageArgs(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			return listing(c, &r, control.Tenants, "TENANT PLAN STATE OVERRIDES BOOSTS CELLS VERSION CHANGED BY",
				func(i *call.Item) []string {
					var t tenantBody
					state := "active"
					if err := json.Unmarshal(i.Body, &t); err != nil {
						state = "unreadable"
					} else if t.Suspended {
						state = "suspended"
					}
					active := 0
					for _, b := range t.Boosts {
						if now := time.Now(); b.Until.After(now) && !b.From.After(now) {
							active++
						}
					}
					return []string{i.Key, t.Plan, state, strconv.Itoa(len(t.Overrides)), strconv.Itoa(active),
						strings.Join(t.Cells, ","), strconv.FormatInt(i.Version, 10), day(i.ChangedAt), i.Actor}
				})
		},
	}
	r.flags(c)
	return c
}

func newTenantGetCommand() *cobra.Command {
	var r remote
	c := &cobra.Command{
		Use: "get TENANT", SuggestFor: []string{"show"}, Short: "Print a tenant as it is stored",
		Long:    "Prints a tenant in the form of a plans file, with who last changed it, and why.",
		Example: "  sluice tenant get acme",
		Args:    wantArgs(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			return operate(c, &r, "documents/get", admin.GetRequest{Table: control.Tenants, Key: args[0]}, writeItem)
		},
	}
	r.flags(c)
	return c
}

type tenantSetFlags struct {
	remote
	plan                   string
	cells, overrides, drop []string
	allCells, create       bool
	expect                 int64
}

func newTenantSetCommand() *cobra.Command {
	var f tenantSetFlags
	c := &cobra.Command{
		Use: "set TENANT", Short: "Set a tenant's plan, cells and overrides",
		Long: `Changes the settings of a tenant that the flags name, and leaves the others as they
are. An override is written as in a plans file; settings of the limit that it does not name stay.
With --expect, the change fails if the tenant is at another version. An override may raise a limit,
and --drop may remove a protection, without a question: the command names the change. Only if the
change would reset counters does it need --yes; without --yes nothing is written and the exit status
is 5.`,
		Example: "  sluice tenant set acme --plan enterprise --reason 'contract 4711'\n" +
			"  sluice tenant set acme --override '{ id: burst, rate: 500 }' --reason 'their launch'\n" +
			"  sluice tenant set acme --drop burst --reason 'the launch is over'\n" +
			"  sluice tenant set newcomer --create --plan pro --cells eu-1,us-1 --reason 'signed up'",
		Args: wantArgs(1, 1),
		RunE: func(c *cobra.Command, args []string) error { return f.run(c, args[0]) },
	}
	f.writes(c)
	flags := c.Flags()
	flags.StringVar(&f.plan, "plan", "", "`ID` of the plan")
	flags.StringSliceVar(&f.cells, "cells", nil, "pin the tenant to `CELLS`, the home cell first, such as eu-1,us-1")
	flags.BoolVar(&f.allCells, "all-cells", false, "remove the tenant's pin, so that every cell serves it")
	flags.StringArrayVar(&f.overrides, "override", nil, "override settings of a limit: `YAML` such as "+
		"'{ id: burst, rate: 500 }'; may be repeated")
	flags.StringArrayVar(&f.drop, "drop", nil, "remove the override of `LIMIT`; may be repeated")
	flags.BoolVar(&f.create, "create", false, "create the tenant if it does not exist")
	flags.BoolVarP(&f.yes, "yes", "y", false, "reset counters if the change needs it")
	flags.Int64Var(&f.expect, "expect", 0, "`VERSION` that the tenant must be at (default: any)")
	return c
}

func (f *tenantSetFlags) run(c *cobra.Command, tenant string) error {
	usage := func(err error) error { return &usageError{c.CommandPath(), err} }
	r := admin.SetTenantRequest{Tenant: tenant, Create: f.create, Drop: f.drop, Yes: f.yes}
	if c.Flags().Changed("plan") {
		r.Plan = &f.plan
	}
	switch {
	case f.allCells && f.cells != nil:
		return usage(errors.New("--cells and --all-cells cannot be combined"))
	case f.allCells:
		r.Cells = &[]string{}
	case f.cells != nil:
		r.Cells = &f.cells
	}
	for _, text := range f.overrides {
		override, err := plan.ReadOverride(configyaml.Source("--override", []byte(text)))
		if err != nil {
			return usage(err)
		}
		r.Overrides = append(r.Overrides, override)
	}
	if c.Flags().Changed("expect") {
		r.Expect = &f.expect
	}
	if r.Plan == nil && r.Cells == nil && len(r.Overrides) == 0 && len(r.Drop) == 0 {
		return usage(errors.New("nothing to set: give --plan, --cells, --all-cells, --override or --drop"))
	}
	if err := f.why(c); err != nil {
		return err
	}
	r.Reason = f.reason
	return operate(c, &f.remote, "tenants/set", &r, printWritten("tenant "+shown(tenant)))
}

func newTenantSuspendCommand(resume bool) *cobra.Command {
	var r remote
	use, path, short := "suspend", "tenants/suspend", "Refuse every call of a tenant"
	long := "Every call of the tenant is answered with 403 until the tenant is resumed. Its plan, overrides and " +
		"counters stay."
	if resume {
		use, path, short, long = "resume", "tenants/resume", "End a tenant's suspension",
			"Ends a suspension: the tenant's calls are again decided by its limits."
	}
	c := &cobra.Command{
		Use: use + " TENANT", Short: short, Long: long,
		Example: "  sluice tenant " + use + " acme --reason 'invoice 4711'",
		Args:    wantArgs(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := r.why(c); err != nil {
				return err
			}
			return operate(c, &r, path, admin.TenantRequest{Tenant: args[0], Reason: r.reason},
				printWritten("tenant "+shown(args[0])))
		},
	}
	r.writes(c)
	return c
}

func newBoostCommand() *cobra.Command {
	c := group("boost", "Raise a limit of a tenant for a while")
	c.AddCommand(newBoostAddCommand(), newBoostRemoveCommand())
	return c
}

func newBoostAddCommand() *cobra.Command {
	var r remote
	var factor, from, until string
	var lasts time.Duration
	c := &cobra.Command{
		Use: "add TENANT LIMIT", Short: "Add a boost, or replace the boost of the same limit",
		Long: "Multiplies a limit of a tenant by a factor until a given time. The boost ends by itself.",
		Example: "  sluice boost add acme burst --factor 2 --for 48h --reason 'their launch'\n" +
			"  sluice boost add acme burst --factor 1.5 --from 2026-11-27T00:00:00Z \\\n" +
			"    --until 2026-11-30T00:00:00Z --reason 'black friday'",
		Args: wantArgs(2, 2),
		RunE: func(c *cobra.Command, args []string) error {
			usage := func(format string, a ...any) error {
				return &usageError{c.CommandPath(), fmt.Errorf(format, a...)}
			}
			b := admin.BoostRequest{Tenant: args[0], Limit: args[1], Factor: json.Number(factor)}
			if _, err := strconv.ParseFloat(factor, 64); err != nil {
				return usage("--factor %q is not a number such as 1.5", factor)
			}
			var err error
			switch {
			case (until == "") == (lasts == 0):
				return usage("give either --for or --until")
			case lasts < 0:
				return usage("--for %s is negative", lasts)
			case lasts > 0:
				b.Until = time.Now().Add(lasts).Truncate(time.Second)
			default:
				if b.Until, err = time.Parse(time.RFC3339, until); err != nil {
					return usage("--until %q is not a time such as 2026-12-24T00:00:00Z", until)
				}
			}
			if from != "" {
				begins, err := time.Parse(time.RFC3339, from)
				if err != nil {
					return usage("--from %q is not a time such as 2026-12-24T00:00:00Z", from)
				}
				b.From = &begins
			}
			if err := r.why(c); err != nil {
				return err
			}
			b.Reason = r.reason
			return operate(c, &r, "boosts/add", &b, printWritten(fmt.Sprintf("tenant %s: %s ×%s until %s",
				shown(args[0]), shown(args[1]), factor, day(b.Until))))
		},
	}
	r.writes(c)
	c.Flags().StringVar(&factor, "factor", "2", "multiply the limit by `FACTOR`: above 1 and at most 100, with up to "+
		"three digits after the point")
	c.Flags().DurationVar(&lasts, "for", 0, "end the boost after `DURATION`, such as 48h")
	c.Flags().StringVar(&until, "until", "", "end the boost at `TIME`, such as 2026-12-24T00:00:00Z")
	c.Flags().StringVar(&from, "from", "", "begin the boost at `TIME` (default: now)")
	return c
}

func newBoostRemoveCommand() *cobra.Command {
	var r remote
	c := &cobra.Command{
		Use: "remove TENANT LIMIT", Short: "Remove a boost before it ends",
		Long:    "Removes the boost of a tenant's limit.",
		Example: "  sluice boost remove acme burst --reason 'called off'",
		Args:    wantArgs(2, 2),
		RunE: func(c *cobra.Command, args []string) error {
			if err := r.why(c); err != nil {
				return err
			}
			return operate(c, &r, "boosts/remove", admin.RemoveBoostRequest{Tenant: args[0], Limit: args[1],
				Reason: r.reason}, printWritten("tenant "+shown(args[0])))
		},
	}
	r.writes(c)
	return c
}
