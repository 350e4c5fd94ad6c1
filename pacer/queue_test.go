package pacer

import (
	"fmt"
	"testing"
	"time"
)

// Keys whose tickets expire or are canceled are forgotten, although nothing is served and another ticket waits all the
// time, as while the store of a shared limit is away.
func TestKeysAreForgottenWhileNothingIsServed(t *testing.T) {
	for _, expire := range []bool{true, false} {
		q := newQueue()
		q.push("waits for ever", 1, never, nil)
		for i := range 10_000 {
			now := time.Duration(i) * ms
			q.push(fmt.Sprint(i), 1, now+time.Second, nil)
			if !expire {
				q.remove(q.latest.node)
			}
			for e := q.expired(now); e != 0; e = q.expired(now) {
				q.remove(e)
			}
		}
		if len(q.keys) > 1100 {
			t.Errorf("expire %t: the queue remembers %d keys, of which %d have tickets", expire, len(q.keys),
				len(q.busy.items))
		}
	}
}
