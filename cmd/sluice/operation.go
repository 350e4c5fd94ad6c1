package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/admin"
	"github.com/sluicelimits/sluice/internal/control/call"
	"github.com/sluicelimits/sluice/internal/control/client"
)

// operation is a command that makes one call to an API for operators, and prints the answer.
type operation struct {
	remote

	path    string                     // of the call, below the endpoint
	request any                        // points to the request, which the arguments, the flags and check complete
	args    []*string                  // what the command's arguments set
	reason  *string                    // of the request, if the operation changes something
	check   func() error               // checks and completes the request; its errors are usage errors
	confirm func(*cobra.Command) error // asks whether to go on
	then    func(*cobra.Command) error // what is done after the call has succeeded
}

// newOperation makes c, whose Use names the arguments, a command for o. show prints the answer, unless --json asks for
// JSON. The functions of look are as in operate.
func newOperation[Response any](
	c *cobra.Command, o *operation, show func(io.Writer, *Response) error, look ...func(*Response) error,
) *cobra.Command {
	if o.reason != nil {
		o.writes(c)
	} else {
		o.flags(c)
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		for i, text := range args {
			*o.args[i] = text
		}
		if o.check != nil {
			if err := o.check(); err != nil {
				return &usageError{c.CommandPath(), err}
			}
		}
		if o.reason != nil {
			if err := o.why(c); err != nil {
				return err
			}
			*o.reason = o.remote.reason
		}
		if o.confirm != nil {
			if err := o.confirm(c); err != nil {
				return err
			}
		}
		to, err := o.connect(c)
		if err != nil {
			return err
		}
		err = operate(c, &o.remote, to, o.path, o.request, show, look...)
		if err == nil && o.then != nil {
			err = o.then(c)
		}
		return err
	}
	return c
}

// operate calls an operation, passes its answer to each function of look, and prints it: with show, or as JSON. After
// that it returns the errors of look.
func operate[Response any](
	c *cobra.Command, r *remote, to *client.Client, path string, request any, show func(io.Writer, *Response) error,
	look ...func(*Response) error,
) error {
	out, err := client.Do[Response](c.Context(), to, path, request)
	if err != nil {
		return r.failed(c, err)
	}
	var found error
	for _, f := range look {
		found = errors.Join(found, f(out))
	}
	if r.json {
		return errors.Join(writeJSON(c.OutOrStdout(), out), found)
	}
	return errors.Join(show(c.OutOrStdout(), out), found)
}

// printWritten returns a function that prints the version and the actor of a written item, after what was done. In
// format, each %s stands for one of names, which the arguments of the command have set by then.
func printWritten(format string, names ...*string) func(io.Writer, *call.Item) error {
	return func(w io.Writer, i *call.Item) error {
		texts := make([]any, len(names))
		for n := range names {
			texts[n] = shown(*names[n])
		}
		_, err := fmt.Fprintf(w, "%s: version %d, by %s\n", fmt.Sprintf(format, texts...), i.Version, shown(i.Actor))
		return err
	}
}

// newGetCommand makes c a command that prints a stored document.
func newGetCommand(c *cobra.Command, t control.Table) *cobra.Command {
	r := &admin.GetRequest{Table: t}
	c.SuggestFor = []string{"show"}
	return newOperation(c, &operation{path: "documents/get", request: r, args: []*string{&r.Key}}, writeItem)
}

// newListCommand makes c a command that prints the items of a control table that are not deleted, with who changed them
// last, and why. row returns the other columns, whose names head has; nil leaves an item out.
func newListCommand(
	c *cobra.Command, t control.Table, head string, row func(*call.Item) []string,
) *cobra.Command {
	r := new(remote)
	r.flags(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		to, err := r.connect(c)
		if err != nil {
			return err
		}
		all, damaged, err := listAll(c.Context(), to, t)
		if err != nil {
			return r.failed(c, err)
		}
		rows, items := [][]string{}, []*call.Item{}
		for _, i := range all {
			if cells := row(i); cells != nil {
				rows = append(rows,
					append(cells, strconv.FormatInt(i.Version, 10), day(i.ChangedAt), i.Actor, i.Reason))
				items = append(items, i)
			}
		}
		if r.json {
			out := map[string]any{"items": items}
			if len(damaged) > 0 {
				out["damaged"] = damaged
			}
			err = writeJSON(c.OutOrStdout(), out)
		} else {
			err = errors.Join(table(c.OutOrStdout(), head+" VERSION CHANGED BY WHY", rows),
				writeDamaged(c.OutOrStdout(), damaged))
		}
		if err == nil && len(damaged) > 0 {
			err = errDamaged
		}
		return err
	}
	return c
}

// listAll reads all items of a table that are not deleted, and a line for each item that cannot be read.
func listAll(
	ctx context.Context, to *client.Client, t control.Table,
) (items []*call.Item, damaged []string, err error) {
	for after := ""; ; {
		page, err := to.List(ctx, &admin.ListRequest{Table: t, After: after})
		if err != nil {
			return nil, nil, err
		}
		for _, i := range page.Items {
			if !i.Deleted {
				items = append(items, i)
			}
		}
		for _, lines := range page.Damaged {
			damaged = append(damaged, strings.Split(lines, "\n")...)
		}
		if after = page.Next; after == "" {
			return items, damaged, nil
		}
	}
}
