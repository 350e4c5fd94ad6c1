package dev

import (
	"cmp"
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

// operators guards the operators' API of this process: callers need the token, which files pass on to commands.
type operators struct {
	token string
	file  string // of --token-file; "" if each listener has a file of its own in the user's folder
	log   *slog.Logger

	mu    sync.Mutex
	off   string                    // why the API is off; "" if it is on
	files map[netip.AddrPort]string // address of a listener → the file that holds the token for it
}

// newOperators makes the token of this process. It writes no file yet.
func newOperators(admin bool, tokenFile string, log *slog.Logger) (*operators, error) {
	o := &operators{token: devtoken.New(), log: log, files: map[netip.AddrPort]string{}}
	if !admin {
		o.off = "--admin=false"
		return o, nil
	}
	if file := cmp.Or(tokenFile, os.Getenv(TokenFileVariable)); file != "" {
		var err error
		if o.file, err = filepath.Abs(file); err != nil {
			return nil, fmt.Errorf("--token-file %s: %w", file, err)
		}
	}
	return o, nil
}

// writeToken writes the token for a listener into the file where operators' commands look for it. It returns an error
// if it cannot write the file of --token-file. If it cannot write to the user's folder, it turns the operators' API
// off, and the gateway serves without it.
func (o *operators) writeToken(at net.Addr) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.off != "" {
		return nil
	}
	if !reachesLoopback(at) {
		if len(o.files) == 0 {
			o.off = fmt.Sprintf("operators' calls are only answered at a loopback address, and %s is not one: "+
				"listen on 127.0.0.1, or on all addresses (--listen :8080)", at)
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
			o.off = "the file of its token cannot be written; name another file with --token-file"
		}
		o.log.Warn("operators' commands cannot find this process, since the file of its token cannot be written: "+
			"name another file with --token-file", "listen", at, "error", err)
	}
	return nil
}

// reachesLoopback reports whether a listener accepts calls to a loopback address of this machine.
func reachesLoopback(at net.Addr) bool {
	addr, err := netip.ParseAddrPort(at.String())
	return err != nil || addr.Addr().Unmap().IsLoopback() || addr.Addr().IsUnspecified()
}

// write writes the token and the addresses of all listeners of the file. The caller holds o.mu.
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

// rewrite writes the file, unless another process has replaced it. The caller holds o.mu.
func (o *operators) rewrite(file string) error {
	if have, err := devtoken.Read(file); err != nil || have.Secret != o.token {
		return nil //nolint:nilerr // the file belongs to another process
	}
	return o.write(file)
}

// makeTokenFile returns the name of a listener's file in the user's folder. It creates the folder, not the file.
func makeTokenFile(at netip.AddrPort) (string, error) {
	folder, err := devtoken.Folder()
	if err != nil {
		return "", err
	}
	return devtoken.File(folder, at), devtoken.MakeFolder(folder)
}

// forget removes a listener that has closed from its file, since another program can listen at its address from then
// on. If the file has no other listener, forget deletes the file.
func (o *operators) forget(at net.Addr) {
	o.mu.Lock()
	defer o.mu.Unlock()
	addr, err := netip.ParseAddrPort(at.String())
	if file, ok := o.files[addr]; err == nil && ok {
		o.remove(addr, file)
	}
}

// forgetAll deletes all files that hold the token.
func (o *operators) forgetAll() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for at, file := range o.files {
		o.remove(at, file)
	}
}

// remove removes an address from its file, and deletes the file if it was the last address. The caller holds o.mu.
func (o *operators) remove(at netip.AddrPort, file string) {
	delete(o.files, at)
	remove := func() error { return devtoken.Remove(file, o.token) }
	if slices.Contains(slices.Collect(maps.Values(o.files)), file) {
		remove = func() error { return o.rewrite(file) }
	}
	if err := remove(); err != nil {
		o.log.Warn("the file of the operators' token cannot be removed; the token is useless after this process ends",
			"error", err)
	}
}

// fileFor returns the file that holds the token for a listener.
func (o *operators) fileFor(at net.Addr) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	addr, _ := netip.ParseAddrPort(at.String()) // the zero value has no file
	return o.files[addr]
}

// refuses returns why the operators' API is off; "" if it is on.
func (o *operators) refuses() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.off
}

// guard passes calls with the token on to next.
func (o *operators) guard(next http.Handler) http.Handler {
	guarded := call.RequireToken(o.token, next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if why := o.refuses(); why != "" {
			call.Deny(w, call.Refuse(call.Unsupported, "the operators' API of this 'sluice dev' is off: %s", why))
			return
		}
		guarded.ServeHTTP(w, r)
	})
}
