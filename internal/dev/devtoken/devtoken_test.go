package devtoken_test

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/dev/devtoken"
)

// folder returns a folder that may hold tokens.
func folder(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "state", "sluice")
	if err := devtoken.MakeFolder(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// write writes a token file.
func write(t *testing.T, file, token string) {
	t.Helper()
	if err := devtoken.Write(file, token); err != nil {
		t.Fatal(err)
	}
}

func file(dir, addr string) string { return devtoken.File(dir, netip.MustParseAddrPort(addr)) }

// Guarantees that a token can be read by the user's own processes and by nobody else, whatever file was there before.
func TestOnlyTheUserReadsAToken(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "sluice")
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := devtoken.MakeFolder(dir); err != nil {
		t.Fatal(err)
	}
	name, token := file(dir, "127.0.0.1:8080"), devtoken.New()
	if err := os.WriteFile(name, []byte("of an earlier process"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, 0o666); err != nil {
		t.Fatal(err)
	}
	write(t, name, token)
	for path, want := range map[string]fs.FileMode{dir: 0o700 | fs.ModeDir, name: 0o600} {
		if info, err := os.Lstat(path); err != nil || info.Mode() != want {
			t.Errorf("%s has mode %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
	if got, err := devtoken.Read(name); got != token || err != nil {
		t.Errorf("read %v, %v", got, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("the folder holds %v, %v; want only the token", left, err)
	}
	if token == devtoken.New() {
		t.Error("two processes have the same token")
	}
}

// Guarantees that a token is not written through a symbolic link, which could lead to a place where others can read it,
// or to another file.
func TestNoTokenThroughALink(t *testing.T) {
	dir, elsewhere := folder(t), filepath.Join(t.TempDir(), "elsewhere")
	name := file(dir, "127.0.0.1:8080")
	if err := os.Symlink(elsewhere, name); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{"", "precious"} {
		if target != "" {
			if err := os.WriteFile(elsewhere, []byte(target), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := devtoken.Write(name, devtoken.New()); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("written through a link: %v", err)
		}
		if text, err := os.ReadFile(elsewhere); string(text) != target || (err == nil) != (target != "") {
			t.Errorf("the file behind the link holds %q, %v", text, err)
		}
	}
	write(t, elsewhere, devtoken.New())
	if found := devtoken.Find(dir, "127.0.0.1", 8080); found.Token != "" || !strings.Contains(found.Err.Error(), name) {
		t.Errorf("read through a link: %v", found.Err)
	}
	link := filepath.Join(t.TempDir(), "sluice")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if err := devtoken.MakeFolder(link); err == nil || !strings.Contains(err.Error(), link) {
		t.Errorf("a folder behind a link: %v", err)
	}
}

// Guarantees that a caller gets the token of the process at the address that it calls, and no other.
func TestFind(t *testing.T) {
	dir := folder(t)
	tokens := map[string]string{}
	for i, addr := range []string{
		"127.0.0.1:8080", "[::1]:8080", "127.0.0.1:8081", "[::]:8082", "0.0.0.0:8083", "127.0.0.5:8080",
	} {
		tokens[addr] = devtoken.New()
		write(t, file(dir, addr), tokens[addr])
		at := time.Unix(int64(1000-i), 0)
		if err := os.Chtimes(file(dir, addr), at, at); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		host string
		port uint16
		of   string
		at   string
	}{
		{"127.0.0.1", 8080, "127.0.0.1:8080", "127.0.0.1"},
		{"localhost", 8080, "127.0.0.1:8080", "127.0.0.1"}, // the newer of two tokens
		{"::1", 8080, "[::1]:8080", "::1"},
		{"127.0.0.5", 8080, "127.0.0.5:8080", "127.0.0.5"},
		{"localhost", 8081, "127.0.0.1:8081", "127.0.0.1"},
		{"localhost", 8082, "[::]:8082", "127.0.0.1"},
		{"::1", 8082, "[::]:8082", "::1"},
		{"127.0.0.1", 8083, "0.0.0.0:8083", "127.0.0.1"},
		{"127.0.0.6", 8080, "", "127.0.0.6"},
		{"::1", 8081, "", "::1"},
		{"localhost", 8084, "", "127.0.0.1"},
	} {
		found := devtoken.Find(dir, c.host, c.port)
		if found.Token != tokens[c.of] || found.Host.String() != c.at || (found.Err == nil) != (c.of != "") {
			t.Errorf("%s port %d: found %q for %s, %v; want the token of %q for %s",
				c.host, c.port, found.File, found.Host, found.Err, c.of, c.at)
		}
		if c.of == "" && !errors.Is(found.Err, fs.ErrNotExist) {
			t.Errorf("%s port %d: %v", c.host, c.port, found.Err)
		}
	}
}

// Guarantees that the file of a process that was killed does not hide the token of one that runs: the newer file is
// used.
func TestANewFileCountsMore(t *testing.T) {
	for _, order := range [][2]string{{"127.0.0.1:8080", "[::]:8080"}, {"[::]:8080", "127.0.0.1:8080"}} {
		dir, token := folder(t), devtoken.New()
		write(t, file(dir, order[0]), devtoken.New())
		long := time.Now().Add(-time.Hour)
		if err := os.Chtimes(file(dir, order[0]), long, long); err != nil {
			t.Fatal(err)
		}
		write(t, file(dir, order[1]), token)
		if found := devtoken.Find(dir, "127.0.0.1", 8080); found.Token != token {
			t.Errorf("%q: found %s, %v", order, found.File, found.Err)
		}
	}
}

// Guarantees that a file which is not a token of this machine since its start is refused, so that its content is
// neither sent nor shown.
func TestWhatIsNoToken(t *testing.T) {
	name := file(folder(t), "127.0.0.1:8080")
	token := devtoken.New()
	texts := []string{
		"", "\n", "secret", token[:len(token)-1], token + "x", "sldev2_" + token[7:], strings.ToUpper(token),
		token + "\n" + token, token + "\naddress 127.0.0.1:8080", token + "\nboot a\nboot a", token + "\nBoot a",
		token + strings.Repeat("x", 1<<16), strings.Repeat("x", 1<<16),
	}
	if _, err := os.Stat("/proc/sys/kernel/random/boot_id"); err == nil { // otherwise the boot is not known
		texts = append(texts, token+"\nboot 00000000-0000-0000-0000-000000000000", token+"\nboot ")
	}
	for _, text := range texts {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := devtoken.Read(name)
		if got != "" || err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "secret") {
			t.Errorf("a file with %.60q is read as %v, %v", text, got, err)
		}
	}
	if err := os.WriteFile(name, []byte(" "+token+"\r\n\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := devtoken.Read(name); got != token || err != nil {
		t.Errorf("a token with white space around it: %v, %v", got, err)
	}
	if got, err := devtoken.Read(filepath.Dir(name)); got != "" || err == nil {
		t.Errorf("Read of a folder: %v, %v", got, err)
	}
}

// Guarantees that a file is refused if another user may have written it or can read it.
func TestFilesOfOthers(t *testing.T) {
	for _, c := range []struct {
		uid, self int
		mode      fs.FileMode
		believed  bool
	}{
		{1000, 1000, 0o600, true}, {1000, 1000, 0o400, true}, {0, 1000, 0o600, true}, {0, 0, 0o600, true},
		{1001, 1000, 0o600, false}, {1000, 0, 0o600, false}, {1000, 1000, 0o640, false}, {1000, 1000, 0o602, false},
		{0, 1000, 0o644, false},
	} {
		if err := devtoken.CheckOwnerID(c.uid, c.self, c.mode, 0o077); (err == nil) != c.believed {
			t.Errorf("a file of user %d with mode %#o, read by user %d: error %v", c.uid, c.mode, c.self, err)
		}
	}
	name := file(folder(t), "127.0.0.1:8080")
	write(t, name, devtoken.New())
	if os.Geteuid() == 0 { // only root can create a file of another user
		if err := os.Chown(name, 12345, -1); err != nil {
			t.Fatal(err)
		}
		if got, err := devtoken.Read(name); got != "" || err == nil ||
			!strings.Contains(err.Error(), "user 12345") {
			t.Errorf("a file of another user: %v, %v", got, err)
		}
	}
	write(t, name, devtoken.New())
	if err := os.Chmod(name, 0o604); err != nil {
		t.Fatal(err)
	}
	if got, err := devtoken.Read(name); runtime.GOOS != "windows" && (got != "" || err == nil) {
		t.Errorf("a file that all can read: %v, %v", got, err)
	}
}

// Guarantees that a process removes its own token when it ends, and not that of its successor.
func TestRemove(t *testing.T) {
	const at = "127.0.0.1:8080"
	name, mine, theirs := file(folder(t), at), devtoken.New(), devtoken.New()
	write(t, name, theirs)
	if err := devtoken.Remove(name, mine); err != nil {
		t.Error(err)
	}
	if got, err := devtoken.Read(name); got != theirs {
		t.Errorf("the successor's token is %v, %v", got, err)
	}
	for range 2 {
		if err := devtoken.Remove(name, theirs); err != nil {
			t.Error(err)
		}
		if _, err := devtoken.Read(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the token of the ended process still exists: %v", err)
		}
	}
}

// Guarantees that the folder is in the user's own directory, and the same for every process.
func TestFolder(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", filepath.Join(t.TempDir(), "x"))
	if dir, err := devtoken.Folder(); err != nil || dir != filepath.Join(os.Getenv("XDG_STATE_HOME"), "sluice") {
		t.Errorf("the folder is %q, %v", dir, err)
	}
	t.Setenv("XDG_STATE_HOME", "relative")
	t.Setenv("HOME", t.TempDir())
	if dir, err := devtoken.Folder(); err != nil || !strings.HasPrefix(dir, os.Getenv("HOME")) {
		t.Errorf("the folder is %q, %v", dir, err)
	}
	t.Setenv("HOME", "")
	if dir, err := devtoken.Folder(); err == nil {
		t.Errorf("without a home directory the folder is %q", dir)
	}
}
