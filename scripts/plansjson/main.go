// Command plansjson writes a plans file as canonical JSON, the form that the authorizer function reads from its zip
// file.
//
//	plansjson FILE > plans.json
//
// If the file has problems, they are printed on standard error, each with its place, and the exit status is 1.
package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/plan"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: plansjson FILE")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Stdin, os.Stdout, time.Now()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run writes the plans file of that name, or in for "-", to out. now decides which boosts are over.
func run(name string, in io.Reader, out io.Writer, now time.Time) error {
	sources, err := configyaml.ReadFiles(in, name)
	if err != nil {
		return err
	}
	text, err := plan.JSON(now, sources...)
	if err != nil {
		return err
	}
	_, err = out.Write(text)
	return err
}
