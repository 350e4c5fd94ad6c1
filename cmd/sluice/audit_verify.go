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

	"github.com/sluicelimits/sluice/internal/control/audit"
)

const verifyLong = `Check the audit trail: every version of every object in the archive, the hash chain of every item, and the live tables
against both. Of each kind of break the first place is told, and how many there are.

  missing version     one is not there, and later ones are
  missing tail        the newest ones are not there, and the table has them
  wrong hash          the hash beside a record is not that of its fields, which are as they were written
  altered             a field of a record is not what its writer hashed, or the object holds no such record
  unreadable object   an object cannot be read: its class of storage has to be restored, or its key is not the archive's
  delete marker       a record is hidden: it is there, and whoever asks for it is told that it is not
  replaced            another content was put on top of a record, which is still there behind it
  broken link         a record does not follow the one before it: one of the two was made anew
  wrong head          the newest record is not what the live table has
  unreadable head     what the live table has was not written by Sluice
  unknown to the table  there are records that the live table does not have
  not an item's name  an object that no item can have
  not locked          an object without a retention, in a bucket with Object Lock
  weak lock           an object's lock ends earlier than the bucket's default would have it, or has another mode
  no default lock     the bucket has Object Lock and no default retention, so new objects are not locked
  archived late       an object was put later than --late after its change, so the archiver cannot have put it
  archived before its change  an object was put more than 5 minutes before the time that its record says
  not as anchored     an anchor has another version of an item than the archive: history was rewritten, or removed
  put after its anchor  a record was there when an anchor was made, was removed, and was put again
  missing anchor      an anchor is not there that a later one names, or the newest that holds is older than yesterday
  days without an anchor  none was made, or all were removed; name days of which you know why with --explained
  broken chain of anchors  an anchor is not the one that the next one names, or that --known-anchor names
  bad signature       an anchor was signed by none of the keys
  unreadable anchor   an anchor or its list of heads is damaged, or of another version of Sluice, or something else took
                      its name
  anchor of a later day  an object was put under the name of an anchor before the day of that anchor

Anchors are what the anchor function signs once a day: the newest version of every item. --anchor-key is the public key.
It is best kept in a file outside of the account, since who can exchange the key in KMS can exchange anchors:

  aws kms get-public-key --key-id KEY --output text --query PublicKey > anchors.pub

The hash of the newest anchor that holds is printed. Keep it, too: --known-anchor then finds anchors begun anew.

Notices break nothing. They say what could not be checked, and which objects the archiver put more than an hour after
their change. The times at which objects were put are S3's. Those of files can be set by anybody and are not compared.

The lock of each object is compared with the bucket's default of today. If the default was another one earlier, say until
when, and what it was: --earlier-lock 2027-03-01=GOVERNANCE:365.

Changes may go on meanwhile. A version younger than --grace that is missing is waited for.

The exit status is 0 where everything holds, 1 where something does not or could not be checked, 2 for a wrong command line.`

func newAuditVerifyCommand() *cobra.Command {
	var s auditSource
	var anchors anchorFlags
	var asJSON bool
	var grace, late time.Duration
	var parallel int
	var locks []string
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
			if late <= 0 {
				return &usageError{c.CommandPath(), errors.New("--late is more than 0s")}
			}
			earlier, err := readEarlierLocks(locks)
			if err != nil {
				return &usageError{c.CommandPath(), err}
			}
			config := audit.VerifyConfig{Grace: grace, Late: late, Parallel: parallel, EarlierLocks: earlier}
			if err := anchors.read(c, &s, &config); err != nil {
				return err
			}
			report, err := s.verify(c, config)
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
	anchors.flags(f)
	f.DurationVar(&grace, "grace", 30*time.Second, "how long after its write a version may be missing, `TIME`")
	f.DurationVar(&late, "late", audit.MostDelay, "how long after its change an object may have been put, `TIME`")
	f.StringArrayVar(&locks, "earlier-lock", nil,
		"what the bucket's default lock was until a day, `DAY=MODE:DAYS`; as often as one likes")
	f.IntVar(&parallel, "parallel", 32, "objects that are read at once, `N`")
	f.BoolVar(&asJSON, "json", false, "print one JSON document")
	return c
}

// readEarlierLocks reads the values of --earlier-lock. A day is over at its end, in UTC.
func readEarlierLocks(given []string) (all []audit.EarlierLock, err error) {
	for _, text := range given {
		day, lock, _ := strings.Cut(text, "=")
		mode, days, _ := strings.Cut(lock, ":")
		until, noDay := time.Parse(time.DateOnly, day)
		n, noNumber := strconv.Atoi(days)
		if noDay != nil || noNumber != nil || n < 1 || n > 36500 || mode != "GOVERNANCE" && mode != "COMPLIANCE" {
			return nil, fmt.Errorf("--earlier-lock %q: want DAY=MODE:DAYS, as 2027-03-01=GOVERNANCE:365", text)
		}
		all = append(all, audit.EarlierLock{
			Lock:  audit.Lock{Enabled: true, Mode: mode, Period: time.Duration(n) * 24 * time.Hour},
			Until: until.AddDate(0, 0, 1),
		})
	}
	return all, nil
}

// verify opens the archive and the tables, and verifies them as config says.
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
			fmt.Fprintf(c.ErrOrStderr(), "\r%d objects, %d items", objects,
				items)
		}
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
	Anchors     int64       `json:"anchors"`
	LastAnchor  string      `json:"last_anchor,omitempty"` // DAY=HASH, for --known-anchor
	Locks       bool        `json:"object_lock"`
	Modes       []string    `json:"lock_modes"`
	LockedUntil string      `json:"locked_until,omitempty"`
	Repeated    int64       `json:"repeated"`
	Rejected    int64       `json:"rejected"`
	Breaks      []breakJSON `json:"breaks"`
	Notices     []breakJSON `json:"notices"`
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
		OK: r.OK(), Objects: r.Objects, Items: r.Items, Bytes: r.Bytes, From: timeText(r.From), To: timeText(r.To),
		Locks: r.Locks,
		Modes: append([]string{}, r.Modes...), LockedUntil: timeText(r.LockedUntil), Repeated: r.Repeated,
		Rejected: r.Rejected,
		Anchors:  r.Anchors, LastAnchor: knownAnchor(r),
		Breaks: findingsJSON(r.Findings), Notices: findingsJSON(r.Notices),
	}
	return v
}

func findingsJSON(findings []audit.Finding) []breakJSON {
	all := []breakJSON{}
	for _, f := range findings {
		all = append(all, breakJSON{string(f.Kind), string(f.Table), f.Key, f.Version, f.Object, f.Detail, f.Count})
	}
	return all
}

func timeText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05.999999Z")
}

func printReport(out io.Writer, r *audit.Report) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "checked\t%s of %s, %s\n", counted(r.Objects, "version"), counted(r.Items, "item"),
		counted(r.Bytes, "byte"))
	if !r.From.IsZero() {
		fmt.Fprintf(w, "changes\t%s to %s\n", timeText(r.From), timeText(r.To))
	}
	switch {
	case !r.Locks:
		fmt.Fprintf(w, "locks\tnone: whoever may write this archive may rewrite it; what they cannot forge is the "+
			"live tables and the chain\n")
	case len(r.Modes) > 0:
		fmt.Fprintf(w, "locks\t%s, the first until %s\n", strings.Join(r.Modes, " and "), timeText(r.LockedUntil))
	}
	if r.LastAnchor != "" {
		fmt.Fprintf(w, "anchors\t%d, the newest that holds %s\n", r.Anchors, knownAnchor(r))
	}
	if r.Repeated > 0 {
		fmt.Fprintf(w, "repeated\t%s put on top of an equal one\n", counted(r.Repeated, "object"))
	}
	if r.Rejected > 0 {
		fmt.Fprintf(w, "rejected\t%s that could not be archived: see %s in the archive\n",
			counted(r.Rejected, "record"), audit.RejectedPrefix)
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
	return printFindings(w, "BREAK", r.Findings)
}

// printFindings prints a table of findings under a heading; without any it prints nothing.
func printFindings(w *tabwriter.Writer, heading string, all []audit.Finding) error {
	if len(all) == 0 {
		return nil
	}
	fmt.Fprintf(w, "\n%s\tCOUNT\tFIRST AT\tWHAT\n", heading)
	for _, f := range all {
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
