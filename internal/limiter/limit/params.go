package limit

// Params are the derived numbers of a tier, for stores that run the algorithms elsewhere (in a script, in conditions).
// Times are µs, amounts units. What an algorithm does not use is zero.
type Params struct {
	Period     int64 // every algorithm but quota
	Capacity   int64 // largest cost that can ever fit
	Num, Den   int64 // token_bucket, leaky_bucket: Num/Den units per µs, in lowest terms
	Full       int64 // token_bucket: burst·Den
	FullIn     int64 // token_bucket: µs from empty to full
	Tick       int64 // sliding_window: µs per tick of weight
	Ticks      int64 // sliding_window: ticks per period
	Width      int64 // sliding_buckets: µs per bucket
	Buckets    int64 // sliding_buckets: n
	Offset     int64 // fixed_window, sliding_window: where this owner's windows begin, µs after multiples of Period
	SlotLength int64 // token_bucket, sliding_window: µs between the times at which leases, or ramps, end
	SlotOffset int64 // token_bucket: where this owner's slots begin, µs after multiples of SlotLength since 1970
}

// Params returns the tier's numbers for an owner.
func (t *Tier) Params(owner Owner) Params {
	p := t.counts.params(owner.Name)
	p.Capacity = t.capacity
	return p
}

// FreshAt is a time, µs since 1970, from which on the state is no different from one that was never used, with MaxSkew
// to spare for clocks that differ. A store may forget the counter then, and never before.
func (t *Tier) FreshAt(s *State) int64 {
	at := t.counts.freshAt(s)
	if at == longAgo {
		return at
	}
	return addSat(at, maxSkew)
}

// CalendarPeriod returns the [Calendar.Period] of a quota that contains now. The tier must have a calendar. Callers
// must not hold a lock: the period may have to be computed.
func (t *Tier) CalendarPeriod(now int64) (start, end int64) {
	p := t.windows.window("", now)
	return p.start, p.end
}
