package delivery_test

import (
	"context"
	"errors"
	"testing"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/streams/delivery"
)

// decoded is a decoder with a fixed answer.
type decoded struct {
	deliveries []control.Delivery
	err        error
}

func (d decoded) Decode([]byte) ([]control.Delivery, error) { return d.deliveries, d.err }

// Guarantees that the answer names the first record to deliver again, and that the whole batch is delivered again, with
// an error that says whose it is, if no record can be named.
func TestInvoke(t *testing.T) {
	gone := errors.New("gone")
	batch := []control.Delivery{{Sequence: "7"}, {Sequence: "8"}, {}}
	for _, c := range []struct {
		decoder decoded
		done    int
		err     error
		want    string
		fails   string
	}{
		{decoded{deliveries: batch}, 3, nil, `{"batchItemFailures":[]}`, ""},
		{decoded{deliveries: batch}, 0, gone, `{"batchItemFailures":[{"itemIdentifier":"7"}]}`, ""},
		{decoded{deliveries: batch}, 1, gone, `{"batchItemFailures":[{"itemIdentifier":"8"}]}`, ""},
		{decoded{deliveries: batch}, 2, gone, "", "name: a record without a sequence number: gone"},
		{decoded{err: gone}, 0, nil, "", "name: gone"},
	} {
		got, err := delivery.InvokeStream(context.Background(), "name", c.decoder, nil,
			func(_ context.Context, d []control.Delivery) (int, error) {
				if c.decoder.err != nil || len(d) != len(batch) {
					t.Errorf("%d records are handled after %v", len(d), c.decoder.err)
				}
				return c.done, c.err
			})
		if string(got) != c.want || (err == nil) != (c.fails == "") || err != nil &&
			(err.Error() != c.fails || !errors.Is(err, gone)) {
			t.Errorf("%d done, %v: %s, %v; want %s, %q", c.done, c.err, got, err, c.want, c.fails)
		}
	}
}
