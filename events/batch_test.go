package events_test

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/events"
)

// Guarantees that the batches contain every message once and in order, that each batch fits into one call of SNS, and
// that there are as few batches as possible: each further call would cost money and time at each burst of changes.
func TestBatches(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 500 {
		messages := make([][]byte, r.IntN(60))
		for i := range messages {
			size := r.IntN(2000)
			if r.IntN(3) == 0 {
				size = r.IntN(events.MaxBytes + 1)
			}
			messages[i] = make([]byte, size)
		}
		batches, err := events.Batches(messages)
		if err != nil {
			t.Fatal(err)
		}
		at := 0
		for _, b := range batches {
			if b.From != at || b.To <= b.From {
				t.Fatalf("batch %+v follows message %d of %d", b, at, len(messages))
			}
			if size := total(messages[b.From:b.To]); size > events.MaxBatchBytes ||
				b.To-b.From > events.MaxBatchEntries {
				t.Fatalf("batch %+v has %d bytes", b, size)
			}
			at = b.To
		}
		if at != len(messages) {
			t.Fatalf("%d of %d messages are in a batch", at, len(messages))
		}
		if want := fewestBatches(messages); len(batches) != want {
			t.Fatalf("%d batches, and %d would do", len(batches), want)
		}
	}
}

func total(messages [][]byte) (n int) {
	for _, m := range messages {
		n += len(m) + events.AttributeBytes
	}
	return n
}

// fewestBatches returns the least possible number of batches, by trying every division of the messages.
func fewestBatches(messages [][]byte) int {
	best := make([]int, len(messages)+1)
	for n := 1; n <= len(messages); n++ {
		best[n] = n
		for from := max(0, n-events.MaxBatchEntries); from < n; from++ {
			if total(messages[from:n]) <= events.MaxBatchBytes {
				best[n] = min(best[n], best[from]+1)
			}
		}
	}
	return best[len(messages)]
}

func TestBatchesRefuses(t *testing.T) {
	_, err := events.Batches([][]byte{nil, make([]byte, events.MaxBatchBytes)})
	if !errors.Is(err, events.ErrTooLarge) || !strings.Contains(err.Error(), "message 1") {
		t.Errorf("a message that fits nowhere: %v", err)
	}
	if b, err := events.Batches(nil); err != nil || len(b) != 0 {
		t.Errorf("no messages: %v, %v", b, err)
	}
	if b, err := events.Batches([][]byte{make([]byte, events.MaxBytes)}); err != nil || len(b) != 1 {
		t.Errorf("the largest event: %v, %v", b, err)
	}
}

// Guarantees that the attributes of any event, including an unknown one, fit into the bytes that are reserved for them.
func TestAttributesFit(t *testing.T) {
	h := events.Header{Type: events.Type(strings.Repeat("x", events.MaxTypeBytes)), Version: events.MaxVersion}
	size := 0
	for name, value := range events.Attributes(h) {
		size += len(name) + len(value) + len("String")
	}
	if size > events.AttributeBytes {
		t.Errorf("attributes take %d bytes, set aside are %d", size, events.AttributeBytes)
	}
}
