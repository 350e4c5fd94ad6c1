// Package standin has a stand-in for a provider that bans clients, and runs processes with pacers against it. The
// processes share one account of the provider, and one limit through a real Redis. The stand-in counts what arrives by
// itself, and knows nothing of pacers. Only tests and benchmarks import the package.
package standin

import (
	"net"
	"sync"
	"time"
)

// Provider is a server with an account that has a limit per second. It bans the account for good as soon as one request
// arrives in a second of its own clock whose units are spent. Each byte that arrives on a connection is a request.
type Provider struct {
	listener net.Listener
	ahead    time.Duration
	// onlyCounts is set before the first client connects. Requests of a banned account are then still read and counted.
	onlyCounts bool
	serving    sync.WaitGroup

	mu      sync.Mutex
	limit   int64
	next    int64 // the limit from window from on; 0: no change is announced
	from    int64
	arrived map[int64]int64 // requests by window, also those after the ban
	banned  int64           // the window in which the account was banned; 0: it is not banned
	conns   map[net.Conn]bool
}

// Listen starts a provider on a free port of this machine. Its clock is ahead of the machine's.
func Listen(limit int64, ahead time.Duration) (*Provider, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Provider{listener: l, ahead: ahead, limit: limit, arrived: map[int64]int64{}, conns: map[net.Conn]bool{}}
	p.serving.Go(p.accept)
	return p, nil
}

// Addr returns the address that clients connect to.
func (p *Provider) Addr() string { return p.listener.Addr().String() }

// Announce changes the limit from a window on.
func (p *Provider) Announce(limit, from int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next, p.from = limit, from
}

// Close ends all connections, and waits for what serves them.
func (p *Provider) Close() {
	_ = p.listener.Close()
	p.mu.Lock()
	for c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.serving.Wait()
}

// Count returns the number of requests that arrived in a window, and the limit of the window.
func (p *Provider) Count(window int64) (arrived, limit int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.arrived[window], p.limitOf(window)
}

// Banned returns the window in which the account was banned, and false if it is not banned.
func (p *Provider) Banned() (window int64, banned bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.banned, p.banned != 0
}

// Over returns the number of requests beyond the limit, in all windows together.
func (p *Provider) Over() (over int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for window, n := range p.arrived {
		over += max(n-p.limitOf(window), 0)
	}
	return over
}

func (p *Provider) limitOf(window int64) int64 {
	if p.next > 0 && window >= p.from {
		return p.next
	}
	return p.limit
}

func (p *Provider) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		p.conns[c] = true
		p.mu.Unlock()
		p.serving.Go(func() { p.serve(c) })
	}
}

// serve counts requests until the client or the provider closes the connection. A client whose account is banned finds
// its connection closed.
func (p *Provider) serve(c net.Conn) {
	defer func() { _ = c.Close() }()
	requests := make([]byte, 64<<10)
	for {
		n, err := c.Read(requests)
		if n > 0 && !p.count(int64(n)) || err != nil {
			return
		}
	}
}

// count counts requests that arrive, and reports whether the account may go on.
func (p *Provider) count(n int64) bool {
	window := time.Now().Add(p.ahead).Unix()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.arrived[window] += n
	if p.arrived[window] > p.limitOf(window) && p.banned == 0 {
		p.banned = window
	}
	return p.banned == 0 || p.onlyCounts
}
