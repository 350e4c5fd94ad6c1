package server

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/tap"
)

// pipe returns the client's end of a connection that counts towards the budget, and the server's end. A goroutine reads
// from the server's end, and closes it when that fails, as servers do.
func pipe(t *testing.T, b *budget, all *sync.WaitGroup) (client net.Conn, held *heldConn) {
	t.Helper()
	client, server := net.Pipe()
	conn, err := b.wrap("gRPC", &one{server}, 4000).Accept()
	if err != nil {
		t.Fatal(err)
	}
	all.Go(func() {
		_, _ = io.Copy(io.Discard, conn)
		_ = conn.Close()
	})
	return client, conn.(*heldConn)
}

const method = "/limits/Ask"

// opened returns the context of a gRPC request whose header has been read, or that of its connection if it is refused.
func opened(conn context.Context, b *budget) context.Context {
	ctx, err := b.open(conn, &tap.Info{FullMethodName: method})
	if err != nil {
		return conn
	}
	b.HandleRPC(b.TagRPC(ctx, nil), &stats.InHeader{WireLength: 40, FullMethod: method})
	return ctx
}

// one is a listener with one connection.
type one struct{ net.Conn }

func (o *one) Accept() (net.Conn, error) { return o.Conn, nil }
func (o *one) Addr() net.Addr            { return o.LocalAddr() }

// Guarantees that the connection that holds most is closed once all connections hold too much, that the others stay
// open, that the log says so without an address, and that nothing is counted of connections that have ended.
func TestBudget(t *testing.T) {
	var log bytes.Buffer
	b := newBudget(1024, slog.New(slog.NewTextHandler(&log, nil)))
	var servers sync.WaitGroup
	honest, kept := pipe(t, b, &servers)
	if _, err := honest.Write(make([]byte, 300)); err != nil {
		t.Fatal(err)
	}
	var attackers sync.WaitGroup
	for range 3 {
		attacker, _ := pipe(t, b, &servers)
		attackers.Go(func() {
			for range 2 * minBudget / 1024 {
				if _, err := attacker.Write(make([]byte, 1024)); err != nil {
					return
				}
			}
			t.Error("a client has sent more than all connections may hold, and its connection is open")
		})
	}
	attackers.Wait()
	if _, err := honest.Write(make([]byte, 50)); err != nil {
		t.Errorf("the connection that holds least: %v", err)
	}
	b.mu.Lock()
	for b.closing > 0 { // until the server has closed the connections that were cut
		b.changed.Wait()
	}
	b.change(kept, -300, 1000) // a request was answered, and its response is queued
	if len(b.conns) != 1 || b.held != kept.in+kept.out || kept.in > 50 || kept.out != 1000 || b.closing != 0 {
		t.Errorf("%d connections hold %d bytes (%d and %d), %d of them closing; want one with 50 and 1000",
			len(b.conns), b.held, kept.in, kept.out, b.closing)
	}
	b.mu.Unlock()
	_ = honest.Close()
	servers.Wait()
	if b.held != 0 || len(b.conns) != 0 {
		t.Errorf("after the end %d connections hold %d bytes", len(b.conns), b.held)
	}
	if text := log.String(); !strings.Contains(text, "a connection was closed: ") ||
		!strings.Contains(text, "server=gRPC") {
		t.Errorf("the log: %q", text)
	}
}

// Guarantees that a connection holds the bytes of a request until the request has ended, also if others end before, and
// that what comes without requests, such as pings, does not add up.
func TestBudgetOfRequests(t *testing.T) {
	b := newBudget(1024, slog.New(slog.DiscardHandler))
	b.methods = map[string]bool{method: true}
	var servers sync.WaitGroup
	client, held := pipe(t, b, &servers)
	holds := func(what string, in, out int64) {
		t.Helper()
		b.mu.Lock()
		defer b.mu.Unlock()
		if held.cut || held.in != in || held.out != out || b.held != in+out {
			t.Errorf("%s: %d and %d bytes are held (cut: %t), want %d and %d", what, held.in, held.out, held.cut, in,
				out)
		}
	}
	send := func(bytes int) {
		t.Helper()
		_, first := client.Write(make([]byte, bytes))
		_, second := client.Write(nil) // it returns when the server reads again, and so has counted the bytes
		if first != nil || second != nil {
			t.Fatal(first, second)
		}
	}
	send(3000) // a handshake
	ctx := b.TagConn(context.Background(), &stats.ConnTagInfo{RemoteAddr: held.RemoteAddr()})
	holds("after a handshake", 0, 0)
	begin := func(message int) context.Context {
		send(message + overhead + 40)
		rpc := opened(ctx, b)
		b.HandleRPC(rpc, &stats.InPayload{WireLength: message})
		return rpc
	}
	first, second := begin(500), begin(700)
	b.HandleRPC(first, &stats.OutPayload{WireLength: 80})
	b.HandleRPC(first, &stats.End{})
	holds("after the first of two requests", 700+overhead+40+streamBytes, 80)
	b.HandleRPC(second, &stats.End{})
	holds("after both", 0, 80)
	send(17) // a ping
	b.sweepAll()
	holds("after a ping and a sweep", 0, 40)
	canceled := opened(ctx, b)
	b.HandleRPC(canceled, &stats.End{})
	b.sweepAll()
	b.sweepAll()
	holds("after a request without a message has ended", 0, 10)
	_ = client.Close()
	servers.Wait()
}

// Guarantees that a busy connection stays open, although it holds most, while many clients hold little each and let it
// wait; and that requests that are only opened count.
func TestBudgetSparesTheBusy(t *testing.T) {
	b := newBudget(1024, slog.New(slog.DiscardHandler))
	b.methods = map[string]bool{method: true}
	var servers sync.WaitGroup
	rpc := func(conn *heldConn) context.Context {
		ctx := b.TagConn(context.Background(), &stats.ConnTagInfo{RemoteAddr: conn.RemoteAddr()})
		ctx = opened(ctx, b)
		return ctx
	}
	client, busy := pipe(t, b, &servers)
	first := rpc(busy)
	for range 50 {
		if _, err := client.Write(make([]byte, 400)); err != nil {
			t.Fatal(err)
		}
		b.HandleRPC(rpc(busy), &stats.InPayload{WireLength: 350})
	}
	b.HandleRPC(first, &stats.InPayload{})
	for i := range 3000 {
		holder, held := pipe(t, b, &servers)
		defer func() { _ = holder.Close() }()
		if i%2 == 0 {
			_, _ = holder.Write(make([]byte, 1100)) // it fails if this connection is cut
			continue
		}
		requests := make(chan context.Context, 4)
		servers.Go(func() { // as package grpc does: all requests end when the connection is closed
			_, _ = io.Copy(io.Discard, holder)
			for request := range requests {
				b.HandleRPC(request, &stats.End{})
			}
		})
		for range 4 {
			requests <- rpc(held)
		}
		close(requests)
		b.HandleRPC(first, &stats.OutPayload{}) // the busy connection goes on
	}
	if b.mu.Lock(); busy.cut || b.held-b.closing > b.limit || busy.in < 50*400 {
		t.Errorf("the busy connection holds %d bytes, cut: %t; all hold %d, want at most %d", busy.in, busy.cut,
			b.held-b.closing, b.limit)
	}
	n, _, _ := b.connections("gRPC")
	b.mu.Unlock()
	if most := 1 + minBudget/1100*2; n > most {
		t.Errorf("%d connections are open, want at most %d", n, most)
	}
	_ = client.Close()
}

// Guarantees that a connection whose client is awaited is closed before one on which the service has work to do.
func TestWorstConnection(t *testing.T) {
	began := time.Now().Add(-time.Second)
	busy := &heldConn{in: 20_000, arrived: 20_000, reading: true, since: began}
	for what, tt := range map[string]struct{ worse, than *heldConn }{
		"a part of a request, not complete ones": {&heldConn{in: 1100, reading: true, since: began}, busy},
		"an unread response, not requests":       {&heldConn{out: 1100, since: began}, busy},
		"awaited bytes, not those to be read": {&heldConn{in: 1100, reading: true, since: began},
			&heldConn{in: 20_000, since: began}},
		"more bytes": {&heldConn{in: 1200, reading: true, since: began},
			&heldConn{in: 1100, reading: true, since: began}},
		"for a longer time": {&heldConn{in: 1100, reading: true, since: began.Add(-time.Second)},
			&heldConn{in: 1200, reading: true, since: began}},
		"many bytes of a moment, not one short request": {&heldConn{in: 20_000, since: time.Now()},
			&heldConn{in: streamBytes, begun: 750, since: began}},
		"of requests, the most bytes": {busy, &heldConn{in: 100, arrived: 100, reading: true, since: began}},
	} {
		b := newBudget(1024, slog.New(slog.DiscardHandler))
		b.conns[tt.than], b.conns[tt.worse] = struct{}{}, struct{}{}
		if b.worst() != tt.worse {
			t.Errorf("%s: another connection is closed first", what)
		}
	}
}

// Guarantees that a new connection takes the place of one that has never sent a request, and otherwise of the one that
// was quiet for the longest time.
func TestConnectionsAreReplaced(t *testing.T) {
	b := newBudget(1024, slog.New(slog.DiscardHandler))
	var all []*heldConn
	accept := func() *heldConn {
		t.Helper()
		client, server := net.Pipe()
		t.Cleanup(func() { _ = client.Close() })
		conn, err := b.wrap("HTTP", &one{server}, 3).Accept()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, conn.(*heldConn))
		return all[len(all)-1]
	}
	answered, sent := accept(), accept()
	b.connState(answered, http.StateIdle)
	sent.sent = true
	quiet := accept()
	for i, replaced := range []*heldConn{quiet, nil, sent} {
		if replaced == nil { // the new connection has sent something, too, but later
			all[len(all)-1].sent = true
			continue
		}
		if accept(); !replaced.cut || answered.cut {
			t.Fatalf("connection %d: cut %t, and the one with a request %t", i, replaced.cut, answered.cut)
		}
		_ = replaced.Close() // as the server does
	}
	for _, c := range all {
		b.connState(c, http.StateIdle)
	}
	if accept(); !answered.cut {
		t.Error("all have sent requests, and the one that is quiet for the longest time is open")
	}
}
