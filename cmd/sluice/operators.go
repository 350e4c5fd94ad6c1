package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/sluicelimits/sluice/internal/control/call"
	"github.com/sluicelimits/sluice/internal/dev/devtoken"
)

// operators says who may call the operators' API of this process: whoever can read its token, or nobody.
type operators struct {
	token string
	file  string // of --token-file; "" if each listener has a file of its own in the user's folder
	log   *slog.Logger

	mu    sync.Mutex
	off   string                    // why nobody is answered; "" if operators are
	files map[netip.AddrPort]string // that hold the token, by the addresses of their listeners
}

// newOperators makes the token of this process. No file holds it yet.
func (d *dev) newOperators(log *slog.Logger) (*operators, error) {
	o := &operators{token: devtoken.New(), log: log, files: map[netip.AddrPort]string{}}
	if !d.admin {
		o.off = "--admin=false"
		return o, nil
	}
	if file := cmp.Or(d.tokenFile, os.Getenv(tokenFileVariable)); file != "" {
		var err error
		if o.file, err = filepath.Abs(file); err != nil {
			return nil, fmt.Errorf("--token-file %s: %w", file, err)
		}
	}
	return o, nil
}

// tell puts the token where operators' commands find it for a listener. A file that the command line names must be
// written. If the user's folder cannot be used, requests are served all the same, and operators are not.
func (o *operators) tell(at net.Addr) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.off != "" {
		return nil
	}
	if !reachesLoopback(at) {
		if len(o.files) == 0 {
			o.off = fmt.Sprintf("operators are answered at a loopback address alone, and %s is none: listen on "+
				"127.0.0.1, or on all addresses (--listen :8080)", at)
		}
		return nil
	}
	addr, err := netip.ParseAddrPort(at.String())
	file := o.file
	if err == nil && file == "" {
		file, err = makeTokenFile(addr)
	}
	if err == nil {
		o.files[addr] = file
		if err = o.write(file); err != nil {
			delete(o.files, addr)
		}
	}
	switch {
	case err == nil:
	case o.file != "":
		return fmt.Errorf("--token-file %s: %w", o.file, err)
	default:
		if len(o.files) == 0 {
			o.off = "their token cannot be kept in a file; name one with --token-file"
		}
		o.log.Warn("operators' commands do not find this process: name a file for their token with --token-file",
			"listen", at, "error", err)
	}
	return nil
}

// reachesLoopback reports whether a listener takes calls to a loopback address of this machine.
func reachesLoopback(at net.Addr) bool {
	addr, err := netip.ParseAddrPort(at.String())
	return err != nil || addr.Addr().Unmap().IsLoopback() || addr.Addr().IsUnspecified()
}

// write writes the file with the addresses of all listeners that it is for. o.mu is held.
func (o *operators) write(file string) error {
	var addresses []netip.AddrPort
	for at, of := range o.files {
		if of == file {
			addresses = append(addresses, at)
		}
	}
	slices.SortFunc(addresses, netip.AddrPort.Compare)
	return devtoken.Write(file, o.token, addresses...)
}

// rewrite writes the file unless another process has replaced it. o.mu is held.
func (o *operators) rewrite(file string) error {
	if have, err := devtoken.Read(file); err != nil || have.Secret != o.token {
		return nil //nolint:nilerr // the file is not that of this process
	}
	return o.write(file)
}

// makeTokenFile names the file of a listener in the user's folder, which is made if need be.
func makeTokenFile(at netip.AddrPort) (string, error) {
	folder, err := devtoken.Folder()
	if err != nil {
		return "", err
	}
	return devtoken.File(folder, at), devtoken.MakeFolder(folder)
}

// forget takes a listener out of its file, which is removed if it was the last one: another program can listen at that
// address then.
func (o *operators) forget(at net.Addr) {
	o.mu.Lock()
	defer o.mu.Unlock()
	addr, err := netip.ParseAddrPort(at.String())
	if file, ok := o.files[addr]; err == nil && ok {
		o.remove(addr, file)
	}
}

// forgetAll removes all files that hold the token.
func (o *operators) forgetAll() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for at, file := range o.files {
		o.remove(at, file)
	}
}

// remove takes an address out of its file, and removes the file if it was the last one. o.mu is held.
func (o *operators) remove(at netip.AddrPort, file string) {
	delete(o.files, at)
	remove := func() error { return devtoken.Remove(file, o.token) }
	if slices.Contains(slices.Collect(maps.Values(o.files)), file) {
		remove = func() error { return o.rewrite(file) }
	}
	if err := remove(); err != nil {
		o.log.Warn("the file of the operators' token stays; the token opens nothing once this process has ended",
			"error", err)
	}
}

// fileFor is the file that holds the token for a listener.
func (o *operators) fileFor(at net.Addr) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	addr, _ := netip.ParseAddrPort(at.String()) // the zero value has no file
	return o.files[addr]
}

// refuses says why nobody is answered; "" if operators are.
func (o *operators) refuses() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.off
}

// guard passes on the calls of operators.
func (o *operators) guard(next http.Handler) http.Handler {
	guarded := call.RequireToken(o.token, next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if why := o.refuses(); why != "" {
			call.Deny(w, call.Refuse(call.NotFound, "this 'sluice dev' answers no operators: %s", why))
			return
		}
		guarded.ServeHTTP(w, r)
	})
}

// checkAdmin refuses flags that contradict each other.
func (o *devOptions) checkAdmin() error {
	if !o.admin && o.tokenFile != "" {
		return errors.New("--token-file goes without --admin=false: there is no token then")
	}
	return nil
}
