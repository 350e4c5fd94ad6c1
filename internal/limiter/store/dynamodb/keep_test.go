package dynamodb_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

// Guarantees that the value which a store keeps is the same for all processes, though each brings its own at the same
// moment, and that namespaces have values of their own.
func TestKeep(t *testing.T) {
	client := server(t)
	for range 2 {
		c := config(client) // with a namespace of its own
		var mu sync.Mutex
		var many sync.WaitGroup
		seen := map[string]bool{}
		keep := func(value string) {
			kept, place, err := open(t, c).Keep(t.Context(), "name", []byte(value))
			if err != nil || !strings.Contains(place, c.Table) || !strings.HasPrefix(string(kept), c.Namespace) {
				t.Errorf("%q, %s, %v", kept, place, err)
			}
			mu.Lock()
			defer mu.Unlock()
			seen[string(kept)] = true
		}
		for i := range 8 {
			many.Go(func() { keep(fmt.Sprintf("%s %d", c.Namespace, i)) })
		}
		many.Wait()
		keep("later")
		if len(seen) != 1 {
			t.Errorf("nine processes got %v", seen)
		}
	}
}
