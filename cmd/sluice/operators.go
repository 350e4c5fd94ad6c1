package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"

	"github.com/sluicelimits/sluice/internal/admin/call"
	"github.com/sluicelimits/sluice/internal/devtoken"
)

// operators says who may call the operators' API of this process: whoever can read its token, or nobody.
type operators struct {
	token string
	file  string // of --token-file; "" if each listener has a file of its own in the user's folder
	log   *slog.Logger

	mu    sync.Mutex
	off   string            // why nobody is answered; "" if operators are
	files map[string]string // that hold the token, by the addresses of their listeners
}

// newOperators makes the token of this process. No file holds it yet.
func (d *dev) newOperators(log *slog.Logger) (*operators, error) {
	o := &operators{token: devtoken.New(), log: log, files: map[string]string{}}
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
	if o.off != "" || o.file != "" && len(o.files) > 0 {
		return nil
	}
	file, err := o.file, error(nil)
	if file == "" {
		file, err = makeTokenFile(at)
	}
	if err == nil {
		err = devtoken.Write(file, o.token)
	}
	switch {
	case err == nil:
		o.files[at.String()] = file
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

// makeTokenFile names the file of a listener in the user's folder, which is made if need be.
func makeTokenFile(at net.Addr) (string, error) {
	addr, err := netip.ParseAddrPort(at.String())
	if err != nil {
		return "", err
	}
	folder, err := devtoken.Folder()
	if err != nil {
		return "", err
	}
	return devtoken.File(folder, addr), devtoken.MakeFolder(folder)
}

// forget removes the file of a listener, unless all listeners share one.
func (o *operators) forget(at net.Addr) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if file := o.files[at.String()]; o.file == "" && file != "" {
		o.remove(at.String(), file)
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

// remove removes a file. o.mu is held.
func (o *operators) remove(at, file string) {
	delete(o.files, at)
	if err := devtoken.Remove(file, o.token); err != nil {
		o.log.Warn("the file of the operators' token stays; the token opens nothing once this process has ended",
			"error", err)
	}
}

// fileFor is the file that holds the token for a listener.
func (o *operators) fileFor(at net.Addr) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return cmp.Or(o.file, o.files[at.String()])
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
