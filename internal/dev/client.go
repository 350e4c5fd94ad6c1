package dev

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"path"
	"strconv"
	"strings"

	"github.com/sluicelimits/sluice/internal/control/client"
	"github.com/sluicelimits/sluice/internal/dev/devtoken"
)

// ownFile says in error texts what to do if no token is found.
const ownFile = "Run this command as the user who started 'sluice dev', with the same XDG_STATE_HOME."

// Client makes a client for an endpoint on this machine. If the endpoint belongs to a 'sluice dev', the client
// sends the token that the process at that address has left for its user. The client calls no other address than that
// of the process that the token is for.
func Client(u *url.URL) (*client.Client, error) {
	token, hint := "", ""
	// A call to another path must not carry the token: the gateway may pass the call and its headers to its upstream.
	if p := path.Clean("/" + u.Path); p == AdminPath || strings.HasPrefix(p, AdminPath+"/") {
		token, hint, u = TokenFor(u)
	}
	made, err := client.New(u.String(), nil)
	if err != nil {
		return nil, err
	}
	return made.WithToken(token, hint)
}

// TokenFor finds the token for an endpoint of a 'sluice dev'. If it finds no token, token is "". The caller adds hint
// to the error of a call that is refused: hint says which file was read, and what to do. The token may only be sent to
// the URL at.
func TokenFor(u *url.URL) (token, hint string, at *url.URL) {
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	if err != nil {
		port = 80
	}
	folder, err := devtoken.Folder()
	if err != nil {
		const unknown = "this call needs the token of 'sluice dev', and your folder for tokens is not known: %v. %s"
		return "", fmt.Sprintf(unknown, err, ownFile), u
	}
	found := devtoken.Find(folder, u.Hostname(), uint16(port))
	switch {
	case errors.Is(found.Err, fs.ErrNotExist):
		hint = fmt.Sprintf("this call needs the token of 'sluice dev', and there is no file %s. %s", found.File,
			ownFile)
	case found.Err != nil:
		hint = fmt.Sprintf("this call needs the token of 'sluice dev', and no token can be sent: %v. %s", found.Err,
			ownFile)
	default:
		pinned := *u // "localhost" can mean two addresses, and another user's program can listen at the other one
		pinned.Host = net.JoinHostPort(found.Host.String(), strconv.FormatUint(port, 10))
		hint = fmt.Sprintf("the process at %s does not accept the token in %s: another user started that process, or "+
			"it runs in a container. %s", pinned.Host, found.File, ownFile)
		u = &pinned
	}
	return found.Token, hint, u
}
