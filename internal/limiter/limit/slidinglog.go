package limit

// SlidingLog remembers the time of each charge, and admits a cost if no more than the threshold was charged in the last
// period, to the µs. It is exact in any interval, and needs memory for each charge.
//
// See the type log for all that it shares with sliding buckets.
const SlidingLog Algorithm = 4

// Sliding buckets count each unit for longer than a log does.
var slidingLogKind = kind{
	name: "sliding_log", letter: 's', amountField: amountThreshold, largest: MaxLogEntries, new: newSlidingLog,
	stricter: []Algorithm{SlidingBuckets},
}

type slidingLog struct{ log }

// newSlidingLog makes a log in which units that are charged at a time t count as long as t > now − period.
func newSlidingLog(t *Tier, _ *Limit, _ report) algorithm {
	period := t.Period.Microseconds()
	return &slidingLog{log{threshold: t.Threshold, period: period, width: 1, lasts: period}}
}

func (l *slidingLog) params(string) Params { return Params{Period: l.period} }

func (l *slidingLog) counting() Counting {
	return Counting{Lasts: l.lasts, Entries: true, EachCharge: true}
}
