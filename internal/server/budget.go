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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
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
	// It is more than these usually take. If it were less, the count would grow on a connection whose requests always
	// overlap.
	overhead = 128

	// streamBytes is added for each gRPC request that is open. A header of 20 bytes opens one, which takes some 16 kB
	// of memory. As with other bytes that are counted, the memory is many times the count.
	streamBytes = 512

	// When a connection is chosen to be closed, all bytes of its requests count with one part of processedDivisor. What
	// its client has yet to complete or to read also counts in full.
	processedDivisor = 64

	// A connection that holds less than one part of littleDivisor of what a connection holds on average is not chosen,
	// because closing it would free little. On a busy machine a client with one short request may have waited for
	// longer than those that have just sent many.
	littleDivisor = 16

	// usualBegun is how many bytes of gRPC requests without a complete message a connection may hold, with streamBytes
	// of each, and still open requests while connections that were cut take much memory.
	usualBegun = 8 << 10

	// usualRest is how many bytes a connection may hold that are of no request, such as pings, before they count when a
	// connection is chosen to be closed.
	usualRest = 512

	// A server accepts no further connection while more than maxCut of its connections were cut and are not closed yet,
	// because their requests still take memory.
	maxCut = 16
)

// budget limits how many bytes all connections together hold: of requests that were not answered, and of gRPC responses
// that were not written to the network. If they hold more than the limit, the budget closes connections until the rest
// holds no more. Until those are closed, a connection that holds more than an equal part of the limit is not read from.
// The budget also closes each connection on which the first message of a gRPC request has not arrived completely after
// one to two times sweepEvery. Closing a connection ends all of its requests.
//
// The connection that is closed first has the largest product of bytes and time. The bytes are those of requests that
// its client has not finished sending, and of responses that the client has not read. The time is how long it has held
// anything without a request that ended. A client that sends whole requests and reads the responses keeps both small,
// also if it has many requests in flight. A connection that holds little beside the others is not closed.
//
// If a server has as many connections as it may have, a new one takes the place of one that has sent nothing, else of
// one on which nothing was answered, else of any other; and of those, of the one that was quiet for the longest time.
//
// Reads and writes count bytes of the network, with those of TLS and HTTP/2. Responses over HTTP are not counted,
// because each has a time limit.
type budget struct {
	limit   int64 // bytes that all connections may hold
	log     *slog.Logger
	methods map[string]bool // of the gRPC server, as /SERVICE/METHOD; set before it serves

	mu      sync.Mutex // guards all fields below, and those of the connections
	held    int64      // bytes that all connections hold
	closing int64      // the part of held whose connections were cut, and not yet closed by their server
	conns   map[*heldConn]struct{}
	changed sync.Cond // broadcast when held falls, and when a connection is cut or closed
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

// registerMethods makes the requests of a gRPC server count. All its services are registered already.
func (b *budget) registerMethods(s *grpc.Server) {
	b.methods = map[string]bool{}
	for service, info := range s.GetServiceInfo() {
		for _, m := range info.Methods {
			b.methods["/"+service+"/"+m.Name] = true
		}
	}
}

// wrap returns a listener with at most so many connections, all of which count towards the budget. server is its name
// in the log, and no other listener has it.
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
	open, cut, replaceable := b.connections(l.server)
	for ; cut > maxCut; open, cut, replaceable = b.connections(l.server) {
		b.changed.Wait()
	}
	if open >= l.most {
		b.cut(replaceable, fmt.Sprintf("the server has %d connections, as many as --max-connections allows, and "+
			"this one made room for a new one. Find the clients that open so many, or raise the flag", l.most))
	}
	b.conns[c] = struct{}{}
	return c, nil
}

// connections returns how many connections of a server were not cut, how many were cut and are not closed yet, and
// which one makes room for a new one. The caller holds the lock.
func (b *budget) connections(server string) (open, cut int, replaceable *heldConn) {
	for c := range b.conns {
		if c.server != server {
			continue
		}
		if c.cut {
			cut++
			continue
		}
		open++
		if replaceable == nil || c.proved() < replaceable.proved() ||
			c.proved() == replaceable.proved() && c.since.Before(replaceable.since) {
			replaceable = c
		}
	}
	return open, cut, replaceable
}

// proved returns how much speaks for the client of a connection: 0, nothing; 1, it has sent something; 2, a request of
// it has arrived and ended.
func (c *heldConn) proved() int {
	switch {
	case c.answered:
		return 2
	case c.sent:
		return 1
	}
	return 0
}

// heldConn is a connection that counts towards a budget. The lock of the budget guards the fields from in on.
type heldConn struct {
	net.Conn
	server string
	budget *budget

	in  int64 // bytes that were received, and streamBytes of each request, less those of requests that ended
	out int64 // bytes of gRPC responses that were handed to package grpc and not written to the network; an estimate
	cut bool  // the budget has closed the network connection

	closed  bool // by the server
	reading bool // the server waits for bytes of the client
	sent    bool // the client has sent something
	// since is when the connection last began to hold something, or a request that had arrived last ended or got a
	// message. Until then answered is false.
	since    time.Time
	answered bool

	grpc bool
	open int // gRPC requests that have begun and not ended
	// arriving is how many of these have no complete first message, by the value of budget.sweeps at which they began,
	// modulo 2. Connections with older ones were cut.
	arriving [2]int
	arrived  int64 // bytes of gRPC requests that have a complete message and have not ended
	begun    int64 // bytes of gRPC requests that have none and have not ended
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
	b := c.budget
	b.mu.Lock()
	c.reading = true
	b.mu.Unlock()
	n, err := c.Conn.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	c.reading, c.sent = false, c.sent || n > 0
	if c.in == 0 {
		c.since = time.Now()
	}
	b.change(c, int64(n), 0)
	c.enforce(true)
	return n, err
}

// Write implements [net.Conn].
func (c *heldConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.budget.mu.Lock()
	defer c.budget.mu.Unlock()
	c.budget.change(c, 0, -int64(n))
	return n, err
}

// Close implements [net.Conn]. The connection counts until its requests have ended, because they still take memory.
func (c *heldConn) Close() error {
	c.budget.mu.Lock()
	c.closed = true
	c.budget.removeIfOver(c)
	c.budget.mu.Unlock()
	return c.Conn.Close()
}

// removeIfOver takes a connection that is closed and has no open requests out of the counts. The caller holds the lock.
func (b *budget) removeIfOver(c *heldConn) {
	if _, found := b.conns[c]; !found || !c.closed || c.open > 0 {
		return
	}
	b.held -= c.in + c.out
	if c.cut {
		b.closing -= c.in + c.out
	}
	delete(b.conns, c)
	b.changed.Broadcast()
}

// enforce cuts connections until the others hold no more than the limit. If wait is true, and this connection holds
// more than an equal part of the limit, it also waits until those that were cut are closed, or until this one is cut.
// The caller holds the lock.
func (c *heldConn) enforce(wait bool) {
	b := c.budget
	for b.held > b.limit && !c.cut {
		switch {
		case b.held-b.closing > b.limit:
			b.cut(b.worst(), fmt.Sprintf("requests without an answer and unread responses hold more than %d bytes, "+
				"and this connection had the largest product of such bytes and of time. Look for a client that sends "+
				"requests slowly, or does not read responses", b.limit))
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
	var open, held int64
	for c := range b.conns {
		if !c.cut {
			open, held = open+1, held+c.in+c.out
		}
	}
	for c := range b.conns {
		if c.cut || (c.in+c.out)*open < held/littleDivisor {
			continue
		}
		awaited := c.out + c.begun + c.in/processedDivisor
		if c.reading {
			awaited += max(c.in-c.arrived-c.begun-usualRest, 0)
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
	_ = c.Conn.Close() // an error leaves nothing to do
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
	twoAgo := b.sweeps % 2 // no request has begun since b.sweeps was raised
	for c := range b.conns {
		switch {
		case !c.grpc || c.cut:
		case c.arriving[twoAgo] > 0:
			b.cut(c, fmt.Sprintf("a gRPC request on it had not arrived completely after %s or more", sweepEvery))
		default:
			// Package grpc drops responses of requests that the client has canceled, and does not say which. They
			// would stay in out for ever. So out is halved, and is too small then for a client that does not read.
			b.clear(c)
			b.change(c, 0, -c.out/2)
		}
	}
}

// clear takes out of the count of a connection without open requests what none has brought, such as pings, or what an
// answered one has. While gRPC requests are open, nobody knows how much that is. The caller holds the lock.
func (b *budget) clear(c *heldConn) {
	if c.open == 0 {
		b.change(c, -c.in, 0)
	}
}

// connState is the ConnState hook of the HTTP servers. When a connection becomes idle, its last request was answered.
func (b *budget) connState(conn net.Conn, state http.ConnState) {
	if addr, ok := conn.RemoteAddr().(heldAddr); ok && state == http.StateIdle {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.clear(addr.conn)
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
	bytes   int64 // that end subtracts: of the header and of complete messages, streamBytes and overhead
	arrived bool  // its first message is complete
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
	b.clear(addr.conn)
	return context.WithValue(ctx, grpcConnKey{}, addr.conn)
}

// HandleConn implements [stats.Handler].
func (b *budget) HandleConn(context.Context, stats.ConnStats) {}

// open is the [tap.ServerInHandle] of the gRPC server. It counts a request before package grpc starts a goroutine for
// it. It refuses requests of a connection that was cut, whose requests may have been received already. It also refuses
// them while connections that were cut still hold more than the limit, if this one has many requests without a message.
func (b *budget) open(ctx context.Context, info *tap.Info) (context.Context, error) {
	conn, ok := ctx.Value(grpcConnKey{}).(*heldConn)
	if !ok || !b.methods[info.FullMethodName] || ctx.Err() != nil {
		return ctx, nil // package grpc answers a request whose time is over
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if conn.open == 0 && conn.begun == 0 {
		conn.since = time.Now()
	}
	if !conn.cut && (b.closing <= b.limit || conn.begun <= usualBegun) {
		b.change(conn, streamBytes, 0)
		conn.begun += streamBytes
		conn.enforce(false)
	}
	if conn.cut || b.closing > b.limit && conn.begun > usualBegun {
		return ctx, status.Error(codes.ResourceExhausted, "too many requests of this connection have no message")
	}
	return context.WithValue(ctx, grpcRequestKey{}, &grpcRequest{conn: conn, bytes: streamBytes}), nil
}

// TagRPC implements [stats.Handler]. The context has the request already.
func (b *budget) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements [stats.Handler]. A request begins with its header, and not with Begin, which comes later.
func (b *budget) HandleRPC(ctx context.Context, s stats.RPCStats) {
	r, ok := ctx.Value(grpcRequestKey{}).(*grpcRequest)
	if !ok {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch s := s.(type) {
	case *stats.InHeader:
		r.begin(b.sweeps%2, int64(s.WireLength)+overhead)
	case *stats.InPayload:
		r.arrive(int64(s.WireLength))
	case *stats.OutPayload:
		b.change(r.conn, 0, int64(s.WireLength))
		r.conn.answer()
		r.conn.enforce(false)
	case *stats.End:
		b.end(r)
	}
}

// begin counts the header of the request. The caller holds the lock of the budget.
func (r *grpcRequest) begin(slot int, bytes int64) {
	r.slot = slot
	r.bytes += bytes
	r.conn.begun += bytes
	r.conn.open++
	r.conn.arriving[slot]++
}

// arrive counts a message of the request as complete. The caller holds the lock of the budget.
func (r *grpcRequest) arrive(bytes int64) {
	if !r.arrived {
		r.arrived = true
		r.conn.arriving[r.slot]--
		r.conn.begun -= r.bytes
		r.conn.arrived += r.bytes
	}
	r.bytes += bytes
	r.conn.arrived += bytes
}

// end subtracts what the request held. The caller holds the lock.
func (b *budget) end(r *grpcRequest) {
	if r.arrived {
		r.conn.arrived -= r.bytes
		r.conn.answer()
	} else {
		r.conn.arriving[r.slot]--
		r.conn.begun -= r.bytes
	}
	r.conn.open--
	b.change(r.conn, -r.bytes, 0)
	b.clear(r.conn)
	b.removeIfOver(r.conn)
}
