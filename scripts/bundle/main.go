// Command bundle makes the zip file of a Lambda function. From the same files it makes the same bytes, on any machine.
//
//	bundle OUT.zip BOOTSTRAP [FILE...]
//
// In the zip file, BOOTSTRAP is the executable "bootstrap", and each FILE has its own name in the same folder.
package main

import (
	"archive/zip"
	"compress/flate"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"
)

const (
	bootstrap = "bootstrap" // the program that Lambda starts
	maxBytes  = 250 << 20   // the most that Lambda allows for the unpacked files of a function
)

// made is the time of every file in a bundle, so that it does not depend on when the files were made. It is the
// earliest time that a zip file can contain.
var made = time.Date(1980, time.January, 1, 0, 0, 0, 0, time.UTC)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: bundle OUT.zip BOOTSTRAP [FILE...]")
		os.Exit(2)
	}
	if err := run(os.Stdout, os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, "bundle:", err)
		os.Exit(1)
	}
}

// run writes a bundle and prints its size. If there is an error, it does not replace a bundle that exists already.
func run(stdout io.Writer, out, program string, beside []string) (err error) {
	names, paths := []string{bootstrap}, []string{program}
	for _, path := range beside {
		name := filepath.Base(path)
		if slices.Contains(names, name) {
			return fmt.Errorf("two files are called %s", name)
		}
		names, paths = append(names, name), append(paths, path)
	}
	f, err := os.CreateTemp(filepath.Dir(out), ".bundle-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close()           // the first error is returned
			_ = os.Remove(f.Name()) //nolint:gosec // its user names the folder
		}
	}()
	unpacked, err := write(f, names, paths)
	if err != nil {
		return err
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err := errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), out); err != nil { //nolint:gosec // its user names the file
		return err
	}
	const mb = 1e6
	_, err = fmt.Fprintf(stdout, "%s: %.2f MB, %.2f MB unpacked\n", out, float64(size)/mb, float64(unpacked)/mb)
	return err
}

func write(w io.Writer, names, paths []string) (unpacked int64, err error) {
	z := zip.NewWriter(w)
	z.RegisterCompressor(zip.Deflate, func(w io.Writer) (io.WriteCloser,
		error) {
		return flate.NewWriter(w, flate.BestCompression)
	})
	for i, path := range paths {
		n, err := add(z, names[i], path)
		if err != nil {
			return 0, err
		}
		if unpacked += n; unpacked > maxBytes {
			return 0, fmt.Errorf("the files have more than %d bytes, which is the most that Lambda allows",
				int64(maxBytes))
		}
	}
	return unpacked, z.Close()
}

func add(z *zip.Writer, name, path string) (size int64, err error) {
	f, err := os.Open(path) //nolint:gosec // its user names the files
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if info, err := f.Stat(); err != nil {
		return 0, err
	} else if !info.Mode().IsRegular() || info.Size() == 0 {
		return 0, fmt.Errorf("%s is empty or not a regular file", path)
	}
	h := &zip.FileHeader{Name: name, Method: zip.Deflate, Modified: made}
	h.SetMode(0o644)
	if name == bootstrap {
		h.SetMode(0o755)
	}
	w, err := z.CreateHeader(h)
	if err != nil {
		return 0, err
	}
	return io.Copy(w, f)
}
