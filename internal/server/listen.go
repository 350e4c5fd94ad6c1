package server

import (
	"errors"
	"fmt"
	"net"
	"strconv"
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

// ListenTCP listens at the address that a flag gives. If the port is in use, the error names a free one.
func ListenTCP(flag, address string) (net.Listener, error) {
	listener, err := net.Listen("tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, &inUseError{flags: []string{flag}, addresses: []string{address}}
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

// inUseError says that other programs listen at addresses, which flags give.
type inUseError struct{ flags, addresses []string }

func (e *inUseError) Error() string {
	free := freeAddresses(e.addresses)
	for i := range free {
		free[i] = e.flags[i] + " " + free[i]
	}
	who, what := "another program uses that port", "End it, or choose another port"
	if len(free) > 1 {
		who, what = "other programs use these ports", "End them, or choose other ports"
	}
	return fmt.Sprintf("listen on %s: %s, perhaps a 'sluice dev' or 'sluice serve' that still runs. %s, such as %s",
		strings.Join(e.addresses, ", "), who, what, strings.Join(free, " "))
}

// freeAddresses returns for each address another one, on the same host, at a free port above its own.
func freeAddresses(addresses []string) []string {
	const most = 1000 // ports that are tried for each address
	free := make([]string, len(addresses))
	for i, address := range addresses {
		host, port, _ := net.SplitHostPort(address) // somebody listens there, so the address can be read
		n, _ := net.LookupPort("tcp", port)
		free[i] = net.JoinHostPort(host, "0") // stands for any free port
		for next := n + 1; next <= min(n+most, 1<<16-1); next++ {
			candidate := net.JoinHostPort(host, strconv.Itoa(next))
			if listener, err := net.Listen("tcp", candidate); err == nil {
				defer func() { _ = listener.Close() }() // until all are found, so that they differ
				free[i] = candidate
				break
			}
		}
	}
	return free
}

// joinInUse joins errors as errors.Join does, with one line for all addresses that are in use.
func joinInUse(errs ...error) error {
	var others []error
	all := new(inUseError)
	for _, err := range errs {
		var inUse *inUseError
		if errors.As(err, &inUse) {
			all.flags = append(all.flags, inUse.flags...)
			all.addresses = append(all.addresses, inUse.addresses...)
		} else {
			others = append(others, err)
		}
	}
	if len(all.flags) > 0 {
		others = append(others, all)
	}
	return errors.Join(others...)
}
