package main

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/admin"
	"github.com/sluicelimits/sluice/internal/control/call"
	"github.com/sluicelimits/sluice/internal/control/client"
)

// completionWait is how long a shell's completion waits for the server.
const completionWait = 2 * time.Second

// tablesOfArguments has the tables whose keys are completed for arguments with these names.
var tablesOfArguments = map[string]control.Table{
	"TENANT": control.Tenants, "PLAN": control.Plans, "KEY-ID": control.Keys,
}

// complete offers names that the server knows for the argument that follows args. It offers none if the server does not
// answer.
func (r *remote) complete(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	names := strings.Fields(c.Use)[1:]
	if len(args) >= len(names) {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(c.Context(), completionWait)
	defer cancel()
	to, err := r.connect(c)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var offers []string
	switch name := strings.Trim(names[len(args)], "[]"); name {
	case "CELL": // their table has other items, too
		if all, err := client.Do[admin.CellsResponse](ctx, to, "cells/list", &admin.CellsRequest{}); err == nil {
			for _, k := range all.Cells {
				offers = append(offers, k.Cell)
			}
		}
	case "LIMIT":
		offers = limitIDs(ctx, to, tablesOfArguments[names[0]], args[0])
	default:
		if t, known := tablesOfArguments[name]; known {
			items, _, _ := listAll(ctx, to, t) // after an error there are no items
			for _, i := range items {
				offers = append(offers, i.Key)
			}
		}
	}
	return offers, cobra.ShellCompDirectiveNoFileComp
}

// limitIDs returns the ids of the limits of a plan, or of a tenant's plan.
func limitIDs(ctx context.Context, to *client.Client, t control.Table, key string) (ids []string) {
	var body struct {
		Plan   string
		Limits []struct{ ID string }
	}
	i, err := client.Do[call.Item](ctx, to, "documents/get", &admin.GetRequest{Table: t, Key: key})
	if err != nil || json.Unmarshal(i.Body, &body) != nil {
		return nil
	}
	if t == control.Tenants {
		return limitIDs(ctx, to, control.Plans, body.Plan)
	}
	for _, l := range body.Limits {
		ids = append(ids, l.ID)
	}
	return ids
}
