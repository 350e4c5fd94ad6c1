package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/sluicelimits/sluice/internal/audit"
)

const verifyLong = `Check the audit trail: every version of every object in the archive, the hash chain of every item, and the live tables
against both. Of each kind of break the first place is told, and how many there are.

  missing version     one is not there, and later ones are
  missing tail        the newest ones are not there, and the table has them
  wrong hash          the hash beside a record is not that of its fields, which are as they were written
  altered             a field of a record is not what its writer hashed, or the object holds no such record
  delete marker       a record is hidden: it is there, and whoever asks for it is told that it is not
  replaced            another content was put on top of a record, which is still there behind it
  broken link         a record does not follow the one before it: one of the two was made anew
  wrong head          the newest record is not what the live table has
  unreadable head     what the live table has was not written by Sluice
  unknown to the table  there are records that the live table does not have
  not an item's name  an object that no item can have
  not locked          an object without a retention, in a bucket with Object Lock

Changes may go on meanwhile. A version younger than --grace that is missing is waited for.

The exit status is 0 where everything holds, 1 where something does not or could not be checked, 2 for a wrong command line.`

func newAuditVerifyCommand() *cobra.Command {
	var s auditSource
	var asJSON bool
	var grace time.Duration
	var parallel int
	c := &cobra.Command{
		Use:   "verify",
		Short: "Check that no record of a change was altered, removed, replaced or hidden",
		Long:  verifyLong,
		Example: "  sluice audit verify --data ./sluice-data\n" +
			"  sluice audit verify --archive s3://acme-sluice-audit --tables sluice-\n" +
			"  sluice audit verify --archive s3://audit --tables dev- --aws-endpoint http://127.0.0.1:4566 --json",
		Args: usageArgs(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := s.check(c, true); err != nil {
				return err
			}
			if parallel < 1 || parallel > 1000 || grace < 0 || grace > time.Hour {
				return &usageError{c.CommandPath(), errors.New("--parallel is 1 to 1000, and --grace 0s to 1h")}
			}
			if grace == 0 {
				grace = -1 // none
			}
			report, err := s.verify(c, grace, parallel)
			if err != nil {
				return err
			}
			out := c.OutOrStdout()
			if asJSON {
				e := json.NewEncoder(out)
				e.SetIndent("", "  ")
				err = e.Encode(reportJSON(report))
			} else {
				err = printReport(out, report)
			}
			if err == nil && !report.OK() {
				err = errors.New("the audit trail does not hold")
			}
			return err
		},
	}
	f := c.Flags()
	s.flags(c, f)
	s.tableFlags(f)
	f.DurationVar(&grace, "grace", 30*time.Second, "how long after its write a version may be missing, `TIME`")
	f.IntVar(&parallel, "parallel", 32, "objects that are read at once, `N`")
	f.BoolVar(&asJSON, "json", false, "print one JSON document")
	return c
}

func (s *auditSource) verify(c *cobra.Command, grace time.Duration, parallel int) (*audit.Report, error) {
	archive, err := s.openArchive(c.Context())
	if err != nil {
		return nil, err
	}
	tables, done, err := s.openTables(c.Context())
	if err != nil {
		return nil, err
	}
	config := audit.VerifyConfig{Archive: archive, Tables: tables, Grace: grace, Parallel: parallel}
	if isTerminal(c.ErrOrStderr()) {
		config.Progress = func(objects, items int) { fmt.Fprintf(c.ErrOrStderr(), "\r%d objects, %d items", objects, items) }
		defer fmt.Fprint(c.ErrOrStderr(), "\r\x1b[K")
	}
	report, err := audit.Verify(c.Context(), config)
	return report, errors.Join(err, done())
}

// verified is the machine form of a report.
type verified struct {
	OK          bool        `json:"ok"`
	Objects     int64       `json:"objects"`
	Items       int64       `json:"items"`
	Bytes       int64       `json:"bytes"`
	From        string      `json:"from,omitempty"`
	To          string      `json:"to,omitempty"`
	Locks       bool        `json:"object_lock"`
	Modes       []string    `json:"lock_modes"`
	LockedUntil string      `json:"locked_until,omitempty"`
	Repeated    int64       `json:"repeated"`
	Rejected    int64       `json:"rejected"`
	Breaks      []breakJSON `json:"breaks"`
}

type breakJSON struct {
	Kind    string `json:"kind"`
	Table   string `json:"table,omitempty"`
	Key     string `json:"key,omitempty"`
	Version int64  `json:"version,omitempty"`
	Object  string `json:"object,omitempty"`
	Detail  string `json:"detail"`
	Count   int64  `json:"count"`
}

func reportJSON(r *audit.Report) verified {
	v := verified{
		OK: r.OK(), Objects: r.Objects, Items: r.Items, Bytes: r.Bytes, From: timeText(r.From), To: timeText(r.To), Locks: r.Locks,
		Modes: append([]string{}, r.Modes...), LockedUntil: timeText(r.LockedUntil), Repeated: r.Repeated, Rejected: r.Rejected, Breaks: []breakJSON{},
	}
	for _, f := range r.Findings {
		v.Breaks = append(v.Breaks, breakJSON{string(f.Kind), string(f.Table), f.Key, f.Version, f.Object, f.Detail, f.Count})
	}
	return v
}

func timeText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05.999999Z")
}

func printReport(out io.Writer, r *audit.Report) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "checked\t%s of %s, %s\n", counted(r.Objects, "version"), counted(r.Items, "item"), counted(r.Bytes, "byte"))
	if !r.From.IsZero() {
		fmt.Fprintf(w, "changes\t%s to %s\n", timeText(r.From), timeText(r.To))
	}
	switch {
	case !r.Locks:
		fmt.Fprintf(w, "locks\tnone: whoever may write this archive may rewrite it; what they cannot forge is the live tables and the chain\n")
	case len(r.Modes) > 0:
		fmt.Fprintf(w, "locks\t%s, the first until %s\n", strings.Join(r.Modes, " and "), timeText(r.LockedUntil))
	}
	if r.Repeated > 0 {
		fmt.Fprintf(w, "repeated\t%s put on top of an equal one\n", counted(r.Repeated, "object"))
	}
	if r.Rejected > 0 {
		fmt.Fprintf(w, "rejected\t%s that could not be archived: see %s in the archive\n", counted(r.Rejected, "record"), audit.RejectedPrefix)
	}
	if r.OK() {
		fmt.Fprintf(w, "breaks\tnone\n")
		return w.Flush()
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nBREAK\tCOUNT\tFIRST AT\tWHAT\n")
	for _, f := range r.Findings {
		place := fmt.Sprintf("%s/%s version %d", f.Table, plainText(f.Key), f.Version)
		if f.Version == 0 {
			place = "-"
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", f.Kind, f.Count, place, plainText(f.Detail))
	}
	return w.Flush()
}

func counted(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// plainText is a text from the archive as it is, or quoted where it could do something to a terminal.
func plainText(s string) string {
	if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}
