package bench

import (
	"archive/zip"
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

const megabyte = 1e6

// zipFigure measures the size of the authorizer's bundle for arm64, as `make lambdas` builds it.
func zipFigure(bool) (Result, error) {
	var r Result
	cmd := exec.Command(filepath.Join(tree(), "scripts", "lambdas"), "authorizer") //nolint:gosec // its own
	cmd.Env = append(os.Environ(), "PLANS=", "ISSUERS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return r, fmt.Errorf("scripts/lambdas authorizer: %w\n%s", err, out)
	}
	name := filepath.Join(tree(), "dist", "lambdas", "authorizer.zip")
	info, err := os.Stat(name)
	if err != nil {
		return r, err
	}
	unpacked, err := bootstrapBytes(name)
	if err != nil {
		return r, fmt.Errorf("%s: %w", name, err)
	}
	r.Value = float64(info.Size()) / megabyte
	r.note("%d bytes, of an executable of %.1f MB for arm64", info.Size(), float64(unpacked)/megabyte)
	return r, nil
}

// bootstrapBytes returns the size of the only file in the bundle. It returns an error unless that is a static program
// for Linux on arm64.
func bootstrapBytes(name string) (int, error) {
	bundle, err := zip.OpenReader(name)
	if err != nil {
		return 0, err
	}
	defer func() { _ = bundle.Close() }()
	if len(bundle.File) != 1 || bundle.File[0].Name != "bootstrap" || bundle.File[0].Mode()&0o111 == 0 {
		return 0, fmt.Errorf("the bundle has %d files, want only an executable with the name bootstrap",
			len(bundle.File))
	}
	in, err := bundle.File[0].Open()
	if err != nil {
		return 0, err
	}
	defer func() { _ = in.Close() }()
	program, err := io.ReadAll(in)
	if err != nil {
		return 0, err
	}
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return 0, err
	}
	if f.Machine != elf.EM_AARCH64 || f.Type != elf.ET_EXEC {
		return 0, fmt.Errorf("bootstrap is for %s, %s; want a program for arm64", f.Machine, f.Type)
	}
	return len(program), nil
}
