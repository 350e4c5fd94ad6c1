package redistest

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
)

const (
	nodes = 3
	slots = 16384
)

// StartCluster starts a cluster of three primaries. Each has a third of the slots, in the order of the servers.
func StartCluster(tb testing.TB) []*Server {
	tb.Helper()
	var servers []*Server
	for range nodes {
		port := FreePort(tb)
		servers = append(servers, Start(tb, "--cluster-enabled", "yes", "--cluster-node-timeout", "5000",
			"--cluster-port", fmt.Sprint(port)))
	}
	ctx, cancel := context.WithTimeout(context.Background(), startWithin)
	defer cancel()
	for i, s := range servers {
		c := s.Client(tb)
		host, _, _ := net.SplitHostPort(s.Addr)
		must := func(args ...any) {
			tb.Helper()
			if err := c.Do(ctx, args...).Err(); err != nil {
				tb.Fatalf("%v at %s: %v", args, s.Addr, err)
			}
		}
		must("CLUSTER", "SET-CONFIG-EPOCH", i+1)
		must("CLUSTER", "ADDSLOTSRANGE", i*slots/nodes, (i+1)*slots/nodes-1)
		if i > 0 {
			_, port, _ := net.SplitHostPort(servers[0].Addr)
			must("CLUSTER", "MEET", host, port, busPort(servers[0]))
		}
	}
	for _, s := range servers {
		c := s.Client(tb)
		err := Until(ctx, func() error {
			info, err := c.ClusterInfo(ctx).Result()
			if err != nil {
				return err
			}
			if !strings.Contains(info, "cluster_state:ok") ||
				!strings.Contains(info, fmt.Sprint("cluster_known_nodes:", nodes)) {
				return fmt.Errorf("%s is not ready: %s", s.Addr, info)
			}
			return nil
		})
		if err != nil {
			tb.Fatal(err)
		}
	}
	return servers
}

// busPort returns the port on which other nodes of the cluster reach a server.
func busPort(s *Server) string {
	for i, a := range s.args {
		if a == "--cluster-port" {
			return s.args[i+1]
		}
	}
	return ""
}

// Addrs lists the servers' addresses.
func Addrs(servers []*Server) []string {
	var addrs []string
	for _, s := range servers {
		addrs = append(addrs, s.Addr)
	}
	return addrs
}
