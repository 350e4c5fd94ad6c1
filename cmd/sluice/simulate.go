package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/sluicelimits/sluice/internal/dev/simulate"
)

const simulateLong = `Replay access logs through the limits of a plans file, by the times in the
logs, and report what would have been allowed and denied: by limit, by tenant, by address, and over
time. Nothing is sent anywhere. Logs are in the Common or Combined Log Format, plain or gzip; "-" is
standard input.

--tenant-from says where the tenant of a line is found:

  user           the user that the server authenticated: the third field of a line
  address        each client address is a tenant
  path:REGEX     a group of a regular expression, matched with the path: the group named tenant, or
                 else the first group
  target:REGEX   like path:, matched with path and query
  referer:REGEX  like path:, matched with the referer
  agent:REGEX    like path:, matched with the user agent
  fixed:NAME     one tenant for all requests
  none           no line has a tenant

Without --tenant-from, it is user if the plans file has tenants, and none otherwise. A denial is
counted for the limit that bound. ALLOWED counts requests that all limits admitted; APPLIED also counts
those that were denied or refused for another reason. Up to some 300,000 lines may be in any order. See
docs/try.md.`

const simulateExample = `  sluice simulate --plans plans.yaml --log access.log.1.gz --log access.log --html report.html
  sluice simulate --plans plans.yaml --log access.log --tenant-from 'path:^/orgs/([^/]+)/' --default-plan free`

// simulateFlags is the command line of simulate.
type simulateFlags struct {
	plans, logs             []string
	tenantFrom, defaultPlan string
	json                    bool
	html                    string
	top                     int
	counterMiB              int64
}

func newSimulateCommand() *cobra.Command {
	var f simulateFlags
	c := &cobra.Command{
		Use:     "simulate --plans FILE --log FILE [LOG...]",
		Short:   "Replay access logs and report what the limits would have done",
		Long:    simulateLong,
		Example: simulateExample,
		Args:    cobra.ArbitraryArgs,
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault // logs may have any extension
		},
		RunE: func(c *cobra.Command, more []string) error { return f.run(c, more) },
	}
	flags := c.Flags()
	flags.StringArrayVar(&f.plans, "plans", nil, "plans `FILE`; may be repeated: all files are one configuration")
	flags.StringArrayVar(&f.logs, "log", nil, "access log `FILE`, plain or gzip, or - for standard input; may be "+
		"repeated")
	flags.StringVar(&f.tenantFrom, "tenant-from", "", "where the tenant of a line is found: `HOW` is listed above")
	flags.StringVar(&f.defaultPlan, "default-plan", "", "`PLAN` of tenants that the plans file does not name")
	flags.BoolVar(&f.json, "json", false, "write the report to standard output as JSON")
	flags.StringVar(&f.html, "html", "", "also write the report, with plots, as an HTML page to `FILE`")
	flags.IntVar(&f.top, "top", 20, "list up to `N` tenants, and as many addresses")
	flags.Int64Var(&f.counterMiB, "counter-memory", simulate.DefaultStoreBytes>>20,
		"most memory for counters, in `MIB`")
	_ = c.MarkFlagFilename("plans", "yaml", "yml", "json") // fails only for a flag that does not exist
	_ = c.MarkFlagFilename("html", "html")
	_ = c.RegisterFlagCompletionFunc("tenant-from", cobra.FixedCompletions(
		[]string{"user", "address", "path:", "target:", "referer:", "agent:", "fixed:", "none"},
		cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace))
	return c
}

func (f *simulateFlags) run(c *cobra.Command, args []string) error {
	f.logs = append(f.logs, args...)
	o, err := f.options()
	if err != nil {
		return &usageError{c.CommandPath(), err}
	}
	if err := f.keepInputs(); err != nil {
		return &usageError{c.CommandPath(), err}
	}
	if o.Config, err = loadPlans(c, f.plans); err != nil {
		return inFilesOf("--plans", err)
	}
	done := showProgress(&o, f.logs, c.ErrOrStderr())
	report, err := simulate.Run(c.Context(), o)
	done()
	switch {
	case c.Context().Err() != nil:
		return errors.New("interrupted")
	case errors.Is(err, simulate.ErrUnknownPlan), errors.Is(err, simulate.ErrUnknownTenant):
		return &usageError{c.CommandPath(), err}
	case err != nil:
		return err
	}
	if err := report.Unusable(); err != nil {
		return err
	}
	report.Plans, report.Command, report.Made = f.plans, commandLine(c, args), time.Now().UTC()
	if err := f.write(c.OutOrStdout(), report); err != nil {
		return err
	}
	if len(report.Incomplete) > 0 {
		return fmt.Errorf("the report is incomplete, because logs could not be read to their ends: %s",
			strings.Join(report.Incomplete, "; "))
	}
	return nil
}

// commandLine returns the command line, as it can be given to a shell again. Its flags are in the order of their names.
func commandLine(c *cobra.Command, args []string) string {
	words := strings.Fields(c.CommandPath())
	c.Flags().Visit(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, v := range values {
			words = append(words, "--"+f.Name+"="+v)
		}
	})
	words = append(words, args...)
	for i, w := range words {
		if strings.Trim(w, plainInShell) != "" {
			words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

// plainInShell are characters that no shell takes for anything else.
const plainInShell = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./,:"

// options checks the flags and makes the options of the simulation. It opens no file.
func (f *simulateFlags) options() (simulate.Options, error) {
	o := simulate.Options{DefaultPlan: f.defaultPlan, Top: f.top, StoreBytes: f.counterMiB << 20}
	switch {
	case len(f.plans) == 0:
		return o, errors.New("--plans is missing: name the file with the limits to try")
	case len(f.logs) == 0:
		return o, errors.New("--log is missing: name the access log to replay")
	case f.top < 1 || f.top > 100_000:
		return o, fmt.Errorf("--top %d is outside 1..100000", f.top)
	case f.counterMiB < 1 || f.counterMiB > 1<<20:
		return o, fmt.Errorf("--counter-memory %d is outside 1..%d", f.counterMiB, 1<<20)
	}
	if f.tenantFrom != "" {
		from, err := simulate.ParseTenantFrom(f.tenantFrom)
		if err != nil {
			return o, fmt.Errorf("--tenant-from: %w", err)
		}
		o.TenantFrom = &from
	}
	stdin := 0
	for _, name := range f.logs {
		if name == "-" {
			stdin++
		}
		o.Logs = append(o.Logs, simulate.FileLog(name))
	}
	if stdin > 1 {
		return o, errors.New("--log - is given twice, and standard input can only be read once")
	}
	return o, nil
}

// keepInputs returns an error if --html would overwrite one of the input files.
func (f *simulateFlags) keepInputs() error {
	report, err := os.Stat(f.html)
	if f.html == "" || err != nil {
		return nil //nolint:nilerr // a file that does not exist is no input
	}
	for _, name := range append(append([]string(nil), f.plans...), f.logs...) {
		if input, err := os.Stat(name); err == nil && os.SameFile(input, report) {
			return fmt.Errorf("--html %s would overwrite the input %s; choose another name", f.html, name)
		}
	}
	return nil
}

// writePage writes a page to a file.
func writePage(file string, write func(io.Writer) error) error {
	var page bytes.Buffer
	if err := write(&page); err != nil {
		return err
	}
	err := os.WriteFile(file, page.Bytes(), 0o600) // it names tenants, addresses and paths
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// write writes the report to standard output, and to the file of --html.
func (f *simulateFlags) write(out io.Writer, report *simulate.Report) error {
	if f.html != "" {
		if err := writePage(f.html, report.WriteHTML); err != nil {
			return err
		}
	}
	if !f.json {
		return report.WriteText(out)
	}
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	if err := e.Encode(report); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// showProgress draws a progress bar if out is a terminal. The caller calls done at the end.
func showProgress(o *simulate.Options, logs []string, out io.Writer) (done func()) {
	f, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return func() {}
	}
	bar := newProgressBar(out, totalBytes(logs))
	o.OnRead = func(n int) { _ = bar.Add(n) } // a bar that cannot be drawn does no harm
	return func() { _ = bar.Finish() }
}

// newProgressBar draws a bar for so many bytes; -1 if their number is not known. The bar is drawn when it is made: its
// rate, which it measures from then on, would otherwise begin with terabytes per second. Only calls draw it: with an
// interval for its spinner, a goroutine would draw it too, and write to out after the last call.
func newProgressBar(out io.Writer, total int64) *progressbar.ProgressBar {
	return progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(out), progressbar.OptionSetDescription("replaying"),
		progressbar.OptionShowBytes(true), progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionSetSpinnerChangeInterval(0),
		progressbar.OptionClearOnFinish(), progressbar.OptionFullWidth(), progressbar.OptionSetRenderBlankState(true))
}

// totalBytes returns the size of the logs; -1 if the size of one is not known.
func totalBytes(logs []string) (total int64) {
	for _, name := range logs {
		info, err := os.Stat(name)
		if name == "-" || err != nil || !info.Mode().IsRegular() {
			return -1
		}
		total += info.Size()
	}
	return total
}
