package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// pepperFlag is a value "ID=FILE" of --pepper: the id of a pepper, and the file that holds it.
type pepperFlag struct{ id, file string }

// pepperFlags adds the flag --pepper. It opens no file.
func pepperFlags(f *pflag.FlagSet, to *[]pepperFlag, usage string) {
	f.Func("pepper", usage, func(text string) error {
		id, file, ok := strings.Cut(text, "=")
		switch {
		case !ok || file == "":
			return errors.New("want ID=FILE")
		case !limit.ValidID(id):
			return errors.New("the id is not 1 to 64 characters A-Z a-z 0-9 . _ -")
		case id == identity.DevPepperID:
			return fmt.Errorf("the pepper %q is built in; choose another id", identity.DevPepperID)
		}
		*to = append(*to, pepperFlag{id, file})
		return nil
	})
}

// read returns the pepper: the bytes of the file, without line breaks at the end.
func (p pepperFlag) read() ([]byte, error) {
	return configfile.ReadSecret("--pepper "+p.id+"="+p.file, p.file, identity.MinPepperBytes)
}

// planFlags name the plans files that a process watches, and the peppers of the keys in them.
type planFlags struct {
	plans       []string
	pepperFiles []pepperFlag
}

func (p *planFlags) flags(f *pflag.FlagSet, usage string) {
	f.Func("plans", usage, func(file string) error {
		if file == "" || file == "-" {
			return errors.New("want the name of a file, which is watched for changes")
		}
		p.plans = append(p.plans, file)
		return nil
	})
	pepperFlags(f, &p.pepperFiles, "pepper of API keys in the plans, as `ID=FILE`; may be repeated (\"dev\" is built "+
		"in)")
}

// peppers reads the peppers, and returns them by id, together with the built-in one.
func (p *planFlags) peppers() (map[string][]byte, error) {
	all := map[string][]byte{identity.DevPepperID: identity.DevPepper()}
	var err error
	for _, pepper := range p.pepperFiles {
		if all[pepper.id], err = pepper.read(); err != nil {
			return nil, err
		}
	}
	return all, nil
}
