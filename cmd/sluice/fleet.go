package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	fleetsim "github.com/sluicelimits/sluice/internal/dev/fleet"
	"github.com/sluicelimits/sluice/internal/dev/simulate"
	"github.com/sluicelimits/sluice/internal/plan"
)

const fleetLong = `Simulate many processes of Sluice in virtual time, and report what they decide: the real limiter with
its leases, circuit breakers and fallback, over a simulated Redis or DynamoDB; with several cells also their
shares and configuration. Nothing is sent anywhere. An independent judge counts what was admitted above each limit. One
seed is one run: the report is the same byte for byte.

A scenario says how many processes, tenants and requests there are, and what goes wrong. --list names those that come
with Sluice; --script reads one from a YAML file (docs/scale.md has the keys). With --plans, the tenants of the plans
file are simulated: they ask with a GET of --path, and the first tenant of the file asks most.

With --log, an access log says who asks when, in place of the scenario: each line makes as many requests as --scale
says, at random times within the second of the line. The tenants of the lines are found as by sluice simulate, with
--tenant-from and --default-plan; every request is a GET of --path. The run begins with the first second of the log.

--explore N runs the seeds from --seed on, each with a small scenario of random faults, until one breaks a bound or N
have been run. A seed that breaks a bound is printed, and the exit code is 1.

A script can have bounds, such as of the units above a limit, or of p99. The exit code is 1, and the error names the
bound, if a run breaks one of them, or one that --explore looks for.

Ctrl-C ends the simulation; the report is then about the time until then, and says so. The exit code is 1.`

const fleetExample = `  sluice fleet --list
  sluice fleet --scenario million
  sluice fleet --scenario redis-failover --seed 7 --json
  sluice fleet --scenario redis-failover --html report.html
  sluice fleet --script mine.yaml --plans plans.yaml --path /v1/orders
  sluice fleet --script mine.yaml --plans plans.yaml --log access.log --scale 1000
  sluice fleet --explore 10000`

type fleetFlags struct {
	scenario, script, costs, path string
	plans, logs                   []string
	tenantFrom, defaultPlan       string
	seed                          uint64
	scale, explore, maxCounters   int
	json, list                    bool
	html                          string
}

func newFleetCommand() *cobra.Command {
	var f fleetFlags
	c := &cobra.Command{
		Use:     "fleet --scenario NAME | --script FILE",
		Short:   "Simulate many processes, and what goes wrong with them, in virtual time",
		Long:    fleetLong,
		Example: fleetExample,
		Args:    usageArgs(cobra.NoArgs),
		RunE:    func(c *cobra.Command, _ []string) error { return f.run(c) },
	}
	flags := c.Flags()
	flags.StringVar(&f.scenario, "scenario", "", "a scenario that comes with Sluice, by its `NAME`")
	flags.StringVar(&f.script, "script", "", "a scenario of your own: a YAML `FILE`")
	flags.StringArrayVar(&f.plans, "plans", nil, "plans `FILE` whose tenants ask (may be given again)")
	flags.StringVar(&f.path, "path", "/", "`PATH` of the requests, with --plans")
	flags.StringArrayVar(&f.logs, "log", nil, "access log `FILE`, plain or gzip, that says who asks when; with "+
		"--plans (may be given again)")
	flags.IntVar(&f.scale, "scale", 1, "`N` requests for each line of the access log")
	flags.StringVar(&f.tenantFrom, "tenant-from", "", "where the tenant of a line is found: `HOW`, as sluice simulate "+
		"lists it")
	flags.StringVar(&f.defaultPlan, "default-plan", "", "`PLAN` of tenants of the log that the plans file "+
		"does not name")
	flags.Uint64Var(&f.seed, "seed", 1, "`NUMBER` that the run depends on")
	flags.StringVar(&f.costs, "costs", "", "`FILE` of service times that make calibrate wrote")
	flags.IntVar(&f.explore, "explore", 0, "run `SEEDS` of random faults until one breaks a bound")
	flags.IntVar(&f.maxCounters, "max-counters", fleetsim.DefaultMaxCounters,
		"`COUNTERS` that all processes hold together at most, about 600 bytes each")
	flags.StringVar(&f.html, "html", "", "also write the report, with plots, as an HTML page to `FILE`")
	flags.BoolVar(&f.json, "json", false, "write the report as JSON")
	flags.BoolVar(&f.list, "list", false, "list the scenarios that come with Sluice")
	_ = c.MarkFlagFilename("plans", "yaml", "yml", "json") // fails only for a flag that does not exist
	_ = c.MarkFlagFilename("script", "yaml", "yml", "json")
	_ = c.MarkFlagFilename("costs", "json")
	_ = c.MarkFlagFilename("html", "html")
	names := make([]string, 0, len(fleetsim.Named()))
	for _, s := range fleetsim.Named() {
		names = append(names, s.Name)
	}
	_ = c.RegisterFlagCompletionFunc("scenario", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp))
	return c
}

func (f *fleetFlags) run(c *cobra.Command) error {
	if f.list {
		return listScenarios(c.OutOrStdout())
	}
	o, err := f.options(c)
	if err != nil {
		return err
	}
	defer fleetsim.TuneCollector(f.maxCounters)()
	if f.explore > 0 {
		return f.exploreSeeds(c, &o)
	}
	var done func()
	o.Progress, done = showFleetProgress(c.ErrOrStderr(), "simulated")
	began := time.Now()
	report, err := fleetsim.Run(c.Context(), o)
	done()
	if err != nil {
		return err
	}
	if f.html != "" {
		if err := writePage(f.html, report.WriteHTML); err != nil {
			return err
		}
	}
	if !f.json {
		fmt.Fprintf(c.ErrOrStderr(), "simulated in %s\n", time.Since(began).Round(100*time.Millisecond))
		if err := report.WriteText(c.OutOrStdout()); err != nil {
			return err
		}
	} else if err := writeJSON(c.OutOrStdout(), report); err != nil {
		return err
	}
	switch {
	case report.Partial:
		return errors.New("interrupted: the report is about the time until then")
	case len(report.Broken) > 0:
		return fmt.Errorf("the run broke a bound: %s", strings.Join(report.Broken, "; "))
	}
	return nil
}

// check returns an error if the flags do not fit together.
func (f *fleetFlags) check(c *cobra.Command) error {
	usage := func(format string, args ...any) error {
		return &usageError{c.CommandPath(), fmt.Errorf(format, args...)}
	}
	chosen := 0
	for _, is := range []bool{f.scenario != "", f.script != "", f.explore != 0} {
		if is {
			chosen++
		}
	}
	switch {
	case chosen != 1:
		return usage("give one of --scenario, --script and --explore; --list names the scenarios")
	case f.explore != 0 && f.html != "":
		return usage("--html is for a run: --explore has no report")
	case f.explore < 0:
		return usage("--explore %d is below zero", f.explore)
	case f.maxCounters < 1:
		return usage("--max-counters %d is below 1", f.maxCounters)
	case f.explore != 0 && len(f.plans)+len(f.logs) > 0:
		return usage("--plans and --log are for a run: --explore makes its own tenants")
	case len(f.logs) > 0 && len(f.plans) == 0:
		return usage("--log needs --plans, with the limits of its tenants")
	}
	for _, flag := range []string{"scale", "tenant-from", "default-plan"} {
		if c.Flags().Changed(flag) && len(f.logs) == 0 {
			return usage("--%s is for --log", flag)
		}
	}
	return nil
}

// options checks the command line, and reads the files that it names.
func (f *fleetFlags) options(c *cobra.Command) (o fleetsim.Options, err error) {
	if err := f.check(c); err != nil {
		return o, err
	}
	o = fleetsim.Options{Seed: f.seed, Path: f.path, MaxCounters: f.maxCounters}
	if f.costs != "" {
		data, err := os.ReadFile(f.costs)
		if err != nil {
			return o, fmt.Errorf("read the service times: %w", err)
		}
		if o.Costs, err = fleetsim.ReadCosts(f.costs, data); err != nil {
			return o, err
		}
	}
	if len(f.plans) > 0 {
		if o.Config, o.Documents, err = readTenants(c, f.plans); err != nil {
			return o, inFilesOf("--plans", err)
		}
	}
	if len(f.logs) > 0 {
		if o.Log, err = f.readLogs(c, o.Config); err != nil {
			return o, err
		}
	}
	o.Scenario, err = f.chosenScenario(c, o.Config != nil, o.Log != nil)
	return o, err
}

// chosenScenario returns the scenario that the command line names or whose script it names, or nil for --explore. plans
// and log say which files are given beside the scenario.
func (f *fleetFlags) chosenScenario(c *cobra.Command, plans, log bool) (*fleetsim.Scenario, error) {
	switch {
	case f.script != "":
		sources, err := configyaml.ReadFiles(c.InOrStdin(), f.script)
		if err != nil {
			return nil, inFilesOf("--script", err)
		}
		return fleetsim.ReadScript(sources[0].Name, sources[0].Data, plans, log)
	case f.scenario != "":
		for _, s := range fleetsim.Named() {
			if s.Name == f.scenario {
				s.ReplaceTraffic(plans, log)
				return &s, nil
			}
		}
		return nil, &usageError{c.CommandPath(), fmt.Errorf("there is no scenario %q; --list names them", f.scenario)}
	}
	return nil, nil
}

// readLogs reads the access logs.
func (f *fleetFlags) readLogs(c *cobra.Command, config *plan.Config) (*fleetsim.Log, error) {
	o := simulate.Options{Config: config, DefaultPlan: f.defaultPlan}
	if f.tenantFrom != "" {
		from, err := simulate.ParseTenantFrom(f.tenantFrom)
		if err != nil {
			return nil, &usageError{c.CommandPath(), fmt.Errorf("--tenant-from: %w", err)}
		}
		o.TenantFrom = &from
	}
	for _, name := range f.logs {
		o.Logs = append(o.Logs, simulate.FileLog(name))
	}
	log, err := fleetsim.ReadLog(c.Context(), o, f.scale)
	if errors.Is(err, simulate.ErrUnknownPlan) || errors.Is(err, simulate.ErrUnknownTenant) {
		return nil, &usageError{c.CommandPath(), err}
	}
	return log, err
}

// readTenants reads plans files, as a whole and as the documents that cells have.
func readTenants(c *cobra.Command, files []string) (*plan.Config, []plan.Document, error) {
	sources, err := configyaml.ReadFiles(c.InOrStdin(), files...)
	if err != nil {
		return nil, nil, err
	}
	config, err := plan.Parse(sources...)
	if err != nil {
		return nil, nil, err
	}
	documents, err := plan.Split(time.Now(), sources...)
	return config, documents, err
}

func (f *fleetFlags) exploreSeeds(c *cobra.Command, o *fleetsim.Options) error {
	progress, done := showFleetProgress(c.ErrOrStderr(), "seeds run")
	found, err := fleetsim.Explore(c.Context(), o.Seed, f.explore, o.Costs, progress)
	done()
	if err != nil {
		return err
	}
	if found.Broken == "" {
		fmt.Fprintf(c.OutOrStdout(), "%d seeds from %d on broke no bound: %d decisions\n", found.Runs, o.Seed,
			found.Decisions)
		if c.Context().Err() != nil {
			return errors.New("interrupted before all seeds were run")
		}
		return nil
	}
	fmt.Fprintf(c.OutOrStdout(), "seed %d breaks a bound: %s\nIts scenario:\n%s\n", found.Seed, found.Broken,
		found.Scenario)
	return fmt.Errorf("seed %d: %s", found.Seed, found.Broken)
}

func listScenarios(out io.Writer) error {
	var b strings.Builder
	for _, s := range fleetsim.Named() {
		fmt.Fprintf(&b, "%-24s %s\n", s.Name, s.About)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// progressEvery is how often a line says how far a run is, if nobody sees a bar.
const progressEvery = 10 * time.Second

// showFleetProgress returns a function that shows which part of a run is done: by a bar if out is a terminal, and by a
// line once in a while otherwise. The caller calls done at the end.
func showFleetProgress(out io.Writer, what string) (progress func(part float64), done func()) {
	f, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return lineProgress(out, what, time.Now), func() {}
	}
	bar := progressbar.NewOptions(1000, progressbar.OptionSetWriter(out),
		progressbar.OptionSetDescription(what), progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish(), progressbar.OptionFullWidth())
	progress = func(part float64) { _ = bar.Set(int(part * 1000)) } // a bar that cannot be drawn harms nobody
	return progress, func() { _ = bar.Finish() }
}

// lineProgress returns a function that writes a line every progressEvery.
func lineProgress(out io.Writer, what string, now func() time.Time) func(part float64) {
	began := now()
	last := began
	return func(part float64) {
		if at := now(); at.Sub(last) >= progressEvery {
			last = at
			fmt.Fprintf(out, "%s: %.0f %%, after %s\n", what, 100*part, at.Sub(began).Round(time.Second))
		}
	}
}
