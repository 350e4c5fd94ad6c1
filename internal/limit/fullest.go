package limit

// Fullest is what the fullest counter of an allowed decision has taken in, in thousandths of what its limit holds, rounded down:
// above 1000 where more was admitted than that. Shadows do not count. It is 0 where the decision denies, or was made without the
// store.
func (d *Decision) Fullest() int64 {
	if !d.Allowed || d.Degraded {
		return 0
	}
	most := int64(0)
	for i := range d.Results {
		if r := &d.Results[i]; !r.shadow {
			used := max(r.Used(), 0)
			most = max(most, used/r.Tier.capacity*1000+used%r.Tier.capacity*1000/r.Tier.capacity)
		}
	}
	return most
}
