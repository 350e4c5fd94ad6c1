package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicelimits/sluice/internal/control/audit"
)

const verifyLong = `Check the audit trail: every version of every object in the archive, the hash
chain of every item, and the live tables against both. For each kind of break, the command prints
how many there are and where the first one is, and the exit status is 1. Notices are not breaks: they
say what could not be checked. The tables may be changed while the command runs.`

func newAuditVerifyCommand() *cobra.Command {
	var s auditSource
	var anchors anchorFlags
	var asJSON bool
	var grace, late time.Duration
	var locks []string
	c := &cobra.Command{
		Use:   "verify",
		Short: "Check that no record of a change was altered, removed, replaced or hidden",
		Long:  verifyLong,
		Example: "  sluice audit verify --data ./sluice-data\n" +
			"  sluice audit verify --archive s3://acme-sluice-audit --tables sluice-",
		RunE: func(c *cobra.Command, _ []string) error {
			if err := s.check(c); err != nil {
				return err
			}
			earlier, err := readEarlierLocks(locks)
			if err != nil {
				return usage(err)
			}
			if grace == 0 {
				grace = -1 // VerifyConfig reads 0 as its default, and a negative time as none
			}
			config := audit.VerifyConfig{Grace: grace, Late: late, EarlierLocks: earlier}
			if err := anchors.read(c.Context(), &config); err != nil {
				return err
			}
			report, err := s.verify(c, config)
			if err != nil {
				return err
			}
			out := c.OutOrStdout()
			if asJSON {
				err = writeJSON(out, verified{report.OK(), knownAnchor(report), report})
			} else {
				err = printReport(out, report)
			}
			if err == nil && !report.OK() {
				err = errors.New("the audit trail has breaks: docs/audit.md says what each kind means")
			}
			return err
		},
	}
	f := c.Flags()
	s.flags(c, f)
	f.StringVar(&s.tables, "tables", "", "`PREFIX` of the names of the control tables in DynamoDB (default: those of "+
		"--data)")
	anchors.flags(f)
	durationFlag(f, &grace, "grace", 30*time.Second, 0, "longest `TIME` between a write and its record in the archive")
	durationFlag(f, &late, "late", audit.MostDelay, time.Millisecond,
		"longest `TIME` after a change for the archiver to put its object")
	f.StringArrayVar(&locks, "earlier-lock", nil,
		"the bucket's default lock until the end of a day, `DAY=MODE:DAYS`; may be repeated")
	f.BoolVar(&asJSON, "json", false, "print one JSON document")
	return c
}

// readEarlierLocks parses the values of --earlier-lock. Such a lock was the default until the end of its day, in UTC.
func readEarlierLocks(given []string) (all []audit.EarlierLock, err error) {
	for _, text := range given {
		day, lock, _ := strings.Cut(text, "=")
		mode, days, _ := strings.Cut(lock, ":")
		until, noDay := time.Parse(time.DateOnly, day)
		n, noNumber := strconv.Atoi(days)
		if noDay != nil || noNumber != nil || n < 1 || n > 36500 || mode != "GOVERNANCE" && mode != "COMPLIANCE" {
			return nil, fmt.Errorf("--earlier-lock %q: want DAY=MODE:DAYS, such as 2027-03-01=GOVERNANCE:365", text)
		}
		all = append(all, audit.EarlierLock{
			Lock:  audit.Lock{Enabled: true, Mode: mode, Period: time.Duration(n) * 24 * time.Hour},
			Until: until.AddDate(0, 0, 1),
		})
	}
	return all, nil
}

// verify opens the archive and the tables, and verifies them.
func (s *auditSource) verify(c *cobra.Command, config audit.VerifyConfig) (*audit.Report, error) {
	archive, err := s.openArchive(c.Context())
	if err != nil {
		return nil, err
	}
	tables, done, err := s.openTables(c.Context())
	if err != nil {
		return nil, err
	}
	config.Archive, config.Tables = archive, tables
	if isTerminal(c.ErrOrStderr()) {
		config.Progress = func(objects, items int) {
			fmt.Fprintf(c.ErrOrStderr(), "\r%d objects, %d items", objects, items)
		}
		defer fmt.Fprint(c.ErrOrStderr(), "\r\x1b[K")
	}
	report, err := audit.Verify(c.Context(), config)
	return report, errors.Join(err, done())
}

// verified is the output of --json.
type verified struct {
	OK         bool   `json:"ok"`
	LastAnchor string `json:"last_anchor,omitempty"` // DAY=HASH, for --known-anchor
	*audit.Report
}

func timeText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05.999999Z")
}

func printReport(out io.Writer, r *audit.Report) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "checked\t%s of %s, %s\n", count(r.Objects, "version"), count(r.Items, "item"),
		count(r.Bytes, "byte"))
	if !r.From.IsZero() {
		fmt.Fprintf(w, "changes\t%s to %s\n", timeText(r.From), timeText(r.To))
	}
	switch {
	case !r.Locks:
		fmt.Fprintf(w, "locks\tnone: whoever may write this archive may also rewrite it; only the live tables and "+
			"the hash chain then show it\n")
	case len(r.Modes) > 0:
		fmt.Fprintf(w, "locks\t%s; the first ends %s\n", strings.Join(r.Modes, " and "), timeText(r.LockedUntil))
	}
	if r.LastAnchor != "" {
		fmt.Fprintf(w, "anchors\t%d, newest valid one: %s\n", r.Anchors, knownAnchor(r))
	}
	if r.Repeated > 0 {
		fmt.Fprintf(w, "repeated\t%s put twice with equal content\n", count(r.Repeated, "object"))
	}
	if r.Rejected > 0 {
		fmt.Fprintf(w, "rejected\t%s that could not be archived: see %s in the archive\n",
			count(r.Rejected, "record"), audit.RejectedPrefix)
	}
	if r.OK() {
		fmt.Fprintf(w, "breaks\tnone\n")
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := printFindings(w, "NOTICE", r.Notices); err != nil {
		return err
	}
	if r.OK() {
		_, err := fmt.Fprintln(out, "\nOK: the audit trail has no breaks.")
		return err
	}
	return printFindings(w, "BREAK", r.Findings)
}

// printFindings prints a table of findings below a heading, or nothing if there are no findings.
func printFindings(w *tabwriter.Writer, heading string, all []audit.Finding) error {
	if len(all) == 0 {
		return nil
	}
	fmt.Fprintf(w, "\n%s\tCOUNT\tFIRST AT\tWHAT\n", heading)
	for _, f := range all {
		place := fmt.Sprintf("%s/%s version %d", f.Table, shown(f.Key), f.Version)
		if f.Version == 0 {
			place = "-"
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", f.Kind, f.Count, place, shown(f.Detail))
	}
	return w.Flush()
}
