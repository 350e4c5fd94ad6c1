package rls

import (
	"crypto/sha256"
	"encoding/base64"
	"net/netip"
	"strconv"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/server/envoyconfig"
)

// item is one descriptor of a request, with what applies to it and the outcome.
type item struct {
	rule      *envoyconfig.Rule // nil if no rule applies
	unlimited bool              // the rule admits everything, and nothing is counted
	quota     bool              // the rule or the service has quota_mode
	stats     *Counts           // nil if there is no room for the statistics of another name
	owner     limit.Owner       // whom the counters belong to
	hits      int64             // 0..limit.MaxUnits
	negative  bool              // the hits are to be given back, and not charged; they are 0 or more nevertheless

	planned *planned // set if the descriptor is decided by a tenant's plan

	state         state
	permanent     bool // the state is over, and no wait changes that
	storeRequest  limit.Request
	decision      limit.Decision
	countersKnown bool // decision, or the answer of the plan, says how much the counters have left
}

// state is the outcome for an item.
type state uint8

const (
	undecided state = iota
	charged         // its hits fit, and are charged
	uncharged       // it denies nothing, and its hits are not charged: they were peeked at, refunded, or negative
	over            // its hits do not fit
)

// hasCounters reports whether a limit applies to the item.
func (it *item) hasCounters() bool { return it.rule != nil && !it.unlimited }

// deniesAlone reports whether the item denies the whole request if its hits do not fit, whatever other items say.
func (it *item) deniesAlone() bool { return it.hasCounters() && !it.quota && !it.rule.ShadowMode }

// reset makes the item that of a descriptor to which no rule applies. The memory of its decision is kept for reuse.
func (it *item) reset() {
	it.rule, it.stats, it.owner = nil, nil, limit.Owner{}
	if it.planned != nil && it.planned.answer != nil {
		it.planned.answer.Release()
	}
	it.planned = nil
	it.unlimited, it.quota, it.negative, it.permanent, it.countersKnown = false, false, false, false, false
	it.hits, it.state = 0, undecided
}

// setHits reads the number of hits of the descriptor. A number above limit.MaxUnits becomes limit.MaxUnits: no limit
// admits so many.
func (it *item) setHits(d *ratelimitv3.RateLimitDescriptor, req *rlsv3.RateLimitRequest) {
	hits := uint64(max(1, req.GetHitsAddend()))
	if own := d.GetHitsAddend(); own != nil {
		hits = own.GetValue()
	}
	it.hits, it.negative = int64(min(hits, limit.MaxUnits)), d.GetIsNegativeHits()
}

// The keys of entries in which Envoy's own actions send the address of a client.
const (
	remoteAddress       = "remote_address"
	maskedRemoteAddress = "masked_remote_address"
)

// nameAddresses replaces the address of a client in each entry by a name from which nobody can learn it. An IPv6
// address counts as its network, because one client can use all addresses of a network. If a rule names the value, or
// the values by a wildcard, the address counts as a whole: other addresses of the network have another rule. Whatever
// is no address stays as it is.
func (c *call) nameAddresses() {
	names := c.service.config.Addresses
	for i := range c.entries {
		e := &c.entries[i]
		if names == nil || e.Key != remoteAddress && e.Key != maskedRemoteAddress {
			continue
		}
		address, mask, masked := strings.Cut(e.Value, "/")
		a, err := netip.ParseAddr(address)
		if err != nil {
			continue
		}
		bits, whole := 0, identity.Plain(a)
		if masked {
			if bits, err = strconv.Atoi(mask); err != nil || bits < 0 || bits > a.BitLen() {
				continue
			}
		}
		if prefix := c.service.config.IPv6Prefix; whole.Is6() && !c.match.ByValue(i) && (!masked || bits > prefix) {
			whole, bits = identity.Canonical(whole, prefix), prefix
		}
		e.Value = names.Anonymise(whole)
		if masked { // networks of different sizes can begin with the same address
			e.Value += "/" + strconv.Itoa(bits)
		}
	}
}

// ownerOf returns the owner of a descriptor's counters. If an entry holds the address of a client, the owner is of the
// kind Address: one client can have many addresses, and when the memory of a store is used up, addresses share counters
// and leave the counters of other owners alone. The name is a hash of the key: stores write names into errors and so
// into the log, where no value that a client chose, such as a credential, may appear.
func ownerOf(key []byte, entries []envoyconfig.Entry) limit.Owner {
	o := limit.Owner{Kind: limit.AnyKey}
	for i := range entries {
		if entries[i].Key == remoteAddress || entries[i].Key == maskedRemoteAddress {
			o.Kind = limit.Address
		}
	}
	o.Name = hashOf(key)
	return o
}

// hashOf returns a name for a key of any length. It has 128 bits of the hash: enough that no two keys have one name,
// and short, because a store in memory keeps it for each counter.
func hashOf(key []byte) string {
	sum := sha256.Sum256(key)
	return "#" + base64.RawURLEncoding.EncodeToString(sum[:16])
}
