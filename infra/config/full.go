package config

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sluicelimits/sluice/internal/configfile"
)

// Valkey is where a full cell counts rates. Without an Endpoint it is made: Valkey on nodes of ElastiCache, each shard
// a primary and a replica in another zone, reached by TLS alone.
type Valkey struct {
	Node string // type of the nodes; default "cache.r7g.large"

	// Cluster divides tenants among Shards, each a primary and a replica: 1 to 250, default 1; more can be added later.
	// Without it there is one. A cache cannot become a cluster, or cease to be one, under the same name.
	Cluster bool
	Shards  int

	Auth         string // of one that is made: AuthIAM (default) or AuthSecret; of one that is there: required
	SnapshotDays int    // for which daily snapshots stay: 1 to 35; default 1

	// Endpoint is host:port of a cache that is there already, instead of one that is made: the primary's, or with
	// Cluster the configuration endpoint. It is in the VPC of Network, or has a way from there. Node, Shards and
	// SnapshotDays are then the affair of whoever made it. Its maxmemory-policy must be noeviction, and it must take
	// Connections from each instance; templates do not see either.
	Endpoint string

	PlainText bool // of one that is there: no TLS. With a password only on this machine
	// with AuthIAM: the id of the replication group of ElastiCache, and of its user, whose name is the same
	Name, User string
	Secret     string // with AuthSecret: the name of a secret in the cell's region, {"username": …, "password": …}
	// of the cache: functions are let in, and may call it. Without one the cache's owner lets the functions' group in
	SecurityGroup string
}

// How functions show the cache who they are.
const (
	AuthIAM = "iam" // by their roles
	// by a password, which Secrets Manager has and no template; of a cache that is made it makes it
	AuthSecret = "secret"
	AuthNone   = "none" // not at all: of a cache that is there already
)

// Network is where the cache of a full cell is, and the functions that call it.
type Network struct {
	Zones  int    // 2 or 3; default 2
	CIDR   string // of the VPC that is made: a private range of /16 to /24; default 10.0.0.0/20
	Egress string // EgressNone (default) or EgressNAT

	// VPC and Subnets are those of a VPC that is there already, instead of one that is made. Subnets are private ones,
	// in two zones or three. They need gateway or interface endpoints for DynamoDB, Secrets Manager, and AppConfig Data
	// where there is a kill switch, or a way out; nothing of that is seen when templates are made. Egress says whether
	// there is a way out.
	VPC     string
	Subnets []string

	FlowLogs bool // of the VPC that is made, to CloudWatch Logs: who called whom, by address and port
}

// Ways out of a VPC.
const (
	EgressNone = "none" // to the services of AWS that functions call, in this region, by endpoints
	EgressNAT  = "nat"  // to the world: the keys of issuers, tables in other regions; a NAT gateway in each zone
)

// Bounds of a full cell. Those of AWS are as of November 2026.
const (
	// Connections are those of an instance to a node of the cache, at most; OpsInstances the instances of ops. Tests
	// hold them to what the functions have.
	Connections  = 32
	OpsInstances = 2

	ownConnections   = 4 // that ElastiCache itself uses
	maxClients       = 65_000
	maxClientsSmall  = 46_000 // of small nodes of the third generation
	maxClientsMicro  = 20_000
	maxShards        = 250 // of 500 nodes
	maxSnapshotDays  = 35
	minZones         = 2
	maxZones         = 3
	minCIDR, maxCIDR = 16, 24 // lengths of the prefix
	maxCacheID       = 40     // characters
	defaultNode      = "cache.r7g.large"
	defaultCIDR      = "10.0.0.0/20"
)

var (
	nodeTypes = regexp.MustCompile(`^cache\.[a-z0-9]{2,8}\.[a-z0-9]{5,9}$`)
	vpcs      = regexp.MustCompile(`^vpc-([0-9a-f]{8}|[0-9a-f]{17})$`)
	subnets   = regexp.MustCompile(`^subnet-([0-9a-f]{8}|[0-9a-f]{17})$`)
	groups    = regexp.MustCompile(`^sg-([0-9a-f]{8}|[0-9a-f]{17})$`)
	hosts     = regexp.MustCompile(`^[A-Za-z0-9.:-]{1,253}$`)
	// of ElastiCache's replication groups, as it spells them
	groupIDs = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$`)
	userIDs  = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9-]{0,38}[A-Za-z0-9])?$`) // of its users
	secrets  = regexp.MustCompile(`^[A-Za-z0-9/_+=.@-]{1,512}$`)
)

func (r *reader) cache(to **Valkey) func(value) {
	return func(v value) {
		c := &Valkey{}
		*to = c
		r.mapping(v, "a cache", keys{
			"node": r.text(&c.Node), "cluster": r.boolean(&c.Cluster), "shards": r.number(&c.Shards),
			"auth":         r.text(&c.Auth),
			"snapshotDays": r.number(&c.SnapshotDays),
			"endpoint":     r.text(&c.Endpoint), "tls": r.not(&c.PlainText), "name": r.text(&c.Name),
			"user":   r.text(&c.User),
			"secret": r.text(&c.Secret), "securityGroup": r.text(&c.SecurityGroup),
		})
	}
}

func (r *reader) network(to **Network) func(value) {
	return func(v value) {
		n := &Network{}
		*to = n
		r.mapping(v, "a network", keys{
			"zones": r.number(&n.Zones), "cidr": r.text(&n.CIDR), "egress": r.text(&n.Egress), "vpc": r.text(&n.VPC),
			"subnets":  r.texts(&n.Subnets),
			"flowLogs": r.boolean(&n.FlowLogs),
		})
	}
}

// full fills in and checks what only full cells have.
func (d *Deployment) full(c *checks) {
	for i := range d.Cells {
		cell, path := &d.Cells[i], fmt.Sprintf("cells[%d]", i)
		if cell.Profile != Full {
			if cell.Cache != nil {
				c.problem(path+".cache", "has no use in a small cell, which counts in DynamoDB alone: say profile: full")
			}
			if cell.Network != nil {
				c.problem(path+".network", "has no use in a small cell, which is in no VPC: say profile: full")
			}
			continue
		}
		if cell.Cache == nil {
			cell.Cache = &Valkey{}
		}
		if cell.Network == nil {
			cell.Network = &Network{}
		}
		given := cell.Cache.Endpoint != ""
		if id := (Names{Prefix: d.Prefix}).Cell(cell.ID, Cache); !given && len(id) > maxCacheID {
			c.problem(path+".id", "the cache's name would be %s, and ElastiCache takes %d characters: a shorter id "+
				"or prefix", configfile.Quote(id), maxCacheID)
		}
		cell.Cache.complete(c, path+".cache")
		cell.Network.complete(c, path+".network")
		if cell.Network.VPC == "" && slices.Contains(regions, cell.Region) && partition(cell.Region) == china {
			c.problem(path+".network", "endpoints have other names in China: give a VPC that has them, by vpc and "+
				"subnets")
		}
		if given {
			cell.reaches(c, path+".cache.endpoint", d.Cells[:i])
		}
		if most := cell.Cache.maxInstances(); !given && cell.MaxInstances > most &&
			cell.MaxInstances <= maxConcurrency {
			c.problem(path+".maxInstances", "%d instances may open %d connections to a node each, beside those of "+
				"ops, and %s takes as many as %d have: a larger node, or more cells",
				cell.MaxInstances, Connections, cell.Cache.Node, most)
		}
		d.wayOut(c, cell, path)
	}
}

// reaches checks that a cache that is there already is where the cell's functions are, and is the cache of no cell
// before.
func (cell *Cell) reaches(c *checks, path string, before []Cell) {
	if cell.Network.VPC == "" && len(cell.Network.Subnets) == 0 {
		c.problem(path, "is of a cache that is there already, which no VPC has that is made: give the cache's, by "+
			"network: { vpc, subnets }; or leave endpoint out, and one is made in the VPC that is made")
	}
	for i := range before {
		if other := &before[i]; other.Profile == Full && other.Cache.Endpoint == cell.Cache.Endpoint &&
			other.Network.VPC == cell.Network.VPC {
			c.problem(path, "is the cache of cell %s, too, and counters have no cell in their names: a cache for each",
				configfile.Quote(other.ID))
		}
	}
}

// wayOut says what a cell would not reach without a way out of its VPC.
func (d *Deployment) wayOut(c *checks, cell *Cell, path string) {
	if cell.Network.Egress != EgressNone {
		return
	}
	if len(cell.Issuers) > 0 {
		c.problem(path+".issuers", "their keys are outside of the cell's VPC, to which there is no way: say "+
			"network: { egress: nat }")
	}
	elsewhere := ""
	if d.Control.Region != cell.Region {
		elsewhere = "the control plane's tables"
	}
	for i := range d.Cells {
		if elsewhere == "" && d.Cells[i].Region != cell.Region {
			elsewhere = "the quotas of cell " + d.Cells[i].ID
		}
	}
	for i := range d.Retired {
		if elsewhere == "" && d.Retired[i].Region != cell.Region {
			elsewhere = "the quotas of cell " + d.Retired[i].ID
		}
	}
	if elsewhere != "" {
		c.problem(path, "%s are in another region, to which there is no way out of the cell's VPC: say network: { "+
			"egress: nat }", elsewhere)
	}
}

func (cache *Valkey) complete(c *checks, path string) {
	if cache.Endpoint != "" {
		cache.given(c, path)
		return
	}
	for _, of := range []struct {
		key  string
		said bool
	}{
		{"tls", cache.PlainText}, {"name", cache.Name != ""}, {"user", cache.User != ""},
		{"secret", cache.Secret != ""}, {"securityGroup", cache.SecurityGroup != ""},
	} {
		if of.said {
			c.problem(path+"."+of.key, "is of a cache that is there already: say its endpoint, or leave this out")
		}
	}
	standard(&cache.Node, defaultNode)
	standard(&cache.Auth, AuthIAM)
	standard(&cache.SnapshotDays, 1)
	c.text(path+".node", cache.Node, "a type of node such as "+defaultNode, nodeTypes.MatchString)
	c.oneOf(path+".auth", cache.Auth, AuthIAM, AuthSecret)
	c.within(path+".snapshotDays", cache.SnapshotDays, 1, maxSnapshotDays)
	if cache.Shards > 1 && !cache.Cluster {
		c.problem(path+".shards", "%d shards are a cluster: say cluster: true", cache.Shards)
	}
	standard(&cache.Shards, 1)
	c.within(path+".shards", cache.Shards, 1, maxShards)
}

// given checks what is said of a cache that is there already.
func (cache *Valkey) given(c *checks, path string) {
	host, port, err := net.SplitHostPort(cache.Endpoint)
	if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || n == 0 || !hosts.MatchString(host) {
		c.problem(path+".endpoint", "is not host:port, such as cache.example.com:6379") // it may have a password
	}
	for _, of := range []struct {
		key  string
		said bool
	}{{"node", cache.Node != ""}, {"shards", cache.Shards != 0}, {"snapshotDays", cache.SnapshotDays != 0}} {
		if of.said {
			c.problem(path+"."+of.key, "is of a cache that is made, and endpoint names one that is there already")
		}
	}
	if cache.PlainText && cache.Auth != AuthNone && cache.Auth != "" && !loopback(host) {
		c.problem(path+".tls", "must be true: what shows the cache who functions are must not travel in clear")
	}
	if cache.SecurityGroup != "" {
		c.text(path+".securityGroup", cache.SecurityGroup, "the id of a security group", groups.MatchString)
	}
	cache.shows(c, path)
}

// shows checks how functions show a cache that is there already who they are.
func (cache *Valkey) shows(c *checks, path string) {
	if cache.Auth == "" {
		c.problem(path+".auth", "is missing: how do functions show the cache who they are? One of %s, %s, %s", AuthIAM,
			AuthSecret, AuthNone)
		return
	}
	c.oneOf(path+".auth", cache.Auth, AuthIAM, AuthSecret, AuthNone)
	for _, of := range []struct {
		key, value, auth, want string
		ok                     func(string) bool
	}{
		{"name", cache.Name, AuthIAM, "the id of a replication group, 1 to 40 of a-z 0-9 -", groupIDs.MatchString},
		{"user", cache.User, AuthIAM, "the id of a user of ElastiCache, 1 to 40 of A-Z a-z 0-9 -", userIDs.MatchString},
		{"secret", cache.Secret, AuthSecret, "the name of a secret, 1 to 512 of A-Z a-z 0-9 / _ + = . @ -",
			secrets.MatchString},
	} {
		switch {
		case cache.Auth == of.auth && of.value == "":
			c.problem(path+"."+of.key, "is missing, which auth: %s needs", of.auth)
		case cache.Auth == of.auth && !of.ok(of.value):
			c.problem(path+"."+of.key, "is not %s", of.want) // it may be a password
		case cache.Auth != of.auth && of.value != "":
			c.problem(path+"."+of.key, "has no use without auth: %s", of.auth)
		}
	}
}

// loopback reports whether a host is this machine, as functions in LocalStack see one.
func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// Port is that of Endpoint; 0 of a cache that is made.
func (cache *Valkey) Port() int {
	_, port, _ := net.SplitHostPort(cache.Endpoint)
	n, _ := strconv.Atoi(port) // complete has read it
	return n
}

// maxInstances is how many instances of the authorizer a node has connections for. Each may connect to each shard.
func (cache *Valkey) maxInstances() int {
	clients := maxClients
	family, size, _ := strings.Cut(strings.TrimPrefix(cache.Node, "cache."), ".")
	switch {
	case size == "micro" || family == "t2":
		clients = maxClientsMicro
	case family == "t3":
		clients = maxClientsSmall
	}
	return (clients-ownConnections)/Connections - OpsInstances
}

func (n *Network) complete(c *checks, path string) {
	standard(&n.Egress, EgressNone)
	c.oneOf(path+".egress", n.Egress, EgressNone, EgressNAT)
	if n.VPC != "" || len(n.Subnets) > 0 {
		c.text(path+".vpc", n.VPC, "the id of a VPC", vpcs.MatchString)
		c.texts(path+".subnets", n.Subnets, "the id of a subnet", subnets.MatchString)
		if len(n.Subnets) < minZones || len(n.Subnets) > maxZones {
			c.problem(path+".subnets", "there are %d, want one in each of %d or %d zones", len(n.Subnets), minZones,
				maxZones)
		}
		if n.Zones != 0 || n.CIDR != "" {
			c.problem(path+".vpc", "is there already: leave out zones and cidr, which are of one that is made")
		}
		if n.FlowLogs {
			c.problem(path+".flowLogs", "are of a VPC that is made: turn on those of yours where it is made")
		}
		return
	}
	standard(&n.Zones, minZones)
	standard(&n.CIDR, defaultCIDR)
	c.within(path+".zones", n.Zones, minZones, maxZones)
	c.text(path+".cidr", n.CIDR, "a private range of /16 to /24 such as "+defaultCIDR, func(s string) bool {
		p, err := netip.ParsePrefix(s)
		return err == nil && p == p.Masked() && p.Addr().Is4() && p.Addr().IsPrivate() && p.Bits() >= minCIDR &&
			p.Bits() <= maxCIDR
	})
}

// Ranges are those of the network's subnets, of one size: first the private ones of each zone, then as many public
// ones, which only a VPC with a way out has. A range does not depend on how many zones there are.
func (n *Network) Ranges() (private, public []string) {
	whole, err := netip.ParsePrefix(n.CIDR)
	if err != nil { // not reached: complete has read it
		return nil, nil
	}
	const bits = 3 // eight ranges: four of each kind, of which three are used at most
	size := uint32(1) << (32 - whole.Bits() - bits)
	b := whole.Addr().As4()
	first := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	at := func(i int) string {
		a := first + uint32(i)*size
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(a >> 24), byte(a >> 16), byte(a >> 8), byte(a)}),
			whole.Bits()+bits).String()
	}
	for i := range n.Zones {
		private, public = append(private, at(i)), append(public, at(1<<(bits-1)+i))
	}
	return private, public
}
