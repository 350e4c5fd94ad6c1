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
	"github.com/sluicelimits/sluice/internal/control/client"
	"github.com/sluicelimits/sluice/internal/control/operate"
)

// operation is a command that makes one call to the admin API or to a cell's API for operators, and prints the answer.
type operation struct {
	remote

	args  []*string    // args[i] gets the i-th argument; the command's Use names as many
	check func() error // checks and completes the request; its errors are usage errors

	// requestReason points to the reason in the request. It is nil if the operation only reads, and then the command
	// has no flag --reason.
	requestReason *string

	confirm func(*cobra.Command) error // asks whether to go on
	then    func(*cobra.Command) error // runs if the call succeeded, its answer was printed, and no check of it failed
}

// newOperation completes c, which has its names, arguments and texts, as the command that calls an operation, and
// returns c. The arguments, the flags and o.check complete the request. show prints the answer, unless --json asks for
// JSON. judge finds what is wrong with an answer, as in perform.
func newOperation[Request, Response any](
	c *cobra.Command, which operate.Typed[Request, Response], request *Request, o *operation,
	show func(io.Writer, *Response) error, judge ...func(*Response) error,
) *cobra.Command {
	if o.requestReason != nil {
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
				return usage(err)
			}
		}
		if o.requestReason != nil {
			if err := o.why(c); err != nil {
				return err
			}
			*o.requestReason = o.reason
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
		err = perform(c, &o.remote, to, which, request, show, judge...)
		if err == nil && o.then != nil {
			err = o.then(c)
		}
		return err
	}
	return c
}

// perform makes a call and prints its answer: with show, or as JSON. Before that it passes the answer to each function
// of judge. It prints the answer also if these find something wrong, and returns their errors.
func perform[Request, Response any](
	c *cobra.Command, r *remote, to *client.Client, which operate.Typed[Request, Response], request *Request,
	show func(io.Writer, *Response) error, judge ...func(*Response) error,
) error {
	out, err := client.Do(c.Context(), to, which, request)
	if err != nil {
		return r.failed(c, err)
	}
	var found error
	for _, f := range judge {
		found = errors.Join(found, f(out))
	}
	if r.json {
		return errors.Join(writeJSON(c.OutOrStdout(), out), found)
	}
	return errors.Join(show(c.OutOrStdout(), out), found)
}

// printWritten returns a function that prints what a command did, and the new version and the actor of the item. format
// says what was done, and has a %s for each of names. These are pointers, because the command's arguments set the names
// after this call.
func printWritten(format string, names ...*string) func(io.Writer, *control.Item) error {
	return func(w io.Writer, i *control.Item) error {
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
	r := &operate.GetRequest{Table: t}
	c.SuggestFor = []string{"show"}
	return newOperation(c, operate.Get, r, &operation{args: []*string{&r.Key}}, writeItem)
}

// newListCommand makes c a command that prints the items of a control table that are not deleted, with who changed them
// last, and why. head has the names of the first columns, separated by spaces, and row returns their texts. If row
// returns nil, the item is left out, also of the JSON. Items that cannot be read are printed, and are an error.
func newListCommand(
	c *cobra.Command, t control.Table, head string, row func(*control.Item) []string,
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
		rows, items := [][]string{}, []*control.Item{}
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
		if len(damaged) > 0 {
			err = errors.Join(err, errDamaged)
		}
		return err
	}
	return c
}

// listAll reads all items of a table that are not deleted. damaged says of each item that cannot be read what is wrong
// with it, in one or several lines.
func listAll(
	ctx context.Context, to *client.Client, t control.Table,
) (items []*control.Item, damaged []string, err error) {
	for after := ""; ; {
		page, err := to.List(ctx, &operate.ListRequest{Table: t, After: after})
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
