package redis

import (
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// headBytes is the length of a tier's head in a pack: the algorithm, half a SHA-256 of the tier's identity, and the
// rate by which its state is counted (see rateOf).
const headBytes = 25

// refundMark begins the head of a record that holds the total of a token bucket's refunds, as two numbers: units, and a
// multiple of refundEra.
const refundMark = 128 + byte(limit.TokenBucket)

// leasedMark begins the head of a record that says how many units of a token bucket are leased, and until when.
const leasedMark = 192 + byte(limit.TokenBucket)

// lateMark begins the head of a record that says how many grains (1/den units) of the leases of the slot that ended
// last may still be given back to a token bucket, and when that slot ended.
const lateMark = 224 + byte(limit.TokenBucket)

// The versions of packs that this package reads and writes. A pack has versionLeased while one of the tiers in front
// has a lease mark or a late mark. The generated scripts know only version, so they decline such a pack.
const (
	version       = "SLU5"
	versionLeased = "SLU6"
)

// refundEra is added to the total of a bucket's refunds if the bucket's rate changes after a refund, so that receipts
// from before the change give nothing back. The core adds the same. The units of a mark stay below refundEra.
const refundEra = 1 << 52

// markID returns the first 17 bytes of the head of one of a tier's marks.
func markID(mark byte, t *limit.Tier) string {
	digest := t.Digest()
	return string(append([]byte{mark}, digest[:]...))
}

// findRecord returns where the state of a record begins, among records that each have a head, or −1.
func findRecord(records, id string) int {
	for at := 0; at+recordHeadBytes <= len(records); at += lengthOfRecord(records[at]) {
		if records[at:at+17] == id {
			return at + recordHeadBytes
		}
	}
	return -1
}

// recordHeadBytes is how many bytes of a record precede its state: its head, and the time until which it may influence
// a decision.
const recordHeadBytes = headBytes + 8

// lengthOfRecord returns the length of a record whose head begins with kind.
func lengthOfRecord(kind byte) int {
	width := markWidth
	if int(kind) < len(algorithms) && algorithms[kind].width != 0 {
		width = algorithms[kind].width
	}
	return recordHeadBytes + 8*width
}

// markWidth is how many doubles the state of a mark has.
const markWidth = 2

// areWholeRecords reports whether a text consists of complete records.
func areWholeRecords(records string) bool {
	at := 0
	for at+recordHeadBytes <= len(records) {
		at += lengthOfRecord(records[at])
	}
	return at == len(records)
}
