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

// DefaultLambdas is the folder in which make lambdas puts the functions' zips for arm64, relative to the folder infra.
const DefaultLambdas = "../dist/lambdas"

// architecture is a processor architecture for which the functions can be built.
type architecture struct {
	goarch  string // GOARCH
	machine elf.Machine
	lambdas string // the folder in which make lambdas puts the zips, relative to infra
	lambda  func() awslambda.Architecture
}

var architectures = map[string]architecture{
	config.ARM64: {"arm64", elf.EM_AARCH64, DefaultLambdas, awslambda.Architecture_ARM_64},
	config.X8664: {"amd64", elf.EM_X86_64, DefaultLambdas + "-amd64", awslambda.Architecture_X86_64},
}

// BuildTarget returns the GOARCH for which a deployment's functions have to be built, and the folder in which make
// lambdas puts them, relative to infra. The deployment must be complete: see [config.Deployment.Complete].
func BuildTarget(d *config.Deployment) (goarch, folder string) {
	a := architectures[d.Architecture]
	return a.goarch, a.lambdas
}

const bootstrap = "bootstrap" // the file in a function's zip that Lambda starts

// checkBundle checks that a function's zip exists and that its program is built for the architecture. AWS would accept
// a program for another architecture, and every call of it would then fail.
func checkBundle(path string, a *architecture) error {
	advice := "run make lambdas ARCH=" + a.goarch
	z, err := zip.OpenReader(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s does not exist: %s", path, advice)
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", path, err, advice)
	}
	defer func() { _ = z.Close() }() // nothing was written
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

// machineOf returns the machine for which the program in a zip is built, from the beginning of its ELF header.
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
	err = binary.Read(f, binary.LittleEndian, &header) // both architectures are little-endian
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || err == nil &&
		string(header.Ident[:len(elf.ELFMAG)]) != elf.ELFMAG:
		return 0, fmt.Errorf("%s is not a program for Linux", bootstrap)
	case err != nil:
		return 0, fmt.Errorf("%s: %w", bootstrap, err)
	}
	return elf.Machine(header.Machine), nil
}
