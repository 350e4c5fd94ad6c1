// Command plansjson writes a plans file as canonical JSON, which is what the authorizer function reads from its zip.
//
//	plansjson FILE > plans.json
//
// What is wrong with the file goes to standard error, each with its place, and the exit status is then 1.
package main

import (
	"fmt"
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
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(name string) error {
	sources, err := configyaml.ReadFiles(os.Stdin, name)
	if err != nil {
		return err
	}
	text, err := plan.JSON(time.Now(), sources...)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(text)
	return err
}
