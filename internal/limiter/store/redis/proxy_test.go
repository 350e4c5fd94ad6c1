package redis_test

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// proxy forwards between a store and its server, and can lose replies.
type proxy struct {
	addr string
	cut  atomic.Int64 // bytes of each reply that pass before the connection is reset; negative: all bytes

	mu    sync.Mutex
	conns []net.Conn
}

func newProxy(tb testing.TB, server string) *proxy {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &proxy{addr: l.Addr().String()}
	p.cut.Store(-1)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { p.serve(in, server, &wg) })
		}
	})
	tb.Cleanup(func() {
		_ = l.Close()
		p.mu.Lock()
		for _, c := range p.conns {
			_ = c.Close()
		}
		p.mu.Unlock()
		wg.Wait()
	})
	return p
}

func (p *proxy) serve(in net.Conn, server string, wg *sync.WaitGroup) {
	out, err := net.Dial("tcp", server)
	if err != nil {
		_ = in.Close()
		return
	}
	p.mu.Lock()
	p.conns = append(p.conns, in, out)
	p.mu.Unlock()
	wg.Go(func() {
		forward(out, in, func(b []byte) ([]byte, error) { return b, nil })
		_ = out.Close()
	})
	forward(in, out, func(b []byte) ([]byte, error) {
		n := p.cut.Load()
		if n < 0 {
			return b, nil
		}
		return b[:min(int(n), len(b))], errors.New("cut")
	})
	_ = in.(*net.TCPConn).SetLinger(0) // so that Close sends a reset
	_ = in.Close()
	_ = out.Close()
}

func forward(to, from net.Conn, filter func([]byte) ([]byte, error)) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		b, stop := filter(buffer[:n])
		if _, err := to.Write(b); err != nil || stop != nil {
			return
		}
	}
}
