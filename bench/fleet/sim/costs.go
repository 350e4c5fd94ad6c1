package sim

import "time"

// Costs are the model's assumptions of how long each part of a decision takes. A field that is 0 selects its default.
type Costs struct {
	// Local is the processor time of a decision from leases. The figures measure it.
	Local time.Duration `json:"localNanoseconds,omitempty"`

	// StoreService is how long a node of Redis is busy with one call. The figures measure it.
	StoreService time.Duration `json:"storeServiceNanoseconds,omitempty"`

	// RoundTrip is the time that a call spends in the network. It is not measured: docs/scale.md says where it comes
	// from.
	RoundTrip time.Duration `json:"roundTripNanoseconds,omitempty"`

	// Deadline is how long a process waits for a call. Its default is the timeout of the Redis store.
	Deadline time.Duration `json:"deadlineNanoseconds,omitempty"`
}

// withDefaults returns the costs with defaults in place of zeros.
func (c Costs) withDefaults() Costs {
	setDefault(&c.Local, 300*time.Nanosecond)
	setDefault(&c.StoreService, 5*time.Microsecond)
	setDefault(&c.RoundTrip, 500*time.Microsecond)
	setDefault(&c.Deadline, 8*time.Millisecond)
	return c
}
