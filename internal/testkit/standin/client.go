package standin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"github.com/sluicelimits/sluice/pacer"
	"github.com/sluicelimits/sluice/redisstore"
)

// clientVar is the environment variable that holds the orders of a client, as JSON.
const clientVar = "SLUICE_STANDIN_CLIENT"

// Orders tell a client what to do.
type Orders struct {
	Provider, Redis string // addresses
	Key             string // of the shared limit
	Limit           int64  // per second
	Guard           pacer.Guard
	Waiting         int    // requests that wait at any time
	Alone           bool   // use the limit without sharing it: a mistake that the provider finds
	Peer            string // the name of the peer that sends the requests in place of a pacer; empty: a pacer
}

// Report is what a client writes to its standard output when it ends. A peer reports its calls of Redis in LedgerCalls
// and LedgerErrors.
type Report struct {
	Sent, Late                int64 // requests that were sent; permits that came too late and were released
	LedgerCalls, LedgerErrors int64
}

// A Peer sends requests in another way than with a pacer, for comparison. It writes one byte to the provider for each
// request, until ctx ends.
type Peer func(ctx context.Context, o Orders, provider io.Writer) (Report, error)

// Main makes the process a client if [Run] started it as one, and does not return then. Programs that call Run call
// Main first, because the clients are the same program. The keys of peers are the names for [Options].
func Main(peers map[string]Peer) {
	text := os.Getenv(clientVar)
	if text == "" {
		return
	}
	var o Orders
	err := json.Unmarshal([]byte(text), &o)
	var r Report
	if err == nil {
		r, err = o.run(peers, os.Stdin)
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(r)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "client: %v\n", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run sends requests until standard input ends.
func (o *Orders) run(peers map[string]Peer, stdin io.Reader) (r Report, err error) {
	conn, err := net.Dial("tcp", o.Provider)
	if err != nil {
		return r, err
	}
	defer func() { _ = conn.Close() }()
	if o.Peer == "" {
		return o.pace(conn, stdin)
	}
	peer, ok := peers[o.Peer]
	if !ok {
		return r, fmt.Errorf("no peer is called %q", o.Peer)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		cancel()
	}()
	return peer(ctx, *o, conn)
}

// pace sends requests with a pacer.
func (o *Orders) pace(conn net.Conn, stdin io.Reader) (r Report, err error) {
	c := pacer.Config{Limit: pacer.PerSecond(o.Limit), Guard: o.Guard}
	if !o.Alone {
		store, err := redisstore.New(context.Background(), redisstore.Config{Addrs: []string{o.Redis}})
		if err != nil {
			return r, err
		}
		defer func() { _ = store.Close() }()
		c.Shared = &pacer.Shared{Ledger: store.Ledger(), Key: o.Key}
	}
	p, err := pacer.New(c)
	if err != nil {
		return r, err
	}
	s := &sender{p: p, conn: conn, wake: make(chan struct{}, 1), done: make(chan struct{})}
	ended := make(chan error, 1)
	go func() { ended <- s.send(&r) }()
	for range o.Waiting {
		s.wait()
	}
	_, _ = io.Copy(io.Discard, stdin) // the order to stop is the end of standard input
	status := p.Status()
	p.Close()
	close(s.done)
	r.LedgerCalls, r.LedgerErrors = status.LedgerCalls, status.LedgerErrors
	return r, <-ended
}

// sender is the waker of all tickets of a client. Whenever one is granted, another one waits in its place.
type sender struct {
	p    *pacer.Pacer
	conn net.Conn
	wake chan struct{} // there are permits
	done chan struct{}

	mu      sync.Mutex
	permits []pacer.Permit // that are to be used
}

// Wake implements [pacer.Waker].
func (s *sender) Wake(permit pacer.Permit, err error) {
	if err != nil {
		return // the pacer is closed
	}
	s.mu.Lock()
	s.permits = append(s.permits, permit)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
	s.wait()
}

func (s *sender) wait() {
	if _, err := s.p.Enqueue("key", 1, pacer.Forever, s); err != nil && !errors.Is(err, pacer.ErrClosed) {
		panic(err) // a bug of this test: nothing else can refuse the ticket
	}
}

// send sends a request for each permit that is still good, one byte each, until done is closed.
func (s *sender) send(r *Report) error {
	var permits []pacer.Permit
	requests := make([]byte, 0, 64<<10)
	for {
		select {
		case <-s.wake:
		case <-s.done:
			return nil
		}
		s.mu.Lock()
		permits, s.permits = s.permits, permits[:0]
		s.mu.Unlock()
		for len(permits) > 0 {
			requests = requests[:0]
			n := min(len(permits), cap(requests))
			for i := range permits[:n] {
				if permits[i].InTime() {
					requests = append(requests, '.')
				} else {
					permits[i].Release()
				}
			}
			permits = permits[n:]
			r.Late += int64(n - len(requests))
			if _, err := s.conn.Write(requests); err != nil && len(requests) > 0 {
				return fmt.Errorf("the provider has banned this client: %w", err)
			}
			r.Sent += int64(len(requests))
		}
	}
}
