package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control/audit"
)

const showLong = `Show who changed what, when and why, oldest first, with each field that changed.
TABLE is plans, tenants, keys, cells or operations; the key of one item follows after a slash. Times
come from the clocks of the writers. A note below a record says if the record was hidden, covered or
altered later; 'sluice audit verify' finds out whether records are missing. Changes of the canary,
which set nothing, are left out unless --canary or plans/` + events.CanaryKey + ` asks for them.`

// showFlags is the command line of show.
type showFlags struct {
	auditSource
	audit.Filter
	since        time.Duration
	json, canary bool
}

func newAuditShowCommand() *cobra.Command {
	var f showFlags
	c := &cobra.Command{
		Use:        "show [TABLE[/KEY]]",
		SuggestFor: []string{"list", "get", "log"},
		Short:      "Show who changed what, when and why, field by field",
		Long:       showLong,
		Example: "  sluice audit show tenants/acme --data ./sluice-data\n" +
			"  sluice audit show --since 24h --actor alice --archive s3://acme-sluice-audit --json",
		RunE: func(c *cobra.Command, args []string) error { return f.run(c, args, time.Now()) },
	}
	flags := c.Flags()
	f.flags(c, flags)
	numberFlag(flags, &f.Version, "version", 0, 1, math.MaxInt64, "show version `N` only")
	timeFlag(flags, &f.From, "from", "show changes at or after `TIME`, such as 2026-12-24T00:00:00Z")
	timeFlag(flags, &f.To, "to", "show changes before `TIME`")
	durationFlag(flags, &f.since, "since", 0, time.Millisecond,
		"show changes of the last `TIME`, such as 90m, 24h or 7d")
	flags.StringVar(&f.Actor, "actor", "", "show changes by actors whose names contain `TEXT`")
	flags.BoolVar(&f.canary, "canary", false, "show changes of the canary, too")
	flags.BoolVar(&f.json, "json", false, "print each change as one JSON object on one line")
	return c
}

// read completes the filter from the command line.
func (f *showFlags) read(args []string, changed func(flag string) bool, now time.Time) error {
	if len(args) > 0 {
		table, key, slash := strings.Cut(args[0], "/")
		f.Table, f.Key = events.Table(table), key
		if slash && key == "" {
			return fmt.Errorf("%q names no item: want TABLE or TABLE/KEY", args[0])
		}
	}
	switch {
	case changed("since") && (changed("from") || changed("to")):
		return errors.New("--since cannot be combined with --from or --to")
	case changed("since"):
		f.From = now.Add(-f.since)
	}
	return f.Filter.Check()
}

func (f *showFlags) run(c *cobra.Command, args []string, now time.Time) error {
	if err := f.check(c); err != nil {
		return err
	}
	if err := f.read(args, c.Flags().Changed, now); err != nil {
		return usage(err)
	}
	archive, err := f.openArchive(c.Context())
	if err != nil {
		return err
	}
	var wrote error
	n, skipped := 0, 0
	if !f.canary && f.Key != events.CanaryKey {
		f.Skip = func(table events.Table, key string) bool {
			canary := table == events.Plans && key == events.CanaryKey
			if canary {
				skipped++
			}
			return canary
		}
	}
	err = audit.Show(c.Context(), archive, f.Filter, func(s audit.Shown) bool {
		n++
		if f.json {
			wrote = printShownJSON(c.OutOrStdout(), &s)
		} else {
			wrote = printShown(c.OutOrStdout(), &s)
		}
		return wrote == nil
	})
	if err := errors.Join(err, wrote); err != nil {
		return err
	}
	if skipped > 0 {
		fmt.Fprintf(c.ErrOrStderr(), "sluice: changes of the canary that are left out: %d; --canary shows them\n",
			skipped)
	}
	if n == 0 {
		fmt.Fprintln(c.ErrOrStderr(), "sluice: the archive has no change that matches the arguments and flags")
	}
	return nil
}

// changeJSON is the output of --json for one change.
type changeJSON struct {
	Object  string          `json:"object"`
	Table   string          `json:"table,omitempty"`
	Key     string          `json:"key,omitempty"`
	Version int64           `json:"version,omitempty"`
	Time    string          `json:"time,omitempty"`
	Actor   string          `json:"actor,omitempty"`
	Reason  string          `json:"reason,omitempty"`
	Deleted bool            `json:"deleted"`
	Changes []audit.Field   `json:"changes"`
	Before  json.RawMessage `json:"before,omitempty"`
	After   json.RawMessage `json:"after,omitempty"`
	Hash    string          `json:"hash,omitempty"`
	Hidden  bool            `json:"hidden"`
	Covered bool            `json:"covered"`          // the object was overwritten with other content later
	Unread  bool            `json:"unread,omitempty"` // a version of the object cannot be read
	Error   string          `json:"error,omitempty"`
}

func printShownJSON(out io.Writer, s *audit.Shown) error {
	j := changeJSON{Object: s.Name, Hidden: s.Hidden, Covered: s.Others, Unread: s.Unread, Changes: []audit.Field{}}
	if r := s.Record; r != nil {
		j.Table, j.Key, j.Version, j.Time, j.Actor, j.Reason = string(r.Table), r.Key, r.ItemVersion, timeText(r.Time),
			r.Actor, r.Reason
		j.Deleted, j.Before, j.After, j.Hash = r.Deleted, r.Before, r.After, r.Hash
		j.Changes = append(j.Changes, audit.Diff(r.Before, r.After)...)
	}
	if s.Err != nil {
		j.Error = s.Err.Error()
	}
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	return e.Encode(j)
}

func printShown(out io.Writer, s *audit.Shown) error {
	var b strings.Builder
	r := s.Record
	if r == nil {
		fmt.Fprintf(&b, "%s\n", shown(s.Name))
	} else {
		did := "changed"
		switch {
		case r.Deleted:
			did = "deleted"
		case len(r.Before) == 0:
			did = "created"
		}
		fmt.Fprintf(&b, "%s  %s/%s  version %d  %s by %s\n", timeText(r.Time), r.Table, shown(r.Key),
			r.ItemVersion, did, shown(r.Actor))
		fmt.Fprintf(&b, "    because: %s\n", shown(r.Reason))
	}
	for _, note := range []struct {
		is   bool
		text string
	}{
		{r == nil, "the object holds no record of a change: "},
		{r != nil && s.Err != nil, "the record is not what its writer hashed: "},
		{s.Hidden, "hidden by a delete marker"},
		{s.Others, "the object was overwritten with other content later"},
		{s.Unread, "a version of the object cannot be read"},
	} {
		if note.is && strings.HasSuffix(note.text, ": ") {
			note.text += shown(fmt.Sprint(s.Err))
		}
		if note.is {
			fmt.Fprintf(&b, "    ! %s\n", note.text)
		}
	}
	if r != nil {
		for _, f := range audit.Diff(r.Before, r.After) {
			b.WriteString("    " + fieldText(f) + "\n")
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}

func fieldText(f audit.Field) string {
	switch {
	case f.Before == "":
		return fmt.Sprintf("+ %s: %s", f.Path, shown(f.After))
	case f.After == "":
		return fmt.Sprintf("- %s: %s", f.Path, shown(f.Before))
	}
	return fmt.Sprintf("~ %s: %s → %s", f.Path, shown(f.Before), shown(f.After))
}
