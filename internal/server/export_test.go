package server

import "net"

// SweepThrice does what the budget does within 30 seconds, and returns how many connections it has not closed.
func (s *Server) SweepThrice() (open int) {
	for range 3 {
		s.budget.sweepAll()
	}
	s.budget.mu.Lock()
	defer s.budget.mu.Unlock()
	for c := range s.budget.conns {
		if !c.cut {
			open++
		}
	}
	return open
}

// ServeOn makes the server with the name "gRPC" or "HTTP" take its connections from a listener of the test.
func (s *Server) ServeOn(name string, listener net.Listener) {
	for i := range s.parts {
		if s.parts[i].name == name {
			_ = s.parts[i].listener.Close() // nothing was served
			s.parts[i].listener = s.budget.wrap(name, listener, DefaultMaxConnections)
		}
	}
}
