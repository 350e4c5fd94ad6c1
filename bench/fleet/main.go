// Command fleet simulates many processes of Sluice in virtual time, and reports what they decide: the real limiter with
// its leases, circuit breakers and fallback, over a simulated Redis. Nothing is sent anywhere. An independent judge
// counts what was admitted above each limit. One seed is one run: the report is the same byte for byte.
//
// With -explore N it runs the seeds from -seed on, each with a small scenario of random faults, until one breaks a
// bound or N have been run. A seed that breaks a bound is printed.
//
// It exits with 1 if a run breaks a bound, or is interrupted by Ctrl-C: the report is then about the time until then.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/bench/fleet/sim"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	flags := flag.NewFlagSet("fleet", flag.ContinueOnError)
	flags.SetOutput(errs)
	scenario := flags.String("scenario", "", "run the scenario of this `name`")
	seed := flags.Uint64("seed", 1, "the `number` that the run depends on")
	explore := flags.Int("explore", 0, "run so many `seeds` of random faults until one breaks a bound")
	asJSON := flags.Bool("json", false, "write the report as JSON")
	page := flags.String("html", "", "also write the report, with plots, as an HTML page to this `file`")
	list := flags.Bool("list", false, "list the scenarios")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	usage := func(format string, args ...any) int {
		fmt.Fprintf(errs, "fleet: "+format+"; -h explains the flags\n", args...)
		return 2
	}
	all := sim.Named()
	chosen := slices.IndexFunc(all, func(s sim.Scenario) bool { return s.Name == *scenario })
	var err error
	switch {
	case flags.NArg() > 0:
		return usage("%q is no flag", flags.Arg(0))
	case *list:
		for _, s := range all {
			fmt.Fprintf(out, "%-24s %s\n", s.Name, s.About)
		}
	case (*scenario == "") == (*explore == 0):
		return usage("give one of -scenario, -explore and -list")
	case *explore < 0:
		return usage("-explore %d is below zero", *explore)
	case *explore > 0:
		err = exploreSeeds(ctx, out, errs, *seed, *explore)
	case chosen < 0:
		return usage("there is no scenario %q; -list names them", *scenario)
	default:
		err = runOne(ctx, out, errs, sim.Options{Scenario: &all[chosen], Seed: *seed}, *asJSON, *page)
	}
	if err != nil {
		fmt.Fprintf(errs, "fleet: %v\n", err)
		return 1
	}
	return 0
}

// runOne runs a scenario and writes its report.
func runOne(ctx context.Context, out, errs io.Writer, o sim.Options, asJSON bool, page string) error {
	o.Progress = progress(errs, "simulated")
	report, err := sim.Run(ctx, o)
	if err != nil {
		return err
	}
	if page != "" {
		if err := writePage(page, report); err != nil {
			return err
		}
	}
	if asJSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		err = e.Encode(report)
	} else {
		err = report.WriteText(out)
	}
	switch {
	case err != nil:
		return err
	case report.Partial:
		return errors.New("interrupted: the report is about the time until then")
	case report.Broken != "":
		return fmt.Errorf("the run broke a bound: %s", report.Broken)
	}
	return nil
}

func writePage(name string, report *sim.Report) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(report.WriteHTML(f), f.Close())
}

func exploreSeeds(ctx context.Context, out, errs io.Writer, first uint64, seeds int) error {
	found, err := sim.Explore(ctx, first, seeds, progress(errs, "seeds run"))
	if err != nil {
		return err
	}
	if found.Broken != "" {
		fmt.Fprintf(out, "seed %d breaks a bound: %s\nIts scenario:\n%s\n", found.Seed, found.Broken, found.Scenario)
		return fmt.Errorf("seed %d: %s", found.Seed, found.Broken)
	}
	fmt.Fprintf(out, "%d seeds from %d on broke no bound: %d decisions\n", found.Runs, first, found.Decisions)
	if found.Runs < seeds {
		return errors.New("interrupted before all seeds were run")
	}
	return nil
}

// progress returns a function that writes how far a run is, once in ten seconds.
func progress(out io.Writer, what string) func(part float64) {
	began := time.Now()
	last := began
	return func(part float64) {
		if now := time.Now(); now.Sub(last) >= 10*time.Second {
			last = now
			fmt.Fprintf(out, "%s: %.0f %%, after %s\n", what, 100*part, now.Sub(began).Round(time.Second))
		}
	}
}
