// Package releasetest tests a release by what it consists of.
package releasetest

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

const root = "../../.." // of the repository

// release is a release of the commit that is checked out.
type release struct {
	dir     string // the folder with its files
	version string // such as v0.1.0
	commit  string
	clone   string            // of the repository at that commit
	sums    map[string]string // the SHA-256 that checksums.txt has of each file, by its name
	program []byte            // sluice for this machine, from its archive
}

// Guarantees that a release for this machine can be used with nothing else: each of its files is what checksums.txt
// says, the program starts from the archive, from the package of Debian and from the image, and dependents find the
// modules. A broken release would otherwise be noticed first by those who install it.
func TestRelease(t *testing.T) {
	dir := os.Getenv("SLUICE_RELEASE")
	if dir == "" {
		t.Skip("SLUICE_RELEASE names no release: make release-test makes one, and tests it")
	}
	r := &release{dir: dir, version: os.Getenv("SLUICE_RELEASE_VERSION"),
		commit: run(t, root, "git", "rev-parse", "HEAD"), clone: filepath.Join(t.TempDir(), "clone"),
		sums: map[string]string{}}
	run(t, root, "git", "clone", "--quiet", ".", r.clone)
	t.Run("checksums", r.testChecksums)
	t.Run("archive", r.testArchive)
	t.Run("deb", r.testDeb)
	t.Run("image", r.testImage)
	t.Run("cask", r.testCask)
	t.Run("reproducible", r.testReproducible)
	t.Run("modules", r.testModules)
}

func (r *release) testChecksums(t *testing.T) {
	for line := range strings.Lines(string(read(t, filepath.Join(r.dir, "checksums.txt")))) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		r.sums[name] = sum
	}
	for _, pattern := range []string{"*.tar.gz", "*.zip", "*.deb", "*.rpm", "*.json"} {
		files, err := filepath.Glob(filepath.Join(r.dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			name := filepath.Base(file)
			if name == "artifacts.json" || name == "metadata.json" { // what goreleaser notes for itself
				continue
			}
			sum := sha256.Sum256(read(t, file))
			if got := hex.EncodeToString(sum[:]); got != r.sums[name] {
				t.Errorf("%s has the sum %s, checksums.txt says %q", name, got, r.sums[name])
			}
		}
	}
	for _, end := range []string{".tar.gz", ".deb", ".rpm"} {
		r.named(t, end)
	}
}

// named returns the file of the release for this machine whose name ends so.
func (r *release) named(t *testing.T, end string) string {
	t.Helper()
	for name := range r.sums {
		if strings.Contains(name, runtime.GOARCH) || end == ".rpm" {
			if strings.HasSuffix(name, end) {
				return filepath.Join(r.dir, name)
			}
		}
	}
	t.Fatalf("checksums.txt names no %s for this machine: %v", end, r.sums)
	return ""
}

func (r *release) testArchive(t *testing.T) {
	dir := t.TempDir()
	untar(t, bytes.NewReader(read(t, r.named(t, ".tar.gz"))), dir)
	r.program = read(t, filepath.Join(dir, "sluice"))
	r.testProgram(t, filepath.Join(dir, "sluice"))
	for _, file := range []string{"LICENSE", "completions/sluice.bash", "man/sluice.1", "man/sluice-serve.1"} {
		if len(read(t, filepath.Join(dir, file))) == 0 {
			t.Errorf("%s is empty", file)
		}
	}
	program, err := elf.NewFile(bytes.NewReader(r.program))
	if err != nil {
		t.Fatal(err)
	}
	if program.Section(".symtab") != nil || program.Section(".debug_info") != nil {
		t.Error("the program has symbols, which double its size")
	}
}

// testProgram says that the file is the program of the archive, and names the release.
func (r *release) testProgram(t *testing.T, file string) {
	t.Helper()
	if !bytes.Equal(read(t, file), r.program) {
		t.Error("the program differs from that of the archive")
	}
	want := "sluice version " + r.version + ", commit " + r.commit + " of "
	if got := run(t, "", file, "version"); !strings.HasPrefix(got, want) || !strings.Contains(got, ", go1.") {
		t.Errorf("it says %q, want %q", got, want)
	}
}

func (r *release) testDeb(t *testing.T) {
	dir := t.TempDir()
	run(t, "", "dpkg", "-x", r.named(t, ".deb"), dir)
	r.testProgram(t, filepath.Join(dir, "usr/bin/sluice"))
	read(t, filepath.Join(dir, "usr/share/man/man1/sluice-serve.1"))
}

// The image has a layer with the program, and none of anything else that would need updates.
func (r *release) testImage(t *testing.T) {
	type descriptor struct{ Digest string }
	var index struct{ Manifests []descriptor }
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	var config struct {
		Config struct {
			Entrypoint []string
			User       string
		}
	}
	layout := filepath.Join(r.dir, "image")
	blob := func(d descriptor) []byte {
		return read(t, filepath.Join(layout, "blobs", strings.ReplaceAll(d.Digest, ":", "/")))
	}
	decode(t, read(t, filepath.Join(layout, "index.json")), &index)
	decode(t, blob(index.Manifests[0]), &manifest)
	decode(t, blob(manifest.Config), &config)
	dir := t.TempDir()
	for _, layer := range manifest.Layers {
		untar(t, bytes.NewReader(blob(layer)), dir)
	}
	var files []string
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			files = append(files, strings.TrimPrefix(name, dir))
		}
		return err
	})
	if err != nil || !slices.Equal(files, config.Config.Entrypoint) || config.Config.User != "65532" {
		t.Errorf("the image has the files %v (%v), and starts %+v", files, err, config.Config)
	}
	program := filepath.Join(dir, config.Config.Entrypoint[0])
	r.testProgram(t, program)
	testServes(t, program)
}

// testServes starts the rate limit service, and asks it whether a call is admitted.
func testServes(t *testing.T, program string) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "plans.yaml"), plans)
	write(t, filepath.Join(dir, "map.yaml"), "{domain: api, sluice: {mapping: {tenant: tenant}}}")
	serve := exec.CommandContext(t.Context(), program, "serve", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0",
		"--debug", "127.0.0.1:0", "--config", "map.yaml", "--plans", "plans.yaml")
	serve.Dir = dir
	logged, err := serve.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = serve.Process.Kill(), serve.Wait() }()
	said := ""
	for lines := bufio.NewScanner(logged); lines.Scan(); {
		said += lines.Text() + "\n"
		address := regexp.MustCompile(`server=HTTP address=(\S+)`).FindStringSubmatch(lines.Text())
		if address == nil {
			continue
		}
		reply, err := http.Post("http://"+address[1]+"/v1/check", "application/json",
			strings.NewReader(`{"call": {"tenant": "acme", "method": "GET", "path": "/"}}`))
		if err != nil {
			t.Fatal(err)
		}
		defer reply.Body.Close()
		if body, err := io.ReadAll(reply.Body); err != nil || !strings.Contains(string(body), `"allowed":true`) {
			t.Errorf("sluice serve answers %s: %s, %v", reply.Status, body, err)
		}
		return
	}
	t.Errorf("sluice serve ended before it named its address:\n%s", said)
}

// The archive that Homebrew downloads is the one of the release.
func (r *release) testCask(t *testing.T) {
	cask := string(read(t, filepath.Join(r.dir, "homebrew/Casks/sluice.rb")))
	if sum := r.sums[filepath.Base(r.named(t, ".tar.gz"))]; !strings.Contains(cask, `sha256 "`+sum+`"`) {
		t.Errorf("the cask does not have the sum %s:\n%s", sum, cask)
	}
	if ruby, err := exec.LookPath("ruby"); err == nil {
		run(t, "", ruby, "-c", filepath.Join(r.dir, "homebrew/Casks/sluice.rb"))
	}
}

// A release that somebody else builds from the same commit, in another folder, has the same bytes.
func (r *release) testReproducible(t *testing.T) {
	run(t, root, "cp", "--recursive", "bin", r.clone) // it builds no tools anew
	run(t, r.clone, "scripts/release")
	for _, file := range []string{"checksums.txt", "image/index.json", "homebrew/Casks/sluice.rb"} {
		first, second := read(t, filepath.Join(r.dir, file)), read(t, filepath.Join(r.clone, "dist/release", file))
		if !bytes.Equal(first, second) {
			t.Errorf("%s differs when it is built again:\n%s\nbefore:\n%s", file, second, first)
		}
	}
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func decode(t *testing.T, text []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
}

// run returns what a command prints to standard output, without white space around it.
func run(t *testing.T, dir, name string, arguments ...string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), name, arguments...)
	c.Dir = dir
	out, err := c.Output()
	if err != nil {
		var failed *exec.ExitError
		if errors.As(err, &failed) {
			t.Fatalf("%v: %v\n%s%s", c, err, out, failed.Stderr)
		}
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// untar unpacks the files of a .tar.gz into a folder.
func untar(t *testing.T, packed io.Reader, dir string) {
	t.Helper()
	unzipped, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	for files := tar.NewReader(unzipped); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		content, err := io.ReadAll(files)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, filepath.Clean("/"+header.Name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, content, header.FileInfo().Mode().Perm()); err != nil {
			t.Fatal(err)
		}
	}
}
