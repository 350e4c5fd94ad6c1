// Command figures measures what the project promises and prints a line for each: "figure NAME VALUE UNIT GOAL". Lines
// that begin with # are remarks; the first one has the day and the machine. It exits with 1 where a workload was not
// what it should be, and with -strict also where a goal is missed; with 2 on a wrong command line.
//
// With -table PAGE it measures nothing. It reads the output of one run or several, and puts it into the table of that
// page.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/bench"
)

const goalMissed = "the goal is missed"

func main() {

	bench.Main() // children of a measurement are this program, too
	os.Exit(run(os.Args[1:], bench.Figures(), os.Stdin, os.Stdout, os.Stderr))
}

func run(args []string, figures []bench.Figure, in io.Reader, out, errs io.Writer) int {
	flags := flag.NewFlagSet("figures", flag.ContinueOnError)
	flags.SetOutput(errs)
	only := flags.String("only", "", "measure the figure of this `name`, or of several, with commas between")
	short := flags.Bool("short", false, "measure for a moment only, to see that it can be done")
	strict := flags.Bool("strict", false, "exit with 1 if a goal is missed")
	table := flags.String("table", "", "measure nothing: put the output of earlier runs, which standard input has, "+
		"into the table of this `page`")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(errs, "figures: %q is no flag\n", flags.Arg(0))
		return 2
	}
	if *table != "" {
		if err := writeTable(*table, in, figures); err != nil {
			fmt.Fprintf(errs, "figures: %v\n", err)
			return 1
		}
		return 0
	}
	chosen, err := choose(figures, *only)
	if err != nil {
		fmt.Fprintf(errs, "figures: %v\n", err)
		return 2
	}
	fmt.Fprintln(out, "#", environment(time.Now(), runtime.GOMAXPROCS(0), runtime.GOOS+"/"+runtime.GOARCH,
		runtime.Version()))
	if *short {
		fmt.Fprintln(out, "# a short run: the workloads are checked, the numbers are rough")
	}
	status := 0
	for _, f := range chosen {
		r, err := f.Measure(*short)
		if err != nil {
			fmt.Fprintf(errs, "figures: %s: %v\n", f.Name, err)
			status = 1
			continue
		}
		fmt.Fprintln(out, f.Line(r.Value))
		for _, note := range r.Notes {
			fmt.Fprintf(out, "# %s: %s\n", f.Name, note)
		}
		if !f.Met(r.Value) {
			fmt.Fprintf(out, "# %s: %s\n", f.Name, goalMissed)
			if *strict {
				status = 1
			}
		}
	}
	return status
}

// choose returns the figures that only names, or all where it names none.
func choose(figures []bench.Figure, only string) ([]bench.Figure, error) {
	if only == "" {
		return figures, nil
	}
	var chosen []bench.Figure
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(figures, func(f bench.Figure) bool { return f.Name == name })
		if i < 0 {
			var names []string
			for _, f := range figures {
				names = append(names, f.Name)
			}
			return nil, fmt.Errorf("no figure is called %q; there are %s", name, strings.Join(names, ", "))
		}
		chosen = append(chosen, figures[i])
	}
	return chosen, nil
}
