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
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/plan"
)

func newTenantCommand() *cobra.Command {
	c := group("tenant", "Show tenants, set their plans and overrides, suspend them")
	c.AddCommand(newTenantListCommand(), newGetCommand(&cobra.Command{
		Use: "get TENANT", Short: "Print a tenant in the form of a plans file", Example: "  sluice tenant get acme",
	}, control.Tenants), newTenantSetCommand())
	for _, of := range []struct {
		verb, short string
		operate.Typed[operate.TenantRequest, control.Item]
	}{
		{"suspend", "Refuse every call of a tenant with 403; its plan, overrides and counters stay", operate.Suspend},
		{"resume", "End a tenant's suspension", operate.Resume},
	} {
		r := new(operate.TenantRequest)
		c.AddCommand(newOperation(&cobra.Command{
			Use: of.verb + " TENANT", Short: of.short,
			Example: "  sluice tenant " + of.verb + " acme --reason 'invoice 4711'",
		}, of.Typed, r, &operation{args: []*string{&r.Tenant}, requestReason: &r.Reason},
			printWritten("tenant %s", &r.Tenant)))
	}
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
	return newListCommand(&cobra.Command{
		Use: "list", Short: "List the tenants",
		Example: "  sluice tenant list\n  sluice tenant list --json | jq -r '.items[] | select(.body.suspended) | " +
			".key'",
	}, control.Tenants, "TENANT PLAN STATE OVERRIDES BOOSTS CELLS", func(i *control.Item) []string {
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
			strings.Join(t.Cells, ",")}
	})
}

func newTenantSetCommand() *cobra.Command {
	var tenantPlan string
	var cells, overrides []string
	var allCells bool
	r := new(operate.SetTenantRequest)
	c := newOperation(&cobra.Command{
		Use: "set TENANT", Short: "Set a tenant's plan, cells and overrides",
		Long: `Changes the settings of a tenant that the flags name, and leaves the others as they
are. An override is written as in a plans file; settings of the limit that it does not name stay. A
change that would reset counters needs --yes.`,
		Example: "  sluice tenant set acme --override '{ id: burst, rate: 500 }' --reason 'their launch'\n" +
			"  sluice tenant set newcomer --create --plan pro --cells eu-1,us-1 --reason 'signed up'",
	}, operate.SetTenant, r, &operation{args: []*string{&r.Tenant}, requestReason: &r.Reason,
		check: func() error {
			if tenantPlan != "" {
				r.Plan = &tenantPlan
			}
			switch {
			case allCells && cells != nil:
				return errors.New("--cells and --all-cells cannot be combined")
			case allCells:
				r.Cells = &[]string{}
			case cells != nil:
				r.Cells = &cells
			}
			for _, text := range overrides {
				override, err := plan.ReadOverride(configyaml.Source("--override", []byte(text)))
				if err != nil {
					return err
				}
				r.Overrides = append(r.Overrides, override)
			}
			if r.Plan == nil && r.Cells == nil && len(r.Overrides) == 0 && len(r.Drop) == 0 {
				return errors.New("nothing to set: give --plan, --cells, --all-cells, --override or --drop")
			}
			return nil
		}}, printWritten("tenant %s", &r.Tenant))
	flags := c.Flags()
	flags.StringVar(&tenantPlan, "plan", "", "id of the `PLAN`")
	flags.StringSliceVar(&cells, "cells", nil, "pin the tenant to `CELLS`, the home cell first, such as eu-1,us-1")
	flags.BoolVar(&allCells, "all-cells", false, "remove the tenant's pin, so that every cell serves it")
	flags.StringArrayVar(&overrides, "override", nil, "override settings of a limit: `YAML` such as "+
		"'{ id: burst, rate: 500 }'; may be repeated")
	flags.StringArrayVar(&r.Drop, "drop", nil, "remove the override of `LIMIT`; may be repeated")
	flags.BoolVar(&r.Create, "create", false, "create the tenant if it does not exist")
	flags.BoolVarP(&r.Yes, "yes", "y", false, "reset counters if the change needs it")
	expectFlag(flags, &r.Expect)
	return c
}

func newBoostCommand() *cobra.Command {
	c := group("boost", "Raise a limit of a tenant for a while")
	r := new(operate.RemoveBoostRequest)
	c.AddCommand(newBoostAddCommand(), newOperation(&cobra.Command{
		Use: "remove TENANT LIMIT", Short: "Remove a boost before it ends",
		Example: "  sluice boost remove acme burst --reason 'called off'",
	}, operate.RemoveBoost, r, &operation{args: []*string{&r.Tenant, &r.Limit}, requestReason: &r.Reason},
		printWritten("tenant %s", &r.Tenant)))
	return c
}

func newBoostAddCommand() *cobra.Command {
	var factor, until string
	var from time.Time
	var lasts time.Duration
	r := new(operate.BoostRequest)
	c := newOperation(&cobra.Command{
		Use: "add TENANT LIMIT", Short: "Multiply a tenant's limit until a time, in place of a boost that it has",
		Example: "  sluice boost add acme burst --factor 2 --for 2d --reason 'their launch'\n" +
			"  sluice boost add acme burst --factor 1.5 --from 2026-11-27T00:00:00Z \\\n" +
			"    --until 2026-11-30T00:00:00Z --reason 'black friday'",
	}, operate.AddBoost, r, &operation{args: []*string{&r.Tenant, &r.Limit}, requestReason: &r.Reason,
		check: func() error {
			if _, err := strconv.ParseFloat(factor, 64); err != nil {
				return fmt.Errorf("--factor %q is not a number such as 1.5", factor)
			}
			if r.Until.IsZero() == (lasts == 0) {
				return errors.New("give either --for or --until")
			}
			if lasts > 0 {
				r.Until = time.Now().Add(lasts).Truncate(time.Second)
			}
			r.Factor, r.From, until = json.Number(factor), given(&from), day(r.Until)
			return nil
		}}, printWritten("tenant %s: %s ×%s until %s", &r.Tenant, &r.Limit, &factor, &until))
	flags := c.Flags()
	flags.StringVar(&factor, "factor", "2", "multiply the limit by `FACTOR`: above 1 and at most 100, with up to "+
		"three digits after the point")
	durationFlag(flags, &lasts, "for", 0, 0, "end the boost after `DURATION`, such as 48h or 2d")
	timeFlag(flags, &r.Until, "until", "end the boost at `TIME`, such as 2026-12-24T00:00:00Z")
	timeFlag(flags, &from, "from", "begin the boost at `TIME` (default: now)")
	return c
}
