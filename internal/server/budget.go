package server

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc/stats"
)

const (
	// A budget's limit is the larger of minBudget, in bytes, and budgetMessages times the largest request. A counted
	// byte can take many times as much memory: a request that comes in frames of one byte, or a decoded one with its
	// response. TestServeMemoryIsBounded measures it: with 2 MiB the service takes some 100 MiB at most.
	minBudget      = 2 << 20
	budgetMessages = 4

	// sweepEvery is how often the budget looks for gRPC requests that do not arrive completely. Such a request is cut
	// off one to two times sweepEvery after it began.
	sweepEvery = 10 * time.Second

	// overhead is subtracted for each gRPC request that has ended, beside its header and its message. It stands for
	// what package grpc does not report: headers of frames, records of TLS, and frames that acknowledge the response.
	// It is more than these usually take. Otherwise the count of a connection whose requests always overlap would grow.
	overhead = 128
)

// budget limits how many bytes all connections together hold: of requests that were not answered, and of gRPC responses
// that were not written to the network. If the total exceeds the limit, the budget closes the connection that holds
// most, and repeats this until the total is within the limit. It also closes each connection on which a gRPC request
// has not arrived completely after one to two times sweepEvery. Closing a connection ends all of its requests.
//
// A client that sends whole requests and reads the responses usually holds some hundred bytes for some milliseconds, so
// its connection is hardly ever the one that holds most. While the limit is exceeded, reads of all connections wait.
//
// Read and Write count bytes of the network, with those of TLS and HTTP/2. Responses over HTTP are not counted, because
// each has a time limit.
type budget struct {
	limit int64 // bytes that all connections may hold
	log   *slog.Logger

	mu      sync.Mutex // guards all fields below, and those of the connections
	held    int64      // bytes that all connections hold
	closing int64      // the part of held whose connections were cut, and not yet closed by their server
	conns   map[*heldConn]struct{}
	changed sync.Cond // broadcast when held falls, and when a connection is cut
	sweeps  int       // how many sweeps have been made

	lastLogged time.Time // when the last line about a cut connection was logged
	notLogged  int       // connections that were cut since then
}

// newBudget returns a budget for a server whose requests have at most maxMessage bytes.
func newBudget(maxMessage int, log *slog.Logger) *budget {
	b := &budget{limit: max(minBudget, budgetMessages*int64(maxMessage)), log: log, conns: map[*heldConn]struct{}{}}
	b.changed.L = &b.mu
	return b
}

// wrap returns a listener whose connections count towards the budget. server names the server in the log.
func (b *budget) wrap(server string, l net.Listener) net.Listener { return &heldListener{l, server, b} }

type heldListener struct {
	net.Listener
	server string
	budget *budget
}

// Accept implements [net.Listener].
func (l *heldListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &heldConn{Conn: conn, server: l.server, budget: l.budget}
	l.budget.mu.Lock()
	defer l.budget.mu.Unlock()
	l.budget.conns[c] = struct{}{}
	return c, nil
}

// heldConn is a connection that counts towards a budget. The lock of the budget guards the fields from in on.
type heldConn struct {
	net.Conn
	server string
	budget *budget

	in  int64 // bytes that were received, less those of requests that were answered
	out int64 // bytes of gRPC responses that were handed to package grpc and not written to the network; an estimate
	cut bool  // the budget has closed the network connection

	// Of gRPC: whether the connection is one, how many requests were not answered, and how many have not arrived
	// completely, by the value of budget.sweeps at which they began, modulo 3. Older requests have been cut off.
	grpc     bool
	open     int
	arriving [3]int
}

// heldAddr is the address of a client together with its connection. Package grpc tells a stats handler only the
// address, and an HTTP server knows a connection with TLS around this one. Both find the heldConn by its RemoteAddr.
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
	if _, found := b.conns[c]; found {
		b.held -= c.in + c.out
		if c.cut {
			b.closing -= c.in + c.out
		}
		delete(b.conns, c)
		b.changed.Broadcast()
	}
	b.mu.Unlock()
	return c.Conn.Close()
}

// add changes the two counts of a connection; neither falls below 0. If the connections then hold too much, add cuts
// those that hold most. If bytes were received, add also waits until the total is within the limit, or until this
// connection is cut.
func (c *heldConn) add(in, out int64) {
	b := c.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	b.change(c, in, out)
	for b.held > b.limit && !c.cut {
		switch {
		case b.held-b.closing > b.limit:
			b.cut(b.largest(), fmt.Sprintf("requests that are not answered, and responses that clients do not read, "+
				"hold more than %d bytes, most of them on this connection. Find the client that sends them", b.limit))
		case in > 0:
			b.changed.Wait()
		default:
			return
		}
	}
}

// change changes the two counts of a connection; neither falls below 0. The caller holds the lock.
func (b *budget) change(c *heldConn, in, out int64) {
	if _, found := b.conns[c]; !found || c.cut {
		return
	}
	in, out = max(in, -c.in), max(out, -c.out)
	c.in, c.out, b.held = c.in+in, c.out+out, b.held+in+out
	if in+out < 0 {
		b.changed.Broadcast()
	}
}

// largest returns the connection that holds most of those that were not cut. The caller holds the lock.
func (b *budget) largest() (most *heldConn) {
	for c := range b.conns {
		if !c.cut && (most == nil || c.in+c.out > most.in+most.out) {
			most = c
		}
	}
	return most
}

// cut closes a network connection, and logs why, once a second at most. The log has no address of a client. The caller
// holds the lock.
func (b *budget) cut(c *heldConn, why string) {
	b.notLogged++
	if now := time.Now(); now.Sub(b.lastLogged) >= time.Second {
		b.log.Warn("a connection was closed: "+why, "server", c.server, "bytes", c.in+c.out, "closed", b.notLogged)
		b.lastLogged, b.notLogged = now, 0
	}
	c.cut = true
	b.closing += c.in + c.out
	_ = c.Conn.Close() // nobody uses the connection any longer, so the error does not matter
	b.changed.Broadcast()
}

// run makes sweeps until the context ends.
func (b *budget) run(ctx context.Context) {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			b.sweepAll()
		}
	}
}

// sweepAll cuts each connection that has a gRPC request which began before the previous sweep and has not arrived
// completely. It also corrects the counts of the other gRPC connections.
func (b *budget) sweepAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sweeps++
	twoAgo := (b.sweeps + 1) % 3
	for c := range b.conns {
		switch {
		case !c.grpc || c.cut:
		case c.arriving[twoAgo] > 0:
			b.cut(c, fmt.Sprintf("a gRPC request on it had not arrived completely after %s", sweepEvery))
		default:
			// Responses that package grpc drops, because a client has canceled their requests, would stay in out.
			b.change(c, c.inWithoutRequests(), -c.out/2)
		}
	}
}

// inWithoutRequests returns the change that takes out of the count what no request has brought, such as pings. While
// requests are open, nobody knows how much that is.
func (c *heldConn) inWithoutRequests() int64 {
	if c.open > 0 {
		return 0
	}
	return -c.in
}

// connState is the ConnState hook of the HTTP servers. When a connection becomes idle, its last request was answered.
func (b *budget) connState(conn net.Conn, state http.ConnState) {
	if addr, ok := conn.RemoteAddr().(heldAddr); ok && state == http.StateIdle {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.change(addr.conn, addr.conn.inWithoutRequests(), 0)
	}
}

// grpcRequest is a gRPC request. Package grpc calls HandleRPC for a request from one goroutine at a time, so that only
// the connection needs a lock.
type grpcRequest struct {
	conn    *heldConn
	slot    int   // in heldConn.arriving
	bytes   int64 // that are subtracted at the end: of the header and of the messages that have arrived, and overhead
	arrived bool  // the first message has arrived, or the request has ended
}

type grpcRequestKey struct{}

type grpcConnKey struct{}

// TagConn implements [stats.Handler]. A handshake of TLS is over then, and holds nothing.
func (b *budget) TagConn(ctx context.Context, info *stats.ConnTagInfo) context.Context {
	addr, ok := info.RemoteAddr.(heldAddr)
	if !ok {
		return ctx
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	addr.conn.grpc = true
	b.change(addr.conn, addr.conn.inWithoutRequests(), 0)
	return context.WithValue(ctx, grpcConnKey{}, addr.conn)
}

// HandleConn implements [stats.Handler].
func (b *budget) HandleConn(context.Context, stats.ConnStats) {}

// TagRPC implements [stats.Handler].
func (b *budget) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	conn, ok := ctx.Value(grpcConnKey{}).(*heldConn)
	if !ok {
		return ctx
	}
	return context.WithValue(ctx, grpcRequestKey{}, &grpcRequest{conn: conn})
}

// HandleRPC implements [stats.Handler]. A request begins with Begin, and not with its header: of a method that does not
// exist, package grpc reports the header alone.
func (b *budget) HandleRPC(ctx context.Context, s stats.RPCStats) {
	r, ok := ctx.Value(grpcRequestKey{}).(*grpcRequest)
	if !ok {
		return
	}
	switch s := s.(type) {
	case *stats.InHeader:
		r.bytes = int64(s.WireLength) + overhead
	case *stats.Begin:
		b.begin(r)
	case *stats.InPayload:
		r.bytes += int64(s.WireLength)
		b.mu.Lock()
		defer b.mu.Unlock()
		r.arrive()
	case *stats.OutPayload:
		r.conn.add(0, int64(s.WireLength))
	case *stats.End:
		b.end(r)
	}
}

func (b *budget) begin(r *grpcRequest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r.slot = b.sweeps % 3
	r.conn.open++
	r.conn.arriving[r.slot]++
}

// arrive records that the first message of the request has arrived, or that the request has ended. The caller holds the
// lock of the budget.
func (r *grpcRequest) arrive() {
	if !r.arrived {
		r.arrived = true
		r.conn.arriving[r.slot]--
	}
}

// end subtracts what the request held. If it was the only one, the connection holds nothing of requests.
func (b *budget) end(r *grpcRequest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r.arrive()
	r.conn.open--
	b.change(r.conn, min(-r.bytes, r.conn.inWithoutRequests()), 0)
}
