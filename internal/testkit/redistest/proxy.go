package redistest

import (
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy forwards between clients and a server, and can be slow, silent or gone.
type Proxy struct {
	Addr string // 127.0.0.1:port, which stays

	listener net.Listener
	serving  sync.WaitGroup

	mu      sync.Mutex
	changed chan struct{} // closed at each change, and replaced
	target  string
	delay   time.Duration // of each piece, in each direction
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

// Forward passes everything on at once, and new connections to target. Existing connections keep their server. What was
// delayed or stalled arrives.
func (p *Proxy) Forward(target string) {
	p.change(func() { p.target, p.delay, p.stalled = target, 0, false })
}

// Delay delays everything by d, in each direction.
func (p *Proxy) Delay(d time.Duration) { p.change(func() { p.delay = d }) }

// Stall passes nothing on, in either direction, until Forward. New connections are accepted, and nothing is answered.
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

// open waits until pieces are passed on, and returns to where; false at the proxy's end.
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

// late waits for as long as the proxy is slow.
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
