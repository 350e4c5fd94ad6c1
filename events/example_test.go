package events_test

import (
	"fmt"

	"github.com/sluicelimits/sluice/events"
)

// A subscriber that keeps the newest version of each plan, and counts events that it does not know.
func ExampleDecode() {
	messages := []string{
		`{"type":"plan.changed","version":1,"id":"plans/pro/2","time":"2026-11-21T12:00:00.000000Z","key":"pro",` +
			`"item_version":2,"deleted":false,` +
			`"hash":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",` +
			`"body":{"id":"pro","limits":[]}}`,
		`{"type":"plan.changed","version":1,"id":"plans/pro/1","time":"2026-11-21T11:00:00.000000Z","key":"pro",` +
			`"item_version":1,"deleted":false,` +
			`"hash":"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb","body":{"id":"pro"}}`,
		`{"type":"plan.retired","version":1}`,
		`{"type":"plan.changed","version":1}`,
	}
	newest := make(map[string]int64)
	for _, m := range messages {
		e, err := events.Decode([]byte(m))
		if err != nil {
			fmt.Println("to the failure queue:", err)
			continue
		}
		switch e := e.(type) {
		case *events.Changed:
			if e.ItemVersion <= newest[e.Key] {
				fmt.Println("old news:", e.Header().ID)
				continue
			}
			newest[e.Key] = e.ItemVersion
			fmt.Printf("%s is now %s\n", e.Key, e.Body)
		case *events.Raw:
			fmt.Printf("counted: %s version %d\n", e.Head.Type, e.Head.Version)
		}
	}
	// Output:
	// pro is now {"id":"pro","limits":[]}
	// old news: plans/pro/1
	// counted: plan.retired version 1
	// to the failure queue: malformed event: key: missing
}
