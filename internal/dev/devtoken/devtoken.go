// Package devtoken keeps the token of a running 'sluice dev' in a file that only its user can read. Commands find the
// token there.
//
// Each process makes its own token when it starts, so that the file of a process which was killed gives access to
// nothing. The name of a file contains the address at which its process listens, as in "dev-127.0.0.1-8080.token": its
// token is sent to that address only. The file holds two lines:
//
//	sldev3_wqT0…                               the token
//	boot 6d3f0f8e-5c6a-4f0e-9f5e-1d5f6d1c2b3a  the boot ID of the machine, if it has one
//
// The second line keeps the token of a process on another machine, whose user has the same home directory, from being
// sent to whoever listens at that address of this machine.
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

// prefix begins each token, and therefore each file. The digit is the version of the file format. The rest of a token
// is tokenBytes random bytes in base64url.
const prefix = "sldev3_"

const (
	tokenBytes   = 32
	maxFileBytes = 1 << 10 // more than a token and a boot ID have
	bootFile     = "/proc/sys/kernel/random/boot_id"
)

// New returns a new random token.
func New() string {
	secret := make([]byte, tokenBytes)
	_, _ = rand.Read(secret) // never fails
	return prefix + base64.RawURLEncoding.EncodeToString(secret)
}

// parse parses the content of a token file. It refuses a text that Write cannot have written. Its errors do not contain
// the text.
func parse(text string) (token string, err error) {
	token, rest, _ := strings.Cut(strings.TrimSpace(text), "\n")
	token = strings.TrimSpace(token)
	secret, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(token, prefix))
	written, isBoot := strings.CutPrefix(rest, "boot ")
	present := boot()
	switch {
	case !strings.HasPrefix(token, prefix) || err != nil || len(secret) != tokenBytes || rest != "" && !isBoot ||
		strings.Contains(written, "\n"):
		return "", errors.New("it holds no token that this version of sluice can read: start 'sluice dev' again")
	case isBoot && present != "" && written != present:
		return "", errors.New("it was written on another machine, or before this machine was last started, so its " +
			"token is not sent: start 'sluice dev' again")
	}
	return token, nil
}

// boot returns the boot ID of this machine, or "" if the system has none.
func boot() string {
	text, err := os.ReadFile(bootFile)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// Folder returns the folder of this user's token files: $XDG_STATE_HOME/sluice if that variable is an absolute path,
// else "sluice" in [os.UserConfigDir] on macOS, iOS, Windows and Plan 9, and ~/.local/state/sluice elsewhere. The
// folder need not exist.
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

// MakeFolder makes the folder if it does not exist, and removes all permissions on it except its owner's. It refuses a
// symbolic link.
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
		return os.Chmod(folder, 0o700) //nolint:gosec // the owner must be able to enter the folder
	}
	return nil
}

// File returns the name of the token file in folder for the process that listens at addr. 0.0.0.0 and ::, which stand
// for all addresses of the machine, have the same name.
func File(folder string, addr netip.AddrPort) string {
	host := "any"
	if a := addr.Addr().Unmap(); a.IsValid() && !a.IsUnspecified() {
		host = strings.NewReplacer(":", "_", "%", "_").Replace(a.String())
	}
	return filepath.Join(folder, fmt.Sprintf("dev-%s-%d.token", host, addr.Port()))
}

// Write writes a token to a file that only this user may read (mode 0600). It replaces a regular file atomically, and
// refuses anything else of that name, such as a symbolic link. The folder of the file must exist.
func Write(file, token string) error {
	text := token + "\n"
	if here := boot(); here != "" {
		text += "boot " + here + "\n"
	}
	root, err := os.OpenRoot(filepath.Dir(file))
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // closing a folder loses no data
	name := filepath.Base(file)
	if info, err := root.Lstat(name); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file: remove it", file)
	}
	temporary := "." + name + "." + rand.Text()
	f, err := root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Close()); err == nil {
		err = root.Rename(temporary, name)
	}
	if err != nil {
		_ = root.Remove(temporary) // the error that is returned came before
	}
	return err
}

// Read returns the token in a file. Its error names the file, and wraps [fs.ErrNotExist] if the file does not exist. As
// ssh does with its files, Read refuses a file that another user can have written or can read.
func Read(file string) (token string, err error) {
	info, err := os.Lstat(file)
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
	defer func() { _ = f.Close() }() // the file was only read
	if info, err = f.Stat(); err != nil {
		return "", err
	}
	if err := CheckOwner(info, 0o077); err != nil {
		return "", fmt.Errorf("%s: %w: start 'sluice dev' again, which writes it anew", file, err)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFileBytes))
	if err != nil {
		return "", err
	}
	if token, err = parse(string(text)); err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	return token, nil
}

// CheckOwner returns an error for a file or folder that belongs neither to this user nor to root, or on which other
// users have one of the permissions denied. It returns nil where the system does not say who owns a file.
func CheckOwner(info fs.FileInfo, denied fs.FileMode) error {
	uid, known := ownerOf(info)
	if !known {
		return nil
	}
	return checkOwner(uid, os.Geteuid(), info.Mode(), denied)
}

func checkOwner(uid, self int, mode, denied fs.FileMode) error {
	switch {
	case uid != self && uid != 0:
		return fmt.Errorf("it belongs to user %d, and only what is your own or root's is trusted", uid)
	case mode.Perm()&denied != 0:
		return fmt.Errorf("other users may read or write it (mode %#o)", mode.Perm())
	}
	return nil
}

// Remove deletes a file if it still holds the token. If another process has replaced the file, the file stays.
func Remove(file, token string) error {
	have, err := Read(file)
	if err != nil || have != token {
		return nil //nolint:nilerr // this process has no file to remove
	}
	return os.Remove(file)
}

// addressesOf returns the loopback addresses that a host can mean. The host is an address or "localhost".
func addressesOf(host string) []netip.Addr {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a.Unmap()}
	}
	return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
}

// Found is the result of [Find].
type Found struct {
	Token string     // "" if there is none
	Host  netip.Addr // where calls with the token must go
	File  string     // the file that holds the token or, if there is none, that should hold it
	Err   error      // why there is no token
}

// Find looks in folder for the token of the process that listens on a port of this machine. The host is "localhost" or
// a loopback address. If several files match, only the newest is used: processes that were killed left the others.
func Find(folder, host string, port uint16) Found {
	addresses := addressesOf(host)
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
		if err != nil { // for example because the folder belongs to another user
			return found
		}
		found.Token, found.Err = Read(file)
		newest = info.ModTime()
	}
	return found
}
