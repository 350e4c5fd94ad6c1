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

// Valkey configures the cache in which a full cell counts rates. If Endpoint is empty, the cache is made: Valkey on
// ElastiCache nodes, each shard with a primary and a replica in another zone, which accepts TLS only.
type Valkey struct {
	Node string // node type; default "cache.r7g.large"

	// Cluster distributes the tenants over several shards. Shards is their number, 1 to 250, default 1; shards can be
	// added later. Without Cluster the cache has one shard. ElastiCache cannot turn a cache into a cluster, or a
	// cluster into a single shard, under the same name.
	Cluster bool
	Shards  int

	Auth         string // if the cache is made: AuthIAM (default) or AuthSecret; required for an existing cache
	SnapshotDays int    // retention of daily snapshots in days, 1 to 35; default 1

	// Endpoint is host:port of an existing cache: of its primary, or with Cluster its configuration endpoint. The cache
	// must be reachable from the VPC of Network. Node, Shards and SnapshotDays must then be left out. The cache's
	// maxmemory-policy must be noeviction, and it must accept Connections connections from each instance; nothing
	// checks these two.
	Endpoint string

	// existing caches only: use no TLS. Not allowed with a password or IAM, except on a loopback address
	PlainText bool `key:"no tls"`
	// existing caches with AuthIAM only: the ids of the ElastiCache replication group and of the user, whose user
	// name must equal its id
	Name, User string
	// existing caches with AuthSecret only: the name of a secret in the cell's region, {"username": …, "password": …}
	Secret string
	// existing caches only: the id of the cache's security group, which gets a rule that admits the functions. If
	// empty, the cache's owner has to admit the functions' security group
	SecurityGroup string
}

// How functions authenticate to the cache.
const (
	AuthIAM = "iam" // by the functions' IAM roles
	// by user name and password in Secrets Manager; if the cache is made, Secrets Manager generates the password
	AuthSecret = "secret"
	AuthNone   = "none" // not at all; existing caches only
)

// Network configures the VPC of a full cell's cache and of the functions that call the cache.
type Network struct {
	Zones  int    // 2 or 3; default 2
	CIDR   string // range of the VPC that is made: private, /16 to /24; default 10.0.0.0/20
	Egress string // EgressNone (default) or EgressNAT

	// VPC and Subnets are the ids of an existing VPC and of its private subnets in two or three zones. If empty, a VPC
	// is made. The subnets need VPC endpoints for DynamoDB, for Secrets Manager and, with a kill switch, for AppConfig
	// Data, or a route to the internet. Nothing checks that. Egress says whether they have a route to the internet.
	VPC     string
	Subnets []string

	FlowLogs bool // writes the connections of the VPC that is made, by address and port, to CloudWatch Logs
}

// What functions in the VPC can reach.
const (
	EgressNone = "none" // only the AWS services that functions call, in the cell's region, by VPC endpoints
	// also the internet, for the keys of issuers and for tables in other regions; a NAT gateway in each zone
	EgressNAT = "nat"
)

// Bounds of a full cell. Limits of AWS are as of November 2026.
const (
	// Connections is the most that an instance opens to a node of the cache. OpsInstances is the reserved
	// concurrency of ops. Tests compare both with the functions' settings.
	Connections  = 32
	OpsInstances = 2

	ownConnections   = 4 // used by ElastiCache itself
	maxClients       = 65_000
	maxClientsSmall  = 46_000 // of t3 nodes except cache.t3.micro
	maxClientsMicro  = 20_000
	maxShards        = 250 // a cluster may have 500 nodes, here two for each shard
	maxSnapshotDays  = 35
	minZones         = 2
	maxZones         = 3
	minCIDR, maxCIDR = 16, 24 // lengths of the network prefix
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
	// ids of ElastiCache's replication groups, in lower case as ElastiCache stores them
	groupIDs = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$`)
	userIDs  = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9-]{0,38}[A-Za-z0-9])?$`) // ids of ElastiCache's users
	secrets  = regexp.MustCompile(`^[A-Za-z0-9/_+=.@-]{1,512}$`)
)

// checkFullCells fills in and checks the settings that only full cells have.
func (d *Deployment) checkFullCells(c *checks) {
	for i := range d.Cells {
		cell, path := &d.Cells[i], fmt.Sprintf("cells[%d]", i)
		if cell.Profile != Full {
			if cell.Cache != nil {
				c.problem(path+".cache", "is for full cells only, because a small cell counts in DynamoDB: set "+
					"profile: full")
			}
			if cell.Network != nil {
				c.problem(path+".network", "is for full cells only, because a small cell has no VPC: set profile: full")
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
			c.problem(path+".id", "the cache's name would be %s, and ElastiCache accepts %d characters: use a "+
				"shorter id "+"or prefix", configfile.Quote(id), maxCacheID)
		}
		cell.Cache.complete(c, path+".cache")
		cell.Network.complete(c, path+".network")
		if cell.Network.VPC == "" && slices.Contains(regions, cell.Region) && partition(cell.Region) == china {
			c.problem(path+".network", "cannot be made in China, where VPC endpoints have other names: give an "+
				"existing VPC that has them, with "+"vpc and subnets")
		}
		if given {
			cell.checkCacheReachable(c, path+".cache.endpoint", d.Cells[:i])
		}
		if most := cell.Cache.maxInstances(); !given && cell.MaxInstances > most &&
			cell.MaxInstances <= maxConcurrency {
			c.problem(path+".maxInstances", "%d instances may open %d connections each to a node, in addition to "+
				"those of "+"ops, but %s accepts those of %d: use a larger node, or more cells",
				cell.MaxInstances, Connections, cell.Cache.Node, most)
		}
		d.checkEgress(c, cell, path)
	}
}

// checkCacheReachable checks that an existing cache comes with an existing VPC, and that no earlier cell uses the same
// cache.
func (cell *Cell) checkCacheReachable(c *checks, path string, before []Cell) {
	if cell.Network.VPC == "" && len(cell.Network.Subnets) == 0 {
		c.problem(path, "names an existing cache, which cannot be in a VPC that is yet to be made: give the cache's "+
			"VPC, with "+"network: { vpc, subnets }; or leave out endpoint, and a cache is made")
	}
	for i := range before {
		if other := &before[i]; other.Profile == Full && other.Cache.Endpoint == cell.Cache.Endpoint &&
			other.Network.VPC == cell.Network.VPC {
			c.problem(path, "is the cache of cell %s, too, and cells would overwrite each other's counters: give "+
				"each cell a cache of its own",
				configfile.Quote(other.ID))
		}
	}
}

// checkEgress reports what a cell without a route to the internet needs but cannot reach from its VPC.
func (d *Deployment) checkEgress(c *checks, cell *Cell, path string) {
	if cell.Network.Egress != EgressNone {
		return
	}
	if len(cell.Issuers) > 0 {
		c.problem(path+".issuers", "their keys are on the internet, which the cell's VPC cannot reach: set "+
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
		cache.checkGiven(c, path)
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
	setDefault(&cache.Node, defaultNode)
	setDefault(&cache.Auth, AuthIAM)
	setDefault(&cache.SnapshotDays, 1)
	c.text(path+".node", cache.Node, "a type of node such as "+defaultNode, nodeTypes.MatchString)
	c.oneOf(path+".auth", cache.Auth, AuthIAM, AuthSecret)
	c.inRange(path+".snapshotDays", cache.SnapshotDays, 1, maxSnapshotDays)
	if cache.Shards > 1 && !cache.Cluster {
		c.problem(path+".shards", "%d shards are a cluster: say cluster: true", cache.Shards)
	}
	setDefault(&cache.Shards, 1)
	c.inRange(path+".shards", cache.Shards, 1, maxShards)
}

// checkGiven checks the settings of a cache that exists already.
func (cache *Valkey) checkGiven(c *checks, path string) {
	host, port, err := net.SplitHostPort(cache.Endpoint)
	if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || n == 0 || !hosts.MatchString(host) {
		// the value is left out: it may contain a password
		c.problem(path+".endpoint", "is not host:port, such as cache.example.com:6379")
	}
	for _, of := range []struct {
		key  string
		said bool
	}{{"node", cache.Node != ""}, {"shards", cache.Shards != 0}, {"snapshotDays", cache.SnapshotDays != 0}} {
		if of.said {
			c.problem(path+"."+of.key, "is only for a cache that is made, but endpoint names an existing cache")
		}
	}
	if cache.PlainText && cache.Auth != AuthNone && cache.Auth != "" && !loopback(host) {
		c.problem(path+".tls", "must be true: the functions' credentials must not be sent unencrypted")
	}
	if cache.SecurityGroup != "" {
		c.text(path+".securityGroup", cache.SecurityGroup, "the id of a security group", groups.MatchString)
	}
	cache.checkAuth(c, path)
}

// checkAuth checks how functions authenticate to an existing cache.
func (cache *Valkey) checkAuth(c *checks, path string) {
	if cache.Auth == "" {
		c.problem(path+".auth", "is missing: say how functions authenticate to the cache, by one of %s, %s, %s",
			AuthIAM,
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
			c.problem(path+"."+of.key, "is missing, but auth: %s needs it", of.auth)
		case cache.Auth == of.auth && !of.ok(of.value):
			c.problem(path+"."+of.key, "is not %s", of.want) // the value is left out: it may be a password
		case cache.Auth != of.auth && of.value != "":
			c.problem(path+"."+of.key, "is only for auth: %s", of.auth)
		}
	}
}

// loopback reports whether a host is the local machine, which functions in LocalStack may use.
func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// Port returns the port of Endpoint, or 0 if the cache is made.
func (cache *Valkey) Port() int {
	_, port, _ := net.SplitHostPort(cache.Endpoint)
	n, _ := strconv.Atoi(port) // complete has checked it
	return n
}

// maxInstances returns how many instances of the authorizer can connect to a node of the cache that is made. Each
// instance may connect to every shard.
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
	setDefault(&n.Egress, EgressNone)
	c.oneOf(path+".egress", n.Egress, EgressNone, EgressNAT)
	if n.VPC != "" || len(n.Subnets) > 0 {
		c.text(path+".vpc", n.VPC, "the id of a VPC", vpcs.MatchString)
		c.texts(path+".subnets", n.Subnets, "the id of a subnet", subnets.MatchString)
		if len(n.Subnets) < minZones || len(n.Subnets) > maxZones {
			c.problem(path+".subnets", "there are %d, want one subnet in each of %d or %d zones", len(n.Subnets),
				minZones,
				maxZones)
		}
		if n.Zones != 0 || n.CIDR != "" {
			c.problem(path+".vpc", "names an existing VPC: leave out zones and cidr, which are for a VPC that is made")
		}
		if n.FlowLogs {
			c.problem(path+".flowLogs", "are for a VPC that is made: turn on flow logs of an existing VPC where you "+
				"manage it")
		}
		return
	}
	setDefault(&n.Zones, minZones)
	setDefault(&n.CIDR, defaultCIDR)
	c.inRange(path+".zones", n.Zones, minZones, maxZones)
	c.text(path+".cidr", n.CIDR, "a private range of /16 to /24 such as "+defaultCIDR, func(s string) bool {
		p, err := netip.ParsePrefix(s)
		return err == nil && p == p.Masked() && p.Addr().Is4() && p.Addr().IsPrivate() && p.Bits() >= minCIDR &&
			p.Bits() <= maxCIDR
	})
}

// Ranges returns the address ranges of the network's subnets, all of one size: the private ones of each zone, and as
// many public ones, which only a VPC with NAT gateways has. The range of a zone does not depend on how many zones the
// network has.
func (n *Network) Ranges() (private, public []string) {
	whole, err := netip.ParsePrefix(n.CIDR)
	if err != nil { // not reached: complete has checked it
		return nil, nil
	}
	const bits = 3 // 2^3 = 8 ranges: four private and four public; a network has at most three zones
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
