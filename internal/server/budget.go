package server

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc/stats"
)

// Bounds on the memory that clients can occupy with what is not complete.
const (
	// minBudget bounds the bytes of requests that were not answered, and of responses that clients do not read, of all
	// connections together, or budgetMessages of the largest requests if that is more. A request that comes in frames
	// of one byte takes about six times its bytes of memory, and a decoded one with its response some 50 times.
	minBudget      = 2 << 20
	budgetMessages = 4

	// sweepEvery is how often the budget looks for requests that take too long: one is cut off after one to two of it.
	sweepEvery = 10 * time.Second

	// overhead is credited for each gRPC request that has ended: the headers of its frames, the records of TLS, and the
	// frames that acknowledge its response. It is an estimate above the usual, so that a connection whose requests
	// overlap all the time does not seem to hold more and more.
	overhead = 128
)

// budget closes connections whose requests and unread responses take more memory than all connections together may,
// the one that holds most first. It also closes connections on which a gRPC request is incomplete for longer than
// sweepEvery. Calls of others end within milliseconds and hold hundreds of bytes, so they are not hit. The bytes are
// those of the network, under TLS if there is any.
type budget struct {
	most   int64 // bytes that all connections may hold
	mu     sync.Mutex
	held   int64
	ending int64 // the part of held whose connections were closed here, and are being given up by their server
	conns  map[*heldConn]struct{}
	less   sync.Cond // signaled when held falls
	sweep  int       // number of the present sweep
}

// newBudget returns a budget for requests of at most so many bytes.
func newBudget(maxMessage int) *budget {
	b := &budget{most: max(minBudget, budgetMessages*int64(maxMessage)), conns: map[*heldConn]struct{}{}}
	b.less.L = &b.mu
	return b
}

// listen returns a listener whose connections count towards the budget.
func (b *budget) listen(l net.Listener) net.Listener { return &heldListener{l, b} }

type heldListener struct {
	net.Listener
	budget *budget
}

// Accept implements [net.Listener].
func (l *heldListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &heldConn{Conn: conn, budget: l.budget}
	l.budget.mu.Lock()
	defer l.budget.mu.Unlock()
	l.budget.conns[c] = struct{}{}
	return c, nil
}

// heldConn counts what its client has sent and not completed, and what it has not read. All fields below Conn are
// guarded by the lock of the budget.
type heldConn struct {
	net.Conn
	budget     *budget
	in, out    int64  // bytes of requests that were not answered, and of responses that were not written
	ending     bool   // the budget has closed the connection
	unfinished [3]int // gRPC requests that are not complete, by the sweep in which they began, modulo 3
}

// heldAddr is the address of a client, with which package grpc names a connection.
type heldAddr struct {
	net.Addr
	conn *heldConn
}

// RemoteAddr implements [net.Conn].
func (c *heldConn) RemoteAddr() net.Addr { return heldAddr{c.Conn.RemoteAddr(), c} }

// Read implements [net.Conn].
func (c *heldConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.add(int64(n), 0)
	return n, err
}

// Write implements [net.Conn].
func (c *heldConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.add(0, -int64(n))
	return n, err
}

// Close implements [net.Conn].
func (c *heldConn) Close() error {
	b := c.budget
	b.mu.Lock()
	if _, open := b.conns[c]; open {
		b.held -= c.in + c.out
		if c.ending {
			b.ending -= c.in + c.out
		}
		delete(b.conns, c)
		b.less.Broadcast()
	}
	b.mu.Unlock()
	return c.Conn.Close()
}

// add changes what a connection holds, to no less than 0. If the connections hold too much, it closes those that hold
// most, and makes whoever reads wait until their servers have given them up.
func (c *heldConn) add(in, out int64) {
	b := c.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, open := b.conns[c]; !open || c.ending {
		return
	}
	in, out = max(in, -c.in), max(out, -c.out)
	c.in, c.out, b.held = c.in+in, c.out+out, b.held+in+out
	if in+out < 0 {
		b.less.Broadcast()
	}
	for b.held > b.most && !c.ending {
		switch {
		case b.held-b.ending > b.most:
			b.cut(b.largest())
		case in > 0:
			b.less.Wait()
		default:
			return
		}
	}
}

// largest returns the connection that holds most of those that are not ending. The lock is held.
func (b *budget) largest() (largest *heldConn) {
	for c := range b.conns {
		if !c.ending && (largest == nil || c.in+c.out > largest.in+largest.out) {
			largest = c
		}
	}
	return largest
}

// cut closes a connection. The lock is held.
func (b *budget) cut(c *heldConn) {
	c.ending = true
	b.ending += c.in + c.out
	_ = c.Conn.Close() // what fails of it, the client has done
	b.less.Broadcast()
}

// run looks for requests that take too long, until the context ends.
func (b *budget) run(ctx context.Context) {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			b.cutSlow()
		}
	}
}

// cutSlow closes the connections with a request that began before the previous sweep.
func (b *budget) cutSlow() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sweep++
	for c := range b.conns {
		if !c.ending && c.unfinished[(b.sweep+1)%3] > 0 {
			b.cut(c)
		}
	}
}

// connState is called by an HTTP server. A connection that is idle holds nothing.
func (b *budget) connState(conn net.Conn, state http.ConnState) {
	if state == http.StateIdle {
		if addr, ok := conn.RemoteAddr().(heldAddr); ok {
			addr.conn.add(-b.most, 0)
		}
	}
}

// grpcRequest is one gRPC request on its way in. Package grpc reports about it from one goroutine at a time.
type grpcRequest struct {
	conn     *heldConn
	sweep    int
	bytes    int64 // of its header and its message, as far as they are known
	complete bool
}

type grpcRequestKey struct{}

type grpcConnKey struct{}

// TagConn implements [stats.Handler].
func (b *budget) TagConn(ctx context.Context, info *stats.ConnTagInfo) context.Context {
	return context.WithValue(ctx, grpcConnKey{}, info.RemoteAddr)
}

// HandleConn implements [stats.Handler].
func (b *budget) HandleConn(context.Context, stats.ConnStats) {}

// TagRPC implements [stats.Handler].
func (b *budget) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	addr, ok := ctx.Value(grpcConnKey{}).(heldAddr)
	if !ok {
		return ctx
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	r := &grpcRequest{conn: addr.conn, sweep: b.sweep % 3}
	addr.conn.unfinished[r.sweep]++
	return context.WithValue(ctx, grpcRequestKey{}, r)
}

// HandleRPC implements [stats.Handler].
func (b *budget) HandleRPC(ctx context.Context, s stats.RPCStats) {
	r, ok := ctx.Value(grpcRequestKey{}).(*grpcRequest)
	if !ok {
		return
	}
	switch s := s.(type) {
	case *stats.InHeader:
		r.bytes = int64(s.WireLength) + overhead
	case *stats.InPayload:
		r.bytes += int64(s.WireLength)
		r.finish()
	case *stats.OutPayload:
		r.conn.add(0, int64(s.WireLength))
	case *stats.End:
		if r.finish() {
			r.bytes = b.most // all of it
		}
		r.conn.add(-r.bytes, 0)
	}
}

// finish is called when a request is complete, and when it has ended. It reports whether no request of the connection
// is incomplete.
func (r *grpcRequest) finish() bool {
	c := r.conn
	c.budget.mu.Lock()
	defer c.budget.mu.Unlock()
	if !r.complete {
		r.complete = true
		c.unfinished[r.sweep]--
	}
	return c.unfinished == [3]int{}
}
