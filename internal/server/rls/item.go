package rls

import (
	"crypto/sha256"
	"encoding/base64"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/server/envoyconfig"
)

// item is one descriptor of a request: what applies to it, and what was decided.
type item struct {
	rule      *envoyconfig.Rule // nil if no limit applies
	unlimited bool
	quota     bool // has quota_mode, by itself or by the service's
	stats     *Counts
	owner     limit.Owner
	hits      int64 // 0..limit.MaxUnits
	negative  bool  // the hits are given back

	planned *planned // of a descriptor that a plan decides; otherwise nil

	state    state
	never    bool // over, and no wait would help
	decision limit.Decision
	known    bool // decision says how the counters stand
}

// state is what became of an item.
type state uint8

const (
	undecided state = iota
	charged         // its hits are counted, and fit
	passed          // its hits fit, and are not counted
	over            // its hits do not fit
)

// counts reports whether the item has counters.
func (it *item) counts() bool { return it.rule != nil && !it.unlimited }

// denies reports whether the item alone can deny the request.
func (it *item) denies() bool { return it.counts() && !it.quota && !it.rule.ShadowMode }

// reset makes the item one of a descriptor that no limit applies to. Its memory is kept.
func (it *item) reset() {
	it.rule, it.stats, it.owner = nil, nil, limit.Owner{}
	if it.planned != nil && it.planned.answer != nil {
		it.planned.answer.Release()
	}
	it.planned = nil
	it.unlimited, it.quota, it.negative, it.never, it.known = false, false, false, false, false
	it.hits, it.state = 0, undecided
}

// setHits reads how many hits the descriptor asks for. Above limit.MaxUnits no limit can admit them, whatever their
// number is.
func (it *item) setHits(d *ratelimitv3.RateLimitDescriptor, req *rlsv3.RateLimitRequest) {
	hits := uint64(max(1, req.GetHitsAddend()))
	if own := d.GetHitsAddend(); own != nil {
		hits = own.GetValue()
	}
	it.hits, it.negative = int64(min(hits, limit.MaxUnits)), d.GetIsNegativeHits()
}

// keys by which Envoy's own actions send the address of a client.
const (
	remoteAddress       = "remote_address"
	maskedRemoteAddress = "masked_remote_address"
)

// ownerOf returns who the counters of a descriptor belong to. A descriptor with the address of a client is an owner of
// the kind Address: a client can have many addresses, and when the memory of a store is used up, they share counters
// instead of taking the room of others.
func ownerOf(key []byte, entries []envoyconfig.Entry) limit.Owner {
	o := limit.Owner{Kind: limit.AnyKey}
	for i := range entries {
		if entries[i].Key == remoteAddress || entries[i].Key == maskedRemoteAddress {
			o.Kind = limit.Address
		}
	}
	if len(key) <= limit.MaxNameBytes {
		o.Name = string(key)
		return o
	}
	// A name that is too long is told by its hash. No other name begins with "#": a netstring begins with a digit.
	sum := sha256.Sum256(key)
	o.Name = "#" + base64.RawURLEncoding.EncodeToString(sum[:])
	return o
}
