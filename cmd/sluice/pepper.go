package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

const maxPepperBytes = 4096

// pepperFlag is a value "ID=FILE" of --pepper: the id of a pepper, and the file that holds it.
type pepperFlag struct{ id, file string }

// parsePepper parses a value of --pepper. It does not open the file.
func parsePepper(s string) (pepperFlag, error) {
	id, file, ok := strings.Cut(s, "=")
	switch {
	case !ok || file == "":
		return pepperFlag{}, fmt.Errorf("--pepper %q: want ID=FILE", s)
	case !limit.ValidID(id):
		return pepperFlag{}, fmt.Errorf("--pepper %q: the id is not 1 to 64 characters A-Z a-z 0-9 . _ -", s)
	case id == identity.DevPepperID:
		return pepperFlag{}, fmt.Errorf("--pepper %q: the pepper %q is built in; choose another id", s,
			identity.DevPepperID)
	}
	return pepperFlag{id, file}, nil
}

// read returns the pepper: the bytes of the file, without line breaks at the end.
func (p pepperFlag) read() ([]byte, error) {
	f, err := os.Open(p.file)
	if err != nil {
		return nil, fmt.Errorf("--pepper %s=%s: %w", p.id, p.file, configfile.Advise(err))
	}
	defer func() { _ = f.Close() }() // the file was only read
	b, err := io.ReadAll(io.LimitReader(f, maxPepperBytes+1))
	if err != nil {
		return nil, fmt.Errorf("pepper %s: %w", p.id, err)
	}
	b = bytes.TrimRight(b, "\r\n")
	if len(b) < identity.MinPepperBytes || len(b) > maxPepperBytes {
		return nil, fmt.Errorf("pepper %s: %s has %d bytes; want %d..%d", p.id, p.file, len(b),
			identity.MinPepperBytes, maxPepperBytes)
	}
	return b, nil
}
