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

const maxSecretBytes = 4096 // of a pepper or an address key

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
	return readSecret("--pepper "+p.id+"="+p.file, p.file, identity.MinPepperBytes)
}

// readSecret returns the bytes of a file, without line breaks at the end, if there are least or more. flag is what the
// command line says of the file, for errors.
func readSecret(flag, file string, least int) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, configfile.Advise(err))
	}
	defer func() { _ = f.Close() }() // the file was only read
	b, err := io.ReadAll(io.LimitReader(f, maxSecretBytes+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	b = bytes.TrimRight(b, "\r\n")
	if len(b) < least || len(b) > maxSecretBytes {
		return nil, fmt.Errorf("%s: it has %d bytes; want %d..%d", flag, len(b), least, maxSecretBytes)
	}
	return b, nil
}
