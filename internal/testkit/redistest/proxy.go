package redistest

import (
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy forwards data between clients and a server. It can delay or hold back the data, and reset connections.
type Proxy struct {
	Addr string // 127.0.0.1:port

	listener net.Listener
	serving  sync.WaitGroup

	mu      sync.Mutex
	changed chan struct{} // each change closes the channel, and replaces it by a new one
	target  string
	delay   time.Duration // of all data, in each direction
	stalled bool
	ended   bool
	conns   map[net.Conn]struct{}
}

// StartProxy starts a proxy that forwards to target, a server's address.
func StartProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &Proxy{Addr: l.Addr().String(), listener: l, target: target, changed: make(chan struct{}),
		conns: make(map[net.Conn]struct{})}
	p.serving.Go(p.accept)
	tb.Cleanup(func() {
		_ = l.Close()
		p.change(func() { p.ended = true })
		p.Cut()
		p.serving.Wait()
	})
	return p
}

// Forward ends Delay and Stall: all data is passed on at once. New connections are made to target; existing connections
// keep their server.
func (p *Proxy) Forward(target string) {
	p.change(func() { p.target, p.delay, p.stalled = target, 0, false })
}

// Delay delays all data by d, in each direction.
func (p *Proxy) Delay(d time.Duration) { p.change(func() { p.delay = d }) }

// Stall holds back all data, in both directions, until Forward is called. New connections are accepted.
func (p *Proxy) Stall() { p.change(func() { p.stalled = true }) }

// Cut resets every connection.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		reset(c)
	}
}

func reset(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = c.Close()
}

func (p *Proxy) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Proxy) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.serving.Go(func() { p.serve(in) })
	}
}

func (p *Proxy) serve(in net.Conn) {
	if !p.keep(in) {
		return
	}
	defer p.drop(in)
	target, ok := p.open()
	if !ok {
		return
	}
	out, err := net.DialTimeout("tcp", target, time.Second)
	if err != nil || !p.keep(out) {
		return
	}
	defer p.drop(out)
	var there sync.WaitGroup
	there.Go(func() {
		p.forward(out, in)
		reset(out)
	})
	p.forward(in, out)
	reset(in)
	there.Wait()
}

// keep adds a connection to those that Cut resets. It returns false if the proxy has ended.
func (p *Proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		reset(c)
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *Proxy) drop(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
	reset(c)
}

// open waits while data is held back, and returns the target of new connections; false if the proxy has ended.
func (p *Proxy) open() (target string, ok bool) {
	for {
		p.mu.Lock()
		target, ok, stalled, changed := p.target, !p.ended, p.stalled, p.changed
		p.mu.Unlock()
		if !ok || !stalled {
			return target, ok
		}
		<-changed
	}
}

// late waits for the delay. If the delay changes meanwhile, the new delay counts.
func (p *Proxy) late() {
	began := time.Now()
	for {
		p.mu.Lock()
		delay, changed := p.delay, p.changed
		p.mu.Unlock()
		left := delay - time.Since(began)
		if left <= 0 {
			return
		}
		select {
		case <-time.After(left):
		case <-changed:
		}
	}
}

func (p *Proxy) forward(to, from net.Conn) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		p.late()
		if _, ok := p.open(); !ok {
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}
