package server

import "net"

// ServeOn makes the server with the name "gRPC" or "HTTP" take its connections from a listener of the test.
func (s *Server) ServeOn(name string, listener net.Listener) {
	for i := range s.parts {
		if s.parts[i].name == name {
			_ = s.parts[i].listener.Close() // nothing was served
			s.parts[i].listener = listener
		}
	}
}
