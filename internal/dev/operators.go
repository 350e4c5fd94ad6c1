package dev

import (
	"fmt"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/dev/devtoken"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
)

// operators guards the operators' API of this process: callers need the token, which files pass on to commands.
type operators struct {
	token string
	log   *slog.Logger

	mu    sync.Mutex
	off   string                    // why the API is off; "" if it is on
	files map[netip.AddrPort]string // address of a listener → the file that holds the token for it
}

// newOperators makes the token of this process. It writes no file yet.
func newOperators(admin bool, log *slog.Logger) *operators {
	o := &operators{token: devtoken.New(), log: log, files: map[netip.AddrPort]string{}}
	if !admin {
		o.off = "--admin=false"
	}
	return o
}

// writeToken writes the token for a listener into the file where operators' commands look for it. If it cannot write
// the file, it turns the operators' API off, and the gateway serves without it.
func (o *operators) writeToken(at net.Addr) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.off != "" {
		return
	}
	if !reachesLoopback(at) {
		if len(o.files) == 0 {
			o.off = fmt.Sprintf("operators' calls are only answered at a loopback address, and %s is not one: "+
				"listen on 127.0.0.1, or on all addresses (--listen :8080)", at)
		}
		return
	}
	addr, err := netip.ParseAddrPort(at.String())
	var folder string
	if err == nil {
		folder, err = devtoken.Folder()
	}
	if err == nil {
		err = devtoken.MakeFolder(folder)
	}
	file := devtoken.File(folder, addr)
	if err == nil {
		err = devtoken.Write(file, o.token)
	}
	if err == nil {
		o.files[addr] = file
		return
	}
	if len(o.files) == 0 {
		o.off = "the file of its token cannot be written; set XDG_STATE_HOME to a folder of yours"
	}
	o.log.Warn("operators' commands cannot find this process, since the file of its token cannot be written: set "+
		"XDG_STATE_HOME to a folder of yours", "listen", at, "error", err)
}

// reachesLoopback reports whether a listener accepts calls to a loopback address of this machine.
func reachesLoopback(at net.Addr) bool {
	addr, err := netip.ParseAddrPort(at.String())
	return err != nil || addr.Addr().Unmap().IsLoopback() || addr.Addr().IsUnspecified()
}

// forget deletes the file of a listener that has closed, since another program can listen at its address from then on.
func (o *operators) forget(at net.Addr) {
	o.mu.Lock()
	defer o.mu.Unlock()
	addr, _ := netip.ParseAddrPort(at.String()) // the zero value has no file
	o.remove(addr)
}

// forgetAll deletes all files that hold the token.
func (o *operators) forgetAll() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for at := range o.files {
		o.remove(at)
	}
}

// remove deletes the file of an address, if there is one. The caller holds o.mu.
func (o *operators) remove(at netip.AddrPort) {
	file := o.files[at]
	delete(o.files, at)
	if file == "" {
		return
	}
	if err := devtoken.Remove(file, o.token); err != nil {
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
	guarded := operate.RequireToken(o.token, next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if why := o.refuses(); why != "" {
			operate.Deny(w, operate.Refuse(operate.Unsupported, "the operators' API of this 'sluice dev' is off: %s",
				why))
			return
		}
		guarded.ServeHTTP(w, r)
	})
}
