package infra

import (
	"archive/zip"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/aws/aws-cdk-go/awscdk/v2/awslambda"

	"github.com/sluicelimits/sluice/infra/config"
)

// DefaultLambdas is the folder in which make lambdas puts the functions' zips for arm64, as seen from infra.
const DefaultLambdas = "../dist/lambdas"

// architecture is what a deployment's functions are built for.
type architecture struct {
	goarch  string // GOARCH
	machine elf.Machine
	lambdas string // the folder in which make lambdas puts them, as seen from infra
	lambda  func() awslambda.Architecture
}

var architectures = map[string]architecture{
	config.ARM64: {"arm64", elf.EM_AARCH64, DefaultLambdas, awslambda.Architecture_ARM_64},
	config.X8664: {"amd64", elf.EM_X86_64, DefaultLambdas + "-amd64", awslambda.Architecture_X86_64},
}

// Bundles are the GOARCH that a complete deployment's functions are built for, and the folder in which make lambdas
// puts them for it, as seen from infra.
func Bundles(d *config.Deployment) (goarch, folder string) {
	a := architectures[d.Architecture]
	return a.goarch, a.lambdas
}

const bootstrap = "bootstrap" // what Lambda starts

// checkBundle checks that a function's zip is there, and that its program is for the architecture. AWS takes one for
// another, and no call of it is answered.
func checkBundle(path string, a *architecture) error {
	advice := "run make lambdas ARCH=" + a.goarch
	z, err := zip.OpenReader(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is not there: %s", path, advice)
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", path, err, advice)
	}
	defer func() { _ = z.Close() }() // it was read only
	machine, err := machineOf(z)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w: %s", path, err, advice)
	case machine != a.machine:
		return fmt.Errorf("%s is built for %s, and the deployment's functions are for %s: %s", path, machine, a.goarch,
			advice)
	}
	return nil
}

// machineOf is what the program of a zip is built for, by the beginning of its ELF header.
func machineOf(z fs.FS) (elf.Machine, error) {
	f, err := z.Open(bootstrap)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	var header struct {
		Ident   [elf.EI_NIDENT]byte
		Type    uint16
		Machine uint16
	}
	err = binary.Read(f, binary.LittleEndian, &header) // as both architectures have it
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || err == nil &&
		string(header.Ident[:len(elf.ELFMAG)]) != elf.ELFMAG:
		return 0, fmt.Errorf("%s is no program for Linux", bootstrap)
	case err != nil:
		return 0, fmt.Errorf("%s: %w", bootstrap, err)
	}
	return elf.Machine(header.Machine), nil
}
