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
	"github.com/sluicelimits/sluice/internal/dev/devtoken"
)

// tokenFileVariable names the file of the token, for 'sluice dev' and for operators' commands.
const tokenFileVariable = "SLUICE_TOKEN_FILE"

// ownFile is what to do if no token is found.
const ownFile = "Run this command as the user who started 'sluice dev', or name the file of its token with " +
	"--token-file or " + tokenFileVariable + "."

// localClient makes a client for an endpoint on this machine. If the endpoint belongs to a 'sluice dev', the client
// sends the token in file, or, if file is "", the token that the process at that address has left for its user. The
// client calls no other address than that of the process that the token is for.
func localClient(u *url.URL, file string) (*client.Client, error) {
	token, hint := "", ""
	// Another path can lead to an upstream, and the gateway hands credentials on.
	if p := path.Clean("/" + u.Path); p == adminPath || strings.HasPrefix(p, adminPath+"/") {
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

// tokenFor finds the token for an endpoint of a 'sluice dev'. If it finds no token, token is "". The hint is added to
// the error of a call that is refused: it says which file was read and what to do. The token may be sent to the URL
// at alone. If file holds the token for another address, that is an error.
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
		return "", "", u, fmt.Errorf("%w. --endpoint says what to call, and --token-file or %s names the file of the "+
			"process there; without both, it is found by the endpoint", found.Err, tokenFileVariable)
	}
	if found.Token == "" {
		return "", hintFor(found.File, found.Err, u), u, nil
	}
	pinned := *u // "localhost" can lead to two addresses, and somebody else can listen at the other one
	pinned.Host = net.JoinHostPort(found.Host.String(), strconv.FormatUint(port, 10))
	return found.Token, hintFor(found.File, nil, &pinned), &pinned, nil
}

// hintFor says what is wrong if a call with the token in file is refused. err is why there is no token in it.
func hintFor(file string, err error, u *url.URL) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Sprintf("this call needs the token of 'sluice dev', and there is no file %s. %s", file, ownFile)
	case err != nil:
		return fmt.Sprintf("this call needs the token of 'sluice dev', and no token can be sent: %v. %s", err, ownFile)
	}
	return fmt.Sprintf("the token in %s is not that of the process at %s: another user started that process, or it "+
		"has another --token-file, or it is in a container. %s", file, u.Host, ownFile)
}
