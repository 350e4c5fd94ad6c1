// Command calibrate measures the service times of the real parts on this machine, and writes them as the file that
// sluice fleet --costs reads.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/sluicelimits/sluice/bench"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, out, errs io.Writer) int {
	flags := flag.NewFlagSet("calibrate", flag.ContinueOnError)
	flags.SetOutput(errs)
	short := flags.Bool("short", false, "measure for a moment only, to see that it can be done")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	costs, err := bench.Calibrate(*short)
	if err == nil {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		err = e.Encode(costs)
	}
	if err != nil {
		fmt.Fprintf(errs, "calibrate: %v\n", err)
		return 1
	}
	return 0
}
