package server

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
)

// EveryAddress is an example for CheckAddress, for flags that take an address without a host.
const EveryAddress = "127.0.0.1:8081, or :8081 for every address of this machine"

// CheckAddress returns an error if an address to listen on is not HOST:PORT. The error names the flag that gives the
// address, and an example of an address.
func CheckAddress(flag, address, example string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%s %q is not HOST:PORT, such as %s", flag, address, example)
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return fmt.Errorf("%s %q: the port %q is not a number within 0..65535", flag, address, port)
	}
	return nil
}

// ListenTCP listens at the address that a flag gives.
func ListenTCP(flag, address string) (net.Listener, error) {
	listener, err := net.Listen("tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("listen on %s: another program uses that port, perhaps a 'sluice dev' or 'sluice "+
			"serve' that still runs. End it, or choose another port with %s", address, flag)
	case err != nil:
		return nil, fmt.Errorf("%s %s: %w", flag, address, err)
	}
	return listener, nil
}

// listenAt listens at an address, which may also be unix:PATH.
func listenAt(flag, address string) (net.Listener, error) {
	path, ok := strings.CutPrefix(address, "unix:")
	if !ok {
		return ListenTCP(flag, address)
	}
	listener, err := net.Listen("unix", path)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s %s: there is such a file already: end the program that listens there, or remove "+
			"the file if no program does, or choose another path", flag, address)
	case err != nil:
		return nil, fmt.Errorf("%s %s: %w", flag, address, err)
	}
	return listener, nil
}
