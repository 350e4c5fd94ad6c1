package main

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
	"github.com/sluicelimits/sluice/internal/dev"
	"github.com/sluicelimits/sluice/internal/dev/devtoken"
)

// ownFile says in error texts what to do if no token is found.
const ownFile = "Run this command as the user who started 'sluice dev', or name the file of its token with " +
	"--token-file or " + dev.TokenFileVariable + "."

// localClient makes a client for an endpoint on this machine. If the endpoint belongs to a 'sluice dev', the client
// sends the token in file, or, if file is "", the token that the process at that address has left for its user. The
// client calls no other address than that of the process that the token is for.
func localClient(u *url.URL, file string) (*client.Client, error) {
	token, hint := "", ""
	// A call to another path must not carry the token: the gateway may pass the call and its headers to its upstream.
	if p := path.Clean("/" + u.Path); p == dev.AdminPath || strings.HasPrefix(p, dev.AdminPath+"/") {
		var err error
		if token, hint, u, err = tokenFor(u, file); err != nil {
			return nil, err
		}
	}
	made, err := client.New(u.String(), nil)
	if err != nil {
		return nil, err
	}
	return made.WithToken(token, hint)
}

// tokenFor finds the token for an endpoint of a 'sluice dev'. If it finds no token, token is "". The caller adds hint
// to the error of a call that is refused: hint says which file was read, and what to do. The token may only be sent to
// the URL at. If file holds a token for another address, tokenFor returns an error.
func tokenFor(u *url.URL, file string) (token, hint string, at *url.URL, err error) {
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	if err != nil {
		port = 80
	}
	var found devtoken.Found
	if file == "" {
		folder, err := devtoken.Folder()
		if err != nil {
			const unknown = "this call needs the token of 'sluice dev', and your folder for tokens is not known: %v. %s"
			return "", fmt.Sprintf(unknown, err, ownFile), u, nil
		}
		found = devtoken.Find(folder, u.Hostname(), uint16(port))
	} else {
		found = devtoken.Open(file, u.Hostname(), uint16(port))
	}
	if file != "" && errors.Is(found.Err, devtoken.ErrElsewhere) {
		return "", "", u, fmt.Errorf("%w. Name the file of the process at --endpoint with --token-file or %s; without "+
			"both, the command looks for it by the endpoint", found.Err, dev.TokenFileVariable)
	}
	if found.Token == "" {
		return "", hintFor(found.File, found.Err, u), u, nil
	}
	pinned := *u // "localhost" can mean two addresses, and another user's program can listen at the other one
	pinned.Host = net.JoinHostPort(found.Host.String(), strconv.FormatUint(port, 10))
	return found.Token, hintFor(found.File, nil, &pinned), &pinned, nil
}

// hintFor returns the hint for a call that is refused. err says why file has no token; nil if the call carried one.
func hintFor(file string, err error, u *url.URL) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Sprintf("this call needs the token of 'sluice dev', and there is no file %s. %s", file, ownFile)
	case err != nil:
		return fmt.Sprintf("this call needs the token of 'sluice dev', and no token can be sent: %v. %s", err, ownFile)
	}
	return fmt.Sprintf("the process at %s does not accept the token in %s: another user started that process, or it "+
		"has another --token-file, or it runs in a container. %s", u.Host, file, ownFile)
}
