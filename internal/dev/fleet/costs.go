package fleet

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
)

// Costs are the model's assumptions of how long each part of a decision takes. A field that is 0 selects its default.
type Costs struct {
	// Local is the processor time of a decision from leases. Measured: make calibrate.
	Local time.Duration `json:"localNanoseconds,omitempty"`

	// StoreService is how long a node of Redis is busy with one call. Measured: make calibrate.
	StoreService time.Duration `json:"storeServiceNanoseconds,omitempty"`

	// RoundTrip is the time that a call spends in the network. It is not measured: docs/scale.md says where it comes
	// from.
	RoundTrip time.Duration `json:"roundTripNanoseconds,omitempty"`

	// Deadline is how long a process waits for a call. Its default is the timeout of the Redis store.
	Deadline time.Duration `json:"deadlineNanoseconds,omitempty"`

	// DynamoDBRoundTrip is how long a call to DynamoDB takes, which is not measured either. DynamoDBDeadline is how
	// long a process waits for a decision of the DynamoDB store, which makes one or more calls. Both are used only if
	// the store is DynamoDB.
	DynamoDBRoundTrip time.Duration `json:"dynamodbRoundTripNanoseconds,omitempty"`
	DynamoDBDeadline  time.Duration `json:"dynamodbDeadlineNanoseconds,omitempty"`
}

// withDefaults returns the costs with defaults in place of the zeros that a scenario with the given store needs.
func (c Costs) withDefaults(store Store) Costs {
	setDefault(&c.Local, 300*time.Nanosecond)
	if store == DynamoDB {
		setDefault(&c.DynamoDBRoundTrip, 5*time.Millisecond)
		setDefault(&c.DynamoDBDeadline, dynamodb.DefaultTimeout)
		return c
	}
	setDefault(&c.StoreService, 5*time.Microsecond)
	setDefault(&c.RoundTrip, 500*time.Microsecond)
	setDefault(&c.Deadline, 8*time.Millisecond)
	return c
}

// ReadCosts reads the file that make calibrate writes, strictly.
func ReadCosts(name string, data []byte) (Costs, error) {
	var c Costs
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return c, fmt.Errorf("%s: %w", name, err)
	}
	for _, f := range []struct {
		name  string
		value time.Duration
	}{{"localNanoseconds", c.Local}, {"storeServiceNanoseconds", c.StoreService},
		{"roundTripNanoseconds", c.RoundTrip}, {"deadlineNanoseconds", c.Deadline},
		{"dynamodbRoundTripNanoseconds", c.DynamoDBRoundTrip}, {"dynamodbDeadlineNanoseconds", c.DynamoDBDeadline}} {
		if f.value < 0 || f.value > time.Minute {
			return c, fmt.Errorf("%s: %s %d is outside 0..%d", name, f.name, f.value, time.Minute)
		}
	}
	return c, nil
}
