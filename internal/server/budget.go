package server

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"
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

	// streamBytes is added for each gRPC request that is open. A header of 20 bytes opens one, which takes some 16 kB.
	streamBytes = 512

	// Bytes for whose rest the client is not awaited count one processedPart-th when a connection is chosen to be cut.
	processedPart = 64

	// A server accepts no connection while one mostClosing-th of its connections were cut and are not closed yet.
	mostClosing = 16
)

// budget limits how many bytes all connections together hold: of requests that were not answered, and of gRPC responses
// that were not written to the network. If the total exceeds the limit, the budget closes connections until the total
// is within the limit. It also closes each connection on which a gRPC request has not arrived completely after one to
// two times sweepEvery. Closing a connection ends all of its requests.
//
// It closes first where bytes times time is largest: the bytes for whose rest, or for whose reading, the connection's
// client is awaited, and the time since a request on the connection was last answered. A client that sends whole
// requests and reads the responses holds few such bytes, and only for milliseconds, also if it has many requests in
// flight. While the limit is exceeded, reads wait on each connection that holds more than its part of the limit.
//
// If a server has as many connections as it may have, a new one takes the place of one that has sent nothing, else of
// one on which nothing was answered, else of any other; and of those, of the one that was quiet for the longest time.
//
// Read and Write count bytes of the network, with those of TLS and HTTP/2. Responses over HTTP are not counted, because
// each has a time limit.
type budget struct {
	limit   int64 // bytes that all connections may hold
	log     *slog.Logger
	methods map[string]bool // of the gRPC server, as /SERVICE/METHOD; set before it serves

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

// count makes the requests of a gRPC server count. All its services are registered already.
func (b *budget) count(s *grpc.Server) {
	b.methods = map[string]bool{}
	for service, info := range s.GetServiceInfo() {
		for _, m := range info.Methods {
			b.methods["/"+service+"/"+m.Name] = true
		}
	}
}

// wrap returns a listener with at most so many connections, all of which count towards the budget. server is its name
// in the log.
func (b *budget) wrap(server string, l net.Listener, most int) net.Listener {
	return &heldListener{l, server, most, b}
}

type heldListener struct {
	net.Listener
	server string
	most   int
	budget *budget
}

// Accept implements [net.Listener].
func (l *heldListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	b := l.budget
	c := &heldConn{Conn: conn, server: l.server, budget: b, since: time.Now()}
	b.mu.Lock()
	defer b.mu.Unlock()
	open, closing, longest := b.open(l.server)
	for ; closing > l.most/mostClosing; open, closing, longest = b.open(l.server) {
		b.changed.Wait()
	}
	if open >= l.most {
		b.cut(longest, fmt.Sprintf("the server has %d connections (--max-connections), and on this one nothing was "+
			"answered for the longest time. Find the clients that open so many, or raise the flag", l.most))
	}
	b.conns[c] = struct{}{}
	return c, nil
}

// open returns how many connections a server has that were not cut, how many were and are not closed yet, and which one
// a new one replaces. The caller holds the lock.
func (b *budget) open(server string) (n, closing int, longest *heldConn) {
	for c := range b.conns {
		if c.server != server {
			continue
		}
		if c.cut {
			closing++
			continue
		}
		n++
		if longest == nil || c.proved() < longest.proved() ||
			c.proved() == longest.proved() && c.since.Before(longest.since) {
			longest = c
		}
	}
	return n, closing, longest
}

// proved returns how much speaks for the client of a connection: 0, nothing; 1, it has sent something; 2, it has sent a
// request that was answered.
func (c *heldConn) proved() int {
	switch {
	case c.answered:
		return 2
	case c.in > 0:
		return 1
	}
	return 0
}

// heldConn is a connection that counts towards a budget. The lock of the budget guards the fields from in on.
type heldConn struct {
	net.Conn
	server string
	budget *budget

	in  int64 // bytes that were received, less those of requests that were answered
	out int64 // bytes of gRPC responses that were handed to package grpc and not written to the network; an estimate
	cut bool  // the budget has closed the network connection

	reading  bool      // the server waits for bytes of the client
	since    time.Time // when a request on the connection was last answered, or when the connection began
	answered bool      // whether one was

	// Of gRPC: whether the connection is one, how many requests were not answered, and how many have not arrived
	// completely, by the value of budget.sweeps at which they began, modulo 3. Older requests have been cut off.
	// arrived is the part of in that is of requests which have arrived and were not answered.
	grpc     bool
	open     int
	arriving [3]int
	arrived  int64
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
	c.setReading(true)
	n, err := c.Conn.Read(p)
	c.setReading(false)
	c.add(int64(n), 0)
	return n, err
}

func (c *heldConn) setReading(reading bool) {
	c.budget.mu.Lock()
	defer c.budget.mu.Unlock()
	c.reading = reading
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

// add changes the two counts of a connection; neither falls below 0. If bytes were received, it waits as enforce does.
func (c *heldConn) add(in, out int64) {
	c.budget.mu.Lock()
	defer c.budget.mu.Unlock()
	c.budget.change(c, in, out)
	c.enforce(in > 0)
}

// enforce cuts connections while they hold too much together. If wait is true, and this connection holds more than an
// equal part of the limit, it also waits until those are closed, or until this connection is cut. The caller holds the
// lock.
func (c *heldConn) enforce(wait bool) {
	b := c.budget
	for b.held > b.limit && !c.cut {
		switch {
		case b.held-b.closing > b.limit:
			b.cut(b.worst(), fmt.Sprintf("requests that are not answered, and responses that clients do not read, "+
				"hold more than %d bytes, and this connection had waited long for its client. Find the client that "+
				"sends them", b.limit))
		case wait && c.in+c.out > b.limit/int64(len(b.conns)+1):
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

// worst returns the connection that is cut first if all hold too much. The caller holds the lock.
func (b *budget) worst() (worst *heldConn) {
	now, most := time.Now(), 0.0
	for c := range b.conns {
		if c.cut {
			continue
		}
		awaited := c.out + c.in/processedPart // the service works on the rest, or will
		if c.reading {
			awaited += max(c.in-c.arrived, 0)
		}
		weight := float64(awaited) * now.Sub(c.since).Seconds()
		if worst == nil || weight > most {
			worst, most = c, weight
		}
	}
	return worst
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
		addr.conn.answer()
	}
}

// answer records that a request on the connection was answered. The caller holds the lock of the budget.
func (c *heldConn) answer() { c.since, c.answered = time.Now(), true }

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

// HandleRPC implements [stats.Handler]. A request begins with its header, which package grpc reports before it reads
// what follows. Of a method that does not exist it reports nothing else, so such a request does not count.
func (b *budget) HandleRPC(ctx context.Context, s stats.RPCStats) {
	r, ok := ctx.Value(grpcRequestKey{}).(*grpcRequest)
	if !ok {
		return
	}
	switch s := s.(type) {
	case *stats.InHeader:
		if b.methods[s.FullMethod] {
			r.bytes = int64(s.WireLength) + overhead + streamBytes
			b.begin(r)
		}
	case *stats.InPayload:
		b.mu.Lock()
		defer b.mu.Unlock()
		if !r.arrived {
			r.conn.arrived += r.bytes
		}
		r.bytes += int64(s.WireLength)
		r.conn.arrived += int64(s.WireLength)
		r.arrive()
	case *stats.OutPayload:
		b.mu.Lock()
		defer b.mu.Unlock()
		b.change(r.conn, 0, int64(s.WireLength))
		r.conn.answer()
		r.conn.enforce(false)
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
	b.change(r.conn, streamBytes, 0)
	r.conn.enforce(true)
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
	if r.arrived {
		r.conn.arrived -= r.bytes
		r.conn.answer()
	}
	r.arrive()
	r.conn.open--
	b.change(r.conn, min(-r.bytes, r.conn.inWithoutRequests()), 0)
}
