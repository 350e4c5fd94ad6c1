package limit

// Params are the derived numbers of a tier, for stores that run the algorithms elsewhere (in a script, in conditions).
// Times are µs, amounts units. What an algorithm does not use is zero.
type Params struct {
	Period   int64 // every algorithm but quota
	Capacity int64 // largest cost that can ever fit
	Num, Den int64 // token_bucket, leaky_bucket: Num/Den units per µs, in lowest terms
	Full     int64 // token_bucket: burst·Den
	FullIn   int64 // token_bucket: µs from empty to full
	Tick     int64 // sliding_window: µs per tick of weight
	Ticks    int64 // sliding_window: ticks per period
	Width    int64 // sliding_buckets: µs per bucket
	Buckets  int64 // sliding_buckets: n
	Offset   int64 // fixed_window, sliding_window: where this owner's windows begin after the wall clock's
	Slot     int64 // token_bucket, sliding_window: µs between the times at which leases, or ramps, end
}

// Params returns the tier's numbers for an owner.
func (t *Tier) Params(owner Owner) Params {
	return Params{
		Period: t.period, Capacity: t.capacity, Num: t.num, Den: t.den, Full: t.full, FullIn: t.fullIn,
		Tick: t.tick, Ticks: t.ticks, Width: t.width, Buckets: int64(t.Buckets), Offset: t.alignOffset(owner.Name),
		Slot: t.slot,
	}
}

// SlotOffset is where the slots of an owner's token bucket begin, µs after multiples of [Params].Slot since 1970.
func (t *Tier) SlotOffset(owner Owner) int64 { return t.slotOffset(owner.Name) }

func (t *Tier) slotOffset(owner string) int64 { return int64(hashText(owner) % uint64(t.slot)) }
