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

	"github.com/sluicelimits/sluice/internal/admin/client"
	"github.com/sluicelimits/sluice/internal/devtoken"
)

// tokenFileVariable names the file of the token, for 'sluice dev' and for operators' commands.
const tokenFileVariable = "SLUICE_TOKEN_FILE"

// ownFile is what to do if no token is found.
const ownFile = "Run this command as the user who started 'sluice dev', or name the file of its token with " +
	"--token-file or " + tokenFileVariable + "."

// localClient makes a client for an endpoint on this machine. If the endpoint belongs to a 'sluice dev', the client
// sends the token in file. If file is "", the client sends the token that the process at that address has left for
// its user, and calls no other address.
func localClient(u *url.URL, file string) (*client.Client, error) {
	token, hint := "", ""
	// Another path can lead to an upstream, and the gateway hands credentials on.
	if p := path.Clean("/" + u.Path); p == adminPath || strings.HasPrefix(p, adminPath+"/") {
		token, hint, u = tokenFor(u, file)
	}
	made, err := client.New(u.String(), nil)
	if err != nil {
		return nil, err
	}
	return made.WithToken(token, hint)
}

// tokenFor finds the token for an endpoint of a 'sluice dev'. If it finds no token, token is "". The hint is added to
// the error of a call that is refused: it says which file was read and what to do. The token may be sent to the URL
// at alone.
func tokenFor(u *url.URL, file string) (token, hint string, at *url.URL) {
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	if err != nil {
		port = 80
	}
	var found devtoken.Found
	if file == "" {
		folder, err := devtoken.Folder()
		if err != nil {
			const unknown = "it wants the token of 'sluice dev', and your folder for tokens is not known: %v. %s"
			return "", fmt.Sprintf(unknown, err, ownFile), u
		}
		found = devtoken.Find(folder, u.Hostname(), uint16(port))
	} else {
		found = devtoken.Found{File: file, Host: devtoken.Address(u.Hostname())}
		found.Token, found.Err = devtoken.Read(file)
	}
	if found.Token == "" {
		return "", hintFor(found.File, found.Err, u), u
	}
	pinned := *u // "localhost" can lead to two addresses, and somebody else can listen at the other one
	pinned.Host = net.JoinHostPort(found.Host.String(), strconv.FormatUint(port, 10))
	return found.Token, hintFor(found.File, nil, &pinned), &pinned
}

// hintFor says what is wrong if a call with the token in file is refused. err is why there is no token in it.
func hintFor(file string, err error, u *url.URL) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Sprintf("it wants the token of 'sluice dev', and there is no file %s. %s", file, ownFile)
	case err != nil:
		return fmt.Sprintf("it wants the token of 'sluice dev', which cannot be read: %v. %s", err, ownFile)
	}
	return fmt.Sprintf("the token in %s is not that of the process at %s: another user started that process, or it "+
		"has another --token-file, or it is in a container. %s", file, u.Host, ownFile)
}
