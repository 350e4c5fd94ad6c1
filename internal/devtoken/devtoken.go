// Package devtoken keeps the token of a running 'sluice dev' in a file that only its user can read, and finds it there.
//
// Each process makes a token of its own at its start, so that the file of a process which was killed opens nothing. A
// file is named by the address at which its process listens, as in "dev-127.0.0.1-8080.token", and holds the token and
// a line end.
package devtoken

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// prefix begins each token. The digit is the version of the form: prefix, then tokenBytes random bytes in base64url.
const prefix = "sldev1_"

const (
	tokenBytes   = 32
	maxFileBytes = 1 << 10 // far more than a token has
)

// New makes a random token.
func New() string {
	secret := make([]byte, tokenBytes)
	_, _ = rand.Read(secret) // never fails
	return prefix + base64.RawURLEncoding.EncodeToString(secret)
}

// check refuses what New cannot have made. Its error does not show the text.
func check(text string) error {
	secret, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(text, prefix))
	if !strings.HasPrefix(text, prefix) || err != nil || len(secret) != tokenBytes {
		return errors.New("it holds no token that this version of sluice knows")
	}
	return nil
}

// Folder is where the files of this user's processes lie: "sluice" in XDG_STATE_HOME or ~/.local/state, on macOS and
// Windows in the folder for settings of programs. The folder need not be there.
func Folder() (string, error) {
	if state := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(state) {
		return filepath.Join(state, "sluice"), nil
	}
	switch runtime.GOOS {
	case "darwin", "ios", "windows", "plan9":
		settings, err := os.UserConfigDir()
		return filepath.Join(settings, "sluice"), err
	}
	home, err := os.UserHomeDir()
	return filepath.Join(home, ".local", "state", "sluice"), err
}

// MakeFolder makes the folder if need be, and takes the rights on it from everybody but its owner. A symbolic link is
// refused.
func MakeFolder(folder string) error {
	if err := os.MkdirAll(filepath.Dir(folder), 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(folder, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(folder)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s is not a folder", folder)
	case info.Mode().Perm()&0o077 != 0:
		return os.Chmod(folder, 0o700) //nolint:gosec // its owner must be able to enter a folder
	}
	return nil
}

// File names the file in folder of the process that listens at addr. All addresses of the machine together (0.0.0.0 and
// ::) have one name.
func File(folder string, addr netip.AddrPort) string {
	host := "any"
	if a := addr.Addr().Unmap(); a.IsValid() && !a.IsUnspecified() {
		host = strings.NewReplacer(":", "_", "%", "_").Replace(a.String())
	}
	return filepath.Join(folder, fmt.Sprintf("dev-%s-%d.token", host, addr.Port()))
}

// Write puts a token into a file that only this user may read (mode 0600). It replaces a regular file in one step and
// refuses anything else of that name, such as a symbolic link. The folder of the file must be there.
func Write(file, token string) error {
	root, err := os.OpenRoot(filepath.Dir(file))
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // nothing is written through it
	name := filepath.Base(file)
	if info, err := root.Lstat(name); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file: remove it", file)
	}
	temporary := "." + name + "." + rand.Text()
	f, err := root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(token + "\n")
	if err = errors.Join(err, f.Close()); err == nil {
		err = root.Rename(temporary, name)
	}
	if err != nil {
		_ = root.Remove(temporary) // the error that matters is the one before
	}
	return err
}

// Read returns the token in a file. Its error names the file, and wraps [fs.ErrNotExist] if there is none.
func Read(file string) (string, error) {
	info, err := os.Stat(file)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s: it is not a regular file", file)
	}
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // it was only read
	text, err := io.ReadAll(io.LimitReader(f, maxFileBytes))
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(text))
	if err := check(token); err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	return token, nil
}

// Remove deletes a file if it still holds the token. The file of a process that has replaced it stays.
func Remove(file, token string) error {
	have, err := Read(file)
	if err != nil || have != token {
		return nil //nolint:nilerr // there is nothing of this process to remove
	}
	return os.Remove(file)
}

// Address is the loopback address that a host name means: 127.0.0.1 for a name that is no address, such as "localhost".
func Address(host string) netip.Addr {
	if a, err := netip.ParseAddr(host); err == nil {
		return a.Unmap()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// Found is what [Find] found out about the token for an address.
type Found struct {
	Token string     // "" if there is none
	Host  netip.Addr // where calls with the token must go
	File  string     // that holds the token; if there is none, the file that ought to
	Err   error      // why there is no token
}

// Find looks in folder for the token of the process that listens on a port of this machine. The host is "localhost" or
// a loopback address. If several files suit it, the newest counts: the others are of processes that were killed.
func Find(folder, host string, port uint16) Found {
	addresses := []netip.Addr{Address(host)}
	if _, err := netip.ParseAddr(host); err != nil {
		addresses = append(addresses, netip.IPv6Loopback())
	}
	found := Found{Host: addresses[0], File: File(folder, netip.AddrPortFrom(addresses[0], port)), Err: fs.ErrNotExist}
	var newest time.Time
	for _, at := range append(addresses, netip.IPv6Unspecified()) {
		file := File(folder, netip.AddrPortFrom(at, port))
		info, err := os.Lstat(file)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !info.ModTime().After(newest) {
			continue
		}
		if at.IsUnspecified() {
			at = addresses[0]
		}
		found = Found{Host: at, File: file, Err: err}
		switch {
		case err != nil: // the folder is another user's
			return found
		case !info.Mode().IsRegular():
			found.Err = fmt.Errorf("%s: it is not a regular file", file)
		default:
			found.Token, found.Err = Read(file)
		}
		newest = info.ModTime()
	}
	return found
}
