// Command workload runs the published workload, as processes on a real Redis or in virtual time, and prints a table. It
// exits with 1 if a run failed or admitted more than a limit, and with 2 if the command line is wrong.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/bench/shared"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

func main() {
	shared.Main()
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// options are the settings from the command line.
type options struct {
	length     shared.Length
	seed       uint64
	algorithms []limit.Algorithm
	only       *regexp.Regexp
	virtual    bool
}

func parse(args []string, errs io.Writer) (o options, err error) {
	flags := flag.NewFlagSet("workload", flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.IntVar(&o.length.Measured, "windows", 3, "how many windows of 10 s are measured")
	flags.IntVar(&o.length.Warm, "warm", 1, "how many windows come before them")
	flags.Uint64Var(&o.seed, "seed", 1, "the seed of the arrivals")
	flags.BoolVar(&o.virtual, "sim", false, "run in virtual time and on the memory store, with the prototype's rule "+
		"and with ours")
	names := flags.String("algorithms", "fixed_window,token_bucket,sliding_window",
		"the algorithms, separated by commas")
	only := flags.String("only", "", "run only what has a name (workload and limiter) that matches this `pattern`")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("%q is not a flag", flags.Arg(0))
	}
	if o.length.Measured < 1 || o.length.Warm < 0 {
		return o, fmt.Errorf("--windows is %d and must be at least 1; --warm is %d and must not be negative",
			o.length.Measured, o.length.Warm)
	}
	for name := range strings.SplitSeq(*names, ",") {
		alg, ok := limit.ParseAlgorithm(name)
		if !ok || !slices.Contains(shared.Algorithms(), alg) {
			return o, fmt.Errorf("there is no algorithm %q: choose from %v", name, shared.Algorithms())
		}
		o.algorithms = append(o.algorithms, alg)
	}
	o.only, err = regexp.Compile(*only)
	return o, err
}

func run(args []string, out, errs io.Writer) int {
	o, err := parse(args, errs)
	if err != nil {
		fmt.Fprintf(errs, "workload: %v\n", err)
		return 2
	}
	rows := slices.DeleteFunc(shared.Processes(o.algorithms), func(r shared.Row) bool {
		return o.virtual || !o.only.MatchString(r.Scenario.Name+" "+string(r.By))
	})
	pairs := slices.DeleteFunc(shared.Simulations(o.algorithms), func(p shared.Pair) bool {
		return !o.virtual || !o.only.MatchString(p.Scenario.Name)
	})
	if len(rows)+len(pairs) == 0 {
		fmt.Fprintf(errs, "workload: no run matches %q\n", o.only)
		return 2
	}
	fmt.Fprintf(out, "# %s, %d processors, %s; %d windows of %s after %d, seed %d\n", runtime.Version(),
		runtime.GOMAXPROCS(0),
		time.Now().UTC().Format(time.DateOnly), o.length.Measured, shared.Period, o.length.Warm, o.seed)
	if o.virtual {
		return o.simulate(pairs, out)
	}
	return o.processes(rows, out)
}

// processes prints the table of runs as processes.
func (o *options) processes(rows []shared.Row, out io.Writer) int {
	status := 0
	var algorithm limit.Algorithm
	shared.RunAll(context.Background(), rows, o.seed, o.length, func(r *shared.Row) {
		if r.Scenario.Algorithm != algorithm {
			algorithm = r.Scenario.Algorithm
			fmt.Fprintf(out, "\n%s\n", algorithm)
			shared.Heading(out)
		}
		r.Write(out)
		if r.Err != nil || r.Score.Over > 0 {
			status = 1
		}
	})
	return status
}

// simulate prints the table of runs in virtual time.
func (o *options) simulate(pairs []shared.Pair, out io.Writer) int {
	status := 0
	var algorithm limit.Algorithm
	for i := range pairs {
		p := &pairs[i]
		if p.Scenario.Algorithm != algorithm {
			algorithm = p.Scenario.Algorithm
			fmt.Fprintf(out, "\n%s\n", algorithm)
			shared.PairHeading(out)
		}
		p.Run(context.Background(), o.seed, o.length)
		p.Write(out)
		if p.Err != nil || p.New.Over > 0 {
			status = 1
		}
	}
	return status
}
